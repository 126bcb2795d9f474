"""Whether torch records operations instead of computing with them."""

from __future__ import annotations

import torch

# Modes in which torch records operations (``make_fx``, ``torch.func.linearize``), or works out shapes alone.
_MODES = (torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FAKE)


def is_compiled() -> bool:
    """Whether ``torch.compile``, ``torch.export`` or ``torch.jit.trace`` is at work."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def in_graph() -> bool:
    """Whether torch compiles, exports or traces: then no step may depend on the values of tensors.

    A tracer would silently keep the steps that the values of its example called for, and see nothing of a kernel's.
    """
    return is_compiled() or any(map(torch._C._get_dispatch_mode, _MODES))
