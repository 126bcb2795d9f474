"""Methods of a model whose cross-entropy torch function modes see, compiled or not.

torch.compile knows the class ``nn.CrossEntropyLoss`` and turns a call of it into dense cross-entropy without asking
the modes that are on (2.13). A subclass it does not know, and looks into.
"""

from __future__ import annotations

from types import CellType, FunctionType, ModuleType
from typing import Any

from torch import nn


class VisibleCrossEntropyLoss(nn.CrossEntropyLoss):
    """``nn.CrossEntropyLoss``, which calls ``nn.functional.cross_entropy`` under torch.compile too."""


_VISIBLE_NN = ModuleType(nn.__name__)
vars(_VISIBLE_NN).update(vars(nn), CrossEntropyLoss=VisibleCrossEntropyLoss)


def with_visible_loss(function: Any) -> Any:
    """``function``, or a copy of it that makes a ``VisibleCrossEntropyLoss`` where it would make the other.

    Args:
        function: a method of a model, perhaps decorated. A copy looks its names up among the globals of this moment.
            Losses that are made in other functions, which it calls, stay as they are.
    """
    if not isinstance(function, FunctionType):
        return function
    cells = function.__closure__ or ()
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        visible = with_visible_loss(wrapped)
        if visible is wrapped:
            return function
        cells = tuple(CellType(visible) if cell.cell_contents is wrapped else cell for cell in cells)
        return _copy(function, function.__globals__, cells)
    replaced = _replaced_names(function)
    if not replaced:
        return function
    # Without a module's name, or torch.compile would look the names up in that module again.
    names = {name: value for name, value in (function.__globals__ | replaced).items() if name != "__name__"}
    return _copy(function, names, cells)


def _copy(function: FunctionType, names: dict[str, object], cells: tuple[CellType, ...]) -> FunctionType:
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _replaced_names(function: FunctionType) -> dict[str, object]:
    """The globals by which ``function`` reaches ``nn.CrossEntropyLoss``, with what takes their place."""
    used = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    by_name: dict[str, object] = {
        name: VisibleCrossEntropyLoss for name, value in used.items() if value is nn.CrossEntropyLoss
    }
    through_nn = [name for name, value in used.items() if value is nn] if "CrossEntropyLoss" in used else []
    return by_name | dict.fromkeys(through_nn, _VISIBLE_NN)


def visible_methods(cls: type, last: type) -> dict[str, Any]:
    """Copies of the methods of ``cls``, and of its bases before ``last``, that make an ``nn.CrossEntropyLoss``.

    Args:
        cls: the class of a model.
        last: one of its bases, whose methods are left as they are.

    Returns:
        The copies by name.
    """
    owners = cls.__mro__[: cls.__mro__.index(last)]
    methods = {name: value for owner in reversed(owners) for name, value in vars(owner).items()}
    copies = {name: with_visible_loss(value) for name, value in methods.items()}
    return {name: copy for name, copy in copies.items() if copy is not methods[name] and name != "__init__"}


def show_losses(model: nn.Module) -> None:
    """Let every ``nn.CrossEntropyLoss`` that ``model`` keeps be a ``VisibleCrossEntropyLoss``."""
    for part in model.modules():
        if type(part) is nn.CrossEntropyLoss:
            part.__class__ = VisibleCrossEntropyLoss


def restore_losses(model: nn.Module) -> None:
    """Undo ``show_losses``."""
    for part in model.modules():
        if type(part) is VisibleCrossEntropyLoss:
            part.__class__ = nn.CrossEntropyLoss  # type: ignore[assignment]
