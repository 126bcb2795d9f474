"""Supports of rows as entries of a sparse matrix, in room that is taken before their number is known."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Listing(NamedTuple):
    """The supports of chunks of rows, filled in their order without asking the device for a number.

    Attributes:
        row: (M,) int32.
        column: (M,) int32.
        value: (M,) float32.
        sizes: (chunks,) int64, the entries of each chunk; -1 for one that had too many and has none here.
    """

    row: Tensor
    column: Tensor
    value: Tensor
    sizes: Tensor

    @staticmethod
    def empty(num_entries: int, num_chunks: int, device: torch.device) -> Listing:
        """Room for ``num_entries``."""
        row, column = (torch.zeros(num_entries, dtype=torch.int32, device=device) for _ in range(2))
        sizes = torch.zeros(num_chunks, dtype=torch.int64, device=device)
        return Listing(row, column, torch.zeros(num_entries, dtype=torch.float32, device=device), sizes)
