"""Log-probabilities of given strings, and of the empty string beside the hypothesis of beam search."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from ..config import MapConfig
from ..functional.arguments import check_count, check_number
from ..model.distribution import distribution
from ..model.dry_run import in_mode
from ..model.find import is_sparse, sparse_config
from .forced import beginning, check_prompt, forced_output
from .inputs import check_generates, end_tokens, num_sentences


@dataclass(frozen=True)
class SequenceScores:
    """Scores of strings in nats, in the order of the strings.

    Attributes:
        normalized: (rows,) log-probability under the distribution that ``generate`` decodes from, which sums to one at
            every step, mixed with the uniform one by ``uniform_share``; -inf for a string of probability zero.
        unnormalized: (rows,) sum of the logarithms of the head's own weights. alpha-ReLU weights are not divided by
            their sum here, so this is no log-probability; for every other map it equals ``normalized``.
        sums: (rows, steps) sum of the head's own weights at every step, 1 for normalized maps; NaN after a string's
            end. ``unnormalized - normalized`` is the sum of their logarithms.
        lengths: (rows,) number of tokens scored, the end token included.
    """

    normalized: Tensor
    unnormalized: Tensor
    sums: Tensor
    lengths: Tensor


@torch.no_grad()
def score_sequences(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    sequences: Tensor,
    eos_token_id: int | list[int] | None = None,
    *,
    uniform_share: float = 0.0,
    pad_token_id: int | None = None,
) -> SequenceScores:
    """Score strings under a model, sparse or dense.

    Args:
        model: a model with ``generate``; it runs in evaluation mode.
        inputs: keyword inputs of ``model.generate``, (B, T) tensors, images and the like; decoder-only prompts padded
            on the left. With ``decoder_input_ids`` where the decoder was given another beginning than the start token,
            and the ``decoder_attention_mask`` of that beginning where ``generate`` was given one; Whisper's drops one
            that comes without ``decoder_input_ids``, and so does this.
            Without ``attention_mask`` padding in a decoder's prompt is hidden as ``generate`` hides it.
        sequences: token ids (k B, L) as ``model.generate`` returns them: with the start token or the prompt, of any
            language and task (Whisper keeps it with ``return_dict_in_generate=True``); tokens after the end token are
            ignored. Rows k b to k b + k - 1 belong to input b.
        eos_token_id: the end tokens, where ``generate`` was given others than those of the generation config.
        uniform_share: share of the uniform distribution over the vocabulary, in [0, 1], mixed into every step:
            ``(1 - u) p + u / V``. With a share above 0 ``normalized`` is finite, as evaluators need it; compare models
            at the same share only.
        pad_token_id: the padding token, where ``generate`` was given another than that of the generation config.

    Returns:
        ``SequenceScores``, float64.

    Raises:
        TypeError: a model that does not generate, ``inputs`` that are not a mapping to tensors, or ``sequences`` that
            are not whole numbers.
        ValueError: the number of sequences is not a multiple of the number of inputs, a sequence does not begin with
            the start token or the prompt, no token is left to score, one is outside of the vocabulary, no end token,
            NaN in the logits, or ``uniform_share`` outside [0, 1]; a decoder's ``inputs_embeds`` or cache, which
            sequences do not show, or its prompts padded on the right; a model that one pass over a string does not
            score as ``generate`` decodes it.

    Source: Tezekbayev et al. 2022, Section 4 (self-normalization of alpha-ReLU).
    Cost: one forward pass; for a decoder that may let a prompt see what follows it (images, types of tokens) a second.
    """
    check_number("uniform_share", uniform_share, "in [0, 1]", lambda share: 0 <= share <= 1)
    given = {"eos_token_id": eos_token_id, "pad_token_id": pad_token_id}
    special = {name: token for name, token in given.items() if token is not None}
    _, targets, logits = forced_output(model, inputs, sequences, special)
    head = sparse_config(model).head if is_sparse(model) else None
    map_config = head or MapConfig("softmax")
    weights = map_config(logits.double())
    end = torch.tensor(end_tokens(model, eos_token_id), device=targets.device)
    ended = torch.isin(targets, end)
    counted = ended.cumsum(-1) - ended.long() == 0

    p = (1 - uniform_share) * distribution(map_config, logits.double()) + uniform_share / logits.shape[-1]

    def score(p: Tensor) -> Tensor:
        log_p = p.gather(-1, targets[..., None])[..., 0].log()
        return torch.where(counted, log_p, 0.0).sum(-1)

    return SequenceScores(
        normalized=score(p),
        unnormalized=score(weights),
        sums=torch.where(counted, weights.sum(-1), torch.nan),
        lengths=counted.sum(-1),
    )


@dataclass(frozen=True)
class EmptyComparison:
    """The empty string beside the beam hypothesis, for each input.

    Attributes:
        hypotheses: token ids (B, L) as ``generate`` returned them.
        found_empty: (B,) whether the hypothesis is itself empty, so that nothing can be preferred to it.
        hypothesis_scores: scores of the hypotheses, without any length penalty.
        empty_scores: scores of the empty string, which is the end token alone; where several tokens end a string,
            the sum over them. ``sums`` has the one step.
    """

    hypotheses: Tensor
    found_empty: Tensor
    hypothesis_scores: SequenceScores
    empty_scores: SequenceScores

    @property
    def preferred(self) -> Tensor:
        """(B,) whether the empty string is the likelier one. Its mean is the rate of the paper's Table 2."""
        return ~self.found_empty & (self.empty_scores.normalized > self.hypothesis_scores.normalized)

    @property
    def preferred_unnormalized(self) -> Tensor:
        """(B,) whether the head's own weights, not divided by their sum, prefer the empty string."""
        return ~self.found_empty & (self.empty_scores.unnormalized > self.hypothesis_scores.unnormalized)


def compare_with_empty(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], num_beams: int = 5, **generate_options: object
) -> EmptyComparison:
    """Compare the empty string with the hypothesis of a beam search ("cat got your tongue").

    The token that ``generate`` forces an encoder-decoder to write first (``forced_bos_token_id``, the language of
    mBART and M2M-100) belongs to the beginning of both strings, as the start token does, and is not scored.

    Args:
        model: a model with ``generate``, sparse or dense; it runs in evaluation mode.
        inputs: keyword inputs of ``model.generate``, (B, T) tensors.
        num_beams: beam size.
        **generate_options: for ``model.generate``, such as ``max_new_tokens`` and ``length_penalty``.

    Returns:
        An ``EmptyComparison``.

    Raises:
        TypeError: a model that does not generate, or ``inputs`` that are not a mapping to tensors.
        ValueError: no end token, NaN in the logits, less than one beam, or inputs that ``score_sequences`` refuses.

    Source: Stahlberg and Byrne 2019; Tezekbayev et al. 2022, Section 4.1 and Table 2.
    Cost: a beam search and two forward passes.
    """
    check_generates(model)
    check_count("num_beams", num_beams)
    asked: Any = generate_options.get("generation_config")
    own = {name: getattr(asked, name, None) for name in ("eos_token_id", "pad_token_id", "forced_bos_token_id")}
    if own["forced_bos_token_id"] is None:
        own["forced_bos_token_id"] = model.generation_config.forced_bos_token_id
    given: Mapping[str, Any] = own | generate_options
    ends = end_tokens(model, given["eos_token_id"])
    options = {"do_sample": False, "num_return_sequences": 1, **generate_options, "return_dict_in_generate": True}
    num_sentences(inputs)
    check_prompt(model, inputs)
    with in_mode(model, training=False):  # random numbers go on: options may ask to sample
        hypotheses = model.generate(**inputs, num_beams=num_beams, **options).sequences
    start = beginning(model, inputs, len(hypotheses), hypotheses)
    first = given["forced_bos_token_id"]
    can_force = first not in (None, *ends) and model.config.is_encoder_decoder and start.shape[1] == 1
    if can_force and bool((hypotheses[:, 1] == first).all()):  # max_new_tokens=1 may have forced the end in its place
        start = F.pad(start, (0, 1), value=first)
        inputs = _begun(inputs, start)
    end = torch.tensor(ends, device=start.device)
    each_end = torch.cat([start.repeat_interleave(len(ends), dim=0), end.repeat(len(start))[:, None]], dim=1)
    score = functools.partial(score_sequences, eos_token_id=ends, pad_token_id=given["pad_token_id"])
    found, empty = score(model, inputs, hypotheses), score(model, inputs, each_end)
    return EmptyComparison(
        hypotheses,
        torch.isin(hypotheses[:, start.shape[1]], end),
        found,
        SequenceScores(
            normalized=empty.normalized.view(-1, len(ends)).logsumexp(-1),
            unnormalized=empty.unnormalized.view(-1, len(ends)).logsumexp(-1),
            sums=empty.sums[:: len(ends)],
            lengths=empty.lengths[:: len(ends)],
        ),
    )


def _begun(inputs: Mapping[str, Tensor], start: Tensor) -> dict[str, Tensor]:
    """Inputs of an encoder-decoder whose decoder begins with ``start`` (k B, T), of which a mask hides no later token.

    Rows k b to k b + k - 1 belong to input b and are equal.
    """
    begun = {**inputs, "decoder_input_ids": start[:: len(start) // num_sentences(inputs)]}
    mask = begun.get("decoder_attention_mask")
    if mask is not None:
        begun["decoder_attention_mask"] = F.pad(mask, (0, start.shape[1] - mask.shape[1]), value=1)
    return begun
