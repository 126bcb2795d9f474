"""A base class of differentiable functions that are called often, and on little data."""

from __future__ import annotations

import inspect
from typing import Any

import torch


class Function(torch.autograd.Function):
    """``torch.autograd.Function`` with the signature of its ``forward`` kept.

    For the defaults of its arguments, torch asks for it at each call, which takes longer than the kernel on a few
    short rows.
    """

    def __init_subclass__(cls) -> None:
        forward: Any = cls.forward
        forward.__signature__ = inspect.signature(forward)
