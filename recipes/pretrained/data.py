"""Texts for the pretrained models: windows of a text, halves of its paragraphs, captions, chemical reactions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_sparse.conversion.text_file import read_lines

Batch = dict[str, Tensor]

# Textbook reactions, reagents and product in SMILES, written down by class of reaction; atoms are not mapped.
REACTIONS = Path(__file__).with_name("reactions.txt").read_text(encoding="utf-8").split()


def windows(tokenizer: PreTrainedTokenizerBase, path: Path, length: int, count: int) -> tuple[Tensor, Tensor]:
    """Windows of a text: from its first half, to calibrate on, and from its second, to judge on.

    Args:
        tokenizer: of the model.
        path: a text file, UTF-8, plain or ``.gz``.
        length: tokens of a window.
        count: windows of each half, evenly spaced; all of them where there are fewer.

    Returns:
        Token ids (windows, length) of each half.

    Raises:
        ValueError: the text is shorter than two windows.
    """
    ids = torch.tensor(tokenizer("\n".join([*read_lines(path), ""]), verbose=False)["input_ids"])
    rows = ids[: len(ids) // length * length].view(-1, length)
    if len(rows) < 2:
        raise ValueError(f"{path} has {len(ids)} tokens; two windows of {length} are needed")
    return tuple(_spread(half, count) for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]))  # type: ignore[return-value]


def _spread(rows: Tensor, count: int) -> Tensor:
    return rows[torch.linspace(0, len(rows) - 1, min(count, len(rows))).long()]


def paragraphs(path: Path, count: int) -> list[tuple[str, str]]:
    """Both halves, by words, of paragraphs of 60 to 200 words, evenly spaced through a text.

    Raises:
        ValueError: fewer than two such paragraphs.
    """
    found = [line.split() for line in read_lines(path)]
    long = [words for words in found if 60 <= len(words) <= 200]
    if len(long) < 2:
        raise ValueError(f"{path} has {len(long)} lines of 60 to 200 words, and two paragraphs are needed")
    chosen = [long[i] for i in torch.linspace(0, len(long) - 1, min(count, len(long))).long().tolist()]
    return [(" ".join(w[: len(w) // 2]), " ".join(w[len(w) // 2 :])) for w in chosen]


def captions(path: Path, count: int, kept: float = 0.35) -> list[tuple[str, str]]:
    """Some words of a caption, in their order, and the caption: lines evenly spaced through a text.

    Args:
        path: a text file with a caption in each line, UTF-8, plain or ``.gz``.
        count: how many; all of them where there are fewer.
        kept: share of its words that a caption keeps, two at least.

    Raises:
        ValueError: fewer than two lines of three words or more.
    """
    lines = [line.split() for line in read_lines(path) if len(line.split()) > 2]
    if len(lines) < 2:
        raise ValueError(f"{path} has {len(lines)} lines of three words or more, and two captions are needed")
    generator, pairs = torch.Generator().manual_seed(0), []
    for i in torch.linspace(0, len(lines) - 1, min(count, len(lines))).long().tolist():
        places = torch.randperm(len(lines[i]), generator=generator)[: max(2, round(kept * len(lines[i])))]
        pairs.append((" ".join(lines[i][place] for place in sorted(places.tolist())), " ".join(lines[i])))
    return pairs


def batches_of(tokenizer: Any, texts: list[str], batch_size: int, length: int = 128) -> list[Batch]:
    """Texts in their order, padded in batches of ``batch_size``, cut at ``length`` tokens."""
    return [
        dict(
            tokenizer(texts[i : i + batch_size], padding=True, truncation=True, max_length=length, return_tensors="pt")
        )
        for i in range(0, len(texts), batch_size)
    ]
