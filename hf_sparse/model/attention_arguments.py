"""Arguments of a forward call that concern sparse attention: those it cannot read, and those it needs besides."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import PreTrainedModel

from ..attention.interface import PACKED
from ..attention.sequential import check_fertility
from ..fertility.source import source_bounds
from .find import sparse_config, sparse_state


def check_packed(model: PreTrainedModel, args: tuple, kwargs: dict[str, Any]) -> None:
    """Refuse rows that hold several sequences, by the lengths that flash attention takes, where they would mix.

    That a model's masks do not heed its positions (BERT, OPT) shows only in its attention, which refuses it there.
    """
    if not sparse_config(model).attn or all(kwargs.get(name) is None for name in PACKED):
        return
    call = inspect.signature(model._dense_class.forward).bind_partial(model, *args, **kwargs).arguments
    mask, use_cache = call.get("attention_mask"), kwargs.get("use_cache", call.get("use_cache"))
    if isinstance(mask, dict) or getattr(mask, "ndim", 0) == 4:  # it says of each query what it sees
        return
    mixed = "sparse attention does not read cu_seq_lens, so that packed sequences would attend to each other"
    if "position_ids" not in model._arguments:
        raise ValueError(f"{mixed}, and {type(model).__name__} takes no position_ids: give one sequence in each row")
    if use_cache is None:
        use_cache = getattr(model.config, "use_cache", False)
    if call.get("position_ids") is None or use_cache:
        raise ValueError(
            f"{mixed}: give position_ids that begin anew with every sequence, no attention_mask, and use_cache=False; "
            "or a mask (1, 1, queries, keys)"
        )


def sequential_arguments(
    model: PreTrainedModel, fertility: object, args: tuple, kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of sequential attention that the model hands down besides its own."""
    state = sparse_state(model)
    if fertility is not None and not model._constrained:
        if state.whole is not None:  # generate hands an encoder what is meant for cross-attention
            return {"fertility": fertility}
        raise ValueError(
            f"fertility is for constrained attention, and {type(model).__name__} has none; "
            'make it sparse with attn={"cross": {"name": "csparsemax", ...}}'
        )
    if not state.config.is_sequential:
        return {}
    arguments: dict[str, Any] = {}
    call = inspect.signature(model._dense_class.forward).bind_partial(model, *args, **kwargs).arguments
    if fertility is None:
        fertility = source_bounds(model, call.get("input_ids"), call.get("attention_mask"))
    if fertility is not None:
        check_fertility(fertility)
        if torch.is_tensor(fertility) and "cross" not in model._constrained:
            raise ValueError(
                f"a tensor of fertilities is for cross-attention, which is not constrained in {type(model).__name__}; "
                "give a number"
            )
        arguments["fertility"] = fertility
    mask = call.get("decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask")
    if torch.is_tensor(mask) and mask.dim() == 2:
        arguments["target_mask"] = mask
    return arguments
