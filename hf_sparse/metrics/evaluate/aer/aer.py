"""Alignment error rate for ``evaluate``; the rate itself is ``hf_sparse.metrics.alignment_error_rate``."""

import datasets
import evaluate

from hf_sparse.metrics import alignment_error_rate, parse_links

CITATION = """Och and Ney 2003, A Systematic Comparison of Various Statistical Alignment Models, Computational
Linguistics 29(1), Eq. 22."""
INPUTS = """
Args:
    predictions: for each sentence its links, "0-0 2-1", source position first, counted from 0.
    references: annotated links, sure ones "0-0" and possible ones "0?0".
    strict: raise (True) or give NaN (False) where there are no links at all.

Returns:
    aer: the rate, in [0, 1]; lower is better.
"""


class Aer(evaluate.Metric):
    """Disagreement of word alignments with annotated ones."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=self.__doc__,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": text, "references": text}),
        )

    def _compute(self, predictions: list[str], references: list[str], strict: bool = True) -> dict[str, float]:
        found = [set.union(*parse_links(line)) for line in predictions]
        annotated = [parse_links(line) for line in references]
        sure, possible = [links for links, _ in annotated], [links for _, links in annotated]
        return {"aer": alignment_error_rate(found, sure, possible, strict=strict)}
