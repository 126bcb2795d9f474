"""Guided fertilities: for each word of the vocabulary the most target words ever aligned to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .aligner import Links

_FILE = "guided_fertility.safetensors"


def fertility_counts(links: Sequence[Links], lengths: Sequence[int]) -> list[list[int]]:
    """How many target words are aligned to each source word: its fertility (Brown et al. 1993).

    Args:
        links: for each sentence its links ``(source position, target position)``, as ``WordAligner.align`` gives them.
        lengths: source words in each sentence.

    Returns:
        For each sentence a count a source word, 0 for a word without a link.

    Raises:
        ValueError: other than one length a sentence, or a link outside its sentence.

    >>> fertility_counts([[(0, 0), (2, 1), (2, 2)]], [3])
    [[1, 0, 2]]
    """
    if len(links) != len(lengths):
        raise ValueError(f"links and lengths must pair up, were {len(links)} and {len(lengths)}")
    counts = [[0] * length for length in lengths]
    for number, (sentence, row) in enumerate(zip(links, counts)):
        for source, _ in set(sentence):
            if not 0 <= source < len(row):
                raise ValueError(f"sentence {number} links source word {source}, but has {len(row)}")
            row[source] += 1
    return counts


class GuidedFertility(nn.Module):
    """Bounds looked up by source token: the largest fertility seen in training, at least 1; 1 where none was seen.

    Constrained attention spends one unit for each target token, so count fertilities in the model's own tokens, not
    in words: train the aligner on token ids, special tokens included.

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
        if table.dim() != 1 or len(table) == 0:
            raise ValueError(f"table must be (vocabulary,), was {tuple(table.shape)}")
        if not (table.isfinite() & (table >= 1)).all():
            raise ValueError("table must hold finite bounds of at least 1")
        self.register_buffer("table", table.float())

    @classmethod
    def from_counts(
        cls, input_ids: Sequence[Sequence[int]], counts: Sequence[Sequence[int]], vocab_size: int
    ) -> GuidedFertility:
        """The largest count seen for each token.

        Args:
            input_ids: source sentences as token ids in [0, vocab_size).
            counts: fertilities of the same tokens; see ``fertility_counts``.
            vocab_size: of the source side.

        Raises:
            ValueError: ids and counts that do not pair up, or an id outside the vocabulary.
        """
        if [len(row) for row in input_ids] != [len(row) for row in counts]:
            raise ValueError("input_ids and counts must have one count for each token")
        ids = torch.tensor([token for row in input_ids for token in row], dtype=torch.long)
        seen = torch.tensor([count for row in counts for count in row], dtype=torch.float32)
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
            raise ValueError(f"token ids must be in [0, {vocab_size}), were in [{int(ids.min())}, {int(ids.max())}]")
        return cls(torch.ones(vocab_size).scatter_reduce(0, ids, seen, "amax"))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Bounds for a batch.

        Args:
            input_ids: (batch, source) token ids.
            attention_mask: (batch, source), 0 at padding; None for no padding.

        Returns:
            (batch, source) float32 bounds in units of attention, 0 at padding.
        """
        bounds = self.table.to(input_ids.device)[input_ids]
        return bounds if attention_mask is None else bounds * attention_mask

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the bounds into ``folder``, such as that of the model they serve."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        save_file({"fertility": self.table}, Path(folder) / _FILE)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> GuidedFertility:
        """Read what ``save_pretrained`` wrote.

        Raises:
            ValueError: no bounds were saved there.
        """
        if not (Path(folder) / _FILE).is_file():
            raise ValueError(f"{folder} holds no guided fertilities: {_FILE} is needed")
        return cls(load_file(Path(folder) / _FILE)["fertility"])
