"""Rows of several languages together: the language is the first tag of each."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from ..inflection.data import Words, read_table, read_words
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
    parts: dict[str, list[dict[str, str]]] = {"train": [], "dev": []}
    for language in languages.split(",") if data else ["english"]:
        if data:
            words = Words(*(read_table(Path(data, f"{language}-{name}")) for name in (f"train-{size}", part)))
        else:
            words = read_words()
        for (name, rows), table in zip(parts.items(), words):
            chosen = evaluated(table, language, dev_from, dev_rows) if name == "dev" else table
            rows += [{**row, "tags": f"{language};{row['tags']}"} for row in chosen]
    train, dev = (Dataset.from_list(rows) for rows in parts.values())
    return Task(train, dev, build_tokenizer(train))


def evaluated(table: Dataset, language: str, start: int, most: int) -> Dataset:
    """At most so many of a language's rows, from one on."""
    if start >= len(table):
        raise ValueError(f"dev_from must be below {len(table)}, the rows of {language}, was {start}")
    return table.select(range(start, min(start + most, len(table))))
