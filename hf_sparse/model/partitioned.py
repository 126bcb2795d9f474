"""DeepSpeed's ZeRO-3: parameters that are divided over processes, and whole only while modules that need them run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType
from typing import Any

from torch import nn


def is_partitioned(parameter: object) -> bool:
    """Whether ZeRO-3 divides a parameter."""
    return hasattr(parameter, "ds_status")


def is_freed(parameter: Any) -> bool:
    """Whether a parameter is divided now, so that a process holds a part of it alone."""
    return is_partitioned(parameter) and parameter.ds_status.name == "NOT_AVAILABLE"


@contextmanager
def whole(parameters: Iterable[Any]) -> Iterator[None]:
    """Have the parameters that are divided whole in the block, which all processes must enter."""
    freed = [parameter for parameter in parameters if is_freed(parameter)]
    if not freed:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(freed):
        yield


def ask_for_weights(head: Any, inputs: Any, output: Any) -> None:
    """A forward hook of a linear layer whose weights are needed after it.

    They are freed where it ends. Asked for there, they are gathered, and stay until the model around it ends.
    """
    _ = head.weight, getattr(head, "bias", None)


def linear_is_replaced() -> bool:
    """Whether ``torch.nn.functional.linear`` is another, as ZeRO-3's, that no ``TorchFunctionMode`` sees."""
    return not isinstance(nn.functional.linear, BuiltinFunctionType)
