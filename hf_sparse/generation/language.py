"""Languages of outputs: sets of token strings, each read token by token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Language(Protocol):
    """A set of outputs, as an automaton that reads their tokens; the end token is no part of them.

    Any object with these three methods is one. States may be anything but None, and no method may change one: a state
    is continued in several ways. Where ``step`` gives None no member begins so. It may give a state where no member
    does either, if that is hard to see: the search walks on in vain, and nothing becomes wrong.

    A language may have a fourth method, ``allowed(state)``: the tokens for which ``step`` gives a state, all of them
    and no others. It saves a step for every token of nonzero probability, of which a dense head has a whole
    vocabulary.

    >>> class Evens:  # strings of an even number of tokens
    ...     def start(self):
    ...         return 0
    ...     def step(self, state, token):
    ...         return 1 - state
    ...     def accepts(self, state):
    ...         return state == 0
    >>> isinstance(Evens(), Language)
    True
    """

    def start(self) -> Any:
        """The state before the first token."""

    def step(self, state: Any, token: int) -> Any | None:
        """The state after one more token, or None where no member begins so."""

    def accepts(self, state: Any) -> bool:
        """Whether the tokens so far are a member."""


class Intersection:
    """The outputs that are in all of some languages.

    Args:
        *languages: one or more.

    Raises:
        TypeError: none, or an object that is no ``Language``.

    >>> from hf_sparse import Lexicon
    >>> both = Intersection(Lexicon([[5, 6], [5, 7]]), Lexicon([[5, 7], [8]]))
    >>> state = both.step(both.start(), 5)
    >>> both.step(state, 6), both.accepts(both.step(state, 7)), sorted(both.allowed(state))
    (None, True, [7])
    """

    def __init__(self, *languages: Language) -> None:
        if not languages:
            raise TypeError("Intersection needs at least one language, was given none")
        for language in languages:
            check_language("a language", language)
        self._languages = languages

    def start(self) -> tuple[Any, ...]:
        """The states before the first token."""
        return tuple(language.start() for language in self._languages)

    def step(self, state: tuple[Any, ...], token: int) -> tuple[Any, ...] | None:
        """The states after one more token."""
        states = []
        for language, own in zip(self._languages, state):
            following = language.step(own, token)
            if following is None:
                return None
            states.append(following)
        return tuple(states)

    def accepts(self, state: tuple[Any, ...]) -> bool:
        """Whether the tokens so far are in all languages."""
        return all(language.accepts(own) for language, own in zip(self._languages, state))

    def allowed(self, state: tuple[Any, ...]) -> set[int] | None:
        """The tokens that all languages go on with; None where none of them tells."""
        told = [allowed_after(language, own) for language, own in zip(self._languages, state)]
        sets = [set(tokens) for tokens in told if tokens is not None]
        if not sets:
            return None
        return {token for token in set.intersection(*sets) if self.step(state, token) is not None}


def allowed_after(language: Language, state: Any) -> Iterable[int] | None:
    """The tokens that continue ``state`` in a language that tells them, else None."""
    allowed = getattr(language, "allowed", None)
    return None if allowed is None else allowed(state)


def check_language(name: str, value: object) -> None:
    """Refuse what is no ``Language``.

    Raises:
        TypeError: a method is missing.
    """
    if isinstance(value, type) or not isinstance(value, Language):
        raise TypeError(
            f"{name} must have the methods start, step and accepts (a Lexicon, a Grammar, RequiredWords, your own), "
            f"was {value!r}"
        )
