"""DROP-score for ``evaluate``; the score itself is ``hf_sparse.metrics.drop_score``."""

import datasets
import evaluate

from hf_sparse.metrics import drop_score, parse_links

CITATION = """Malaviya, Ferreira and Martins 2018, Sparse and Constrained Attention for Neural Machine Translation,
ACL, Section 5."""
INPUTS = """
Args:
    predictions: for each sentence the links of the source with the predicted translation, as fast_align writes them:
        "0-0 2-1", source position first, counted from 0; possible links "0?0" count as links.
    references: the links of the source with the reference translation, by the same aligner.
    strict: raise (True) or give NaN (False) where no reference has a link.

Returns:
    drop: percentage of the source words linked with the reference that the prediction leaves out; lower is better.
"""


class Drop(evaluate.Metric):
    """Source words that the reference translates and the prediction does not."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=self.__doc__,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": text, "references": text}),
        )

    def _compute(self, predictions: list[str], references: list[str], strict: bool = True) -> dict[str, float]:
        links = ([set.union(*parse_links(line)) for line in corpus] for corpus in (predictions, references))
        return {"drop": drop_score(*links, strict=strict)}
