"""Who looks at attention while a model runs: counts, records, prices."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn


class AttentionObserver:
    """Sees the calls of the attention sites that it is shown (``hf_sparse.attention.site.observing``).

    Attributes:
        beside: whether it will do to see weights that torch computes for it, without a gradient and some queries at a
            time, beside an output that another backend computes.
    """

    beside: ClassVar[bool] = False

    def add(self, module: nn.Module, scores: Tensor, weights: Tensor) -> None:
        """See a call, or some queries of one.

        Args:
            module: the attention module.
            scores: (..., keys), ``-inf`` where a key is masked.
            weights: their weights, before dropout, with the gradient that they have.
        """
        raise NotImplementedError

    def receive(self, names: set[str]) -> None:
        """See the names of the optional arguments that reached a call of sequential attention."""
