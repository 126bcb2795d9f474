"""What the outputs are conditioned on: the known word forms, or a field of a few characters after a prompt."""

from __future__ import annotations

from typing import NamedTuple

# Text whose next tokens calibrate the head of a pretrained model.
SENTENCES = (
    "The first World War began in 1914 and ended in 1918.",
    "Water boils at 100 degrees and freezes at 0 degrees.",
    "A week has seven days, and a day has 24 hours.",
    "Question: Is the sun a star?\nAnswer (yes or no): yes.",
)


class Field(NamedTuple):
    """A prompt, and the pattern of what is to follow."""

    prompt: str
    pattern: str


YEAR, YES_NO, NUMBER = r" (1\d|20)\d\d", r" ?([Yy]es|[Nn]o)", r" \d{1,3}"
FIELDS = (
    Field("The Second World War ended in", YEAR),
    Field("The Berlin Wall fell in", YEAR),
    Field("Neil Armstrong walked on the moon in", YEAR),
    Field("Question: Is Paris the capital of France?\nAnswer (yes or no):", YES_NO),
    Field("Question: Is the moon made of cheese?\nAnswer (yes or no):", YES_NO),
    Field("The number of days in April is", NUMBER),
    Field("The number of minutes in an hour is", NUMBER),
)
STOPS = (".", ",", "Ċ", ";", ")", "Ġand")  # tokens that end a field, as the vocabulary writes them
