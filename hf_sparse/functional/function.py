"""Differentiable functions that are called often, and on little data."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from .rows import in_graph


def differentiated_again() -> bool:
    """Within a backward pass, whether more is to come: a second derivative, a transform of ``torch.func``, a trace."""
    return torch.is_grad_enabled() or torch._C._are_functorch_transforms_active() or in_graph()


class Function(torch.autograd.Function):
    """``torch.autograd.Function`` with the signature of its ``forward`` kept.

    For the defaults of its arguments, torch asks for it at each call, which takes longer than the kernel on a few
    short rows.
    """

    def __init_subclass__(cls) -> None:
        forward: Any = cls.forward
        forward.__signature__ = inspect.signature(forward)
