"""What running blocks set for the calls of their own thread: others may use the same model meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Generic, TypeVar

from torch import nn

from .functional.rows import in_graph

T = TypeVar("T")


@dataclass(eq=False)
class _Entry(Generic[T]):
    thread: int
    value: T


class PerThread(Generic[T]):
    """Values that running blocks have set. Copies, and models that are loaded, have none.

    >>> from threading import Thread
    >>> from torch import nn
    >>> model, values, seen = nn.Identity(), PerThread(), []
    >>> def look():
    ...     seen.append(values.of(model))
    >>> with values.set(1), values.set(2):
    ...     look()
    ...     other = Thread(target=look)
    ...     other.start()
    ...     other.join()
    >>> look()
    >>> seen
    [(1, 2), (), ()]
    """

    def __init__(self) -> None:
        self._entries: list[_Entry[T]] = []  # append and remove are atomic

    def __reduce__(self) -> tuple[type[PerThread[T]], tuple[()]]:
        return PerThread, ()

    @contextmanager
    def set(self, value: T) -> Iterator[None]:
        """Set a value for the block."""
        entry = _Entry(0 if in_graph() else get_ident(), value)
        self._entries.append(entry)
        try:
            yield
        finally:
            self._entries.remove(entry)

    def of(self, module: nn.Module) -> tuple[T, ...]:
        """The values that hold for a call of ``module`` by this thread, the innermost last.

        For replicas of ``nn.DataParallel``, which run in threads of their own, those of all threads hold, and so they
        do in a graph that torch compiles.
        """
        entries = tuple(self._entries)
        if not entries or in_graph() or getattr(module, "_is_replica", False):
            return tuple(entry.value for entry in entries)
        thread = get_ident()
        return tuple(entry.value for entry in entries if entry.thread == thread)
