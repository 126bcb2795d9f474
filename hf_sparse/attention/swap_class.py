"""A model's own forward, and what others have put around it or in its place.

``model(...)`` calls the attribute ``forward`` of the object, if it has one, before that of its class. Accelerate puts
one there that moves a model's parts between devices (``device_map``) or to other dtypes, Liger one that computes
another loss.
"""

from __future__ import annotations

import inspect
from types import MethodType
from typing import Any


def leads_to(forward: Any, function: Any) -> bool:
    """Whether ``forward`` is ``function``, perhaps bound to an object or wrapped by others who say so.

    Args:
        forward: what can be called, with ``__wrapped__`` where it wraps another.
        function: what it should end at.
    """
    heart = inspect.unwrap(forward)
    return getattr(heart, "__func__", heart) is function


def check_forward(model: Any) -> None:
    """Refuse to change the class of a model that would go on as before.

    Raises:
        ValueError: an attribute ``forward`` that another class's would not get into.
    """
    forward, kept = (vars(model).get(name) for name in ("forward", "_old_forward"))
    if forward is None:
        return
    by_hook = kept is not None and getattr(forward, "__wrapped__", None) == kept
    if not by_hook or getattr(kept, "__func__", None) is not type(model).forward:
        raise ValueError(
            f"this {type(model).__name__} has a forward that was put around it, or in its place, after it was built "
            "(Accelerator.prepare does so, and Liger's kernels), and that goes past any change: call sparsify or "
            "unsparsify on the model as it was before"
        )


def change_class(module: Any, cls: Any) -> None:
    """Give ``module`` another class, where Accelerate's hooks call its forward too.

    They keep what they wrap in the attribute ``_old_forward`` and look it up at every call.
    """
    module.__class__ = cls
    if "_old_forward" in vars(module):
        module._old_forward = MethodType(cls.forward, module)
        module.forward.__wrapped__ = module._old_forward
