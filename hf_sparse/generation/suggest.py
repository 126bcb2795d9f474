"""Suggestions for the next token or word: the few of nonzero probability, each with what follows for certain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput

from ..cache_name import CACHE
from ..fertility.source import source_bounds
from ..functional.arguments import check_count
from ..model.dry_run import quiet_evaluation
from ..model.readings import probabilities
from .forced import beginning
from .inputs import check_logits, check_one_sentence, encode, end_tokens, head_map

UNITS = ("token", "word")


@dataclass(frozen=True)
class Suggestion:
    """One candidate.

    Attributes:
        text: to append to the prefix; empty if the text may end here.
        probability: of continuing with ``text``.
        tokens: the ids that ``text`` is made of.
        ends: whether the whole text ends with it; the end token is then the last of ``tokens``.
        cut: whether ``max_tokens`` cut it short.
    """

    text: str
    probability: float
    tokens: tuple[int, ...]
    ends: bool = False
    cut: bool = False


@dataclass(frozen=True)
class Suggestions:
    """Candidates for the next token or word; they exclude each other.

    Attributes:
        candidates: likeliest first.
        complete: whether nothing of nonzero probability is missing.
    """

    candidates: list[Suggestion]
    complete: bool

    @property
    def left(self) -> float:
        """The probability that something else comes; 0 where ``complete``."""
        return 0.0 if self.complete else max(0.0, 1 - sum(candidate.probability for candidate in self.candidates))


def suggest(
    model: PreTrainedModel,
    prefix: str,
    tokenizer: PreTrainedTokenizerBase,
    *,
    source: str | Mapping[str, Tensor] | None = None,
    unit: str = "token",
    max_candidates: int = 10,
    max_tokens: int = 32,
    max_open: int = 100,
) -> Suggestions:
    """The continuations of ``prefix``, with probabilities; tokens that follow with certainty belong to a candidate.

    Every token of nonzero probability (or every word made of such tokens) starts a candidate. As long as only one
    token has nonzero probability after it, that token is appended: it leaves nothing to choose.

    Args:
        model: a model with a sparse head, or an ensemble; it runs in evaluation mode.
        prefix: the text so far: the prompt, or for an encoder-decoder the beginning of its output, which may be empty.
        tokenizer: the model's.
        source: the text an encoder-decoder reads, or its inputs (1, ...) by name, as ``input_features`` of speech;
            None for other models. Whisper's prompt is ``decoder_input_ids`` among them, or else the one it writes.
        unit: "token", or "word" for candidates that reach at least to the end of a word, which is where a token's
            text starts with white space, or to the end of the text.
        max_candidates: most candidates returned.
        max_tokens: longest candidate, in tokens.
        max_open: most candidates followed at the same time; beyond it the least likely are dropped.

    Returns:
        ``Suggestions``. Different tokens with the same text make different candidates.

    Raises:
        ValueError: a dense head, an unknown unit, a budget below 1, a source that is missing or out of place, an
            empty prompt, or NaN in the logits.
        TypeError: a budget that is no whole number, a prefix that is no text, or no tokenizer.

    Source: Peters et al. 2019, Figure 2.
    Cost: one forward pass over the open candidates per token, with a cache.
    """
    _check_options(unit, max_candidates=max_candidates, max_tokens=max_tokens, max_open=max_open)
    inputs, ids = encode(model, tokenizer, prefix, source)
    text = _AddedText(tokenizer, ids if model.config.is_encoder_decoder else inputs["input_ids"][0])
    growth = _Growth(unit, text, set(end_tokens(model)))
    with quiet_evaluation(model):
        nodes, complete = _grow_candidates(growth, Continuations(model, inputs, ids), max_tokens, max_open)
    found = growth.finished + [Suggestion(text(node.tokens), node.mass, node.tokens, cut=True) for node in nodes]
    found.sort(key=lambda candidate: -candidate.probability)
    return Suggestions(found[:max_candidates], complete and len(found) <= max_candidates)


def _check_options(unit: str, **budgets: int) -> None:
    if unit not in UNITS:
        raise ValueError(f"unit must be one of {', '.join(map(repr, UNITS))}, was {unit!r}")
    for name, budget in budgets.items():
        check_count(name, budget)


def _grow_candidates(
    growth: _Growth, steps: Continuations, max_tokens: int, max_open: int
) -> tuple[list[_Node], bool]:
    """Grow candidates up to ``max_tokens`` tokens; those still open then, and whether none was dropped before."""
    nodes, complete = [_Node()], True
    for length in range(max_tokens):
        if length > 0:
            device = steps.probabilities.device
            parents = torch.tensor([node.parent for node in nodes], device=device)
            steps.extend(parents, torch.tensor([node.tokens[-1] for node in nodes], device=device))
        children = [child for row, p in enumerate(steps.probabilities) for child in growth.grow(nodes[row], row, p)]
        children.sort(key=lambda child: -child.mass)
        complete = complete and len(children) <= max_open
        nodes = children[:max_open]
        if not nodes:
            break
    return nodes, complete


class _Node(NamedTuple):
    """The beginning of a candidate.

    Attributes:
        tokens: its ids.
        mass: its probability.
        whole: whether its own token or word is complete, so that only certain tokens still belong to it.
        parent: row of the continuation that it is one token longer than.
    """

    tokens: tuple[int, ...] = ()
    mass: float = 1.0
    whole: bool = False
    parent: int = 0


class _AddedText:
    """The text that tokens add to a prefix, spaces as they are."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prefix: Tensor) -> None:
        self.tokenizer = tokenizer
        self.prefix = prefix.tolist()
        self.before = self._decode(())

    def __call__(self, tokens: tuple[int, ...]) -> str:
        return self._decode(tokens).removeprefix(self.before)

    def _decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(
            [*self.prefix, *tokens], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


class _Growth:
    """The rule by which candidates grow, and those that are finished.

    Args:
        unit: "token" or "word".
        text: the text that tokens add.
        ends: the tokens that end a text.
    """

    def __init__(self, unit: str, text: _AddedText, ends: set[int]) -> None:
        self.unit, self.text, self.ends = unit, text, ends
        self.finished: list[Suggestion] = []

    def grow(self, node: _Node, row: int, p: Tensor) -> list[_Node]:
        """Append each token of nonzero probability to a candidate.

        Args:
            node: the candidate.
            row: its row among the continuations.
            p: distribution (V,) of the next token.

        Returns:
            The candidates that are still open; ``finished`` receives the others.
        """
        support = p.nonzero()[:, 0]
        following = dict(zip(support.tolist(), p[support].double().tolist()))
        outside = self._outside(node, list(following))
        if len(outside) > 1:  # a choice after the candidate's end
            mass = node.mass * sum(following.pop(token) for token in outside)
            self.finished.append(Suggestion(self.text(node.tokens), mass, node.tokens))
        nodes = []
        for token, probability in following.items():
            tokens, mass = (*node.tokens, token), node.mass * probability
            if token in self.ends:
                self.finished.append(Suggestion(self.text(tokens), mass, tokens, ends=True))
            else:
                nodes.append(_Node(tokens, mass, self.unit == "token" or token in outside, row))
        return nodes

    def _outside(self, node: _Node, following: list[int]) -> list[int]:
        """The tokens that no longer belong to the candidate's own token or word."""
        if node.whole:
            return following
        so_far = self.text(node.tokens)
        if self.unit == "token" or not so_far.strip():
            return []
        return [token for token in following if token in self.ends or self._starts_word(node.tokens, token, so_far)]

    def _starts_word(self, tokens: tuple[int, ...], token: int, so_far: str) -> bool:
        return self.text((*tokens, token))[len(so_far) : len(so_far) + 1].isspace()


class Continuations:
    """Continuations of one input, all of one length; at first there is one, of length zero.

    Args:
        model: a model with a sparse head, in evaluation mode.
        inputs: keyword inputs of ``model.generate`` for one sentence, (1, length) tensors.
        prefix: token ids (T,) that every continuation begins with.

    Attributes:
        probabilities: the next-token distribution after each continuation, (rows, V).
    """

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, inputs: Mapping[str, Tensor], prefix: Tensor) -> None:
        self.model = model
        head_map(model)  # refuses a dense head
        check_one_sentence(inputs)
        if model.config.is_encoder_decoder:
            read = {name: value for name, value in inputs.items() if name != "decoder_input_ids"}
            self.encoded = model.get_encoder()(**read).last_hidden_state
            self.mask = inputs.get("attention_mask")
            self.fertility = source_bounds(model, inputs.get("input_ids"), self.mask)
            tokens = torch.cat([beginning(model, inputs, 1)[0], prefix])
        else:
            prompt, mask = inputs["input_ids"][0], inputs.get("attention_mask")
            # With padding taken out no mask and no positions need to be kept.
            tokens = torch.cat([prompt if mask is None else prompt[mask[0].bool()], prefix])
            if len(tokens) == 0:
                raise ValueError(
                    "the prompt and the prefix are empty; a decoder needs at least one token to start from"
                )
        self.probabilities, self.cache = self._step(tokens[None], None)

    def extend(self, parents: Tensor, tokens: Tensor) -> None:
        """Continue with ``tokens[i]`` after the continuation ``parents[i]``, for every i."""
        self.cache.reorder_cache(parents)
        self.probabilities, self.cache = self._step(tokens[:, None], self.cache)

    @torch.no_grad()
    def _step(self, tokens: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        inputs: dict[str, object] = {CACHE: cache, "use_cache": True}
        if self.model.config.is_encoder_decoder:
            rows = len(tokens)
            inputs["encoder_outputs"] = BaseModelOutput(last_hidden_state=self.encoded.expand(rows, -1, -1))
            inputs["attention_mask"] = None if self.mask is None else self.mask.expand(rows, -1)
            inputs["decoder_input_ids"] = tokens
            if self.fertility is not None:
                inputs["fertility"] = self.fertility.expand(rows, -1)
        else:
            inputs["input_ids"] = tokens
        output = self.model(**inputs)
        p = probabilities(self.model, check_logits(output.logits[:, -1]))
        return p, output[CACHE]
