"""What answers are measured by: the words they were asked for, and how much drawn answers have in common."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from .data import Instruction, words


def has_asked(answers: Sequence[str], rows: Sequence[Instruction]) -> float:
    """Mean share of the words asked for that are in the answer.

    >>> has_asked(["A dog sleeps."], [Instruction(("dog", "runs"), "A dog runs.")])
    0.5
    """
    shares = [fmean(word in words(answer) for word in row.asked) for answer, row in zip(answers, rows)]
    return fmean(shares)


def distinct(answers: Sequence[Sequence[str]], n: int) -> float:
    """Different n-grams of words as a share of all in the answers to one prompt, the mean over prompts.

    Source: distinct-n, Li et al. 2016. Prompts whose answers are all shorter than n words do not count.

    >>> distinct([["a dog", "a cat"]], 1)
    0.75
    """
    shares = []
    for texts in answers:
        grams = [gram for text in texts for gram in zip(*(words(text)[start:] for start in range(n)))]
        if grams:
            shares.append(len(set(grams)) / len(grams))
    return fmean(shares) if shares else 0.0
