"""Deletion itself: the model runs again without the tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..forced import run_forced
from ._record import SiteCall


def sees_all(calls: list[SiteCall], real: Tensor) -> bool:
    """Whether every query of a decoder sees all tokens up to its own: no window would reach further without others.

    Args:
        calls: of one pass.
        real: (rows, positions) whether a position is a token.
    """
    size = real.shape[1]
    before = torch.ones(size, size, dtype=torch.bool, device=real.device).tril()
    expected = real[:, None] & before
    return all(bool(((call.visible == expected) | ~real[..., None]).all()) for call in calls)


@dataclass(frozen=True)
class Deletion:
    """What was asked for, and the scores before.

    Attributes:
        model: the model.
        call: keyword arguments of its forward pass, with an ``attention_mask``; a decoder's with ``position_ids``.
        needed: (rows, S, inputs) the inputs that each output needs.
        outputs: of each row, those that were asked for.
        first: the position whose logits are the first output.
        logits: (rows, positions, V) scores with all inputs.
    """

    model: PreTrainedModel
    call: dict[str, Any]
    needed: Tensor
    outputs: list[Tensor]
    first: int
    logits: Tensor

    def changes_when_masked(self) -> list[float]:
        """The largest change of a raw score in each row, with the other inputs hidden from every query."""
        mask = self.call["attention_mask"].clone()
        for row in range(len(mask)):
            mask[row, : self.needed.shape[-1]] *= self._kept(row).to(mask.dtype)
        without = run_forced(self.model, {**self.call, "attention_mask": mask}).logits
        places = [own + self.first for own in self.outputs]
        return [_change(self.logits[row, own], without[row, own]) for row, own in enumerate(places)]

    def changes_when_removed(self) -> list[float]:
        """The same in a decoder that is given the needed inputs only, with the numbers of their positions."""
        changes = []
        for row, own in enumerate(self.outputs):
            stays = self.call["attention_mask"][row] != 0
            stays[: self.needed.shape[-1]] &= self._kept(row)
            names = ("input_ids", "attention_mask", "position_ids")
            kept = {name: self.call[name][..., row : row + 1, stays] for name in names}  # positions may have axes
            without = run_forced(self.model, kept).logits[0]
            places = own + self.first
            changes.append(_change(self.logits[row, places], without[stays.cumsum(0)[places] - 1]))
        return changes

    def _kept(self, row: int) -> Tensor:
        """(inputs,) whether some output of a row needs an input."""
        return self.needed[row, self.outputs[row]].any(0)


def _change(before: Tensor, after: Tensor) -> float:
    return float((before - after).abs().amax()) if before.numel() else 0.0
