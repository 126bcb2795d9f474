"""Tokens and probabilities as text for a reader."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

_SPACES = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥"})
# Control characters, what turns the direction of a text or has no width, and what XML, and so a picture, cannot hold.
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)


def token_labels(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase | None = None) -> list[str]:
    """The text of each token, with visible white space.

    Args:
        ids: token ids.
        tokenizer: the model's; None writes the ids.

    Returns:
        One label per token: a space is ``␣``, a line break ``⏎``, another control character its code (``\\x1b``).
        A token that is part of a character stays as the vocabulary has it. A model may have more tokens than its
        tokenizer, for speed: those are ``[9]``.

    >>> token_labels([5, 2])
    ['5', '2']
    """
    if tokenizer is None:
        return [str(number) for number in ids]
    labels = []
    for number, token in zip(ids, tokenizer.convert_ids_to_tokens(list(ids))):
        if token is None:
            labels.append(f"[{number}]")
            continue
        text = tokenizer.convert_tokens_to_string([token])
        if not text or "\ufffd" in text:
            text = token
        if token.startswith("▁"):  # SentencePiece drops the space where a text begins
            text = " " + text.replace("▁", " ").lstrip(" ")
        text = text.translate(_SPACES)
        labels.append(visible(text))
    return labels


def visible(text: str) -> str:
    """A text with the codes of its control characters, but for line breaks.

    >>> visible("red\\x1b[31m")
    'red\\\\x1b[31m'
    """
    codes = (_CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), line) for line in text.split("\n"))
    return "\n".join(codes)


def columns(label: str) -> int:
    """How many letters of a font of one width a text is as wide as: those of Chinese, and pictures, count as two.

    >>> columns("cat"), columns("漢字")
    (3, 4)
    """
    return len(label) + sum(unicodedata.east_asian_width(character) in "WF" for character in label)


ROUNDING = 1e-7  # how far a sum of probabilities may be from one: by less than a rounding to float32


def percent(probability: float, digits: int = 2) -> str:
    """A probability in percent that never shows a nonzero one as zero, or one below one as one but for rounding.

    >>> percent(0.25), percent(0.000001), percent(0.0)
    ('25.00%', '<0.01%', '0.00%')
    >>> percent(0.999, 0), percent(1.0, 0), percent(1 - 1e-8)
    ('>99%', '100%', '100.00%')
    """
    least = 10.0 ** -(digits + 2)
    if 0 < probability < least / 2:
        return f"<{least:.{digits}%}"
    return f">{1 - least:.{digits}%}" if 1 - least / 2 <= probability < 1 - ROUNDING else f"{probability:.{digits}%}"
