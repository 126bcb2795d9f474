"""What the outputs are conditioned on: known word forms, a field of a few characters after a prompt, commands."""

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


class Command(NamedTuple):
    """A command as it is said, and other ways of writing it."""

    said: str
    also: tuple[str, ...] = ()

    def written(self) -> list[str]:
        """What a speech recogniser may write: with and without a capital letter and a full stop."""
        texts = [self.said, *self.also]
        return [begun + stop for text in texts for begun in (text, text[0].upper() + text[1:]) for stop in ("", ".")]


COMMANDS = (
    Command("turn on the lights in the kitchen"),
    Command("turn off the lights in the kitchen"),
    Command("turn on the lights in the hall"),
    Command("turn off the lights in the hall"),
    Command("open the window in the bedroom"),
    Command("close the window in the bedroom"),
    Command("open the door of the garage"),
    Command("close the door of the garage"),
    Command("set the heating to eighteen degrees", ("set the heating to 18 degrees",)),
    Command("set the heating to eighty degrees", ("set the heating to 80 degrees",)),
    Command("wake me up at six fifteen", ("wake me up at 6.15", "wake me up at 6:15", "wake me up at 615")),
    Command("wake me up at six fifty", ("wake me up at 6.50", "wake me up at 6:50", "wake me up at 650")),
    Command("play the next song"),
    Command("play the last song"),
    Command("call my mother"),
    Command("call my brother"),
    Command("stop the music"),
    Command("start the music"),
    Command("lock the front door"),
    Command("unlock the front door"),
)
REMARKS = (  # no commands
    "the weather was cold and wet this morning",
    "she turned around and looked at the door",
    "my brother has never been to the mountains",
    "we had dinner in the kitchen at eight",
    "the last song was much too long",
    "there are six windows in the front of the house",
    "he closed his eyes and listened to the music",
    "nobody knows who opened the garage",
)
