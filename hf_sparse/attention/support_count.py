"""Counts of nonzero attention weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from .observer import AttentionObserver


@dataclass
class SupportCount(AttentionObserver):
    """Counts nonzero attention weights while ``observe`` is on. Fully masked rows do not count.

    Rows that see keys and give none of them weight do count, as under maps whose weights do not sum to one.

    Sums stay tensors of whole numbers until they are read: none is rounded, nothing waits for a GPU, and a compiled
    graph does not break.

    Attributes:
        calls: number of attention calls; long ones are seen in parts, and each part counts.
        received: names of the optional arguments that reached sequential attention.
    """

    beside: ClassVar[bool] = True

    calls: int = 0
    received: set[str] = field(default_factory=set)
    _nonzero: int | Tensor = 0
    _rows: int | Tensor = 0
    _keys: int | Tensor = 0

    def add(self, module: nn.Module, scores: Tensor, weights: Tensor) -> None:
        """Count the rows of ``weights`` (batch, heads, queries, keys); ``scores`` are -inf where a key is masked."""
        visible = (scores != -torch.inf).any(-1).sum()
        self.calls += 1
        self._nonzero = self._nonzero + (weights > 0).count_nonzero()
        self._rows = self._rows + visible
        self._keys = self._keys + visible * weights.shape[-1]

    def receive(self, names: set[str]) -> None:
        """Add to ``received``."""
        self.received |= names

    @property
    def nonzero(self) -> float:
        """Number of weights that are not zero."""
        return float(self._nonzero)

    @property
    def rows(self) -> float:
        """Number of rows counted."""
        return float(self._rows)

    @property
    def keys(self) -> float:
        """Number of weights in those rows, masked keys included."""
        return float(self._keys)

    @property
    def support_size(self) -> float:
        """Mean number of keys with nonzero weight, in keys per query."""
        return self.nonzero / self.rows if self.rows else float("nan")

    @property
    def zero_rate(self) -> float:
        """Share of attention weights that are exactly zero, masked keys included."""
        return 1 - self.nonzero / self.keys if self.keys else float("nan")
