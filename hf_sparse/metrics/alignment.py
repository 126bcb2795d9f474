"""Metrics of word alignments and of attention: links, alignment error rate, dropped and attended source words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from operator import index
from typing import TypeAlias

from torch import Tensor

from ..functional.arguments import check_pairs, check_tensor, check_text

# Links (source position, target position) of one sentence pair; a tensor (links, 2) is one, as ``nonzero`` gives it.
Alignment: TypeAlias = Iterable[tuple[int, int]] | Tensor

_LINK = re.compile(r"(\d+)([-?])(\d+)")


def parse_links(line: str) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Read one sentence's links from text: ``0-0 2-1 2?2``, source position first, from 0; ``?`` marks possible ones.

    Args:
        line: links between spaces, as fast_align writes them; empty for none.

    Returns:
        Sure links, and possible links that are not sure.

    Raises:
        ValueError: anything else.
        TypeError: no text.

    >>> parse_links("0-0 2?1")
    ({(0, 0)}, {(2, 1)})
    """
    check_text("line", line)
    links: dict[str, set[tuple[int, int]]] = {"-": set(), "?": set()}
    for piece in line.split():
        match = _LINK.fullmatch(piece)
        if match is None:
            raise ValueError(f"expected links such as '0-0' (sure) or '0?0' (possible), was {piece!r} in {line!r}")
        links[match[2]].add((int(match[1]), int(match[3])))
    return links["-"], links["?"] - links["-"]


def alignment_error_rate(
    predictions: Sequence[Alignment],
    sure: Sequence[Alignment],
    possible: Sequence[Alignment] | None = None,
    *,
    strict: bool = True,
) -> float:
    """``1 - (|A and S| + |A and P|) / (|A| + |S|)`` over the corpus; P contains S.

    Args:
        predictions: A, for each sentence its links ``(source position, target position)``. Attention gives links by
            its largest weight or by its nonzero weights.
        sure: S, links an annotator is sure of.
        possible: further links that are no errors; None for none. Sure ones are possible too, listed here or not.
        strict: raise where the rate is undefined, because neither A nor S has a link; otherwise give NaN.

    Returns:
        The rate, in [0, 1]; lower is better.

    Raises:
        TypeError: links that are not pairs of whole numbers.
        ValueError: sentences that do not pair up, a negative position, or no links at all (``strict``).

    Source: Och and Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models", Eq. 22.

    >>> alignment_error_rate([[(0, 0), (1, 1)]], [[(0, 0)]], [[(2, 1)]])
    0.33333333333333337
    """
    found, certain = _paired(predictions, sure)
    allowed = [set()] * len(found) if possible is None else _paired(predictions, possible)[1]
    links = sum(len(a) + len(s) for a, s in zip(found, certain))
    if links == 0 and strict:
        raise ValueError("there are no links, so the alignment error rate is undefined; strict=False gives NaN")
    if links == 0:
        return float("nan")
    right = sum(len(a & s) + len(a & (s | p)) for a, s, p in zip(found, certain, allowed))
    return 1 - right / links


def drop_score(
    prediction_links: Sequence[Alignment], reference_links: Sequence[Alignment], *, strict: bool = True
) -> float:
    """``100 * |A_ref minus A_mt| / |A_ref|``, where A is the set of source words with at least one link.

    Args:
        prediction_links: for each sentence the links ``(source position, target position)`` of the source with the
            predicted translation, from the same aligner as ``reference_links`` (``hf_sparse.fertility.WordAligner``).
        reference_links: the links of the source with the reference translation.
        strict: raise where the score is undefined, because no reference has a link; otherwise give NaN.

    Returns:
        The score of the corpus in percent; lower is better.

    Raises:
        TypeError: links that are not pairs of whole numbers.
        ValueError: sentences that do not pair up, a negative position, or no links in the references (``strict``).

    Source: Malaviya et al. 2018, Section 5, DROP-score. Their script counts a sentence without links as one dropped
    word, and silently stops at the end of the shorter file.

    >>> drop_score([[(0, 0)]], [[(0, 0), (2, 1)]])
    50.0
    """
    translated, expected = (
        [{source for source, _ in links} for links in corpus] for corpus in _paired(prediction_links, reference_links)
    )
    total = sum(map(len, expected))
    if total == 0 and strict:
        raise ValueError("the references have no links, so DROP is undefined; strict=False gives NaN")
    if total == 0:
        return float("nan")
    return 100 * sum(len(a - b) for a, b in zip(expected, translated)) / total


def attended_words(weights: Tensor, target_mask: Tensor | None = None) -> Tensor:
    """``|{j : sum_t a_tj > 0}|``, the number of source words that at least one target word attends to.

    Under softmax every source word is attended to. ``support_size(weights)`` counts per target word.

    Args:
        weights: attention (..., targets, sources), at least 0, any dtype.
        target_mask: (..., targets), 0 at target positions that do not count, such as padding; None counts all. Of
            one sentence for all heads it is (batch, 1, targets).

    Returns:
        Counts (...), int64, in source words.

    Raises:
        TypeError: no tensor.
        ValueError: weights of fewer than two axes, or a mask that is not of the targets.

    Cost: one pass.

    >>> import torch
    >>> attended_words(torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]))
    tensor(2)
    """
    check_tensor("weights", weights)
    if weights.dim() < 2:
        raise ValueError(f"weights must be (..., targets, sources), was {tuple(weights.shape)}")
    attended = weights > 0
    if target_mask is not None:
        _check_mask(target_mask, weights)
        attended = attended & target_mask.bool().unsqueeze(-1)
    return attended.any(-2).sum(-1)


def _check_mask(mask: Tensor, weights: Tensor) -> None:
    """Refuse a mask of other targets, or with fewer axes than the weights, which would pair its rows with heads."""
    check_tensor("target_mask", mask)
    shape = weights.shape[:-1]
    if mask.dim() != len(shape) or any(own not in (1, size) for own, size in zip(mask.shape, shape)):
        raise ValueError(f"target_mask must be (..., targets), {tuple(shape)} or 1 in places, was {tuple(mask.shape)}")


def _paired(
    predictions: Sequence[Alignment], references: Sequence[Alignment]
) -> tuple[list[set[tuple[int, int]]], list[set[tuple[int, int]]]]:
    """The links of two corpora that pair up.

    Raises:
        TypeError: a link that is no pair of whole numbers.
        ValueError: corpora of different length, or a negative position.
    """
    check_pairs("predictions", predictions, "references", references)
    return _sets("prediction", predictions), _sets("reference", references)


def _sets(name: str, corpus: Iterable[Alignment]) -> list[set[tuple[int, int]]]:
    return [{_link(f"{name} {number}", link) for link in links} for number, links in enumerate(corpus)]


def _link(name: str, link: Iterable[int] | Tensor) -> tuple[int, int]:
    """A link as numbers: tensors, which equal no other, would never be found in a set."""
    try:
        source, target = map(index, link)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} must hold links, each (source position, target position) in whole numbers, had {link!r}; "
            "parse_links reads them from text"
        ) from error
    if min(source, target) < 0:
        raise ValueError(f"{name} has the link {(source, target)}; positions are counted from 0")
    return source, target
