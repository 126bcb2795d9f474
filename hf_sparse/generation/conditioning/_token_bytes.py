"""The bytes that each token of a tokenizer writes."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """The text of tokens as UTF-8, so that that of a string of tokens is that of its tokens, one after the other.

    Args:
        tokenizer: a fast one whose decoder joins tokens without looking at them: byte-level BPE (GPT-2, Llama 3,
            SmolLM, Qwen), SentencePiece (Llama 2, T5, Marian), or plain concatenation.
        begins_text: whether an output begins a text, whose first space the decoder of SentencePiece leaves out.

    Raises:
        TypeError: no tokenizer.
        ValueError: a tokenizer that is not fast, or one whose decoder does something else, or whose ``decode`` does.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, begins_text: bool) -> None:
        _check_fast(tokenizer)
        steps = _decoder_steps(tokenizer)
        special = set(tokenizer.all_special_ids)
        added = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
        words = tokenizer.convert_ids_to_tokens(list(range(1 + max(tokenizer.get_vocab().values(), default=-1))))
        hidden = _hidden(tokenizer)
        plain = [
            None if index in special | added else "" if index in hidden else word for index, word in enumerate(words)
        ]
        texts = [None if word is None else _written(word, steps) for word in plain]
        first = [None if word is None else _written_first(word, steps) for word in plain]
        _check_decode(tokenizer, first, texts)
        self._texts = (first if begins_text else texts, texts)
        self._ids = (_by_text(first), _by_text(texts))

    def text(self, token: int, begun: bool) -> bytes | None:
        """What a token writes, ``begun`` or as the first of an output; None for special tokens, part of no text."""
        texts = self._texts[begun]
        return texts[token] if 0 <= token < len(texts) else None

    def ids(self, begun: bool) -> dict[bytes, list[int]]:
        """The tokens by what they write."""
        return self._ids[begun]


def _check_fast(tokenizer: object) -> None:
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise TypeError(f"tokenizer must be that of the model, was {tokenizer!r}")
    if not tokenizer.is_fast:
        raise ValueError(
            f"tokenizer must be a fast one, which tells how it decodes, was {type(tokenizer).__name__}; give token "
            "ids, or a Language of your own"
        )


def _hidden(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The added tokens that the decoder writes and the tokenizer's ``decode`` leaves out: times of Whisper."""
    written = tokenizer.backend_tokenizer.decode
    return {token for token in tokenizer.added_tokens_decoder if written([token]) and not _decoded(tokenizer, [token])}


def _decoded(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> str:
    return tokenizer.decode(tokens, clean_up_tokenization_spaces=False)


def _check_decode(tokenizer: PreTrainedTokenizerBase, first: list[bytes | None], texts: list[bytes | None]) -> None:
    """Refuse a tokenizer whose ``decode`` does more than its decoder.

    Args:
        tokenizer: asked for the text of its whole vocabulary, without parts of characters.
        first: what each token writes at the start of a text.
        texts: and after others.

    Raises:
        ValueError: that text is another one.
    """
    whole = [token for token, text in enumerate(texts) if text is not None and _is_whole(text)]
    parts = [first[token] if place == 0 else texts[token] for place, token in enumerate(whole)]
    if _decoded(tokenizer, whole) != b"".join(filter(None, parts)).decode():
        raise ValueError(
            f"{type(tokenizer).__name__} decodes in a way of its own, so that the text of a token is not known; give "
            "token ids, or a Language of your own"
        )


def _is_whole(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _by_text(texts: list[bytes | None]) -> dict[bytes, list[int]]:
    ids: dict[bytes, list[int]] = {}
    for token, text in enumerate(texts):
        if text is not None:
            ids.setdefault(text, []).append(token)
    return ids


def _decoder_steps(tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """The steps of a decoder, in order.

    Raises:
        ValueError: a step that looks at more than one token, or is not known here.
    """
    decoder = json.loads(tokenizer.backend_tokenizer.to_str())["decoder"]
    steps = [] if decoder is None else decoder.get("decoders", [decoder])
    known = {"ByteLevel", "Metaspace", "Fuse", "ByteFallback", "Replace", "Strip"}
    joined, other = False, []
    for step in steps:
        if step["type"] not in known or not _is_plain(step, joined):
            other.append(f"{step['type']}{' after tokens are joined' if joined else ''}")
        joined = joined or step["type"] in ("Fuse", "ByteLevel")
    if other or not steps:
        raise ValueError(
            f"tokenizer decodes with {', '.join(other) or 'spaces between tokens'}, so that the text of a token "
            f"depends on its neighbours; allowed: {', '.join(sorted(known))}. Give token ids, or your own Language"
        )
    return steps


def _is_plain(step: dict[str, Any], joined: bool) -> bool:
    """Whether ``_written`` does all that a step does; one space may be left out at the start of a text.

    Args:
        step: of the decoder.
        joined: whether it sees the text of all tokens, not one token at a time.
    """
    if step["type"] == "Replace":
        return "String" in step["pattern"] and not joined
    if step["type"] == "Strip":
        return joined and step["content"] == " " and step["start"] <= 1 and step["stop"] == 0
    return step["type"] == "Fuse" or not joined


def _written_first(word: str, steps: list[dict[str, Any]]) -> bytes:
    """The bytes of an entry with which a text begins: less one space, or all those that Metaspace marks."""
    for step in steps:
        if step["type"] == "Metaspace" and step["prepend_scheme"] != "never":
            return _written(word.replace(step["replacement"], ""), steps)
    return _written(word, steps).removeprefix(b" " if any(step["type"] == "Strip" for step in steps) else b"")


def _written(word: str, steps: list[dict[str, Any]]) -> bytes:
    """The bytes of one entry of the vocabulary."""
    for step in steps:
        if step["type"] == "ByteLevel":
            table = _byte_level()
            return bytes(table[c] for c in word) if all(c in table for c in word) else word.encode()
        if step["type"] == "ByteFallback" and (found := _BYTE.fullmatch(word)):
            return bytes([int(found[1], 16)])
        if step["type"] == "Metaspace":
            word = word.replace(step["replacement"], " ")
        if step["type"] == "Replace":
            word = word.replace(step["pattern"]["String"], step["content"])
    return word.encode()


@lru_cache(maxsize=1)
def _byte_level() -> dict[str, int]:
    """The characters that stand for bytes in byte-level BPE: themselves where they can be seen, others in order."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + rank): byte for rank, byte in enumerate(hidden)}
