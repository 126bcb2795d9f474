"""Made-up tasks that look up one distant token per step: copy, reverse, and associative recall."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

PAD, MARK = 0, 1
FIRST = 2  # token ids from here on are symbols
QUERIES = 16  # keys that are asked for after one list of pairs

Row = dict[str, list[int]]


def _answered(question: list[int], answer: list[int]) -> Row:
    return {"input_ids": question + answer, "labels": [-100] * len(question) + answer}


def copy_row(n: int, symbols: int, random: Random) -> Row:
    """``| a b c | a b c``: n different symbols between two marks, then the same."""
    text = random.sample(range(FIRST, FIRST + symbols), n)
    return _answered([MARK, *text, MARK], text)


def reverse_row(n: int, symbols: int, random: Random) -> Row:
    """``| a b c | c b a``: n different symbols between two marks, then the same in reverse."""
    text = random.sample(range(FIRST, FIRST + symbols), n)
    return _answered([MARK, *text, MARK], text[::-1])


def recall_row(n: int, symbols: int, random: Random) -> Row:
    """``| a 1 b 2 c 3 | b 2 a 1``: n pairs of a key and its value, then keys whose values are the answers.

    Keys are different and from the first half of the symbols, values are from the second half.
    """
    half = symbols // 2
    keys = random.sample(range(FIRST, FIRST + half), n)
    values = [random.randrange(FIRST + half, FIRST + 2 * half) for _ in keys]
    pairs = list(zip(keys, values))
    asked = random.sample(pairs, min(n, QUERIES))
    row = _answered([MARK, *(symbol for pair in pairs for symbol in pair), MARK], [])
    for key, value in asked:
        row["input_ids"] += [key, value]
        row["labels"] += [-100, value]
    return row


TASKS: dict[str, Callable[[int, int, Random], Row]] = {
    "copy": copy_row,
    "reverse": reverse_row,
    "recall": recall_row,
}


def check_symbols(task: str, length: int, symbols: int) -> None:
    """Raise ``ValueError`` if there are too few symbols for a row of that length."""
    most = symbols // 2 if task == "recall" else symbols
    if length > most:
        raise ValueError(f"{task}: length {length} needs as many different symbols, and there are {most}")


def rows(task: str, lengths: range, count: int, symbols: int, seed: Any) -> Iterator[Row]:
    """``count`` rows of a task, each of a length drawn evenly from ``lengths``.

    Raises:
        ValueError: there are too few symbols for the longest row.
    """
    check_symbols(task, lengths[-1], symbols)
    random = Random(f"{task} {seed}")
    for _ in range(count):
        yield TASKS[task](random.choice(lengths), symbols, random)


def collate(batch: list[Row]) -> dict[str, Tensor]:
    """Batch of rows, padded at the end."""
    ids = [torch.tensor(row["input_ids"]) for row in batch]
    labels = [torch.tensor(row["labels"]) for row in batch]
    padded = pad_sequence(ids, batch_first=True, padding_value=PAD)
    return {
        "input_ids": padded,
        "attention_mask": (padded != PAD).long(),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
    }
