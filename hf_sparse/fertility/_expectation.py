"""Expectation-maximization of the word aligner: posteriors of links, translation probabilities, and the tension."""

from __future__ import annotations

import torch
from torch import Tensor

from ._links import CandidateLinks

TENSIONS = (0.1, 14.0)


class Dictionary:
    """Translation probabilities of word pairs, fitted to expected counts.

    Args:
        source: (pairs,) source word of each pair.
        concentration: of a symmetric Dirichlet prior over the target words of each source word; 0 for none.
    """

    def __init__(self, source: Tensor, concentration: float) -> None:
        self.source = source
        self.concentration = concentration
        self.met = torch.bincount(source).double()  # number of target words that each source word met

    def _by_source(self, values: Tensor) -> Tensor:
        return values.new_zeros(len(self.met)).index_add(0, self.source, values)

    def uniform(self) -> Tensor:
        """Equal probabilities for all target words of a source word."""
        return 1 / self.met[self.source]

    def fit(self, counts: Tensor) -> Tensor:
        """Maximum likelihood, or ``exp E[log p]`` under the Dirichlet posterior."""
        if self.concentration == 0:
            return counts / self._by_source(counts).clamp(min=1e-300)[self.source]
        posterior = counts + self.concentration
        return (posterior.digamma() - self._by_source(posterior).digamma()[self.source]).exp()

    def divergence(self, counts: Tensor) -> Tensor:
        """KL of the Dirichlet posteriors from their prior, summed over source words; 0 without a prior."""
        if self.concentration == 0:
            return counts.new_zeros(())
        a = torch.full_like(counts, self.concentration)
        b, met = a + counts, self.met > 0
        normalizers = self._by_source(b).lgamma() - self._by_source(a).lgamma()
        expected = counts * (b.digamma() - self._by_source(b).digamma()[self.source])
        return normalizers[met].sum() - (b.lgamma() - a.lgamma()).sum() + expected.sum()


def expectation(links: CandidateLinks, tension: float, null: float, translation: Tensor) -> tuple[Tensor, Tensor]:
    """The joint probability of each link with its word (links,), and the probability of each target word (rows,)."""
    joint = links.prior(tension, null)[links.place] * translation
    return joint, joint.new_zeros(links.num_rows).index_add(0, links.row, joint)


def best_tension(links: CandidateLinks, posterior: Tensor, null: float) -> float:
    """The tension that maximizes the expected log-likelihood: observed and expected diagonality are equal there."""
    counts = posterior.new_zeros(len(links.place_shape)).index_add(0, links.place, posterior)
    counts = counts.masked_fill(links.place_is_null, 0.0)
    weight = counts.new_zeros(links.num_shapes).index_add(0, links.place_shape, counts)[links.place_shape]
    observed = (counts * links.diagonality).sum()
    low, high = TENSIONS
    for _ in range(50):
        middle = (low + high) / 2
        expected = (weight * links.prior(middle, null) * links.diagonality).sum() / (1 - null)
        low, high = (middle, high) if observed > expected else (low, middle)
    return (low + high) / 2
