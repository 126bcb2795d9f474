"""The next-token distribution that the logits of a head stand for."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..config import MapConfig
from ..functional.log_zero import log_or_floor_
from ..functional.rows import accumulation_dtype, by_chunks, is_readable, upcast, writes_rows

# Elements per thread whose distributions are made at a time. More of them would be written to new memory at every
# step from scores to logarithms, and a system takes as long to give new memory as softmax takes altogether.
_AT_A_TIME = 1 << 19


def distribution(map_config: MapConfig, logits: Tensor) -> Tensor:
    """The next-token distribution of a map, summing to one.

    alpha-ReLU weights are divided by their sum; where none is positive all weight goes to the largest score, which
    is what they tend to as the threshold rises to it.

    Args:
        map_config: the head's map.
        logits: raw scores (..., V).

    Returns:
        Probabilities (..., V), float32 (float64 for float64 logits).
    """
    z = upcast(logits)
    p = map_config(z)
    if map_config.map.normalized:
        return p
    mass = p.sum(-1, keepdim=True)
    if p.device.type == "cpu" and is_readable(mass) and bool((mass != 0).all()):
        return p / mass
    best = torch.zeros_like(p).scatter(-1, z.argmax(-1, keepdim=True), 1.0)
    return torch.where(mass == 0, best, p / torch.where(mass == 0, 1.0, mass))


def log_distribution(map_config: MapConfig, logits: Tensor) -> Tensor:
    """log of ``distribution``, with a finite floor off the support; see ``log_or_floor_``."""
    if writes_rows(logits) and logits.numel() > _AT_A_TIME * torch.get_num_threads():
        out = torch.empty(logits.shape, dtype=accumulation_dtype(logits), device=logits.device)
        by_chunks(partial(_write_log, map_config), logits, out=out.view(-1, out.shape[-1]), size=_AT_A_TIME)
        return out
    return _log_distribution(map_config, logits)


def _write_log(map_config: MapConfig, logits: Tensor, out: Tensor) -> None:
    out.copy_(_log_distribution(map_config, logits))


def _log_distribution(map_config: MapConfig, logits: Tensor) -> Tensor:
    z = upcast(logits)
    return log_or_floor_(distribution(map_config, z), z)
