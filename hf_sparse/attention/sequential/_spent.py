"""A cache layer that keeps, beside its keys, the attention they received, through beams, selections and crops."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

# Latest steps that are kept apart, so that cropping the cache can undo them (assisted decoding drafts 20 tokens).
NUM_KEPT_STEPS = 64


class SpentLayer(DynamicLayer):
    """A layer of a ``DynamicCache`` that also keeps the attention each key has received.

    Args:
        layer: the layer to replace; its keys and values are kept.

    Attributes:
        num_steps: number of queries so far.
        settled: attention (batch, heads or 1, keys) from steps that can no longer be undone.
        recent: attention (batch, heads or 1, steps, keys) from each of the latest steps.
    """

    def __init__(self, layer: DynamicLayer) -> None:
        super().__init__()
        self.__dict__.update(layer.__dict__)
        self.num_steps = 0
        self.settled: Tensor | None = None
        self.recent: Tensor | None = None

    def spent_before(self, step: int, num_keys: int) -> Tensor | None:
        """Attention (batch, heads or 1, keys) that the keys received in steps before ``step``; None for none.

        Later steps are undone: the cache of the target has been cropped since.

        Raises:
            ValueError: there were fewer steps than that, or more would have to be undone than are kept.
        """
        self._undo(self.num_steps - step)
        if self.settled is None or self.recent is None:
            return None
        spent = self.settled + self.recent.sum(2)
        return torch.nn.functional.pad(spent, (0, num_keys - spent.shape[-1]))

    def spend(self, weights: Tensor) -> None:
        """Add the attention (batch, heads or 1, steps, keys) that each new step spent."""
        self.num_steps += weights.shape[2]
        if self.settled is None or self.recent is None:
            self.settled, self.recent = torch.zeros_like(weights[:, :, 0]), weights[:, :, :0]
        new_keys = (0, weights.shape[-1] - self.recent.shape[-1])
        self.settled = torch.nn.functional.pad(self.settled, new_keys)
        recent = torch.cat([torch.nn.functional.pad(self.recent, new_keys), weights], 2)
        num_settled = max(recent.shape[2] - NUM_KEPT_STEPS, 0)
        self.settled = self.settled + recent[:, :, :num_settled].sum(2)
        self.recent = recent[:, :, num_settled:].clone() if num_settled else recent

    def _undo(self, num_steps: int) -> None:
        if num_steps == 0:
            return
        if num_steps < 0 or self.recent is None:
            raise ValueError(
                f"the cache holds {-num_steps} target positions that this attention has not seen, so that what they "
                "spent is not known; start from an empty cache"
            )
        if num_steps > self.recent.shape[2]:
            raise ValueError(
                f"the cache was cropped by {num_steps} target positions, and what was spent is only kept apart for "
                f"the latest {self.recent.shape[2]}; start from an empty cache"
            )
        self.num_steps -= num_steps
        self.recent = self.recent[:, :, : self.recent.shape[2] - num_steps]

    def _change(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.settled is not None and self.recent is not None:
            self.settled, self.recent = change(self.settled), change(self.recent)

    def reset(self) -> None:
        """Clear keys, values and received attention."""
        super().reset()
        self.num_steps, self.settled, self.recent = 0, None, None

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last keys, and what they spent as queries; keys of cross-attention are never removed."""
        super().crop(tokens_to_remove)
        if tokens_to_remove:
            self._undo(abs(tokens_to_remove))
            self._change(lambda x: x[..., : self.get_seq_length()])

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder rows as beam search continues them."""
        super().reorder_cache(beam_idx)
        self._change(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row of the batch."""
        super().batch_repeat_interleave(repeats)
        self._change(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows of the batch."""
        super().batch_select_indices(indices)
        self._change(lambda x: x[indices, ...])
