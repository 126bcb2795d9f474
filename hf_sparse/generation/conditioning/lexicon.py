"""Finite languages: a list of texts, or of token strings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from ...functional.arguments import check_flag
from ._token_bytes import TokenBytes

TOKENIZATIONS = ("all", "canonical")


@dataclass
class _Node:
    """A beginning of some entries, by its continuations."""

    children: dict[int, _Node] = field(default_factory=dict)
    whole: bool = False

    def add(self, entry: Iterable[int]) -> None:
        node = self
        for symbol in entry:
            node = node.children.setdefault(symbol, _Node())
        node.whole = True

    def walk(self, symbols: Iterable[int]) -> _Node | None:
        node: _Node | None = self
        for symbol in symbols:
            node = node and node.children.get(symbol)
        return node


class Lexicon:
    """The outputs that are one of some entries; a ``Language``.

    A model gives a text the sum of the probabilities of its tokenizations, and most texts have several: " cat" is also
    " c", "at". With ``"all"`` every string of tokens that writes an entry is a member, so that the probability of an
    entry is that of its text. ``"canonical"`` has the one string that the tokenizer makes of an entry (without special
    tokens), as a model reads it in training: fewer forward passes, and a lower bound on the text's probability.

    Args:
        entries: texts, or sequences of token ids without end token.
        tokenizer: the model's, for texts.
        tokenizations: ``"all"`` or ``"canonical"``, for texts.
        begins_text: for SentencePiece tokenizers and ``"all"``: True where the output begins a text, as that of an
            encoder-decoder, whose decoder leaves out one space at its start; False where it follows a prompt, and a
            word that begins with a space is an entry that does.

    Raises:
        TypeError: entries that are no list of texts or of ids, texts without tokenizer, no tokenizer.
        ValueError: no entries, unknown ``tokenizations``, a tokenizer whose tokens have no text of their own, or for
            ``"canonical"`` one whose tokens of an entry are no text (the unknown token) or another one.

    Cost: of all tokenizations, one prefix per beginning of an entry and way to divide it into tokens. The tokens that
    continue a state are told (``allowed``), so that a dense head costs no more than a sparse one.

    >>> lexicon = Lexicon([[5, 6], [5, 7, 7]])
    >>> state = lexicon.step(lexicon.start(), 5)
    >>> sorted(lexicon.allowed(state)), lexicon.accepts(state), lexicon.accepts(lexicon.step(state, 6))
    ([6, 7], False, True)
    """

    def __init__(
        self,
        entries: Iterable[str] | Iterable[Sequence[int]],
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        tokenizations: str = "all",
        begins_text: bool = False,
    ) -> None:
        texts, strings = _sorted_out(entries)
        check_flag("begins_text", begins_text)
        if tokenizations not in TOKENIZATIONS:
            raise ValueError(
                f"tokenizations must be one of {', '.join(map(repr, TOKENIZATIONS))}, was {tokenizations!r}"
            )
        self._root = _Node()
        self._bytes = None
        if texts:
            if not isinstance(tokenizer, PreTrainedTokenizerBase):
                raise TypeError(f"entries are texts: tokenizer must be that of the model, was {tokenizer!r}")
            if tokenizations == "canonical":
                strings = [_canonical(text, tokenizer) for text in texts]
            else:
                self._bytes = TokenBytes(tokenizer, begins_text)
                strings = [list(text.encode()) for text in texts]
        for string in strings:
            self._root.add(string)

    def start(self) -> tuple[bool, _Node]:
        """The state before the first token: whether there was one, and the beginning of entries."""
        return False, self._root

    def step(self, state: tuple[bool, _Node], token: int) -> tuple[bool, _Node] | None:
        """The state after one more token."""
        begun, node = state
        following = node.walk(self._symbols(begun, token))
        return None if following is None else (True, following)

    def accepts(self, state: tuple[bool, _Node]) -> bool:
        """Whether the tokens so far are an entry."""
        return state[1].whole

    def allowed(self, state: tuple[bool, _Node]) -> set[int]:
        """The tokens that an entry goes on with."""
        begun, node = state
        if self._bytes is None:
            return set(node.children)
        ids = self._bytes.ids(begun)
        found = set(ids.get(b"", ()))
        open_nodes = [(node, b"")]
        while open_nodes:
            node, read = open_nodes.pop()
            for byte, child in node.children.items():
                longer = read + bytes([byte])
                found |= set(ids.get(longer, ()))
                open_nodes.append((child, longer))
        return found

    def _symbols(self, begun: bool, token: int) -> Iterable[int]:
        if self._bytes is None:
            return (token,)
        text = self._bytes.text(token, begun)
        return (-1,) if text is None else text


def _sorted_out(entries: Any) -> tuple[list[str], list[list[int]]]:
    """The entries that are texts, or those that are token ids.

    Raises:
        TypeError: neither all texts nor all sequences of ids.
        ValueError: no entries.
    """
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        raise TypeError(f"entries must be a list of texts, or of lists of token ids, was {entries!r}")
    given = list(entries)
    if not given:
        raise ValueError("entries must not be empty: there is nothing that an output could be")
    if all(isinstance(entry, str) for entry in given):
        return given, []
    for entry in given:
        if not _is_ids(entry):
            raise TypeError(f"entries must all be texts, or all be lists of token ids, was {entry!r} among them")
    return [], [list(entry) for entry in given]


def _canonical(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens that a tokenizer makes of a text.

    Raises:
        ValueError: they write another text, by more than spaces and what the tokenizer's normalizer changes.
    """
    ids = tokenizer(text, add_special_tokens=False).input_ids
    normalizer = tokenizer.backend_tokenizer.normalizer if tokenizer.is_fast else None
    written = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    seen = [normalizer.normalize_str(each) if normalizer else each for each in (text, written)]
    if len({"".join(each.replace("▁", " ").split()) for each in seen}) > 1:
        raise ValueError(
            f"the tokenizer makes {tokenizer.convert_ids_to_tokens(ids)} of the entry {text!r}, which is the text "
            f"{written!r}; leave the entry out, or give token ids"
        )
    return ids


def _is_ids(entry: Any) -> bool:
    is_list = isinstance(entry, Sequence) and not isinstance(entry, str)
    return is_list and all(type(token) is int for token in entry)
