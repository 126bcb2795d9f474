"""Words to inflect: English verbs, tables of your own, or a data set of the Hub."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import datasets
from datasets import Dataset
from huggingface_hub.errors import HFValidationError

from hf_sparse.conversion.text_file import read_lines

from ..data import english_verbs

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
LONGEST_ROW = 400  # characters of lemma, form and tags together
COLUMNS = ("lemma", "form", "tags")
DEV = ("dev", "validation", "test")  # splits to evaluate on, in order of preference


class Words(NamedTuple):
    """Rows of lemma, form and tags, for training and for evaluation."""

    train: Dataset
    dev: Dataset


def as_table(source: str, unit: str, rows: Iterable[tuple[int, list[str]]]) -> Dataset:
    """A table of lemmas, forms and tags.

    Args:
        source: name of the data, for messages.
        unit: name of a row there, ``"line"`` for instance.
        rows: number and fields of each row.

    Raises:
        ValueError: there is no row, or the model could not read one; the message names its place.
    """
    table = []
    for number, fields in rows:
        check_row(f"{source}, {unit} {number}", fields)
        table.append(dict(zip(COLUMNS, fields)))
    if not table:
        raise ValueError(f"{source}: no rows; expected lines of lemma TAB form TAB tags")
    return Dataset.from_list(table)


def check_row(place: str, fields: list[str]) -> None:
    """Raise ``ValueError``, with the place, unless the fields are a lemma, a form and tags that the model can read."""
    if len(fields) != len(COLUMNS) or not all(isinstance(field, str) and field for field in fields):
        raise ValueError(
            f"{place}: expected three fields, lemma TAB form TAB tags (as in 'draw\\tdrawn\\tV;V.PTCP;PST'), "
            f"was {fields!r}"
        )
    text = "".join(fields)
    if "<" in text or ">" in text:
        raise ValueError(f"{place}: the characters < and > mark tags and must not occur: {fields!r}")
    if len(text) > LONGEST_ROW:
        raise ValueError(f"{place}: more than {LONGEST_ROW} characters, was {len(text)}")
    tags = fields[2].split(";")
    if "" in tags or any(f"<{tag}>" in SPECIAL for tag in tags):
        reserved = ", ".join(special.strip("<>") for special in SPECIAL)
        raise ValueError(f"{place}: a tag is empty or one of {reserved}: {fields[2]!r}")


def read_verbs() -> Dataset:
    """The English verbs of ``recipes.data``."""
    return as_table(
        "English verbs", "row", ((number, list(row)) for number, row in enumerate(english_verbs.rows(), 1))
    )


def read_table(path: Path) -> Dataset:
    """Read rows ``lemma TAB form TAB tags`` (UTF-8, tags joined by ``;``, no header).

    Raises:
        ValueError: the file is no such table; the message names the line.
    """
    rows = ((number, line.split("\t")) for number, line in enumerate(read_lines(path), 1) if line)
    return as_table(str(path), "line", rows)


def read_hub(name: str) -> Words:
    """Read a data set with columns ``lemma``, ``form`` and ``tags``, its configuration after a colon.

    Raises:
        FileNotFoundError: there is no data set of that name, or the Hub cannot be reached.
        ValueError: a split or a column is missing, or a row is malformed.
    """
    path, _, configuration = name.partition(":")
    try:
        found = datasets.load_dataset(path, configuration or None)
    except (ConnectionError, FileNotFoundError, HFValidationError) as error:
        raise FileNotFoundError(f"{name}: no file, no folder, and no data set that was found ({error})") from error
    dev = next((part for part in DEV if part in found), None)
    if dev is None or "train" not in found:
        raise ValueError(f"{name}: needs a split 'train' and one of {', '.join(DEV)}; has {', '.join(found)}")
    parts = []
    for part in ("train", dev):
        if not set(COLUMNS) <= set(found[part].column_names):
            raise ValueError(f"{name}: needs columns {', '.join(COLUMNS)}; has {', '.join(found[part].column_names)}")
        rows = zip(*(found[part][column] for column in COLUMNS))
        parts.append(as_table(f"{name}, {part}", "row", ((number, list(row)) for number, row in enumerate(rows))))
    return Words(*parts)


def held_out(lemma: str) -> bool:
    """Whether a lemma is held out with all its forms: about one in ten, those whose CRC-32 (UTF-8) ends in 3."""
    return zlib.crc32(lemma.encode()) % 10 == 3


def divided(rows: Dataset) -> Words:
    """Split rows by ``held_out``.

    Raises:
        ValueError: one of the two parts is empty.
    """
    parts: tuple[list[int], list[int]] = ([], [])
    for index, lemma in enumerate(rows["lemma"]):
        parts[held_out(lemma)].append(index)
    if not all(parts):
        count = len(set(rows["lemma"]))
        raise ValueError(
            f"too few lemmas ({count}) to hold out one in ten; name a table to evaluate on: --set dev=FILE"
        )
    return Words(*(rows.select(part) for part in parts))


@functools.lru_cache(maxsize=1)
def read_words(data: str = "", dev: str = "") -> Words:
    """Words named on the command line.

    Args:
        data: a table (see ``read_table``), of which one lemma in ten is held out; a folder with the tables
            ``train.tsv`` and ``dev.tsv``; a data set of the Hub (see ``read_hub``); or empty for English verbs.
        dev: a table for evaluation; ``data`` is then a table too, all of it for training.

    Raises:
        OSError: nothing has that name.
        ValueError: it is not as described.
    """
    path = Path(data)
    if dev:
        if not data:
            raise ValueError(f"dev={dev} goes with a table to train on: --data FILE")
        return Words(read_table(path), read_table(Path(dev)))
    if not data:
        return divided(read_verbs())
    if path.is_file():
        return divided(read_table(path))
    if path.is_dir():
        tables = path / "train.tsv", path / "dev.tsv"
        missing = [table.name for table in tables if not table.is_file()]
        if missing:
            raise FileNotFoundError(
                f"{path} has no {' and no '.join(missing)}; name files otherwise: --data FILE --set dev=FILE"
            )
        return Words(*map(read_table, tables))
    return read_hub(data)
