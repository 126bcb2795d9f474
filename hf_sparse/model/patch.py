"""A change to a method of another library that can be undone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

_ORIGINAL = "_hf_sparse_original"


@dataclass(frozen=True)
class Patch:
    """One method of another library that this package wraps.

    Attributes:
        owner: its class, as ``"module:Class"``; imported when the patch is installed.
        name: the method's name.
        replacement: called as the method is, with the original before the other arguments.
        reason: a sentence for readers of ``hf_sparse.hooks``.
        trigger: the moment the patch is installed.
    """

    owner: str
    name: str
    replacement: Callable[..., Any]
    reason: str
    trigger: str = "import of hf_sparse"

    def install(self) -> None:
        """Put the replacement in the method's place, once."""
        owner = self._owner()
        original = getattr(owner, self.name)
        if hasattr(original, _ORIGINAL):
            return
        replacement = self.replacement

        @functools.wraps(original)
        def method(*args: object, **kwargs: object) -> Any:
            return replacement(original, *args, **kwargs)

        setattr(method, _ORIGINAL, original)
        setattr(owner, self.name, method)

    def uninstall(self) -> None:
        """Put the original back, if it was replaced."""
        owner = self._owner()
        method = getattr(owner, self.name)
        setattr(owner, self.name, getattr(method, _ORIGINAL, method))

    def _owner(self) -> Any:
        module, _, name = self.owner.partition(":")
        return getattr(import_module(module), name)
