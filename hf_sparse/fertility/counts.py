"""Fertilities counted from word alignments."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

from ..functional.arguments import check_pairs
from .aligner import Links


def fertility_counts(links: Sequence[Links], lengths: Sequence[int]) -> list[list[int]]:
    """Number of target words aligned to each source word: its fertility (Brown et al. 1993).

    Args:
        links: for each sentence its links ``(source position, target position)``, as ``WordAligner.align`` returns
            them.
        lengths: number of source words in each sentence.

    Returns:
        For each sentence one count per source word, 0 for a word without a link.

    Raises:
        ValueError: not one length per sentence, or a link outside its sentence.

    >>> fertility_counts([[(0, 0), (2, 1), (2, 2)]], [3])
    [[1, 0, 2]]
    """
    check_pairs("links", links, "lengths", lengths)
    counts = [[0] * length for length in lengths]
    for number, (sentence, row) in enumerate(zip(links, counts)):
        for source, _ in {(index(source), index(target)) for source, target in sentence}:  # tensors equal no other
            if not 0 <= source < len(row):
                raise ValueError(f"sentence {number} links source word {source}, but has {len(row)}")
            row[source] += 1
    return counts


def check_counts(input_ids: Sequence[Sequence[int]], counts: Sequence[Sequence[int]]) -> None:
    """Refuse what is not one count for each token of each sentence.

    Raises:
        ValueError: another number of counts, or one below 0.
        TypeError: a count that is no whole number.
    """
    tokens, counted = [len(row) for row in input_ids], [len(row) for row in counts]
    check_pairs("input_ids", tokens, "counts", counted)
    for number, (wanted, given) in enumerate(zip(tokens, counted)):
        if wanted != given:
            raise ValueError(
                f"input_ids and counts must have one count for each token, but sentence {number} has {wanted} tokens "
                f"and {given} counts"
            )
    for number, row in enumerate(counts):
        for count in row:
            try:
                whole = index(count)
            except TypeError as error:
                raise TypeError(f"counts must be whole numbers, was {count!r} in sentence {number}") from error
            if whole < 0:
                raise ValueError(f"counts must be at least 0, was {count!r} in sentence {number}")
