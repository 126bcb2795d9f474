"""Changes to other libraries that can be undone: a method that is wrapped, an entry in a registry."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

_ORIGINAL = "_hf_sparse_original"
ON_IMPORT = "import of hf_sparse"


@dataclass(frozen=True)
class Patch:
    """One method of another library that this package wraps, a class method too, or one function of a module.

    Attributes:
        owner: its class, as ``"module:Class"``, or the module; imported when the patch is installed.
        name: the method's name.
        replacement: called as the method is, with the original (a plain function) before the other arguments.
        reason: a sentence for readers of ``hf_sparse.hooks``.
        trigger: the moment the patch is installed.
    """

    owner: str
    name: str
    replacement: Callable[..., Any]
    reason: str
    trigger: str = ON_IMPORT

    def install(self) -> None:
        """Put the replacement in the method's place, once."""
        owner = _found(self.owner)
        found = inspect.getattr_static(owner, self.name)
        of_class = isinstance(found, classmethod)
        original = found.__func__ if of_class else found
        if hasattr(original, _ORIGINAL):
            return
        replacement = self.replacement

        @functools.wraps(original)
        def method(*args: object, **kwargs: object) -> Any:
            return replacement(original, *args, **kwargs)

        setattr(method, _ORIGINAL, found)
        setattr(owner, self.name, classmethod(method) if of_class else method)

    def uninstall(self) -> None:
        """Put the original back, if it was replaced."""
        if self.owner.partition(":")[0] not in sys.modules:
            return
        owner = _found(self.owner)
        found = inspect.getattr_static(owner, self.name)
        method = found.__func__ if isinstance(found, classmethod) else found
        original = getattr(method, _ORIGINAL, None)
        if original is None:
            return
        delattr(owner, self.name)
        if inspect.getattr_static(owner, self.name, None) is not original:  # it was not inherited
            setattr(owner, self.name, original)


@dataclass(frozen=True)
class Registration:
    """One entry that this package adds to a registry of Transformers.

    Attributes:
        owner: the registry's class, as ``"module:Class"``, with a class method ``register``.
        name: the key.
        value: the entry.
        reason: a sentence for readers of ``hf_sparse.hooks``.
        trigger: the moment it is added.
    """

    owner: str
    name: str
    value: object
    reason: str
    trigger: str = ON_IMPORT

    def install(self) -> None:
        """Add the entry."""
        _found(self.owner).register(self.name, self.value)

    def uninstall(self) -> None:
        """Take the entry away, if it is there."""
        _found(self.owner)._global_mapping.pop(self.name, None)


def install_where_imported(patches: Iterable[Patch]) -> None:
    """Install those patches whose owner's module was imported."""
    for patch in patches:
        if patch.owner.partition(":")[0] in sys.modules:
            patch.install()


def _found(place: str) -> Any:
    module, _, name = place.partition(":")
    found = import_module(module)
    return getattr(found, name) if name else found
