"""A function in pure torch and, where the C++ kernel can be built, in C++."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

import torch

from hf_sparse.kernels import KernelUnavailable, chosen


@cache
def kernel() -> bool:
    """Whether there is a kernel to time; builds it."""
    try:
        return chosen("cpp", torch.zeros(1)) == "cpp"
    except KernelUnavailable:
        return False


def impls(functions: Mapping[str, Callable], targets: Mapping[str, float], best: Mapping[str, float]) -> tuple:
    """Candidates ``name`` (torch) and ``name, cpp`` for functions that take ``impl``, and the targets of both."""
    candidates = {name: partial(function, impl="torch") for name, function in functions.items()}
    if not kernel():
        return candidates, dict(targets)
    candidates |= {f"{name}, cpp": partial(function, impl="cpp") for name, function in functions.items()}
    return candidates, {**targets, **{f"{name}, cpp": target for name, target in best.items()}}
