"""Times of words from the cross-attention of a sparse Whisper."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .find import sparse_state


class WeightlessFrames(TorchFunctionMode):
    """Inside this block, a matrix divided by its standard deviation takes frames without any from their neighbours.

    Whisper divides the weights of each frame, less their mean over the tokens, by their standard deviation over the
    tokens. A frame to which sparse attention gives no weight from any token has none. It says nothing about time, so
    it takes the values of the nearest frame that does, the earlier of two; a matrix without such a frame is zero.
    """

    def __init__(self) -> None:
        super().__init__()
        self._std: Tensor | None = None

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func in (torch.std, Tensor.std):
            self._std = output
        elif func in _DIVISIONS and self._std is not None and args[1] is self._std:
            with torch._C.DisableTorchFunction():
                return _from_neighbours(output, self._std[..., 0, :] > 0)
        return output


def _from_neighbours(weights: Tensor, present: Tensor) -> Tensor:
    """``weights`` (..., tokens, frames), with the nearest present frame in the place of those not ``present``.

    Without any frame, as in a segment after the end of speech, there is nothing to replace.
    """
    if not weights.shape[-1]:
        return weights
    frames = torch.arange(weights.shape[-1], device=weights.device)
    distance = (frames[:, None] - frames).abs().expand(*present.shape, -1)
    nearest = distance.masked_fill(~present[..., None, :], len(frames)).argmin(-1)
    filled = weights.gather(-1, nearest[..., None, :].expand_as(weights))
    return filled.masked_fill(~present.any(-1)[..., None, None], 0.0)


_DIVISIONS = (torch.div, torch.true_divide, Tensor.div, Tensor.true_divide, Tensor.__truediv__)


def generate_with_fallback(self: Any, *args: object, **kwargs: Any) -> Any:
    """The model's own, after its attention got its name back: for times of words ``generate`` asks for eager.

    It does so for the weights, which sparse attention has to return too.
    """
    state = sparse_state(self)
    for part in state.attention if state.config.attn else ():
        part.name(part.sparse)
    return self._dense_class.generate_with_fallback(self, *args, **kwargs)


def _extract_token_timestamps(self: Any, *args: object, **kwargs: Any) -> Any:
    """The model's own, in which frames without weight say nothing."""
    with WeightlessFrames():
        return self._dense_class._extract_token_timestamps(self, *args, **kwargs)
