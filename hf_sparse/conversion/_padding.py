"""The positions of a batch that count: not padding, nor the silence that a mask of sound excludes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..functional.rows import lowest_visible

logger = logging.getLogger(__name__)


def frame_mask(model: PreTrainedModel) -> Callable[[int, Tensor], Tensor] | None:
    """How a model of sound makes a mask of its positions from one of samples or frames; None where it does not say."""
    if getattr(model.config, "add_adapter", False):  # which subsamples once more, after attention
        return None
    name = "_get_feature_vector_attention_mask"
    return next((getattr(part, name) for part in model.modules() if hasattr(part, name)), None)


def counted(
    batch: Mapping[str, Any],
    kind: str,
    is_encoder_decoder: bool,
    shape: tuple[int, ...],
    by_frames: Callable[[int, Tensor], Tensor] | None = None,
) -> Tensor | None:
    """Which positions of one side of a model count: (batch, positions), True where they do; None where all do.

    An encoder's, and a lone decoder's, are those of ``attention_mask``, or where one of queries and keys (four
    dimensions) shows a key to a query; a mask of more frames than there are positions, as of sound, is read as the
    model does (``by_frames``), or at as many places: a position counts where one of its frames does. A mask of
    several choices (rows, choices, length) is one of as many rows. The decoder's positions of an encoder-decoder,
    cross-attention's queries among them, are those of ``decoder_attention_mask``, or where a label counts.

    Args:
        batch: keyword arguments for one forward call.
        kind: ``"encoder"``, ``"decoder"`` or ``"cross"``.
        is_encoder_decoder: whether the model is one.
        shape: number of rows and of positions.
        by_frames: ``frame_mask`` of the model.

    >>> counted({"attention_mask": torch.tensor([[1, 1, 1, 0, 0, 0]])}, "encoder", True, (1, 3))
    tensor([[ True,  True, False]])
    """
    mask = _mask_of(batch, kind, is_encoder_decoder)
    if mask is None or mask.dim() < 2 or bool(mask.all()):
        return None
    mask = mask.flatten(0, -2)
    rows, positions = shape
    if by_frames is not None and kind == "encoder" and mask.shape[0] == rows and mask.shape[1] > positions:
        return by_frames(positions, mask.long()).bool()
    if mask.shape[0] == rows and positions > 0 and mask.shape[1] % positions == 0:
        return mask.unflatten(1, (positions, -1)).any(-1)
    logger.warning(
        "%s positions of %s rows cannot be told apart by a mask of shape %s: all of them count, padding too",
        positions,
        rows,
        tuple(mask.shape),
    )
    return None


def _mask_of(batch: Mapping[str, Any], kind: str, is_encoder_decoder: bool) -> Tensor | None:
    """True where a position counts, in the length of the side's input."""
    if not is_encoder_decoder or kind == "encoder":
        given = batch.get("attention_mask")
        return None if given is None else _visible(_tensor(given))
    if batch.get("decoder_attention_mask") is not None:
        return _visible(_tensor(batch["decoder_attention_mask"]))
    return None if batch.get("labels") is None else _tensor(batch["labels"]) != -100


def _tensor(given: Any) -> Tensor:
    return given if torch.is_tensor(given) else torch.as_tensor(given, device="cpu")


def _visible(mask: Tensor) -> Tensor:
    """True where a mask leaves a position, one of queries and keys a key to some query."""
    if mask.dim() != 4:
        return mask != 0
    shown = mask > lowest_visible(mask.dtype) if mask.is_floating_point() else mask != 0  # floats are added
    return shown.any(1).any(1)
