"""What the steps consist of, piece by piece, for ``Case.parts``: what no piece accounts for is autograd, checks and
operations on a few numbers a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from hf_sparse import kernels
from hf_sparse.functional._entmax_rows import EntmaxRows, JacobianProduct
from hf_sparse.functional.candidates import candidates
from hf_sparse.losses._alpha_relu_support import relu_row_supports
from hf_sparse.losses._entmax_support import entmax_row_supports

from ._impls import kernel

Parts = Mapping[str, Mapping[str, Callable[[], object]]]


def _impls() -> dict[str, str]:
    """The implementations there are, by what they add to a candidate's name."""
    return {"": "torch", **({", cpp": "cpp"} if kernel() else {})}


def loss_parts(name: str, z: Tensor, y: Tensor, alpha: float, tau: float | None = None) -> Parts:
    """Of the loss called ``name``: the supports, found in one read of z, and the gradient, written once."""
    parts = {}
    for suffix, impl in _impls().items():
        find = (
            partial(entmax_row_supports, z, alpha, impl)
            if tau is None
            else partial(relu_row_supports, z, alpha, tau, impl)
        )
        found = find()
        write: Callable[[], object] = partial(torch.zeros_like, z)
        if impl == "cpp":
            columns, p = found[:2]
            write = partial(kernels.write_rows, columns, p, z.shape[1], z.dtype, y, torch.ones(len(y)))
        parts[name + suffix] = {"supports": find, "gradient": write}
    return parts


def output_map_parts(name: str, z: Tensor, alpha: float) -> Parts:
    """Of a map of long rows: the supports, the weights written, and the gradient written."""
    parts = {}
    for suffix, impl in _impls().items():
        write: Callable[[], object] = partial(torch.zeros_like, z)
        if impl == "cpp":
            columns, used = candidates(z, alpha, impl)
            write = partial(kernels.write_rows, columns, used.float(), z.shape[1], z.dtype)
        find = partial(candidates, z, alpha, impl)
        parts[name + suffix] = {"supports": find, "weights written": write, "gradient written": write}
    return parts


def attention_parts(name: str, z: Tensor, upstream: Tensor, alpha: float) -> Parts:
    """Of a map of short rows: the weights, and the product with their Jacobian."""
    p = EntmaxRows.call(z, alpha, "torch")
    return {
        name + suffix: {
            "weights": partial(EntmaxRows.call, z, alpha, impl),
            "Jacobian product": partial(JacobianProduct.call, p, upstream, alpha, impl),
        }
        for suffix, impl in _impls().items()
    }
