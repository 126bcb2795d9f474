"""Changes to other libraries that can be undone: a method that is wrapped, an entry in a registry."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_WRAPPER = "_hf_sparse_wrapper"


@dataclass(frozen=True, eq=False)
class _Wrapper:
    """What is known of a method in the place of another; ``functools.wraps`` hands it on to wrappers around it.

    Attributes:
        original: what it took the place of, as its owner held it.
        method: the method.
        switch: has it call the replacement (True) or the original (False).
    """

    original: Any
    method: Callable[..., Any]
    switch: Callable[[bool], None]


def _as_before(original: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    return original(*args, **kwargs)


@dataclass(frozen=True)
class Patch:
    """One method of another library that this package wraps, a class method too, or one function of a module.

    Attributes:
        owner: its class, as ``"module:Class"``, or the module; imported when the patch is installed.
        name: the method's name.
        replacement: called as the method is, with the original (a plain function) before the other arguments.
        reason: a sentence for readers of ``hf_sparse.hooks``.
        after: the module at the end of whose import, by whomever, the patch is installed; empty for the import of
            this package.
        needed: whether a version of that module which has no such method is refused, rather than left as it is.
    """

    owner: str
    name: str
    replacement: Callable[..., Any]
    reason: str
    after: str = ""
    needed: bool = True

    def install(self) -> None:
        """Put the replacement in the method's place, once."""
        owner = _found(self.owner)
        found = inspect.getattr_static(owner, self.name)
        of_class = isinstance(found, classmethod)
        original = found.__func__ if of_class else found
        known: _Wrapper | None = getattr(original, _WRAPPER, None)
        if known is not None:
            known.switch(True)
            return
        replacement = self.replacement

        @functools.wraps(original)
        def method(*args: object, **kwargs: object) -> Any:
            return replacement(original, *args, **kwargs)

        def switch(to_ours: bool) -> None:
            nonlocal replacement
            replacement = self.replacement if to_ours else _as_before

        setattr(method, _WRAPPER, _Wrapper(found, method, switch))
        setattr(owner, self.name, classmethod(method) if of_class else method)

    def uninstall(self) -> None:
        """Put the original back, if it was replaced; inside what others wrapped around it, have it be called again."""
        if self.owner.partition(":")[0] not in sys.modules:
            return
        owner = _found(self.owner, None)
        found = inspect.getattr_static(owner, self.name, None)
        method = found.__func__ if isinstance(found, classmethod) else found
        wrapper: _Wrapper | None = getattr(method, _WRAPPER, None)
        if wrapper is None:
            return
        if wrapper.method is not method:
            wrapper.switch(False)
            return
        delattr(owner, self.name)
        if inspect.getattr_static(owner, self.name, None) is not wrapper.original:  # it was not inherited
            setattr(owner, self.name, wrapper.original)


@dataclass(frozen=True)
class Registration:
    """One entry that this package adds to a registry of Transformers.

    Attributes:
        owner: the registry's class, as ``"module:Class"``, with a class method ``register``.
        name: the key.
        value: the entry.
        reason: a sentence for readers of ``hf_sparse.hooks``.
    """

    owner: str
    name: str
    value: object
    reason: str
    after = ""
    needed = True

    def install(self) -> None:
        """Add the entry."""
        _found(self.owner).register(self.name, self.value)

    def uninstall(self) -> None:
        """Take the entry away, if it is there."""
        _found(self.owner)._global_mapping.pop(self.name, None)


def install_all(patches: Iterable[Patch | Registration]) -> None:
    """Install patches now, or once the module that they come after is imported."""
    late: dict[str, list[Patch | Registration]] = {}
    for patch in patches:
        if not patch.after:
            patch.install()
        elif sys.modules.get(patch.after) is None:
            late.setdefault(patch.after, []).append(patch)
        else:
            _install_late(patch)
    awaited = {finder.module for finder in sys.meta_path if isinstance(finder, _AtImport)}
    for module in late.keys() - awaited:
        sys.meta_path.insert(0, _AtImport(module, tuple(late[module])))


def forget_imports() -> None:
    """Wait for no import any more."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _AtImport)]


@dataclass(frozen=True)
class _AtImport(MetaPathFinder):
    """Finds a module as others do, who may only look for it, and installs patches once it has run."""

    module: str
    patches: tuple[Patch | Registration, ...]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = partial(self._run, loader.exec_module)
        return spec

    def _run(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        execute(module)
        for patch in self.patches:
            _install_late(patch)


def _install_late(patch: Patch | Registration) -> None:
    """Install a patch of a module that was imported.

    Raises:
        ImportError: its version is one in which nothing can be patched under this name, and that is needed.
    """
    try:
        patch.install()
    except AttributeError as error:
        if not patch.needed:
            return
        raise ImportError(
            f"hf_sparse does not know this version of {patch.after} ({error}), and cannot keep it from misreading "
            f"sparse models: {patch.reason} Install another version, or call hf_sparse.hooks.uninstall() before the "
            "import where no model is sparse"
        ) from error


def _found(place: str, *default: object) -> Any:
    module, _, name = place.partition(":")
    found = import_module(module)
    return getattr(found, name, *default) if name else found
