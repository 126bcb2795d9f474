"""A forward whose cross-entropy torch function modes see, compiled or not.

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
        function: a forward, perhaps decorated. A copy looks its names up among the globals of this moment. Losses
            that are made in other functions, which it calls, stay as they are.
    """
    if not isinstance(function, FunctionType):
        return function
    names, cells = function.__globals__, function.__closure__ or ()
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        inner = CellType(with_visible_loss(wrapped))
        cells = tuple(inner if cell.cell_contents is wrapped else cell for cell in cells)
    else:
        used = {name: names.get(name) for name in function.__code__.co_names}
        visible: dict[str, Any] = {
            name: VisibleCrossEntropyLoss if value is nn.CrossEntropyLoss else _VISIBLE_NN
            for name, value in used.items()
            if value is nn.CrossEntropyLoss or value is nn
        }
        if not visible:
            return function
        # Without a module's name, or torch.compile would look the names up in that module again.
        names = {name: value for name, value in (names | visible).items() if name != "__name__"}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
