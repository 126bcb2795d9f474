"""All candidate links of a parallel corpus in flat tensors: expectation-maximization is a few gathers and sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor


@dataclass(frozen=True)
class CandidateLinks:
    """Every way to link the target words of a corpus: each with every source word of its sentence, or with null.

    The links of one target word are adjacent, null first. A place is all that the prior of a link depends on (target
    position, both lengths, source position); equal places are stored once. A shape is a place without its source
    position.

    Attributes:
        source: (links,) source word as numbered by the caller, 0 for null.
        target: (links,) target word.
        row: (links,) index of the target word in the corpus, through all sentences.
        position: (links,) source position, 1 for the first, 0 for null.
        place: (links,) index of the place.
        place_shape: (places,) index of the shape.
        place_is_null: (places,) whether the source position is null.
        diagonality: (places,) ``-|i/m - j/n|`` for position i of m in the target and j of n in the source; null 0.
        num_rows: number of target words.
        num_shapes: number of shapes.
    """

    source: Tensor
    target: Tensor
    row: Tensor
    position: Tensor
    place: Tensor
    place_shape: Tensor
    place_is_null: Tensor
    diagonality: Tensor
    num_rows: int
    num_shapes: int

    @classmethod
    def of(cls, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> CandidateLinks:
        """The links of sentences given as word numbers; 0 is null and must not occur in ``sources``.

        Cost: 40 bytes per pair of a source and a target word in the same sentence pair.
        """
        n = torch.tensor([len(sentence) for sentence in sources], dtype=torch.long, device="cpu")
        m = torch.tensor([len(sentence) for sentence in targets], dtype=torch.long, device="cpu")
        source_words = torch.tensor([0, *chain.from_iterable(sources)], dtype=torch.long, device="cpu")
        target_words = torch.tensor(list(chain.from_iterable(targets)), dtype=torch.long, device="cpu")

        sentence = torch.repeat_interleave(m)
        i = torch.arange(len(sentence), device="cpu") - (m.cumsum(0) - m)[sentence] + 1
        row, position = _ranges(n[sentence] + 1)
        offset = (n.cumsum(0) - n)[sentence][row]
        source = source_words[torch.where(position == 0, 0, offset + position)]

        shapes, shape = torch.unique(torch.stack([i, m[sentence], n[sentence]]), dim=1, return_inverse=True)
        place_shape, j = _ranges(shapes[2] + 1)
        start = (shapes[2] + 1).cumsum(0) - (shapes[2] + 1)
        i_over_m = (shapes[0].double() / shapes[1])[place_shape]
        diagonality = -(i_over_m - j.double() / shapes[2][place_shape].clamp(min=1)).abs()
        return cls(
            source,
            target_words[row],
            row,
            position,
            start[shape][row] + position,
            place_shape,
            j == 0,
            diagonality.masked_fill(j == 0, 0.0),
            len(sentence),
            shapes.shape[1],
        )

    def prior(self, tension: float, null: float) -> Tensor:
        """``p(link | position, lengths)`` by place (Dyer et al. 2013, Eq. 1): ``null`` for null, the rest in
        proportion to ``exp(tension * diagonality)``."""
        weight = (tension * self.diagonality).exp().masked_fill(self.place_is_null, 0.0)
        total = weight.new_zeros(self.num_shapes).index_add(0, self.place_shape, weight)
        return torch.where(self.place_is_null, null, (1 - null) * weight / total[self.place_shape].clamp(min=1e-300))

    def best(self, score: Tensor) -> Tensor:
        """For each target word the index of its best link; the first of equal ones."""
        top = score.new_zeros(self.num_rows).scatter_reduce(0, self.row, score, "amax", include_self=False)
        index = torch.arange(len(score), device="cpu").masked_fill(score < top[self.row], len(score))
        return index.new_zeros(self.num_rows).scatter_reduce(0, self.row, index, "amin", include_self=False)


def _ranges(sizes: Tensor) -> tuple[Tensor, Tensor]:
    """For ``sizes = (2, 3)``: ``(0, 0, 1, 1, 1)`` and ``(0, 1, 0, 1, 2)``."""
    group = torch.repeat_interleave(sizes)
    return group, torch.arange(len(group), device="cpu") - (sizes.cumsum(0) - sizes)[group]
