"""Models whose instance attribute ``forward`` would shadow the forward of a new class: taken off, or refused.

``model(...)`` calls the instance attribute ``forward``, if there is one, before that of the class. Accelerate sets one
that moves a model's parts between devices (``device_map``) or trains in mixed precision, Liger one that computes
another loss.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any

from torch import nn

logger = logging.getLogger(__name__)

_PREPARED = ("forward", "_original_forward", "_is_accelerate_prepared")


def leads_to(forward: Callable[..., object], function: Callable[..., object]) -> bool:
    """Whether ``forward`` is ``function``, possibly bound to an object or wrapped with ``functools.wraps``.

    Args:
        forward: a callable, with ``__wrapped__`` where it wraps another.
        function: the function at its end.
    """
    wrapped, own = forward, _of(function)
    while getattr(wrapped, "__func__", wrapped) not in own and hasattr(wrapped, "__wrapped__"):
        wrapped = wrapped.__wrapped__
    return getattr(wrapped, "__func__", wrapped) in own


def _of(function: Callable[..., object]) -> tuple[Callable[..., object], ...]:
    """A function, and what it is without its decorators, which Accelerate takes off with its own."""
    return function, inspect.unwrap(function)


@contextmanager
def mixed_precision_off(model: object) -> Iterator[None]:
    """Take off what ``Accelerator.prepare`` left on a model, as training with ``bf16=True`` does.

    Only what leads to the class's own forward is taken off. The next ``prepare`` puts it on again. Where the block
    raises an error it is on the model as it was.
    """
    taken = {name: vars(model).pop(name) for name in _PREPARED if name in vars(model)} if _is_prepared(model) else {}
    with ExitStack() as undo:
        undo.callback(vars(model).update, taken)
        yield
        undo.pop_all()  # all is well: it stays off
    if "_original_forward" in taken:
        logger.warning(
            "this %s was prepared for mixed precision, which is off now: it computes in the dtype of its weights "
            "until a trainer prepares it again",
            type(model).__name__,
        )


def _is_prepared(model: object) -> bool:
    """Whether the forward is the class's own, in Accelerate's autocast or bound again after that was taken off."""
    forward, own = vars(model).get("forward"), getattr(type(model), "forward", None)
    if forward is None or own is None or "_old_forward" in vars(model) or not leads_to(forward, own):
        return False
    return "_original_forward" in vars(model) or getattr(forward, "__func__", None) in _of(own)


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
            f"this {type(model).__name__} has an instance attribute forward, as Liger's kernels set, which would "
            "shadow the forward of another class: call sparsify or unsparsify on the model before it is set"
        )


def bind_again(wrapper: nn.Module, model: Any) -> None:
    """Give modules around a model its forward where they kept the one it had before, as PEFT's adaption prompts do.

    Args:
        wrapper: what the model is in, or the model itself.
        model: it has another class now.
    """
    own = model.forward
    for module in wrapper.modules():
        kept = vars(module).get("forward")
        if module is not model and isinstance(kept, MethodType) and kept.__self__ is model:
            vars(module)["forward"] = own
