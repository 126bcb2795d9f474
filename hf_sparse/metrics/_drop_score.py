"""DROP: how many source words the reference translates and the prediction does not."""

from __future__ import annotations

from collections.abc import Sequence

from ._links import Links, check_pairs


def drop_score(prediction_links: Sequence[Links], reference_links: Sequence[Links], *, strict: bool = True) -> float:
    """``100 * |A_ref minus A_mt| / |A_ref|``, where A is the set of source words with at least one link.

    Args:
        prediction_links: for each sentence the links ``(source position, target position)`` of the source with the
            predicted translation, from the same aligner as the others; see ``hf_sparse.fertility.WordAligner``.
        reference_links: the links of the source with the reference translation.
        strict: raise where the score is undefined, because no reference has a link; otherwise give NaN.

    Returns:
        The score of the corpus in percent; lower is better.

    Raises:
        ValueError: sentences that do not pair up, a negative position, or no links in the references (``strict``).

    Source: Malaviya et al. 2018, Section 5, DROP-score. Their script counts a sentence without links as one dropped
    word, and stops at the shorter of two files without a word.

    >>> drop_score([[(0, 0)]], [[(0, 0), (2, 1)]])
    50.0
    """
    check_pairs(prediction_links, reference_links)
    translated = [{source for source, _ in links} for links in prediction_links]
    expected = [{source for source, _ in links} for links in reference_links]
    total = sum(map(len, expected))
    if total == 0 and strict:
        raise ValueError("the references have no links, so DROP is undefined; strict=False gives NaN")
    if total == 0:
        return float("nan")
    return 100 * sum(len(a - b) for a, b in zip(expected, translated)) / total
