"""The loss of any map that has a fused form, by the map's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ...functional import MAPS
from ...functional.registry import underlying
from .._dispatch import checked_settings
from ._alpha_relu import linear_alpha_relu_loss
from ._entmax import linear_entmax_loss

_FUSED: dict[str, Callable[..., Tensor]] = {"alpha_relu": linear_alpha_relu_loss, "entmax": linear_entmax_loss}


def fused_maps() -> list[str]:
    """The names of all maps with a fused loss."""
    return sorted(name for name in MAPS if underlying(name, {})[0] in _FUSED)


def linear_fenchel_young_loss(hidden: Tensor, weight: Tensor, target: Tensor, name: str, **options: Any) -> Tensor:
    """``fenchel_young_loss(z, y, name)`` of ``z = softcap(scale (h W^T + b))``, without holding z.

    Args:
        hidden: h (..., D), any floating-point dtype.
        weight: W (V, D), one row a class.
        target: class indices (...), int64.
        name: a map with a fused loss: alpha-ReLU, or one of the entmax family, softmax included.
        **options: the map's settings, and the options of ``linear_entmax_loss``.

    Returns:
        As ``linear_entmax_loss``.

    Raises:
        ValueError: a map without a fused loss; otherwise, like TypeError, IndexError and RuntimeError, see
            ``linear_entmax_loss``.

    >>> import torch
    >>> linear_fenchel_young_loss(torch.zeros(1, 2), torch.ones(4, 2), torch.tensor([2]), "entmax15")
    tensor(0.6667)
    """
    known = MAPS[name].settings if name in MAPS else {}
    settings = checked_settings(name, {key: options.pop(key) for key in known if key in options})
    base, base_settings = underlying(name, settings)
    if base not in _FUSED:
        raise ValueError(
            f"{name!r} has no fused loss; the maps that have one are {', '.join(map(repr, fused_maps()))}"
        )
    return _FUSED[base](hidden, weight, target, **base_settings, **options)
