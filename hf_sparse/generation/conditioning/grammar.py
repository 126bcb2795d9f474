"""Languages of texts: regular expressions, grammars, JSON schemas, read token by token."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from transformers import PreTrainedTokenizerBase

from ...functional.arguments import check_flag, check_text
from ._token_bytes import TokenBytes

# Characters that stand for themselves, and sets of them.
_LITERAL = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_READ_OTHERWISE = {
    "a quantifier that gives nothing back": re.compile(r"(?:[*+?]|\{\d*,?\d*\})\+"),
    "a count with spaces": re.compile(r"\{(?=[^}]*\s)[\d,\s]*\}"),
    "the flag x": re.compile(r"\(\?[a-zA-Z]*x"),
}


class Grammar:
    """The outputs whose text a grammar derives; a ``Language``, made by ``from_regex`` and its like.

    Every string of tokens counts whose text is in the language, however it is divided into tokens: tokens are read
    byte by byte, and one may end in the middle of a character. Where ``step`` gives a state, some text goes on so.
    There is no ``allowed``: llguidance's own mask leaves out tokens where the text is forced.

    Args:
        grammar: in llguidance's own form.
        tokenizer: the model's.
        begins_text: see ``Lexicon``.

    Raises:
        ImportError: llguidance is not installed.
        TypeError: no tokenizer.
        ValueError: a tokenizer whose tokens have no text of their own, or a grammar that llguidance refuses.

    Source: the automaton is that of the package llguidance: derivatives of regular expressions for words, and an
    Earley parser above them.

    >>> from tokenizers import Tokenizer, decoders, models
    >>> from transformers import PreTrainedTokenizerFast
    >>> backend = Tokenizer(models.WordLevel({"<pad>": 0, "a": 1, "b": 2, "ab": 3}, unk_token="<pad>"))
    >>> backend.decoder = decoders.Fuse()
    >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>")
    >>> language = Grammar.from_regex("(ab)+", tokenizer)
    >>> [token for token in range(4) if language.step(language.start(), token)]
    [1, 3]
    >>> language.accepts(language.step(language.step(language.start(), 1), 2))
    True
    """

    def __init__(self, grammar: str, tokenizer: PreTrainedTokenizerBase, *, begins_text: bool = False) -> None:
        check_flag("begins_text", begins_text)
        check_text("grammar", grammar)
        package = _package()
        self._bytes = TokenBytes(tokenizer, begins_text)
        texts = sorted({text for begun in (False, True) for text in self._bytes.ids(begun) if text})
        self._places = {text: place for place, text in enumerate(texts)}
        matcher = package.LLMatcher(_vocabulary(package, texts), grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(f"llguidance refuses the grammar: {matcher.get_error()}")
        self._start = (False, matcher)

    @classmethod
    def from_regex(cls, pattern: str, tokenizer: PreTrainedTokenizerBase, *, begins_text: bool = False) -> Grammar:
        """The outputs whose whole text matches a regular expression.

        Args:
            pattern: as of Python's ``re.fullmatch``, without look-around, back references and ``\\b``. Classes are
                Unicode's: ``\\w`` has marks over and under letters too, and no fractions and raised digits, ``\\s`` no
                control characters from ``\\x1c`` to ``\\x1f``, and with ``(?i)`` no letter is a Turkish i.
            tokenizer: the model's.
            begins_text: see ``Lexicon``.

        Raises:
            ImportError: see ``Grammar``, as for the others.
            TypeError: a pattern that is no text.
            ValueError: a pattern that is no regular expression, or one that llguidance reads in another way than
                Python: a set in a set, as ``[[a]b]``, a quantifier that gives nothing back, as ``a++``, spaces in a
                count, as ``a{1, 2}``, and the flag x.
        """
        check_text("pattern", pattern)
        _check_same(pattern)
        return cls(_package().LLMatcher.grammar_from_regex(pattern), tokenizer, begins_text=begins_text)

    @classmethod
    def from_lark(cls, grammar: str, tokenizer: PreTrainedTokenizerBase, *, begins_text: bool = False) -> Grammar:
        """The outputs whose text a context-free grammar derives.

        Args:
            grammar: rules in llguidance's variant of Lark's notation; ``start`` is the first.
            tokenizer: the model's.
            begins_text: see ``Lexicon``.

        Raises:
            ImportError: see ``Grammar``, as for the others.
            TypeError: a grammar that is no text.
            ValueError: a grammar that llguidance refuses.
        """
        check_text("grammar", grammar)
        return cls(_package().LLMatcher.grammar_from_lark(grammar), tokenizer, begins_text=begins_text)

    @classmethod
    def from_json_schema(
        cls, schema: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, *, begins_text: bool = False
    ) -> Grammar:
        """The outputs whose text is JSON of a schema.

        Args:
            schema: a JSON schema; what llguidance does not honour is refused.
            tokenizer: the model's.
            begins_text: see ``Lexicon``.

        Raises:
            ImportError: see ``Grammar``, as for the others.
            TypeError: a schema that is no mapping.
            ValueError: a schema that llguidance refuses.
        """
        if not isinstance(schema, Mapping):
            raise TypeError(f"schema must be a mapping, was {schema!r}")
        grammar = _package().LLMatcher.grammar_from_json_schema(json.dumps(dict(schema)))
        return cls(grammar, tokenizer, begins_text=begins_text)

    def start(self) -> tuple[bool, Any]:
        """The state before the first token: whether there was one, and the parser."""
        return self._start

    def step(self, state: tuple[bool, Any], token: int) -> tuple[bool, Any] | None:
        """The state after one more token.

        Raises:
            RuntimeError: the parser gave up, at one of llguidance's limits.
        """
        begun, matcher = state
        text = self._bytes.text(token, begun)
        if not text:
            return None if text is None else (True, matcher)
        place = self._places[text]
        if matcher.is_stopped() or not matcher.validate_tokens([place]):
            _check(matcher)
            return None
        longer = matcher.deep_copy()
        longer.consume_token(place)
        _check(longer)
        return True, longer

    def accepts(self, state: tuple[bool, Any]) -> bool:
        """Whether the grammar derives the text so far."""
        return state[1].is_accepting()


def _check_same(pattern: str) -> None:
    """Refuse what llguidance reads in another way than Python.

    Raises:
        ValueError: a set of characters in a set, of which Python warns, or one of ``_READ_OTHERWISE``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        try:
            re.compile(f"{pattern}(?:)")  # another one than the user's, of which Python would not warn again
        except FutureWarning as warning:
            raise ValueError(f"pattern {pattern!r}: {warning}; write \\[, \\&, \\- for the characters") from None
        except re.error:
            pass  # llguidance says what it does not read
    plain = _LITERAL.sub("_", pattern)
    for what, form in _READ_OTHERWISE.items():
        found = form.search(plain)
        if found:
            raise ValueError(f"pattern {pattern!r} has {what}, {found[0]!r}, which llguidance reads in another way")


def _package() -> ModuleType:
    """llguidance.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import llguidance
    except ImportError as error:
        raise ImportError(
            "regular expressions and grammars need llguidance: pip install 'hf_sparse[grammar]'; a Lexicon, "
            "RequiredWords and a Language of your own do not"
        ) from error
    return llguidance


def _vocabulary(package: ModuleType, texts: list[bytes]) -> Any:
    """llguidance's tokenizer of some texts, which come first; it wants every byte, once, and an end token."""
    missing = {bytes([byte]) for byte in range(256)} - set(texts)
    tokens = [*texts, *sorted(missing), b"<end>"]
    places = {text: place for place, text in enumerate(tokens)}
    vocabulary = SimpleNamespace(
        tokens=tokens, eos_token_id=len(tokens) - 1, bos_token_id=None, special_token_ids=[len(tokens) - 1]
    )

    def bytewise(text: bytes) -> list[int]:
        return [places[bytes([byte])] for byte in text]

    return package.LLTokenizer(package.TokenizerWrapper(_Callable(bytewise, vocabulary)), slices=[])


class _Callable:
    """A function with attributes, which is what llguidance takes for a tokenizer."""

    def __init__(self, call: Any, attributes: SimpleNamespace) -> None:
        self._call = call
        vars(self).update(vars(attributes))

    def __call__(self, text: bytes) -> list[int]:
        return self._call(text)


def _check(matcher: Any) -> None:
    """Refuse a parser that gave up: None of its answers is one.

    Raises:
        RuntimeError: it did.
    """
    if matcher.is_error():
        raise RuntimeError(f"llguidance gave up, so that nothing can be said of the language: {matcher.get_error()}")
