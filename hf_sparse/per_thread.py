"""What running blocks set for the calls of their own thread: others may use the same model meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from threading import local
from typing import Any, Generic, TypeVar

from torch import nn

T = TypeVar("T")
_numbers = count()


class _Own(local):
    """Values of one thread, and the numbers of their blocks; each thread has its own.

    A compiler compiles again for what it has not seen, so that it must meet the values alone.
    """

    def __init__(self) -> None:
        self.values: tuple[Any, ...] = ()
        self.numbers: tuple[int, ...] = ()


class PerThread(Generic[T]):
    """Values that running blocks have set. Copies, and models that are loaded, have none.

    Blocks may end in any order, as those of generators do, and in another thread.

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
        self._of_all: dict[int, T] = {}

    def __reduce__(self) -> tuple[type[PerThread[T]], tuple[()]]:
        return PerThread, ()

    @contextmanager
    def set(self, value: T) -> Iterator[None]:
        """Set a value for the block."""
        own, number = vars(self._own), next(_numbers)
        own["values"], own["numbers"] = (*own["values"], value), (*own["numbers"], number)
        self._of_all[number] = value
        try:
            yield
        finally:
            del self._of_all[number]
            at = own["numbers"].index(number)
            for name in ("values", "numbers"):
                own[name] = (*own[name][:at], *own[name][at + 1 :])

    def of(self, module: nn.Module) -> tuple[T, ...]:
        """The values that hold for a call of ``module`` by this thread, the innermost last.

        For replicas of ``nn.DataParallel``, which run in threads of their own, those of all threads hold.
        """
        return tuple(self._of_all.values()) if getattr(module, "_is_replica", False) else self._own.values

    def innermost(self, module: nn.Module) -> T | None:
        """The last of the values of ``of``, or None."""
        values = self.of(module)
        return values[-1] if values else None
