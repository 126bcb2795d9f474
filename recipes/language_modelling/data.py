"""Text, held out by whole articles; its byte-level tokenizer; and blocks of tokens."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import datasets
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from hf_sparse.conversion.text_file import read_lines

from ..data import scenes

HEADING = re.compile(r"= [^=](.*[^=])? =")  # of an article in WikiText; headings of sections have more signs
HELD_OUT = 10  # one article in ten is for testing, beginning with the first
SPECIAL = ("<pad>", "<s>", "</s>")


class Text(NamedTuple):
    """Articles for training and for testing, and the name of the data."""

    train: list[str]
    test: list[str]
    what: str


def stripped_lines(path: Path) -> list[str]:
    """The stripped lines of a file (see ``read_lines``).

    Raises:
        ValueError: the file is not UTF-8 text, or has no text.
    """
    lines = [line.strip() for line in read_lines(path)]
    if not any(lines):
        raise ValueError(f"{path}: no text")
    return lines


def articles(lines: list[str]) -> list[str]:
    """Group lines into articles by headings as in WikiText (``= Title =``); without headings, each line is one."""
    kept = [line for line in lines if line.strip()]
    starts = [number for number, line in enumerate(kept) if HEADING.fullmatch(line.strip())]
    if not starts:
        return kept
    bounds = [0, *starts[1:], len(kept)]
    return ["\n".join(kept[start:end]) for start, end in pairwise(bounds)]


def split(texts: list[str]) -> tuple[list[str], list[str]]:
    """Articles for training, and one in ``HELD_OUT`` for testing; copies of those are in neither part.

    Raises:
        ValueError: fewer than two different articles.
    """
    test = texts[::HELD_OUT]
    held_out = set(test)
    train = [text for number, text in enumerate(texts) if number % HELD_OUT and text not in held_out]
    if not train:
        count = len(set(texts))
        raise ValueError(f"needs at least 2 different articles, or lines, to hold one out, was {count}")
    return train, test


def read_text(data: str) -> Text:
    """Text named on the command line.

    Args:
        data: ``"scenes"``, the English side of the scenes of ``recipes.data``; a text file (``.gz`` too), split by
            article; a folder with ``train.txt`` and ``test.txt`` (or ``valid.txt``); or a data set of the Hub with
            splits ``train`` and ``test`` and a column ``text``, its configuration after a colon
            (``Salesforce/wikitext:wikitext-2-raw-v1``).

    Raises:
        ValueError: there is no text, or the folder lacks a file, or the data set a split or its column.
    """
    path = Path(data)
    if data == "scenes":
        return Text(*split([english for _, english in scenes.pairs()]), "embedded scenes")
    if path.is_file():
        return Text(*split(articles(stripped_lines(path))), "/".join(path.absolute().parts[-2:]))
    if path.is_dir():
        test = next((path / name for name in ("test.txt", "valid.txt") if (path / name).is_file()), None)
        if test is None or not (path / "train.txt").is_file():
            raise ValueError(f"{path} must hold train.txt and test.txt or valid.txt; or give one file, to be split")
        return Text(articles(stripped_lines(path / "train.txt")), articles(stripped_lines(test)), path.name)
    name, _, configuration = data.partition(":")
    found = datasets.load_dataset(name, configuration or None)
    missing = [part for part in ("train", "test") if "text" not in found.column_names.get(part, ())]
    if missing:
        raise ValueError(f"{data}: no column 'text' in {' and '.join(missing)}; it has {found.column_names}")
    return Text(articles(list(found["train"]["text"])), articles(list(found["test"]["text"])), data)


def learn_tokenizer(lines: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE with at most ``vocabulary`` tokens, learned from ``lines``; ``</s>`` ends every text."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel()
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        lines,
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=list(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def blocks(tokenizer: PreTrainedTokenizerFast, texts: list[str], context: int, most: int | None = None) -> list:
    """Concatenate the tokens of all texts and cut them into rows of ``context``; the rest is dropped.

    Args:
        tokenizer: of the model.
        texts: in order.
        context: tokens per row.
        most: largest number of rows; None for all.

    Raises:
        ValueError: there are too few tokens for one row.
    """
    ids = [token for row in tokenizer(texts).input_ids for token in row]
    rows = [ids[start : start + context] for start in range(0, len(ids) - context + 1, context)]
    if not rows:
        raise ValueError(f"{len(ids)} tokens are not enough for one row of {context}")
    return rows[:most]
