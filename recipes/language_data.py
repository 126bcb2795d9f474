"""Text for the language-model recipe, held out by whole articles, and the blocks of tokens a model learns from."""

from __future__ import annotations

import csv
import gzip
import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import datasets
from transformers import PreTrainedTokenizerFast

SCENES = Path(__file__).resolve().parent / "data" / "scenes_de_en.tsv"
HEADING = re.compile(r"= [^=](.*[^=])? =")  # of an article in WikiText; those of its sections have more signs
HELD_OUT = 10  # of so many articles, the first and each that many later, is for testing


class Text(NamedTuple):
    """Articles to train on and to test on, each one string, and what they are."""

    train: list[str]
    test: list[str]
    what: str


def read_lines(path: Path) -> list[str]:
    """The lines of a text file (UTF-8, gzip if its name ends in .gz), stripped; empty ones too.

    Raises:
        ValueError: the file is not UTF-8 text, or holds none.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = [line.strip() for line in content.decode("utf-8").splitlines()]
    except (UnicodeDecodeError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: must be UTF-8 text, gzipped if its name ends in .gz: {error}") from error
    if not any(lines):
        raise ValueError(f"{path}: no text")
    return lines


def articles(lines: list[str]) -> list[str]:
    """The articles of lines with headings as in WikiText (``= Title =``); without headings, each line is one."""
    kept = [line for line in lines if line.strip()]
    starts = [number for number, line in enumerate(kept) if HEADING.fullmatch(line.strip())]
    if not starts:
        return kept
    bounds = [0, *starts[1:], len(kept)]
    return ["\n".join(kept[start:end]) for start, end in pairwise(bounds)]


def split(texts: list[str]) -> tuple[list[str], list[str]]:
    """Articles to train on, and one in ``HELD_OUT`` to test on.

    Raises:
        ValueError: fewer than two articles.
    """
    if len(texts) < 2:
        raise ValueError(f"needs at least 2 articles, or lines, to hold one out, was {len(texts)}")
    return [text for number, text in enumerate(texts) if number % HELD_OUT], texts[::HELD_OUT]


def read_text(data: str) -> Text:
    """The text that ``data`` names.

    Args:
        data: ``"scenes"``, the English side of the embedded sample; a text file (``.gz`` too), split by article; a
            folder with ``train.txt`` and ``test.txt`` (or ``valid.txt``); or a data set of the Hub with splits
            ``train`` and ``test`` and a column ``text``, its configuration after a colon
            (``Salesforce/wikitext:wikitext-2-raw-v1``).

    Raises:
        ValueError: no text, or a folder without these files.
    """
    path = Path(data)
    if data == "scenes":
        with SCENES.open(encoding="utf-8") as file:
            return Text(*split([english for _, english in csv.reader(file, delimiter="\t")]), "embedded scenes")
    if path.is_file():
        return Text(*split(articles(read_lines(path))), f"{path.parent.name}/{path.name}")
    if path.is_dir():
        test = next((path / name for name in ("test.txt", "valid.txt") if (path / name).is_file()), None)
        if test is None or not (path / "train.txt").is_file():
            raise ValueError(f"{path} must hold train.txt and test.txt or valid.txt; or give one file, to be split")
        return Text(articles(read_lines(path / "train.txt")), articles(read_lines(test)), path.name)
    name, _, configuration = data.partition(":")
    found = datasets.load_dataset(name, configuration or None)
    return Text(articles(list(found["train"]["text"])), articles(list(found["test"]["text"])), data)


def blocks(tokenizer: PreTrainedTokenizerFast, texts: list[str], context: int, most: int | None = None) -> list:
    """The tokens of all texts, one after the other, cut into rows of ``context``; what is left over is dropped.

    Raises:
        ValueError: not one row.
    """
    ids = [token for row in tokenizer(texts).input_ids for token in row]
    rows = [ids[start : start + context] for start in range(0, len(ids) - context + 1, context)]
    if not rows:
        raise ValueError(f"{len(ids)} tokens are not enough for one row of {context}")
    return rows[:most]
