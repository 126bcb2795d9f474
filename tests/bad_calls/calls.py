"""Bad calls: what they are made with, and the families they are drawn from."""

from __future__ import annotations

import math
import random
import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

NAN, INF = math.nan, math.inf
VOCAB = 23


@dataclass
class World:
    """What calls are made with; models that no call may change."""

    dense: Any
    sparse: Any
    saved: Path
    folder: Path
    inputs: dict[str, Tensor]
    batches: list[dict[str, Tensor]]


@dataclass
class BadCall:
    """A call that must be refused.

    Attributes:
        text: how a failure shows it.
        make: makes it.
        named: the message has one of these: the argument, or the value.
    """

    text: str
    make: Callable[[], Any]
    named: tuple[str, ...]


Family = Callable[[random.Random, World], BadCall]
FAMILIES: dict[str, tuple[int, Family]] = {}


def family(weight: int) -> Callable[[Family], Family]:
    """Enter a generator of bad calls, with how often it is drawn."""

    def enter(function: Family) -> Family:
        FAMILIES[function.__name__] = (weight, function)
        return function

    return enter


def word(rng: random.Random) -> str:
    """A word that names nothing."""
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(4, 9))) + "zq"


def spelled(*values: Any) -> tuple[str, ...]:
    """How messages may show values."""
    return tuple(text for value in values for text in {str(value), repr(value)} if text)


def bad_call(function: Callable, good: dict[str, Any], name: str, value: Any, *also: str) -> BadCall:
    """``function`` with good arguments but for one."""
    arguments = {**good, name: value}
    text = f"{getattr(function, '__name__', function)}({name}={value!r})"
    return BadCall(text, lambda: function(**arguments), (name, *spelled(value), *also))


BELOW_ONE = (0, -1, -7, 1.5, NAN, "many", None, True, [2])
NOT_A_PROBABILITY = (-0.1, 1.5, NAN, INF, "half", [0.5], None)
