"""Sampling in a language token by token: masking, and adaptive sampling with approximate expected futures (ASAp)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

import hf_sparse
from hf_sparse import Language

String = tuple[int, ...]


class Tree:
    """The prefixes of members of a language, with the model's probabilities of their continuations.

    Args:
        model: an encoder-decoder or a decoder with a sparse head, in evaluation mode.
        inputs: for one sentence, (1, length) tensors.
        start: what the decoder reads before the output: the prompt of a decoder-only model.
        language: of the outputs.
        ends: the tokens that end an output.
        max_new_tokens: longest output.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        inputs: Mapping[str, Tensor],
        start: Sequence[int],
        language: Language,
        ends: Iterable[int],
        max_new_tokens: int,
    ) -> None:
        self.model, self.start, self.language = model, list(start), language
        self._encoded = _encoded(model, inputs)
        self.ends, self.max_new_tokens = set(ends), max_new_tokens
        self._known: dict[String, dict[int, float]] = {}
        self._states: dict[String, Any] = {(): language.start()}

    def __call__(self, prefix: String) -> dict[int, float]:
        """The probabilities of the tokens with which a member may go on or end; computed once for each prefix."""
        if prefix not in self._known:
            self._known[prefix] = self._continuations(prefix)
        return self._known[prefix]

    def ended(self, string: String) -> bool:
        """Whether a string ends."""
        return bool(string) and string[-1] in self.ends

    def _continuations(self, prefix: String) -> dict[int, float]:
        if len(prefix) == self.max_new_tokens:
            return {}
        p, state, kept = self._distribution(prefix), self._states[prefix], {}
        for token in p.nonzero()[:, 0].tolist():
            if token in self.ends:
                inside = self.language.accepts(state)
            else:
                following = self.language.step(state, token)
                self._states[(*prefix, token)] = following
                inside = following is not None
            if inside:
                kept[token] = float(p[token])
        return kept

    @torch.no_grad()
    def _distribution(self, prefix: String) -> Tensor:
        name = "decoder_input_ids" if self._encoded else "input_ids"
        ids = torch.tensor([[*self.start, *prefix]])
        logits = self.model(**self._encoded, **{name: ids}).logits
        return hf_sparse.probabilities(self.model, logits[0, -1]).double()


@torch.no_grad()
def _encoded(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """What the decoder of an encoder-decoder reads of the inputs; nothing for a decoder-only model."""
    if not model.config.is_encoder_decoder:
        return {}
    rest = {name: value for name, value in inputs.items() if name != model.main_input_name}
    return {**rest, "encoder_outputs": model.get_encoder()(**inputs)}


class Sampler:
    """Draws members token by token: p(token) times the expected future of the prefix, among the tokens allowed.

    The expected future of a prefix is the probability that it ends in a member. It is 1 for a prefix never visited;
    of a visited one it is the sum over its allowed tokens, each weighted by p. That is ASAp (Park et al. 2024, Section
    4). Before the first draw all are 1: masking.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.future: dict[String, float] = {}  # of visited prefixes

    @property
    def num_expanded(self) -> int:
        """Number of prefixes whose continuations a draw has needed."""
        return len(self.future)

    def weights(self, prefix: String) -> dict[int, float]:
        """p(token) times the expected future after it, of the allowed tokens."""
        return {token: p * self.future.get((*prefix, token), 1.0) for token, p in self.tree(prefix).items()}

    def draw(self, generator: torch.Generator) -> String | None:
        """Draw once and learn from it; None where the draw met a prefix without continuation."""
        prefix: String = ()
        path = [prefix]
        while not self.tree.ended(prefix):
            weights = self.weights(prefix)
            total = sum(weights.values())
            if total == 0:
                break
            shares = torch.tensor(list(weights.values()), dtype=torch.float64) / total
            prefix = (*prefix, list(weights)[int(torch.multinomial(shares, 1, generator=generator))])
            path.append(prefix)
        for visited in reversed(path):
            if not self.tree.ended(visited):
                self.future[visited] = sum(self.weights(visited).values())
        return prefix if self.tree.ended(prefix) else None

    def probability(self, string: String) -> float:
        """The probability that the next draw is a member."""
        share = 1.0
        for length, token in enumerate(string):
            weights = self.weights(string[:length])
            total = sum(weights.values())
            share *= weights[token] / total if total else 0.0
        return share


def divergence(sampler: Sampler, truth: Mapping[String, float]) -> float:
    """KL(draws that end || p given the language), in nats.

    Args:
        sampler: of the draws.
        truth: p(member | language) of all members.
    """
    q = {string: sampler.probability(string) for string in truth}
    total = sum(q.values())
    return sum(share / total * math.log(share / total / truth[string]) for string, share in q.items() if share > 0)
