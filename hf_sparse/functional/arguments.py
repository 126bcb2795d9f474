"""Checks of arguments: counts, numbers, flags, texts, sentences and tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sized
from numbers import Integral, Real

import torch

from .rows import is_readable


def check_count(name: str, value: object, otherwise: str = "") -> None:
    """Refuse what is no whole number of at least 1; ``otherwise`` says what else may be given, as ", or None".

    >>> check_count("width", 0)
    Traceback (most recent call last):
    ...
    ValueError: width must be at least 1, was 0

    Raises:
        TypeError: not a whole number.
        ValueError: one below 1.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number{otherwise}, was {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1{otherwise}, was {value}")


def check_number(name: str, value: object, allowed: str, holds: Callable[[float], bool]) -> None:
    """Refuse what is no number, or one out of range.

    Args:
        name: how errors call it.
        value: what was given.
        allowed: the range in words, as it appears in errors ("must be ``allowed``").
        holds: tells whether a number lies in that range; false for NaN.

    Raises:
        TypeError: not a number.
        ValueError: one out of range.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be {allowed}, was {value!r}")
    if not holds(float(value)):
        raise ValueError(f"{name} must be {allowed}, was {value}")


def check_pairs(name: str, one: Sized, other_name: str, other: Sized) -> None:
    """Refuse two collections that do not have as many entries.

    Raises:
        ValueError: they do not.
    """
    if len(one) != len(other):
        raise ValueError(f"{name} and {other_name} must pair up, were {len(one)} and {len(other)}")


def between(low: float, high: float) -> tuple[str, Callable[[float], bool]]:
    """The range from ``low`` to ``high`` in words, as errors have it, and whether a number lies in it (NaN does not).

    >>> words, holds = between(1e-4, 64)
    >>> words, holds(64.5)
    ('a number from 0.0001 to 64', False)
    """
    return f"a number from {low:.10g} to {high:.10g}", lambda number: low <= number <= high


def check_items(name: str, value: object) -> None:
    """Refuse what no sum of losses can be divided by: a count below 0, NaN. A tensor is read on the CPU alone.

    Raises:
        TypeError: neither a number nor a tensor with one.
        ValueError: a number below 0, or not finite.
    """
    if torch.is_tensor(value):
        if value.device.type != "cpu" or not is_readable(value):
            return
        value = value.item() if value.numel() == 1 else value
    check_number(name, value, "a finite number >= 0", lambda number: 0 <= number < math.inf)


def items_divisor(num_items: object, counted: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The number that a sum of losses is divided by: ``num_items``, or 1 where that is 0 and no item counts.

    A count of 0 beside items that count is a mistake. Where values cannot be read (on a device, in compiled code) it
    gives NaN, as a count below 0 does.

    Args:
        num_items: a number or a tensor with one, for which ``check_items`` holds.
        counted: which items of the sum count, bool.
        dtype: of the result.

    Returns:
        A tensor without dimensions, on the device of ``counted``.

    Raises:
        ValueError: 0, though some items count.
    """
    items = torch.as_tensor(num_items, dtype=dtype, device=counted.device).reshape(())
    some = counted.any()
    wrong = (items < 0) | ((items == 0) & some)
    if counted.device.type == "cpu" and is_readable(wrong) and bool(wrong):
        raise ValueError(
            f"the number of items was {float(items):g}, but {int(counted.sum())} labels of this batch count; give the "
            "number of labels that count in all batches of the step, or None for the mean of this batch"
        )
    return torch.where(wrong, torch.nan, torch.where(items == 0, 1.0, items))


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False.

    Raises:
        TypeError: anything else.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, was {value!r}")


def check_text(name: str, value: object) -> None:
    """Refuse what is no text.

    Raises:
        TypeError: anything else.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a text, was {value!r}")


def check_sentences(name: str, sentences: Iterable[Iterable[object]]) -> None:
    """Refuse sentences that are not divided into words, and words that are tensors: no tensor equals another.

    Raises:
        TypeError: a sentence that is one string, or that holds tensors.
    """
    for number, sentence in enumerate(sentences):
        if isinstance(sentence, str):
            raise TypeError(f"{name}[{number}] must be a sequence of words, was the string {sentence!r}; split it")
        if any(torch.is_tensor(word) for word in sentence):
            raise TypeError(f"{name}[{number}] must be a sequence of words or ids, was one of tensors; give .tolist()")


def check_type(name: str, value: object, wanted: type, source: str) -> None:
    """Refuse what is not of the type that ``source`` gives.

    Raises:
        TypeError: the value is not.
    """
    if not isinstance(value, wanted):
        raise TypeError(f"{name} must be a {wanted.__name__}, from {source}, was {type(value).__name__}")


def check_labels(name: str, labels: object) -> None:
    """Refuse labels that are no list of texts.

    Raises:
        TypeError: they are not.
    """
    if not isinstance(labels, Collection):
        raise TypeError(f"{name} must be a list of texts, were {labels!r}")
    for label in labels:
        check_text(f"a label of {name}", label)


def check_tensor(name: str, value: object) -> None:
    """Refuse what is no tensor.

    Raises:
        TypeError: anything else.
    """
    if not torch.is_tensor(value):
        raise TypeError(f"{name} must be a tensor, was {value!r}")


def require(holds: torch.Tensor, error: Callable[[], Exception]) -> None:
    """Raise ``error()`` where an entry of ``holds`` is False.

    A host that reads a GPU's memory waits for all that was launched before. On an NVIDIA GPU it therefore goes on, and
    the GPU stops ("device-side assert triggered"), as it does where ``cross_entropy`` gets no class. AMD's does not
    stop, and is waited for.

    >>> require(torch.tensor([True, False]), lambda: ValueError("both must hold"))
    Traceback (most recent call last):
    ...
    ValueError: both must hold
    """
    if holds.is_cuda and torch.version.hip is None:
        torch._assert_async(holds.all() if holds.dim() else holds)
    elif not bool(holds.all()):
        raise error()


def class_indices(target: torch.Tensor, num_classes: int, ignore_index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Class targets (...) as int64, 0 where they are ignored, and a mask (...), bool, of those that count.

    Args:
        target: whole numbers of any width.
        num_classes: V.
        ignore_index: target of what does not count.

    Raises:
        TypeError: targets that are not integers, or an ``ignore_index`` that is no whole number.
        IndexError: a target outside [0, V), where values can be read; see ``require``.

    >>> class_indices(torch.tensor([3, -100]), 4, -100)
    (tensor([3, 0]), tensor([ True, False]))
    """
    if type(ignore_index) is not int:
        raise TypeError(f"ignore_index must be a whole number, was {ignore_index!r}")
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise TypeError(f"target must hold class indices (int64), was {target.dtype}")
    target = target.long()  # in a narrow dtype ignore_index and V would wrap around, and be classes
    counted = target != ignore_index
    y = target * counted
    if is_readable(target):
        valid = (y >= 0) & (y < num_classes)
        require(
            valid,
            lambda: IndexError(
                f"target must be in [0, {num_classes}) or {ignore_index} (ignored), was {int(target[~valid][0])}"
            ),
        )
    return y, counted
