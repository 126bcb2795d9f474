"""Whether torch records operations instead of computing with them, or counts them."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

# Modes in which torch records operations (``make_fx``, ``torch.func.linearize``), or works out shapes alone.
_MODES = (torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FAKE)


def is_compiled() -> bool:
    """Whether ``torch.compile``, ``torch.export`` or ``torch.jit.trace`` is at work."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def in_graph() -> bool:
    """Whether torch compiles, exports or traces: then no step may depend on the values of tensors.

    A tracer would silently keep the steps that the values of its example called for, and see nothing of a kernel's.
    """
    return is_compiled() or (_has_modes() and any(map(torch._C._get_dispatch_mode, _MODES)))


def _has_modes() -> bool:
    """Whether a dispatch mode is at work, whichever: mostly there is none, and to ask for each takes longer."""
    return torch._C._len_torch_dispatch_stack() > 0


def counts_flops() -> bool:
    """Whether torch's ``FlopCounterMode`` is at work, which sees nothing of a kernel's products."""
    if in_graph() or not _has_modes():
        return False
    # By name: the mode that is pushed is a class of its own in some versions, which only that module holds.
    return any(type(mode).__name__.endswith("FlopCounterMode") for mode in _get_current_dispatch_mode_stack())
