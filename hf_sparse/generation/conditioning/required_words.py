"""Outputs that contain some words."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from ...functional.arguments import check_flag
from ._token_bytes import TokenBytes


class RequiredWords:
    """The outputs whose text contains all of some words, anywhere and in any order; a ``Language``.

    A word is any text, and it counts wherever its characters are: "cat" is in "concatenate". Every string of tokens
    counts whose text has them, however it is divided. For whole words say so in a regular expression (``Grammar``).

    Args:
        words: texts to contain.
        tokenizer: the model's.
        begins_text: see ``Lexicon``; it matters for words that begin with a space.

    Raises:
        TypeError: words that are no list of texts, or no tokenizer.
        ValueError: no words, an empty one, or a tokenizer whose tokens have no text of their own.

    Source: the automaton of one word is that of Knuth, Morris and Pratt 1977.
    """

    def __init__(self, words: Sequence[str], tokenizer: PreTrainedTokenizerBase, *, begins_text: bool = False) -> None:
        if isinstance(words, str) or not isinstance(words, Sequence) or not all(isinstance(w, str) for w in words):
            raise TypeError(f"words must be a list of texts, was {words!r}")
        if not words or not all(words):
            raise ValueError(f"words must be one text or more, none of them empty, was {words!r}")
        check_flag("begins_text", begins_text)
        self._bytes = TokenBytes(tokenizer, begins_text)
        self._words = [word.encode() for word in words]
        self._fallbacks = [_fallbacks(word) for word in self._words]

    def start(self) -> tuple[bool, tuple[int, ...]]:
        """The state before the first token: whether there was one, and how much of each word was read."""
        return False, (0,) * len(self._words)

    def step(self, state: tuple[bool, tuple[int, ...]], token: int) -> tuple[bool, tuple[int, ...]] | None:
        """The state after one more token; None after a special token."""
        begun, read = state
        text = self._bytes.text(token, begun)
        if text is None:
            return None
        return True, tuple(self._read(number, count, text) for number, count in enumerate(read))

    def accepts(self, state: tuple[bool, tuple[int, ...]]) -> bool:
        """Whether every word was read."""
        return all(count == len(word) for count, word in zip(state[1], self._words))

    def _read(self, number: int, count: int, text: bytes) -> int:
        """How much of a word is read after ``text``; all of it stays all of it."""
        word, fallbacks = self._words[number], self._fallbacks[number]
        for byte in text:
            if count == len(word):
                break
            while count and word[count] != byte:
                count = fallbacks[count]
            count += word[count] == byte
        return count


def _fallbacks(word: bytes) -> list[int]:
    """For each number of bytes read, that of the longest proper beginning of the word that they end with.

    >>> _fallbacks(b"abab")
    [0, 0, 0, 1, 2]
    """
    fallbacks = [0, 0]
    for length in range(1, len(word)):
        count = fallbacks[length]
        while count and word[count] != word[length]:
            count = fallbacks[count]
        fallbacks.append(count + (word[count] == word[length]))
    return fallbacks
