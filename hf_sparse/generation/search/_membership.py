"""Prefixes of members of a language: what a search for members alone may expand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..language import Language, allowed_after


class Membership:
    """Takes away the continuations that no member of a language begins with; the others keep their probabilities.

    Args:
        languages: one per sentence.
        start: number of tokens of prompts, which are no part of a member.
        ends: the tokens that end a string, and no part of a member either.
    """

    def __init__(self, languages: Sequence[Language], start: int, ends: list[int]) -> None:
        self._languages, self._start, self._ends = languages, start, ends
        self._states: dict[tuple[int, tuple[int, ...]], Any] = {}  # of expanded prefixes, by sentence and tokens

    def __call__(self, ids: Tensor, scores: Tensor, sentences: Tensor) -> Tensor:
        """The log-probabilities of some prefixes, ``-inf`` where no member goes on so.

        Args:
            ids: (n, T + length) prompts and prefixes, whose own prefixes were seen before.
            scores: (n, V) log-probabilities, ``-inf`` for zero.
            sentences: (n,) indices of their sentences.
        """
        inside = torch.full_like(scores, -math.inf)
        possible = scores > -math.inf
        for row, (i, prefix) in enumerate(zip(sentences.tolist(), ids[:, self._start :].tolist())):
            kept = self._continuations(i, tuple(prefix), possible[row])
            inside[row, kept] = scores[row, kept]
        return inside

    def _continuations(self, i: int, prefix: tuple[int, ...], possible: Tensor) -> Tensor:
        """The tokens (n,) of nonzero probability with which a member goes on, or ends, after a prefix.

        Raises:
            ValueError: a member goes on with an end token where none ends: it was meant to end there.
        """
        language, state = self._languages[i], self._state(i, prefix)
        if state is None:  # its language's ``allowed`` said too much
            return possible.new_empty(0, dtype=torch.long)
        told = allowed_after(language, state)
        if told is None:
            tokens = possible.nonzero()[:, 0].tolist()
            told = [token for token in tokens if token not in self._ends and language.step(state, token) is not None]
        ends = self._ends if language.accepts(state) else []
        inner = [token for token in told if token in self._ends]
        if inner and not ends:
            raise ValueError(
                f"after {list(prefix)} the language goes on with the end token {inner[0]}, which ends an output and "
                "is no part of it: leave end tokens out of the language's entries, or out of eos_token_id"
            )
        known = [token for token in set(told) if token not in self._ends and 0 <= token < len(possible)]
        kept = torch.tensor([*ends, *known], dtype=torch.long, device=possible.device)
        return kept[possible[kept]]

    def _state(self, i: int, prefix: tuple[int, ...]) -> Any | None:
        language = self._languages[i]
        state = language.step(self._states[i, prefix[:-1]], prefix[-1]) if prefix else language.start()
        self._states[i, prefix] = state
        return state
