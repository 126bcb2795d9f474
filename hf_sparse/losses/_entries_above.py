"""The entries of long rows that exceed a threshold known beforehand, found in one streaming read."""

from __future__ import annotations

import torch
from torch import Tensor

# Measured on 256 x 50,000 float32: 2 to 7 ms, where `(z > threshold).nonzero()` takes 18.
_GROUP = 16
# Keeping more groups than one in this many is slower than dense arithmetic on everything.
_DENSE = 4


def entries_above(z: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """Rows, columns and values (M,) of the entries with ``z > threshold``, and of NaNs; rows ascending.

    Args:
        z: (N, V) scores of any floating-point dtype, contiguous.
        threshold: compared in the dtype of z, so lower it by the rounding you cannot afford.

    Returns:
        int64, int64 and values in the dtype of z; or None where so much of z lies above the threshold
        that picking entries does not pay.

    Cost: the maxima of groups of 16 columns, one read; then work in proportion to the groups kept.
    """
    num_rows, num_columns = z.shape
    num_groups = num_columns // _GROUP
    grouped = num_groups * _GROUP
    maxima = z[:, :grouped].unflatten(1, (_GROUP, num_groups)).amax(1)
    # Negated, so that a group with a NaN is kept.
    row, group = (~(maxima <= threshold)).nonzero(as_tuple=True)
    if row.numel() * _DENSE > num_rows * num_groups:
        return None
    # Group k is {k, k + num_groups, k + 2 num_groups, ...}: strided, so that the maxima stream through memory.
    column = group[:, None] + torch.arange(_GROUP, device=z.device) * num_groups
    place = (row[:, None] * num_columns + column).view(-1)
    if grouped < num_columns:
        tail_row, tail = (~(z[:, grouped:] <= threshold)).nonzero(as_tuple=True)
        place = torch.cat([place, tail_row * num_columns + tail + grouped])
    value = z.view(-1).take(place)
    kept = (~(value <= threshold)).nonzero()[:, 0]
    place, value = place[kept], value[kept]
    if grouped < num_columns:
        place, order = place.sort()
        value = value[order]
    row = place // num_columns
    return row, place - row * num_columns, value
