"""Certificates of one model and what became of them: every one is tried by a deletion of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch
from torch import Tensor
from transformers import PreTrainedModel

import hf_sparse
from hf_sparse import DeletionCertificate

from ..lib.records import Figures

MOST = 1e-5  # a raw score may change by this much in float64


@dataclass
class Tally:
    """What was certified over some sentences.

    Attributes:
        together: by sentence, the share of the input tokens that all its outputs can do without.
        alone: by output, the share that it can do without.
        tried: certificates that delete something, for one output or for all of a sentence.
        failures: those that changed a raw score by more than ``MOST``, or that ``certify`` took back.
        change: the largest change of a raw score.
    """

    together: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    tried: int = 0
    failures: int = 0
    change: float = 0.0

    def add(self, together: float, alone: Sequence[float], changes: Sequence[float]) -> None:
        """Count one sentence.

        Args:
            together: share of its tokens that can be deleted for all outputs.
            alone: the same for each output.
            changes: the largest change of a raw score in each deletion.
        """
        self.together.append(together)
        self.alone += alone
        self.tried += len(changes)
        self.failures += sum(not change <= MOST for change in changes)
        self.change = max([self.change, *changes])

    def figures(self) -> Figures:
        """Means and counts by name."""
        return {
            "together": fmean(self.together) if self.together else 0.0,
            "alone": fmean(self.alone) if self.alone else 0.0,
            "some": fmean(share > 0 for share in self.alone) if self.alone else 0.0,
            "sentences": len(self.together),
            "outputs": len(self.alone),
            "tried": self.tried,
            "failures": self.failures,
            "change": self.change,
        }


def certified(model: PreTrainedModel, batches: Iterable[tuple[Mapping[str, Tensor], Tensor]]) -> Tally:
    """Certify sentences.

    Args:
        model: with sparse attention, in float64.
        batches: inputs by name, (B, T), padded on the right if at all, and the whole sequences (B, L) as ``generate``
            returns them.
    """
    tally = Tally()
    for inputs, sequences in batches:
        try:
            found = hf_sparse.certify(model, inputs, sequences)
        except RuntimeError as error:
            print(error, flush=True)
            tally.failures += len(sequences)
            continue
        for row, own in enumerate(found):
            alone = [len(own.deletable_for(output)) / len(own.tokens) for output in own.needed]
            rows = slice(row, row + 1)
            tally.add(own.share, alone, changes(model, inputs["input_ids"][rows], sequences[rows], own))
    return tally


@torch.no_grad()
def changes(model: PreTrainedModel, ids: Tensor, sequence: Tensor, found: DeletionCertificate) -> list[float]:
    """The largest change of a raw score in each deletion that a certificate allows.

    They are tried here again, apart from ``certify``, which tries the one for all outputs: the tokens that one output
    does not need are hidden from every query by the attention mask, in a row of a batch for each output.

    Args:
        model: the model.
        ids: (1, T) inputs.
        sequence: (1, L) as ``generate`` returns it.
        found: its certificate.

    Returns:
        One number for each output that can do without a token, one for all outputs if they can, and those of
        ``certify`` itself.
    """
    wanted = [([output], needed) for output, needed in found.needed.items() if found.deletable_for(output)]
    own = []
    if found.deletable:
        wanted.append((list(found.needed), found.kept))
        own = [change for change in (found.change, found.change_removed) if change is not None]
    if not wanted:
        return []
    masks = torch.zeros(1 + len(wanted), ids.shape[1], dtype=torch.long)
    for mask, kept in zip(masks, [found.tokens, *(kept for _, kept in wanted)]):
        mask[kept] = 1
    before, *after = _logits(model, ids, sequence, masks)
    return own + [
        float((scores[outputs] - before[outputs]).abs().max()) for scores, (outputs, _) in zip(after, wanted)
    ]


def _logits(model: PreTrainedModel, ids: Tensor, sequence: Tensor, masks: Tensor) -> Tensor:
    """Raw scores (masks, outputs, V) of the outputs with the inputs that a mask leaves, at their positions."""
    rows, length = len(masks), sequence.shape[1]
    whole = sequence.expand(rows, -1)
    if model.config.is_encoder_decoder:
        return model(input_ids=ids.expand(rows, -1), attention_mask=masks, decoder_input_ids=whole).logits[:, :-1]
    more = masks.new_ones(rows, length - ids.shape[1])
    places = torch.arange(length).expand(rows, -1)
    mask = torch.cat([masks, more], dim=1)
    return model(input_ids=whole, attention_mask=mask, position_ids=places).logits[:, ids.shape[1] - 1 : -1]
