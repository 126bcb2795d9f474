"""Whether operations are being written down, to be run again on other values."""

import torch


def in_graph() -> bool:
    """Whether torch compiles, exports or traces what runs: then no step may depend on the values of tensors.

    Tracing (``torch.jit.trace``) would keep the steps that the values of its example called for, without a word.
    """
    return torch.compiler.is_compiling() or torch.jit.is_tracing()
