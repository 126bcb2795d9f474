"""Refuse models whose instance attribute ``forward`` would shadow the forward of a new class.

``model(...)`` calls the instance attribute ``forward``, if there is one, before that of the class. Accelerate sets one
that moves a model's parts between devices (``device_map``) or to other dtypes, Liger one that computes another loss.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable


def leads_to(forward: Callable[..., object], function: Callable[..., object]) -> bool:
    """Whether ``forward`` is ``function``, possibly bound to an object or wrapped with ``functools.wraps``.

    Args:
        forward: a callable, with ``__wrapped__`` where it wraps another.
        function: the function at its end.
    """
    innermost = inspect.unwrap(forward)
    return getattr(innermost, "__func__", innermost) is function


def check_forward(model: object) -> None:
    """Refuse a model whose instance attribute ``forward`` would shadow the new class's.

    Accelerate's hooks are fine: ``change_class`` puts the new forward inside them.

    Raises:
        ValueError: such an attribute.
    """
    forward, kept = (vars(model).get(name) for name in ("forward", "_old_forward"))
    if forward is None:
        return
    by_hook = kept is not None and getattr(forward, "__wrapped__", None) == kept
    if not by_hook or getattr(kept, "__func__", None) is not getattr(type(model), "forward", None):
        raise ValueError(
            f"this {type(model).__name__} has an instance attribute forward, as Accelerator.prepare and Liger's "
            "kernels set, which would shadow the forward of another class: call sparsify or unsparsify on the model "
            "before it is set"
        )
