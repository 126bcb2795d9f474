"""Guided fertilities: for each token of the vocabulary the largest fertility seen in training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..functional.arguments import check_tensor
from .counts import check_counts

_FILE = "guided_fertility.safetensors"


class GuidedFertility(nn.Module):
    """Bounds looked up by source token: the largest fertility seen in training, at least 1; 1 where none was seen.

    Constrained attention spends one unit per target token, so count fertilities in the model's own tokens, not in
    words: train the aligner on token ids, special tokens included.

    Args:
        table: (vocabulary,) bounds by token id, at least 1, finite.

    Attributes:
        table: the same, a buffer.

    Raises:
        ValueError: another shape, or bounds below 1 or not finite.

    Source: Malaviya et al. 2018, Section 4, "guided".

    >>> fertility = GuidedFertility.from_counts([[5, 7], [7, 8]], [[1, 2], [3, 0]], vocab_size=10)
    >>> fertility(torch.tensor([[7, 5, 8, 9]]))
    tensor([[3., 1., 1., 1.]])
    """

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        check_tensor("table", table)
        if table.dim() != 1 or len(table) == 0:
            raise ValueError(f"table must be (vocabulary,), was {tuple(table.shape)}")
        if not (table.isfinite() & (table >= 1)).all():
            raise ValueError(f"table must hold finite bounds of at least 1, was {float(table.min()):g} at least")
        self.register_buffer("table", table.float())

    @classmethod
    def from_counts(
        cls, input_ids: Sequence[Sequence[int]], counts: Sequence[Sequence[int]], vocab_size: int
    ) -> GuidedFertility:
        """Bounds from the largest count seen for each token.

        Args:
            input_ids: source sentences as token ids in [0, vocab_size).
            counts: fertilities of the same tokens; see ``fertility_counts``.
            vocab_size: size of the source vocabulary.

        Raises:
            ValueError: ids and counts that do not pair up, or an id outside the vocabulary.
        """
        check_counts(input_ids, counts)
        ids = torch.tensor(list(chain.from_iterable(input_ids)), dtype=torch.long, device="cpu")
        seen = torch.tensor(list(chain.from_iterable(counts)), dtype=torch.float32, device="cpu")
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
            raise ValueError(f"token ids must be in [0, {vocab_size}), were in [{int(ids.min())}, {int(ids.max())}]")
        return cls(torch.ones(vocab_size, dtype=torch.float32, device="cpu").scatter_reduce(0, ids, seen, "amax"))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Bounds for a batch.

        Args:
            input_ids: (batch, source) token ids.
            attention_mask: (batch, source), 0 at padding; None for no padding.

        Returns:
            (batch, source) float32 bounds in target tokens, 0 at padding.
        """
        bounds = self.table.to(input_ids.device)[input_ids]
        return bounds if attention_mask is None else bounds * attention_mask

    def record(self) -> dict[str, object]:
        """Plain data from which ``from_record`` builds it again, without its bounds."""
        return {"vocab_size": len(self.table)}

    @classmethod
    def from_record(cls, vocab_size: int) -> GuidedFertility:
        """Build it from ``record``, with bounds still to be loaded."""
        return cls(torch.ones(vocab_size, dtype=torch.float32, device="cpu"))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the bounds into ``folder``, which may be the folder of the model that they serve."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        save_file({"fertility": self.table}, Path(folder) / _FILE)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> GuidedFertility:
        """Read the bounds that ``save_pretrained`` wrote.

        Raises:
            ValueError: no bounds were saved there.
        """
        if not (Path(folder) / _FILE).is_file():
            raise ValueError(f"{folder} holds no guided fertilities: {_FILE} is needed")
        return cls(load_file(Path(folder) / _FILE)["fertility"])
