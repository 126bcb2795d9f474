"""Differentiable functions that are called often, and on little data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from ..tracing import in_graph, is_compiled


def differentiated_again() -> bool:
    """Within a backward pass, whether more is to come: a second derivative, a transform of ``torch.func``, a trace."""
    return torch.is_grad_enabled() or torch._C._are_functorch_transforms_active() or in_graph()


class _Primals:
    """The context of a function, with the tensors that it saved, but without their tangents of the running level."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx
        self.saved_tensors = tuple(forward_ad.unpack_dual(tensor).primal for tensor in ctx.saved_tensors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def _jvp_of(tangent: Callable[..., Any]) -> Callable[..., Any]:
    """``tangent`` as a ``jvp`` that can be differentiated in forward mode again.

    torch switches forward mode off around a ``jvp``, and so takes what it saved for constants of an outer level too.
    """

    def jvp(ctx: Any, *tangents: Any) -> Any:
        with forward_ad._set_fwd_grad_enabled(True):
            return tangent(_Primals(ctx), *tangents)

    return jvp


class Function(torch.autograd.Function):
    """``torch.autograd.Function`` with the signature of its ``forward`` kept, and ``tangent`` for its ``jvp``.

    For the defaults of its arguments, torch asks for the signature at each call, which takes longer than the kernel on
    a few short rows. ``torch.compile`` takes no function that has a ``jvp``, and so gets one without it.
    """

    _with_jvp: type[Function]

    def __init_subclass__(cls) -> None:
        forward: Any = cls.forward
        forward.__signature__ = inspect.signature(forward)
        tangent = getattr(cls, "tangent", None)
        if tangent is not None and "jvp" not in vars(cls):
            cls._with_jvp = type(cls.__name__, (cls,), {"jvp": staticmethod(_jvp_of(tangent))})

    @classmethod
    def call(cls, *args: Any) -> Any:
        """``apply`` of a function with a ``tangent``, differentiable in forward mode, too, unless compiled."""
        return cls.apply(*args) if is_compiled() else cls._with_jvp.apply(*args)

    @staticmethod
    def save(ctx: Any, *tensors: torch.Tensor) -> None:
        """Keep tensors for ``backward`` and ``tangent``."""
        ctx.save_for_backward(*tensors)
        if not is_compiled():
            ctx.save_for_forward(*tensors)


def batched(size: int, in_dims: tuple, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors with the axis that vmap maps over in front; expanded where a tensor has none."""
    return [
        tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
        for tensor, axis in zip(tensors, in_dims)
    ]
