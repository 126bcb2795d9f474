"""Change the class of a module in place, under Accelerate's hooks too."""

from __future__ import annotations

from types import MethodType
from typing import Any

from torch import nn


def change_class(module: nn.Module, cls: type[nn.Module]) -> None:
    """Give ``module`` another class, whose forward Accelerate's hooks then call.

    The hooks (``device_map``, mixed precision) keep the forward that they wrap in the attribute ``_old_forward`` and
    look it up at every call.
    """
    module.__class__ = cls
    hooked: Any = module
    if "_old_forward" in vars(module):
        hooked._old_forward = MethodType(cls.forward, module)
        hooked.forward.__wrapped__ = hooked._old_forward
