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
    """Values of one thread, by the numbers of their blocks; each thread has its own."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}


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
        own, number = self._own.values, next(_numbers)
        own[number] = self._of_all[number] = value
        try:
            yield
        finally:
            del own[number], self._of_all[number]

    def of(self, module: nn.Module) -> tuple[T, ...]:
        """The values that hold for a call of ``module`` by this thread, the innermost last.

        For replicas of ``nn.DataParallel``, which run in threads of their own, those of all threads hold.
        """
        return tuple((self._of_all if getattr(module, "_is_replica", False) else self._own.values).values())

    def innermost(self, module: nn.Module) -> T | None:
        """The last of the values of ``of``, or None."""
        values = self.of(module)
        return values[-1] if values else None
