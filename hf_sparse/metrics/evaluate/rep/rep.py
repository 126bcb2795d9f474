"""REP-score for ``evaluate``; the score itself is ``hf_sparse.metrics.rep_score``."""

import datasets
import evaluate

from hf_sparse.metrics import rep_score

CITATION = """Malaviya, Ferreira and Martins 2018, Sparse and Constrained Attention for Neural Machine Translation,
ACL, Section 5."""
INPUTS = """
Args:
    predictions: translations, words between spaces: tokenize them as your paper does.
    references: one reference translation per prediction, tokenized likewise.
    n, ngram_weight, word_weight: of the formula; 2, 1 and 2 in the paper.
    strict: raise (True) or give NaN (False) where no reference has a word.

Returns:
    rep: repetitions per hundred reference words; lower is better.
"""


class Rep(evaluate.Metric):
    """Repetitions in translations that their references do not have."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=self.__doc__,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": text, "references": text}),
        )

    def _compute(
        self,
        predictions: list[str],
        references: list[str],
        n: int = 2,
        ngram_weight: float = 1.0,
        word_weight: float = 2.0,
        strict: bool = True,
    ) -> dict[str, float]:
        words = ([sentence.split() for sentence in corpus] for corpus in (predictions, references))
        return {"rep": rep_score(*words, n=n, ngram_weight=ngram_weight, word_weight=word_weight, strict=strict)}
