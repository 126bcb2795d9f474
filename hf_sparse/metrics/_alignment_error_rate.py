"""Alignment error rate."""

from __future__ import annotations

from collections.abc import Sequence

from ._links import Links, check_pairs


def alignment_error_rate(
    predictions: Sequence[Links],
    sure: Sequence[Links],
    possible: Sequence[Links] | None = None,
    *,
    strict: bool = True,
) -> float:
    """``1 - (|A and S| + |A and P|) / (|A| + |S|)`` over the corpus; P contains S.

    Args:
        predictions: A, for each sentence its links ``(source position, target position)``. Attention gives such links
            by its largest weight, or by its nonzero ones.
        sure: S, links an annotator is sure of.
        possible: further links that are no error; None for none. Sure ones are possible too, listed here or not.
        strict: raise where the rate is undefined, because neither A nor S has a link; otherwise give NaN.

    Returns:
        The rate, in [0, 1]; lower is better.

    Raises:
        ValueError: sentences that do not pair up, a negative position, or no links at all (``strict``).

    Source: Och and Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models", Eq. 22.

    >>> alignment_error_rate([[(0, 0), (1, 1)]], [[(0, 0)]], [[(2, 1)]])
    0.33333333333333337
    """
    possible = [()] * len(sure) if possible is None else possible
    check_pairs(predictions, sure)
    check_pairs(predictions, possible)
    links = sum(len(set(a)) + len(set(s)) for a, s in zip(predictions, sure))
    if links == 0 and strict:
        raise ValueError("there are no links, so the alignment error rate is undefined; strict=False gives NaN")
    if links == 0:
        return float("nan")
    right = sum(len(set(a) & set(s)) + len(set(a) & (set(s) | set(p))) for a, s, p in zip(predictions, sure, possible))
    return 1 - right / links
