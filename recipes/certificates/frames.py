"""The states of a speech encoder that a transcript needs: those from which its decoder takes something."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from .proofs import Tally


def needed_frames(cross_attentions: Sequence[Tensor]) -> Tensor:
    """Whether an output needs an encoder's state: some head gives it weight, in the last layer or on the way there.

    A state without weight can go and all other weights stay, so the decoder computes the same. The states themselves
    stay as they are; which sound they come from is another question, because the encoder mixes all frames.

    Args:
        cross_attentions: (1, heads, positions, frames) of each layer.

    Returns:
        (positions, frames) booleans.

    >>> one, two = torch.tensor([[[[1.0, 0, 0], [0, 1, 0]]]]), torch.tensor([[[[0, 0, 1.0], [0, 0, 1]]]])
    >>> needed_frames([one, two]).int().tolist()
    [[1, 0, 1], [1, 1, 1]]
    """
    *lower, last = [(weights[0] != 0).any(0) for weights in cross_attentions]
    needed = last
    for attended in lower:
        needed = needed | (attended.cumsum(0) > 0)
    return needed


@torch.no_grad()
def certified_frames(
    model: PreTrainedModel, states: Sequence[Tensor], sequences: Sequence[Tensor], skip: int
) -> Tally:
    """Which encoder states the tokens of transcripts can do without, each time tried without them.

    Args:
        model: an encoder-decoder of speech with sparse cross-attention, in float64.
        states: (1, frames, width) of each clip.
        sequences: (1, L) decoder's inputs of each clip.
        skip: positions at the beginning that predict the prompt.
    """
    tally = Tally()
    for frames, sequence in zip(states, sequences):
        whole = _run(model, frames, sequence, output_attentions=True)
        assert len(whole.cross_attentions) == len(model.get_decoder().layers)
        needed = needed_frames(whole.cross_attentions)[skip:]
        before, changes = whole.logits[0, skip:], []
        for output, kept in enumerate(needed):
            if not bool(kept.all()):
                after = _run(model, frames[:, kept], sequence).logits[0, skip + output]
                changes.append(float((after - before[output]).abs().max()))
        kept = needed.any(0)
        if not bool(kept.all()):
            after = _run(model, frames[:, kept], sequence).logits[0, skip:]
            changes.append(float((after - before).abs().max()))
        tally.add(1 - float(kept.double().mean()), (1 - needed.double().mean(1)).tolist(), changes)
    return tally


def _run(model: PreTrainedModel, frames: Tensor, sequence: Tensor, **options: bool) -> Seq2SeqLMOutput:
    output: Seq2SeqLMOutput = model(encoder_outputs=BaseModelOutput(frames), decoder_input_ids=sequence, **options)
    return output
