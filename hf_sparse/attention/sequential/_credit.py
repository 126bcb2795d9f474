"""Constrained attention of a site: the fertility of its keys, less what earlier queries spent, bounds its weights."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from ...config import MapConfig
from ...config.settings import ON_SCORES
from ...functional import UpperBounds
from ...functional.rows import accumulation_dtype
from .._call import AttentionCall
from ..site import SITE, AttentionSite, settings_by_head
from ._constrained import constrained_attention
from ._steps import Steps


def constrained_weights(module: nn.Module, call: AttentionCall, scores: Tensor) -> Tensor:
    """The weights of ``scores`` under the credit that the keys have left; see ``sequential_weights``.

    Args:
        module: an attention module with a site whose map is constrained.
        call: the call.
        scores: (batch, heads, queries, columns); columns after the keys are sinks, which have no bound.

    Returns:
        Weights (batch, heads, queries, columns, then one more where the map has a sink), dtype of ``scores``.

    Raises:
        ValueError: a fertility that is missing, of another shape, or used up; a cache that cannot be followed.
    """
    site: AttentionSite = module.__dict__[SITE]
    map_config = cast(MapConfig, site.map_config)
    by_head = {name: values.view(-1, 1, 1) for name, values in settings_by_head(map_config, module, scores).items()}
    settings: dict[str, Any] = map_config.map_settings | by_head
    z = map_config.scores(scores, **{name: value for name, value in by_head.items() if name in ON_SCORES})
    if settings["sink"]:
        z = _with_sink(z, settings["sink_score"])
    steps, num_keys = Steps.of(module, call), call.key.shape[2]
    credit = _fertility(module, settings["fertility"], call.others.get("fertility"), z, num_keys)
    spent = steps.received(num_keys)
    if spent is not None:
        credit = credit - spent
    exhaustion = settings["exhaustion"]
    weights = constrained_attention(
        cast(UpperBounds, map_config.map.bounds),
        z,
        nn.functional.pad(credit, (0, z.shape[-1] - num_keys), value=torch.inf),
        exhaustion.squeeze(-1) if torch.is_tensor(exhaustion) else exhaustion,
        shared=settings["shared"],
        detach=settings["detach"],
        spending=steps.spending,
        first_step=steps.first,
    )
    if steps.layer is not None:
        taken = weights[..., :num_keys].to(credit.dtype)
        steps.spend(taken.mean(1, keepdim=True) if settings["shared"] else taken)
    return weights.to(scores.dtype)


def _with_sink(z: Tensor, score: float | Tensor) -> Tensor:
    """Scores with a last column: a key and a value of zeros, whose score is 0 unless set or learned."""
    column = torch.as_tensor(score, dtype=z.dtype, device=z.device)
    return torch.cat([z, column.expand(*z.shape[:-1], 1)], -1)


def _fertility(
    module: nn.Module, default: float | str | Tensor, given: float | Tensor | None, scores: Tensor, num_keys: int
) -> Tensor:
    """The fertility of every key (batch or 1, heads or 1, keys), in float32 or float64.

    Args:
        module: the attention module.
        default: the setting of the map: a number, one for each head, or a word for a fertility that calls bring.
        given: the fertility that came with the call; None for none.
        scores: (batch, heads, queries, columns).
        num_keys: number of keys.
    """
    site: AttentionSite = module.__dict__[SITE]
    precision = accumulation_dtype(scores)
    if torch.is_tensor(given) and site.kind == "cross":
        shape = (scores.shape[0], num_keys)
        if given.shape != shape:
            raise ValueError(
                f"fertility must be a number or a tensor (batch, source length), {shape} here, was of shape "
                f"{tuple(given.shape)}"
            )
        return given.to(scores.device, precision)[:, None]
    value = default if given is None or torch.is_tensor(given) else given
    if isinstance(value, str):
        how = "" if value == "given" else "input_ids, from which the model computes it, or "
        raise ValueError(
            f'the attention of {type(module).__name__} was made with fertility="{value}": pass {how}fertility, a '
            "number or a tensor (batch, source length), with every call of the model or of generate"
        )
    value = torch.as_tensor(value, dtype=precision, device=scores.device)
    return value.reshape(1, -1, 1).expand(1, -1, num_keys)


def check_fertility(fertility: object) -> None:
    """Raise unless ``fertility`` is a number or a tensor of numbers, none of them negative or NaN.

    Raises:
        TypeError: something else.
        ValueError: a negative entry or NaN.
    """
    if torch.is_tensor(fertility):
        if fertility.dtype == torch.bool or fertility.is_complex():
            raise TypeError(f"fertility must be a number or a tensor of numbers, was of dtype {fertility.dtype}")
        bad = ~(fertility >= 0)
        if bool(bad.any()):
            place = bad.nonzero()[0].tolist()
            raise ValueError(f"fertility must be >= 0, was {float(fertility[tuple(place)]):g} at {place}")
    elif isinstance(fertility, bool) or not isinstance(fertility, int | float):
        raise TypeError(
            f"fertility must be a number or a tensor (batch, source length), was {type(fertility).__name__}"
        )
    elif not fertility >= 0:
        raise ValueError(f"fertility must be >= 0, was {fertility}")
