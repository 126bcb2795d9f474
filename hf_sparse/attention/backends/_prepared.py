"""Calls whose scores need nothing on their way to the map: temperatures and factors by length go into the queries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from ...config import MapConfig
from ...config.settings import BY_LENGTH
from ...functional.rows import accumulation_dtype, is_readable, lowest_visible
from ...functional.score_transforms import length_factor
from .._call import AttentionCall, is_added
from ..site import settings_by_head


def needs_gradient(x: object) -> bool:
    """Whether a result has to be differentiable in ``x``."""
    return torch.is_grad_enabled() and isinstance(x, Tensor) and x.requires_grad


def preparation_problem(map_config: MapConfig, call: AttentionCall, takes_temperature: bool) -> str | None:
    """The reason why a call cannot be prepared for a backend, or None.

    Args:
        map_config: the map of its scores.
        call: see ``AttentionCall``, its temperature too.
        takes_temperature: whether the backend divides scores itself, without a gradient to the temperature.
    """
    by_head = torch.is_tensor(call.temperature) and _divides(call, takes_temperature)
    if by_head and call.softcap is not None:
        return "divides scores by a temperature for each head, or one that is learned, only without a soft cap"
    if by_head and needs_gradient(call.temperature) and (call.position_bias is not None or _adds(call.mask)):
        return "gives no gradient to a temperature, which is learned, through what is added to scores"
    beside = (call.softcap, call.position_bias, call.s_aux)
    if not map_config.scaled_by_length:
        return None
    if isinstance(call.mask, BlockMask):
        return "scales scores by the number of keys (delta, beta, gamma), which a BlockMask does not tell"
    if any(x is not None for x in beside) or _adds(call.mask):
        return (
            "scales scores by the number of keys (delta, beta, gamma) only without a soft cap, a bias, sinks and a "
            "mask that adds to scores"
        )
    return None


def _adds(mask: Tensor | BlockMask | None) -> bool:
    """Whether a mask does more than hide keys, or may, as far as can be known."""
    return is_added(mask) and (not is_readable(mask) or visible_by(mask) is None)


def visible_by(mask: Tensor) -> Tensor | None:
    """The mask as a boolean one, True where visible; None where it adds to scores. The host waits for a GPU."""
    if mask.dtype == torch.bool:
        return mask
    visible = mask > lowest_visible(mask.dtype)
    return None if bool((mask * visible).any()) else visible


def prepared(map_config: MapConfig, module: nn.Module, call: AttentionCall, takes_temperature: bool) -> AttentionCall:
    """The call for a backend that knows the map alone, or its temperature too; differentiable in the settings."""
    if _divides(call, takes_temperature):
        call = call.divided()
    if not map_config.scaled_by_length:
        return call
    call = call._replace(mask=visible_by(call.mask) if is_added(call.mask) else call.mask)
    by_head = settings_by_head(map_config, module, call.query)
    own: dict[str, Any] = {name: map_config.value(name).plain() for name in BY_LENGTH if name not in by_head}
    own |= {name: by_head[name].view(-1, 1, 1) for name in BY_LENGTH if name in by_head}
    factor = length_factor(call.visible_keys().to(accumulation_dtype(call.query)), **own)
    return call._replace(query=(call.query * factor).to(call.query.dtype))


def _divides(call: AttentionCall, takes_temperature: bool) -> bool:
    """Whether scores are divided before there are any."""
    return not takes_temperature or needs_gradient(call.temperature)
