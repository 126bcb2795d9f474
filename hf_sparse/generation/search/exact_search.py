"""Search for the likeliest strings, with a proof that they are."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.utils import ModelOutput

from ...functional.arguments import check_count
from ..inputs import check_generates, check_one_segment, check_padding, cuts_outputs, num_sentences
from ..inside_generate import inside_generate
from ..language import Language
from ._constraints import Constraints
from ._lattice import Lattice
from ._membership import Membership
from ._sweeps import Sweeps
from .options import SearchOptions
from .result import Hypothesis, SearchResult

_OTHER_STOP = (
    "exact search stops a string at its end token or at max_new_tokens only, not by {}; for a time limit pass "
    "max_seconds"
)


@dataclass
class ExactSearchOutput(ModelOutput):
    """Output of ``generate`` with ``custom_generate=exact_decoding, return_dict_in_generate=True``.

    Attributes:
        sequences: (B * num_hypotheses, length) prompt or start token and hypothesis, padded at the end.
        sequences_scores: (B * num_hypotheses,) log-probabilities, float64, without length penalty; ``-inf`` for a row
            without a hypothesis, where fewer were found.
        results: one ``SearchResult`` per sentence.
    """

    sequences: Tensor
    sequences_scores: Tensor | None = None
    results: list[SearchResult] | None = None


def exact_search(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    num_hypotheses: int = 1,
    *,
    max_new_tokens: int = 64,
    min_probability: float = 0.0,
    width: int = 16,
    max_open: int = 100_000,
    max_expanded: int = 10_000,
    max_seconds: float | None = None,
    progress: bool = False,
    **generate_options: Any,
) -> list[SearchResult]:
    """The likeliest strings of each sentence, with a proof that they are, or the gap that the budgets left.

    Repeated sweeps of beam search: each passes once through all lengths and expands the ``width`` likeliest open
    prefixes of each, where beam search would forget the others. The first sweep is beam search. A string is never
    likelier than its prefix, so a prefix no likelier than the hypotheses already found is pruned; when none is open,
    the hypotheses are proved to be the likeliest strings. On the sparse lattice of an entmax model that often takes
    one sweep. A softmax model gives every string nonzero probability, but many sentences are proved all the same.

    Args:
        model: a model with a language-model head, sparse or not. It is searched in evaluation mode.
        inputs: keyword inputs of ``model.generate``, (B, length) tensors; decoder-only prompts padded on the left.
        num_hypotheses: number of likeliest strings to find.
        max_new_tokens: longest string, in tokens, its end token included; longer ones are left.
        min_probability: least probability of a string to find.
        width: number of prefixes per sentence that are expanded at once. It changes speed, not the result.
        max_open: memory: most open prefixes per sentence.
        max_expanded: work and memory: most expanded prefixes per sentence (up to ``width - 1`` more, as it is checked
            after each forward pass).
        max_seconds: time for all sentences; the forward pass under way is finished. None for no limit.
        progress: whether to show a progress bar, one step per finished sentence.
        **generate_options: for ``model.generate``: ``logits_processor``, ``prefix_allowed_tokens_fn``,
            ``suppress_tokens``, ``use_cache``, ``language``, ... Constraints set a probability to 0 and leave the
            others, as in beam search; so do those of the generation config. Processors see one row per sentence, as
            in greedy decoding, so that ``prefix_allowed_tokens_fn`` is given the number of the sentence.

    Returns:
        One ``SearchResult`` per sentence, in order.

    Raises:
        TypeError: a model that does not generate, ``inputs`` that are not a mapping to tensors, or a budget no number.
        ValueError: no sentence, a prompt padded on the right, no end token, a budget below 1, a probability outside
            [0, 1], NaN from the model, a processor that makes probabilities of a step sum to more than 1 or remembers
            the step before, sampling, beams, another stopping criterion, or speech of more than one segment (Whisper's
            30 seconds).

    Source: the certificates are those of Peters et al. 2019, Section 4.1, and Stahlberg and Byrne 2019; the order of
    search is that of cyclic best-first search (Kao et al. 2009).

    Cost: one forward pass of one token for ``width`` prefixes per sentence, for each length in each sweep. The keys
    and values of a prefix's last token are stored once, whatever the number of its continuations.

    >>> import torch
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> from hf_sparse import exact_search, sparsify
    >>> _ = torch.manual_seed(1)
    >>> config = GPT2Config(vocab_size=9, n_embd=16, n_layer=1, n_head=2, initializer_range=0.5, bos_token_id=1,
    ...                     eos_token_id=2, pad_token_id=0)
    >>> model = sparsify(GPT2LMHeadModel(config).eval(), head="entmax15")
    >>> inputs = {"input_ids": torch.tensor([[1, 4, 6]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    >>> found, = exact_search(model, inputs, num_hypotheses=2)
    >>> [(hypothesis.tokens, round(hypothesis.probability, 3)) for hypothesis in found.hypotheses]
    [([8, 3, 3, 3, 3, 2], 0.083), ([2], 0.081)]
    >>> found.certificate, found.num_proved, found.num_expanded
    ('bound', 2, 39)
    """
    check_generates(model)
    num_sentences(inputs)
    check_one_segment(model, inputs)
    check_count("max_new_tokens", max_new_tokens)
    options = SearchOptions(num_hypotheses, min_probability, width, max_open, max_expanded, max_seconds, progress)
    check_stop_strings(model, generate_options)
    # These override the model's generation config, and the user's options override them and may be refused.
    mode = {"num_beams": 1, "do_sample": False, "num_return_sequences": 1}
    results: list[SearchResult] = inside_generate(
        model,
        inputs,
        search_strings,
        search_options=options,
        max_new_tokens=max_new_tokens,
        **mode | generate_options,
    )
    return results


@torch.no_grad()
def exact_decoding(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    *,
    num_hypotheses: int = 1,
    min_probability: float = 0.0,
    width: int = 16,
    max_open: int = 100_000,
    max_expanded: int = 10_000,
    max_seconds: float | None = None,
    progress: bool = False,
    **model_kwargs: Any,
) -> ExactSearchOutput | Tensor:
    """``exact_search`` as a way of decoding: ``model.generate(**inputs, custom_generate=exact_decoding)``.

    Args:
        model: from ``generate``, as are ``input_ids``, ``logits_processor``, ``stopping_criteria``,
            ``generation_config`` and ``model_kwargs``. The others are passed to ``generate`` and are those of
            ``exact_search``.
        input_ids: (B, length) prompts or start tokens.
        logits_processor: applied to log-probabilities.
        stopping_criteria: of length and end token only.
        generation_config: for its token ids and length.
        num_hypotheses: see ``exact_search``, as for all that follow.
        min_probability: see there.
        width: see there.
        max_open: see there.
        max_expanded: see there.
        max_seconds: see there.
        progress: see there.
        **model_kwargs: for the model.

    Returns:
        Token ids (B * num_hypotheses, length), or an ``ExactSearchOutput`` with ``return_dict_in_generate=True``. A
        sentence with fewer hypotheses has rows that end after the prompt, and a warning says so.

    Raises:
        ValueError: see ``exact_search``.
    """
    if cuts_outputs(model):
        raise ValueError(
            f"generate of {type(model).__name__} cuts what decoding returns and would lose the results; call "
            "exact_search(model, inputs, ...), which returns them"
        )
    options = SearchOptions(num_hypotheses, min_probability, width, max_open, max_expanded, max_seconds, progress)
    results = search_strings(
        model,
        input_ids,
        logits_processor,
        stopping_criteria,
        generation_config,
        search_options=options,
        **model_kwargs,
    )
    output = _as_sequences(results, input_ids, num_hypotheses, generation_config._pad_token_tensor)
    if generation_config.return_dict_in_generate:
        return output
    missing = [i for i, result in enumerate(results) if result.best is None]
    if missing:
        budget = results[missing[0]].ended_by
        what = f"raise {budget}" if budget else "none is as likely as min_probability, or the constraints leave none"
        warnings.warn(
            f"no string was found for sentences {missing}, whose rows hold the prompt only: {what}", stacklevel=2
        )
    return output.sequences


@torch.no_grad()
def search_strings(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    *,
    search_options: SearchOptions,
    constrained: bool = True,
    members_of: Sequence[Language] | None = None,
    **model_kwargs: Any,
) -> list[SearchResult]:
    """The search itself, inside ``generate``.

    Arguments are those of ``exact_decoding``, its own in ``search_options``; ``constrained``: whether
    ``logits_processor`` applies; and ``members_of``: one language per sentence, whose members alone are found, with
    the probabilities that they have among all strings.
    """
    _check_mode(generation_config, stopping_criteria)
    check_padding(model, model_kwargs)
    if any(module.training for module in model.modules()):
        raise ValueError("the model is in training mode, where outputs are random: call model.eval() before generate")
    if len(input_ids) == 0:
        raise ValueError("the batch is empty: give at least one sentence")
    max_new_tokens = generation_config.max_length - input_ids.shape[1]
    check_count("max_new_tokens", max_new_tokens)
    ends = generation_config._eos_token_tensor
    if ends is None:
        raise ValueError("generation_config.eos_token_id is None: no string ever ends; set it to the end token")
    pad = generation_config._pad_token_tensor
    processors = logits_processor if constrained else LogitsProcessorList()
    constraints = Constraints(processors, input_ids, int(ends[0]), int(ends[0] if pad is None else pad))
    membership = None if members_of is None else Membership(members_of, input_ids.shape[1], ends.tolist())
    lattice = Lattice(model, input_ids, constraints, model_kwargs, max_new_tokens, membership)
    return Sweeps(lattice, ends.cpu(), max_new_tokens, search_options).run()


def _check_mode(generation_config: GenerationConfig, stopping_criteria: StoppingCriteriaList) -> None:
    if generation_config.do_sample or generation_config.num_beams > 1:
        raise ValueError(
            "exact search neither samples nor takes beams; pass do_sample=False and num_beams=1 (width is the number "
            "of prefixes expanded at once, num_hypotheses the number of strings returned)"
        )
    others = [type(c).__name__ for c in stopping_criteria if not isinstance(c, EosTokenCriteria | MaxLengthCriteria)]
    if others:
        raise ValueError(_OTHER_STOP.format(", ".join(others)))


def check_stop_strings(model: PreTrainedModel, generate_options: Mapping[str, Any]) -> None:
    """Refuse strings that end an output, before ``generate`` asks for a tokenizer to find them.

    Args:
        model: its generation config may name some.
        generate_options: for ``model.generate``.

    Raises:
        ValueError: there are some.
    """
    if generate_options.get("stop_strings"):
        raise ValueError(_OTHER_STOP.format("stop_strings"))
    configs = (generate_options.get("generation_config"), model.generation_config)
    if "stop_strings" not in generate_options and any(getattr(config, "stop_strings", None) for config in configs):
        raise ValueError(_OTHER_STOP.format("the generation config's stop_strings, which must be None"))


def _as_sequences(
    results: list[SearchResult], input_ids: Tensor, num_hypotheses: int, pad: Tensor | None
) -> ExactSearchOutput:
    strings = [h.tokens for result in results for h in _filled(result.hypotheses, num_hypotheses)]
    scores = [h.log_probability for result in results for h in _filled(result.hypotheses, num_hypotheses)]
    sequences = input_ids.new_full((len(strings), max(map(len, strings))), 0 if pad is None else int(pad))
    for row, string in enumerate(strings):
        sequences[row, : len(string)] = torch.tensor(string, device=input_ids.device)
    prompts = input_ids.repeat_interleave(num_hypotheses, dim=0)
    return ExactSearchOutput(
        sequences=torch.cat([prompts, sequences], dim=1),
        sequences_scores=torch.tensor(scores, dtype=torch.float64, device=input_ids.device),
        results=results,
    )


def _filled(hypotheses: list[Hypothesis], count: int) -> list[Hypothesis]:
    return hypotheses + [Hypothesis([], -math.inf)] * (count - len(hypotheses))
