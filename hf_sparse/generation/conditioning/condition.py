"""The distribution of a model's outputs, given that they are in a language."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ...functional.arguments import check_count, check_flag
from ..inputs import check_generates, check_one_segment, num_sentences
from ..inside_generate import inside_generate
from ..language import Language, check_language
from ..search.enumerate import check_unconstrained
from ..search.exact_search import check_stop_strings, search_strings
from ..search.options import SearchOptions
from .result import Conditioned


def condition(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    given: Language | Sequence[Language],
    *,
    max_new_tokens: int = 64,
    width: int = 128,
    max_open: int = 100_000,
    max_expanded: int = 10_000,
    max_seconds: float | None = None,
    progress: bool = False,
    constrained: bool = False,
    **generate_options: Any,
) -> list[Conditioned]:
    """The probability that an output is in a language L, and the distribution of outputs given that it is.

    The search walks through the prefixes that are possible under the model and begin a member of L; all others are
    left where they part. Theorem. Let F be the probability of the members found and M that of the prefixes that a
    budget left. Then F <= p(L) <= F + M, and for a set A of members of which those found have probability a:

        a / (F + M) <= p(A | L) <= (a + M) / (F + M).

    With M = 0, which needs supports that are finite or an L that is, p(L) = F and p(x | L) = p(x) / F are known; and
    F = 0 then proves that no output is in L. Proof. An output is a member found, or begins with a prefix left, or is
    not in L; the prefixes left exclude each other, so that the members among their continuations have some probability
    m, 0 <= m <= M, of which p(L) = F + m.

    Assumptions: an output ends with an end token, and p is the distribution of ``generate``'s sampling without
    truncation; the language keeps to its protocol; and arithmetic is exact. Probabilities are computed in the model's
    dtype and added in float64; a token at the threshold of a sparse head has probability 0 or 1e-13 by rounding.

    Tokens that are masked one by one (``prefix_allowed_tokens_fn``, constrained decoding) give another distribution:
    the probability that a masked token had goes to its neighbours, whether or not they lead to likely members.

    Args:
        model: a model with a language-model head; it runs in evaluation mode. With a dense head the walk is complete
            only where L is finite (a ``Lexicon``) or ``max_new_tokens`` ends all of its members.
        inputs: keyword inputs of ``model.generate``, (B, length) tensors; decoder-only prompts padded on the left.
        given: the language L: ``Lexicon``, ``Grammar``, ``RequiredWords``, ``Intersection`` or another ``Language``,
            which is read after the prompt; or one for each sentence.
        max_new_tokens: longest output, in tokens, its end token included; longer ones are left.
        width: number of prefixes per sentence that are expanded at once; it changes speed, not a complete result.
        max_open: memory: most open prefixes per sentence; the least likely are left.
        max_expanded: work: most expanded prefixes per sentence, likeliest of each length first (up to ``width - 1``
            more).
        max_seconds: time for all sentences; None for no limit.
        progress: whether to show a progress bar, one step per finished sentence.
        constrained: whether the constraints of the generation config, and of ``generate_options`` (``min_length``,
            ...), take outputs away; they leave the probabilities of the others, which then sum to less than 1.
        **generate_options: for ``model.generate``: ``use_cache``, ``language`` and ``task`` of a speech model, ...

    Returns:
        One ``Conditioned`` per sentence, in order.

    Raises:
        TypeError: a model that does not generate, ``inputs`` that are no mapping to tensors, ``given`` that is no
            ``Language``, or a budget no number.
        ValueError: another number of languages than of sentences, a constraint among the options without
            ``constrained=True``, members that end with an end token, which is no part of them, and what
            ``exact_search`` refuses.

    Source: p(x | L) = p(x) / p(L); the search is that of ``exact_search`` without pruning. Masking distorts the
    distribution as Park et al. 2024 ("Grammar-Aligned Decoding") describe.

    Cost: one forward pass of one token for ``width`` prefixes per sentence, for each length in each sweep.

    >>> import torch
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> from hf_sparse import Lexicon, condition, sparsify
    >>> _ = torch.manual_seed(1)
    >>> config = GPT2Config(vocab_size=9, n_embd=16, n_layer=1, n_head=2, initializer_range=0.5, bos_token_id=1,
    ...                     eos_token_id=2, pad_token_id=0)
    >>> model = sparsify(GPT2LMHeadModel(config).eval(), head="entmax15")
    >>> inputs = {"input_ids": torch.tensor([[1, 4, 6]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    >>> found, = condition(model, inputs, Lexicon([[8, 3, 3, 3, 3], [8, 3, 3, 3], [7], []]))
    >>> found
    Conditioned(p(L) = 16.41%, complete; members given L:
      50.45%  8 3 3 3 3 2
      49.43%  2
      0.12%  7 2)
    >>> condition(model, inputs, Lexicon([[7, 7]]))[0].impossible
    True
    """
    check_generates(model)
    rows = num_sentences(inputs)
    check_one_segment(model, inputs)
    check_count("max_new_tokens", max_new_tokens)
    check_flag("constrained", constrained)
    languages = _one_each(given, rows)
    if not constrained:
        check_unconstrained(generate_options)
    check_stop_strings(model, generate_options)
    for name in ("min_probability", "num_hypotheses"):
        if name in generate_options:
            raise ValueError(f"{name}: condition finds every member of its language, however unlikely; leave it out")
    everything = sys.maxsize  # nothing is pruned
    options = SearchOptions(everything, 0.0, width, max_open, max_expanded, max_seconds, progress)
    mode = {"num_beams": 1, "do_sample": False, "num_return_sequences": 1}
    results = inside_generate(
        model,
        inputs,
        search_strings,
        members_of=languages,
        search_options=options,
        max_new_tokens=max_new_tokens,
        constrained=constrained,
        **mode | generate_options,
    )
    return [Conditioned(result) for result in results]


def _one_each(given: object, rows: int) -> list[Language]:
    """One language per sentence.

    Raises:
        TypeError: something else than languages.
        ValueError: another number of them.
    """
    if not isinstance(given, list | tuple):
        check_language("given", given)
        return [given] * rows  # type: ignore[list-item]
    for one in given:
        check_language("given", one)
    if len(given) != rows:
        raise ValueError(f"given must be one language, or one for each of the {rows} sentences, was {len(given)}")
    return list(given)
