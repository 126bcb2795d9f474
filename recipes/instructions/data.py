"""Instructions: write a sentence with some words. Answers are sentences of a text, the words are theirs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from ..language_modelling.data import read_text

PROMPT = "Write a sentence with these words: {words}\nSentence:"
LONGEST = 200  # characters of a sentence


class Instruction(NamedTuple):
    """The words asked for, and a sentence that has them."""

    asked: tuple[str, ...]
    sentence: str

    @property
    def prompt(self) -> str:
        """What the model reads."""
        return PROMPT.format(words=", ".join(self.asked))


def words(text: str) -> list[str]:
    """The words of a text, lower-cased, in their order."""
    return re.findall(r"\w+", text.lower())


def instruction(sentence: str, count: int, generator: torch.Generator) -> Instruction:
    """A sentence with ``count`` of its words, drawn from its longest half and put in an order of their own."""
    longest = sorted(set(words(sentence)), key=lambda word: (-len(word), word))
    known = longest[: max(count, len(longest) // 2)]
    drawn = torch.randperm(len(known), generator=generator)[:count].tolist()
    return Instruction(tuple(known[place] for place in drawn), sentence)


def read_instructions(data: str, count: int, most: int, seed: int) -> tuple[list[Instruction], list[Instruction]]:
    """Instructions to train on and to judge by; no sentence is in both.

    Args:
        data: see ``recipes.language_modelling.data.read_text``; a line is a sentence.
        count: words asked for.
        most: instructions to judge by, at most.
        seed: of the words that are drawn for training, and of the order; those to judge by are always the same.

    Raises:
        ValueError: no sentence has as many words.
    """
    text = read_text(data)
    train, test = (
        [line for line in dict.fromkeys(part) if len(line) <= LONGEST and len(set(words(line))) >= count]
        for part in (text.train, text.test)
    )
    test = test[:: max(1, len(test) // most)][:most]
    judged = set(test)
    train = [line for line in train if line not in judged]
    if not train or not test:
        raise ValueError(f"{data} has no sentences with {count} different words to train on, or none to judge by")
    own, shared = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(0)
    order = torch.randperm(len(train), generator=own).tolist()
    return (
        [instruction(train[i], count, own) for i in order],
        [instruction(line, count, shared) for line in test],
    )


def encoded(tokenizer: PreTrainedTokenizerBase, row: Instruction) -> dict[str, list[int]]:
    """Prompt and answer in tokens, with the end token; only the answer has labels."""
    asked = tokenizer(row.prompt)["input_ids"]
    answer = tokenizer(f" {row.sentence}", add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    return {"input_ids": asked + answer, "labels": [-100] * len(asked) + answer}


def collate(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Rows in one batch, padded on the right; padding has no label and is not attended."""
    padded = {
        name: pad_sequence([torch.tensor(row[name]) for row in rows], batch_first=True, padding_value=value)
        for name, value in (("input_ids", 0), ("labels", -100))
    }
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    mask = torch.arange(padded["input_ids"].shape[1]) < lengths[:, None]
    return {**padded, "attention_mask": mask.long()}
