"""A test of the model itself: with attention turned off, no position may see another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from ...attention import AttentionSite
from ...attention.site import trial
from ..forced import run_forced

# Rounding of equal positions relative to the largest number: experts of a mixture group tokens in other ways.
_ROUNDING = 1e-4


def check_confined(model: PreTrainedModel, call: dict[str, Any]) -> None:
    """Refuse a model that mixes positions outside of its attention.

    Every query is made to attend to its own position alone (cross-attention to none), some tokens are replaced by
    others, and nothing may change elsewhere.

    Args:
        model: a sparse model.
        call: keyword arguments of its forward pass.

    Raises:
        ValueError: something changed.

    Cost: five forward passes.
    """
    ids: list[str] = [name for name in ("input_ids", "decoder_input_ids") if name in call]
    with trial(model, {}, _attend_to_itself):
        before = _states(run_forced(model, call))
        halves = {name: [half.to(call[name].device) for half in _halves(call[name].shape[1])] for name in ids}
        for number in range(4):
            changed = {name: halves[name][number] for name in ids}
            replaced = {name: torch.where(changed[name], _others(model, call[name]), call[name]) for name in ids}
            after = _states(run_forced(model, {**call, **replaced}))
            for own, states in after.items():
                kept = ~changed[own]
                if not _agree(before[own][:, kept], states[:, kept]):
                    raise ValueError(
                        f"no certificate for this {type(model).__name__}: with its attention turned off, a change of "
                        "some tokens still reaches other positions, so that something else mixes them"
                    )


def _attend_to_itself(site: AttentionSite, module: nn.Module, scores: Tensor) -> None:
    """Leave each query the key at its own position; cross-attention none. In place: the map comes next."""
    scores.fill_(-torch.inf)
    if site.kind != "cross":
        scores.diagonal(dim1=-2, dim2=-1).fill_(1.0)  # spherical softmax gives 0 no weight


def _halves(length: int) -> list[Tensor]:
    """(length,) booleans that choose about half of the positions: even, odd, some at random, the others."""
    even = torch.arange(length, device="cpu") % 2 == 0
    some = torch.rand(length, dtype=torch.float32, generator=torch.Generator().manual_seed(0), device="cpu") < 0.5
    return [even, ~even, some, ~some]


def _others(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Another token for each, never padding: positions may be counted from it."""
    config = model.config.get_text_config(decoder=True)
    following = (ids + 1) % config.vocab_size
    return torch.where(following == (config.pad_token_id or 0), (following + 1) % config.vocab_size, following)


def _states(output: ModelOutput) -> dict[str, Tensor]:
    """What depends on each kind of ids, position by position."""
    encoded = output.get("encoder_last_hidden_state")
    if encoded is None:
        return {"input_ids": output.logits}
    return {"input_ids": encoded, "decoder_input_ids": output.logits}


def _agree(before: Tensor, after: Tensor) -> bool:
    scale = before.abs().amax().clamp(min=1.0) if before.numel() else 1.0
    return before.numel() == 0 or bool((before - after).abs().amax() <= _ROUNDING * scale)
