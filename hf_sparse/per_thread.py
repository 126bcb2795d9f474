"""What running blocks set for the calls of their own thread: others may use the same model meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local
from typing import Any, Generic, TypeVar

from torch import nn

T = TypeVar("T")


class _Own(local):
    """Values of one thread; each thread has its own."""

    def __init__(self) -> None:
        self.values: tuple[Any, ...] = ()


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
    >>> seen, values.innermost(model)
    ([(1, 2), (), ()], None)
    """

    def __init__(self) -> None:
        self._own = _Own()
        self._of_all: dict[object, T] = {}

    def __reduce__(self) -> tuple[type[PerThread[T]], tuple[()]]:
        return PerThread, ()

    @contextmanager
    def set(self, value: T) -> Iterator[None]:
        """Set a value for the block."""
        before, key = self._own.values, object()
        self._own.values = (*before, value)
        self._of_all[key] = value
        try:
            yield
        finally:
            del self._of_all[key]
            self._own.values = before

    def of(self, module: nn.Module) -> tuple[T, ...]:
        """The values that hold for a call of ``module`` by this thread, the innermost last.

        For replicas of ``nn.DataParallel``, which run in threads of their own, those of all threads hold.
        """
        return tuple(self._of_all.values()) if getattr(module, "_is_replica", False) else self._own.values

    def innermost(self, module: nn.Module) -> T | None:
        """The last of the values of ``of``, or None."""
        values = self.of(module)
        return values[-1] if values else None
