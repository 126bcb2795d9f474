"""Certificates of deletion: the input tokens without which the logits of an output stay as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...attention.backends import computed_by
from ...functional.arguments import check_number
from ...model.dry_run import quiet_evaluation, watch
from ..forced import every_logit, forced_call, run_forced
from ..inputs import check_logits
from ._closure import needed_inputs
from ._probe import check_confined
from ._record import recorded_calls
from ._refusal import check_calls, check_model, check_modules
from ._run import Deletion, sees_all


@dataclass(frozen=True)
class DeletionCertificate:
    """The input tokens that the outputs of one sequence need. All others can be deleted together.

    Attributes:
        tokens: columns of the inputs that hold tokens, not padding.
        needed: by output, counted from 0, the columns that it needs.
        change: largest change of a raw score of the outputs in a run with all of ``deletable`` hidden from every query
            by the attention mask, ``position_ids`` kept.
        change_removed: the same with these tokens taken out of the input, and the ``position_ids`` of the others kept;
            other shapes round otherwise. None where it was not run: in encoder-decoders, which count positions
            themselves, and under sliding windows, which would reach further.

    >>> found = DeletionCertificate([1, 2, 3, 4], {0: [4], 1: [2, 4]}, change=0.0, change_removed=1e-7)
    >>> found.kept, found.deletable, found.share
    ([2, 4], [1, 3], 0.5)
    """

    tokens: list[int]
    needed: dict[int, list[int]]
    change: float
    change_removed: float | None

    @property
    def kept(self) -> list[int]:
        """The columns that some output needs: the smallest input that is certified to give the same outputs."""
        return sorted({column for columns in self.needed.values() for column in columns})

    @property
    def deletable(self) -> list[int]:
        """The columns that no output needs."""
        return sorted(set(self.tokens) - set(self.kept))

    @property
    def share(self) -> float:
        """The share of the input tokens that can be deleted."""
        return len(self.deletable) / len(self.tokens)

    def deletable_for(self, output: int) -> list[int]:
        """The columns that one output does not need."""
        return sorted(set(self.tokens) - set(self.needed[output]))


def certify(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    sequences: Tensor,
    outputs: Sequence[int] | None = None,
    *,
    tolerance: float = 1e-5,
) -> list[DeletionCertificate]:
    """Prove which input tokens can be deleted, their positions kept, with the same logits at given outputs.

    Theorem. Let K be a set of tokens that holds the output's own position, all positions generated before it, every
    key to which the output gives a nonzero weight in the last layer, and every key to which a member of K gives one in
    any layer before. Without all tokens outside of K the logits of the output are the same.
    Proof, layer by layer: a member of K gives weights to members alone; the others have weight zero, and a map of the
    entmax family keeps its weights when keys of weight zero go. So the states of K stay as they are, and with them all
    scores between them. In an encoder-decoder K is a set of source tokens, which begins with those to which the target
    positions attend.

    All tokens outside of K go together. A part of them need not: a token outside of K may attend to another, whose
    deletion changes its state, and with it a score that was too low to count. For the same reason it is not enough
    that no chain of nonzero weights leads from a token to the output.

    Assumptions, all checked: each weight depends on query, keys and their positions alone (no sequential attention,
    no scores scaled by the number of keys; with keys of weight zero masked, the weights of every call stay); keys are
    tokens, hidden by position or padding alone; and nothing else mixes positions: with attention turned off, replaced
    tokens change no other position, and no module that ran is a convolution, a recurrence, a pooling or a norm over
    positions. At last the deletion is run. The proof is about real numbers; ``change`` is what rounding adds.

    Args:
        model: a decoder that takes ``position_ids``, or an encoder-decoder of text, with sparse attention, in float32
            or float64.
        inputs: keyword inputs of ``model.generate``, (B, T) tensors; decoder-only prompts padded on the left. Without
            ``attention_mask`` padding in a decoder's prompt is hidden as ``generate`` hides it.
        sequences: token ids (k B, L) as ``model.generate`` returns them, with the start token or the prompt; rows k b
            to k b + k - 1 belong to input b.
        outputs: the generated tokens whose logits must stay, counted from 0; None for all. Those after a row's end
            token have no certificate.
        tolerance: the most that ``change`` may be, as a share of the largest raw score (at least of 1).

    Returns:
        One ``DeletionCertificate`` per sequence.

    Raises:
        TypeError: ``inputs`` is not a mapping to tensors, or ``outputs`` are not whole numbers.
        ValueError: an assumption that does not hold, by name; outputs that are not there; see ``score_sequences``.
        RuntimeError: the run without the tokens gave other logits; the theorem does not hold for this model, or
            rounding moved a weight off zero. In float64 the second is unlikely.

    Cost: seven forward passes, and one per sequence where tokens can be removed; attention materializes its weights.

    >>> from hf_sparse import sparsify
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> _ = torch.manual_seed(0)
    >>> sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> config = LlamaConfig(vocab_size=20, initializer_range=0.5, **sizes)
    >>> model = sparsify(LlamaForCausalLM(config).eval(), attn="sparsemax")
    >>> inputs = {"input_ids": torch.tensor([[5, 9, 3, 7, 11, 4, 8, 6]])}
    >>> sequences = model.generate(**inputs, max_new_tokens=2, do_sample=False, pad_token_id=0)
    >>> found, = certify(model, inputs, sequences)
    >>> found.needed, found.deletable, found.change
    ({0: [2, 3, 6, 7], 1: [3, 7]}, [0, 1, 4, 5], 0.0)
    """
    check_number("tolerance", tolerance, "at least 0", lambda share: share >= 0)
    check_model(model, inputs)
    call, length = forced_call(model, inputs, sequences)
    call.setdefault("attention_mask", torch.ones_like(call["input_ids"]))
    wanted = _wanted(model, sequences[:, length:], outputs)
    with watch(model) as record, recorded_calls(model) as calls:
        logits = check_logits(every_logit(model, run_forced(model, call), sequences))
    check_modules(model, record.ran)
    real = _tokens(model, call)
    check_calls(model, calls, real)
    needed = needed_inputs(calls, length - 1, sequences.shape[1] - length, model.config.is_encoder_decoder)
    with quiet_evaluation(model), computed_by(model, "torch"):  # as recorded attention is, above
        check_confined(model, call)
        deletion = Deletion(model, call, needed, wanted, length - 1, logits)
        changes = deletion.changes_when_masked()
        can_remove = not model.config.is_encoder_decoder and sees_all(calls, real["decoder"])
        changes_removed = deletion.changes_when_removed() if can_remove else None
    _check_changes(changes, tolerance * max(1.0, float(logits.abs().amax())))
    of_inputs = real["encoder" if model.config.is_encoder_decoder else "decoder"][:, : needed.shape[-1]]
    return [
        DeletionCertificate(
            tokens=_columns(of_inputs[row]),
            needed={int(output): _columns(needed[row, output]) for output in own},
            change=changes[row],
            change_removed=None if changes_removed is None else changes_removed[row],
        )
        for row, own in enumerate(wanted)
    ]


def _wanted(model: PreTrainedModel, targets: Tensor, outputs: Sequence[int] | None) -> list[Tensor]:
    """Of each row, the outputs asked for that are not after its end token.

    Args:
        model: its generation config may name end tokens.
        targets: (rows, S) the generated tokens.
        outputs: their numbers; None for all.

    Raises:
        TypeError: not whole numbers.
        ValueError: numbers that are not there.
    """
    chosen = range(targets.shape[1]) if outputs is None else outputs
    _check_outputs(chosen, targets.shape[1])
    ends = model.generation_config.eos_token_id
    ended = torch.isin(targets, torch.tensor([] if ends is None else ends, device=targets.device).flatten())
    lengths = (ended.cumsum(-1) - ended.long() == 0).sum(-1).tolist()
    device = targets.device
    return [
        torch.tensor(sorted({n for n in chosen if n < length}), dtype=torch.long, device=device) for length in lengths
    ]


def _check_outputs(outputs: object, total: int) -> None:
    """Refuse what are not numbers of ``total`` generated tokens.

    Raises:
        TypeError: not whole numbers.
        ValueError: numbers that are not there.
    """
    if isinstance(outputs, str) or not isinstance(outputs, Iterable) or not all(type(n) is int for n in outputs):
        raise TypeError(f"outputs must be numbers of generated tokens, or None, was {outputs!r}")
    if not list(outputs) or not all(0 <= number < total for number in outputs):
        raise ValueError(f"outputs must be some of the {total} generated tokens, counted from 0, was {outputs!r}")


def _tokens(model: PreTrainedModel, call: dict[str, Any]) -> dict[str, Tensor]:
    """By kind of attention, (rows, keys) whether a key is a token."""
    tokens = call["attention_mask"].bool()
    if not model.config.is_encoder_decoder:
        return {"decoder": tokens}
    targets = torch.ones_like(call["decoder_input_ids"], dtype=torch.bool)
    return {"encoder": tokens, "cross": tokens, "decoder": targets}


def _check_changes(changes: list[float], most: float) -> None:
    for row, change in enumerate(changes):
        if not change <= most:
            raise RuntimeError(
                f"no certificate: without the tokens that should not count, scores of sequence {row} change by "
                f"{change:.2g}, more than {most:.2g}. Run the model in float64 (model.double()); if they still do, it "
                "mixes positions in a way that was not noticed"
            )


def _columns(chosen: Tensor) -> list[int]:
    return chosen.nonzero()[:, 0].tolist()
