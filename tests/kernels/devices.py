"""Where the Triton kernels run in the tests: in the interpreter, on the CPU, or on a GPU where that is asked for."""

import inspect
import os
from importlib.util import find_spec

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None or not (INTERPRETED or torch.cuda.is_available()),
    reason="triton is not installed, or there is neither its interpreter (TRITON_INTERPRET=1) nor a GPU",
)

if INTERPRETED and find_spec("triton") is not None:
    from triton.runtime import interpreter

    OPERATIONS: dict[object, list[tuple[str, object]]] = {}

    def patch_builtin(package, *how):
        """As Triton's own, which looks for the operations in all of ``triton.language`` at each call of a function."""
        if package not in OPERATIONS:
            is_builtin = interpreter.tl.core.is_builtin
            OPERATIONS[package] = [pair for pair in inspect.getmembers(package) if is_builtin(pair[1])]
        for name, operation in OPERATIONS[package]:
            if getattr(package, name) is operation:  # else a function further out has done it
                interpreter._patch_attr(package, name, operation, *how)

    interpreter._patch_builtin = patch_builtin
