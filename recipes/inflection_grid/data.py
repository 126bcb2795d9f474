"""Rows of several languages together: the language is the first tag of each."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from ..inflection.data import read_table, read_words
from ..inflection.model import build_tokenizer


class Task(NamedTuple):
    """Training rows, evaluation rows and tokenizer, shared by all runs."""

    train: Dataset
    dev: Dataset
    tokenizer: PreTrainedTokenizerFast


@functools.lru_cache(maxsize=1)
def prepared(data: str, languages: str, size: str, dev_rows: int, part: str = "dev", dev_from: int = 0) -> Task:
    """Rows of all languages, and a tokenizer of the training rows.

    Args:
        data: a folder with ``LANG-train-SIZE`` and ``LANG-dev`` or ``LANG-test``, or empty for the English verbs of
            ``recipes.data``.
        languages: names joined by commas.
        size: ``low``, ``medium`` or ``high``.
        dev_rows: largest number of evaluation rows per language.
        part: what is evaluated on, ``dev`` or ``test``; the English verbs have one set alone.
        dev_from: the first of these rows.

    Raises:
        ValueError: a file is no such table (see ``read_table``), or has no rows from ``dev_from`` on.
        FileNotFoundError: a language has no file of that size.
    """
    train = joined(data, languages, f"train-{size}")
    return Task(train, joined(data, languages, part, dev_from, dev_rows), build_tokenizer(train))


def joined(data: str, languages: str, part: str, start: int = 0, most: int | None = None) -> Dataset:
    """Rows of the languages together, at most so many of each from one on; ``prepared`` has the arguments and errors.

    Args:
        part: the end of the names of the files, ``train-medium`` or ``dev`` for instance.
    """
    together: list[dict[str, str]] = []
    for language in languages.split(",") if data else ["english"]:
        if data:
            table = read_table(Path(data, f"{language}-{part}"))
        else:
            table = read_words().train if part.startswith("train") else read_words().dev
        if start >= len(table):
            raise ValueError(
                f"dev_from must leave rows of {language}, which has {len(table)}, and with schedule=halved dev_rows "
                f"more; rows were to begin at {start}"
            )
        chosen = table.select(range(start, len(table) if most is None else min(start + most, len(table))))
        together += [{**row, "tags": f"{language};{row['tags']}"} for row in chosen]
    return Dataset.from_list(together)
