"""Who looks at attention while a model runs: counts, records, prices."""

from __future__ import annotations

from torch import Tensor, nn


class AttentionObserver:
    """Sees the calls of the attention sites that it is shown (``hf_sparse.attention.site.observing``).

    Attributes:
        differentiates: whether a gradient flows through what it makes of the weights.
    """

    differentiates = False

    def add(self, module: nn.Module, scores: Tensor, weights: Tensor) -> None:
        """See a call.

        Args:
            module: the attention module.
            scores: (..., keys), ``-inf`` where a key is masked.
            weights: their weights, before dropout; with a gradient for an observer that differentiates.
        """
        raise NotImplementedError

    def receive(self, names: set[str]) -> None:
        """See the names of the optional arguments that reached a call of sequential attention."""
