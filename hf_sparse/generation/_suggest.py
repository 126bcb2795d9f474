"""Suggestions for what comes next: the few words, or longer pieces, that a sparse model holds possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ._continuations import Continuations, end_tokens

UNITS = ("token", "word")


@dataclass(frozen=True)
class Suggestion:
    """One candidate.

    Attributes:
        text: what to append to the prefix; empty if the text may end here.
        probability: of going on with ``text``.
        tokens: the ids it is made of.
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
    """Candidates for what comes next; no two can both be true.

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


class _Node(NamedTuple):
    """A beginning of a candidate. It is whole once it only grows by tokens that are certain."""

    tokens: tuple[int, ...] = ()
    mass: float = 1.0
    whole: bool = False


def suggest(
    model: PreTrainedModel,
    prefix: str,
    tokenizer: Any,
    *,
    source: str | None = None,
    unit: str = "token",
    max_candidates: int = 10,
    max_tokens: int = 32,
    max_open: int = 100,
) -> Suggestions:
    """What may come after ``prefix``, with probabilities; what follows with certainty is part of each candidate.

    Every token of nonzero probability (or every word made of such tokens) starts a candidate. As long as only one
    token has nonzero probability after it, that token is appended: nobody needs to be asked.

    Args:
        model: a model with a sparse head, or an ensemble, in evaluation mode.
        prefix: the text so far: the prompt, or for an encoder-decoder the beginning of its output, which may be empty.
        tokenizer: the model's.
        source: what an encoder-decoder reads; None for other models.
        unit: "token", or "word" for candidates that reach at least to the end of a word, which is where a token's
            text starts with white space, or to the end of the text.
        max_candidates: how many candidates are returned.
        max_tokens: the longest candidate, in tokens.
        max_open: how many candidates are followed at the same time; beyond it the least likely are dropped.

    Returns:
        ``Suggestions``. Different tokens with the same text make different candidates.

    Raises:
        ValueError: a dense head, an unknown unit, a budget below 1, a source that is missing or out of place, an
            empty prompt, NaN in the logits.

    Source: Peters et al. 2019, Figure 2.
    Cost: one forward pass over the open candidates for each token, with a cache.
    """
    if unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r}; choose one of {', '.join(map(repr, UNITS))}")
    for name, budget in (("max_candidates", max_candidates), ("max_tokens", max_tokens), ("max_open", max_open)):
        if budget < 1:
            raise ValueError(f"{name} must be at least 1, was {budget}")
    inputs, ids = encode(model, tokenizer, prefix, source)
    steps = Continuations(model, inputs, ids)
    ends = end_tokens(model)
    text = _Text(tokenizer, ids if model.config.is_encoder_decoder else inputs["input_ids"][0])

    found: list[Suggestion] = []
    open_nodes, complete = [_Node()], True
    for _ in range(max_tokens):
        children: list[tuple[int, _Node]] = []
        for row, node in enumerate(open_nodes):
            support = steps.probabilities[row].nonzero()[:, 0].tolist()
            following = dict(zip(support, steps.probabilities[row, support].double().tolist()))
            outside = _outside(node, following, unit, text, ends)
            if len(outside) > 1:
                mass = node.mass * sum(following[token] for token in outside)
                found.append(Suggestion(text(node.tokens), mass, node.tokens))
                for token in outside:
                    del following[token]
            for token, p in following.items():
                whole = unit == "token" or token in outside
                child = _Node((*node.tokens, token), node.mass * p, whole)
                if token in ends:
                    found.append(Suggestion(text(child.tokens), child.mass, child.tokens, ends=True))
                else:
                    children.append((row, child))
        children.sort(key=lambda entry: -entry[1].mass)
        complete = complete and len(children) <= max_open
        children = children[:max_open]
        open_nodes = [child for _, child in children]
        if not children or len(open_nodes[0].tokens) == max_tokens:
            break
        device = steps.probabilities.device
        parents = torch.tensor([row for row, _ in children], device=device)
        steps.extend(parents, torch.tensor([child.tokens[-1] for child in open_nodes], device=device))
    found += [Suggestion(text(node.tokens), node.mass, node.tokens, cut=True) for node in open_nodes]
    found.sort(key=lambda candidate: -candidate.probability)
    return Suggestions(found[:max_candidates], complete and len(found) <= max_candidates)


def encode(
    model: PreTrainedModel, tokenizer: Any, prefix: str, source: str | None
) -> tuple[dict[str, Tensor], Tensor]:
    """What the model reads, and the ids (T,) that its output begins with.

    Raises:
        ValueError: ``source`` is missing for an encoder-decoder, or given for another model.
    """
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        if source is None:
            raise ValueError(f"{name} reads a source text: pass source=...")
        inputs = tokenizer(source, return_tensors="pt").to(model.device)
        ids = tokenizer(text_target=prefix, add_special_tokens=False).input_ids if prefix else []
        return dict(inputs), torch.tensor(ids, dtype=torch.long, device=model.device)
    if source is not None:
        raise ValueError(f"{name} has no encoder; put all of the text in prefix and pass source=None")
    ids = tokenizer(prefix).input_ids
    if ids and ids[-1] in end_tokens(model):  # some tokenizers end every text
        ids = ids[:-1]
    prompt = torch.tensor([ids], dtype=torch.long, device=model.device)
    return {"input_ids": prompt}, prompt.new_empty(0)


class _Text:
    """The text that tokens add to a prefix, spaces as they are."""

    def __init__(self, tokenizer: Any, prefix: Tensor) -> None:
        self.tokenizer = tokenizer
        self.prefix = prefix.tolist()
        self.before = self._decode([])

    def __call__(self, tokens: tuple[int, ...]) -> str:
        return self._decode(tokens).removeprefix(self.before)

    def _decode(self, tokens: Any) -> str:
        return self.tokenizer.decode(
            [*self.prefix, *tokens], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


def _outside(node: _Node, following: dict[int, float], unit: str, text: _Text, ends: list[int]) -> list[int]:
    """Which tokens no longer belong to the candidate's own token or word."""
    if node.whole:
        return list(following)
    so_far = text(node.tokens)
    if unit == "token" or not so_far.strip():
        return []
    return [
        token
        for token in following
        if token in ends or text((*node.tokens, token))[len(so_far) : len(so_far) + 1].isspace()
    ]
