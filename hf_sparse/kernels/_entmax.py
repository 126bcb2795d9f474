"""The kernel's functions on tensors. Plain computations: no gradient flows through them."""

from __future__ import annotations

import torch
from torch import Tensor

from ._choice import DTYPES
from ._library import library

# Shorter rows are solved whole, in cache; longer ones on what one streaming read finds.
LONG_ROW = 4096
# Rows with more than one in this many of their entries in the support are left to the caller.
_LISTED = 8


def entmax_weights(z: Tensor, alpha: float, exponent: float) -> Tensor:
    """entmax over the last axis, shape and dtype of z.

    Args:
        z: (..., V) float32, bfloat16 or float16; ``-inf`` masks an entry.
        alpha: in [1.1, 2].
        exponent: ``1 / (alpha - 1)``.

    Cost: a read, a write, and for rows above 4096 entries work in proportion to the support.
    """
    z = z.contiguous()
    length = z.shape[-1]
    num_rows, threads = z.numel() // max(length, 1), torch.get_num_threads()
    if length > LONG_ROW:
        p = torch.empty_like(z, requires_grad=False)
        kind = DTYPES.index(z.dtype)
        library().hf_sparse_map(z.data_ptr(), p.data_ptr(), kind, num_rows, length, alpha, exponent, threads)
        return p
    x = z.float()
    p = torch.empty_like(x)
    library().hf_sparse_weights(x.data_ptr(), p.data_ptr(), num_rows, length, alpha, exponent, threads)
    return p.to(z.dtype)


def jacobian_product(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """``J g = s (g - mean_s g)``, ``s = p^(2 - alpha)`` on the support; p and g (..., V), float32."""
    p, grad = p.detach().contiguous(), grad.detach().contiguous()
    out = torch.empty_like(p)
    length = p.shape[-1]
    library().hf_sparse_product(
        p.data_ptr(), grad.data_ptr(), out.data_ptr(), p.numel() // length, length, alpha, torch.get_num_threads()
    )
    return out


def entmax_places(z: Tensor, alpha: float, exponent: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The supports of rows z (N, V), without their dense weights.

    Returns:
        columns: (N, C) int64, ascending; 0 where a row has fewer than C.
        x: (N, C) float32 ``(alpha - 1) (z - max z)``, ``-inf`` where a row has fewer.
        top: (N, 1) the row's maximum: ``-inf``, ``inf`` or NaN for a row without a finite one, which has no columns.
        tau: (N, 1) the threshold in units of x.
        wide: (N,) rows whose support is more than an eighth of the row, which have no columns either.

    Cost: one read of z.
    """
    z = z.detach().contiguous()
    num_rows, length = z.shape
    columns, x, count = _places(num_rows, length)
    top, tau = torch.empty(num_rows, 1), torch.empty(num_rows, 1)
    library().hf_sparse_solve(
        z.data_ptr(), DTYPES.index(z.dtype), num_rows, length, alpha, exponent, columns.shape[1],
        torch.get_num_threads(), columns.data_ptr(), x.data_ptr(), count.data_ptr(), top.data_ptr(), tau.data_ptr(),
    )  # fmt: skip
    width = max(int(count.max()), 0) if num_rows else 0
    unused = torch.arange(width) >= count[:, None]
    columns = columns[:, :width].long().masked_fill_(unused, 0)
    return columns, x[:, :width].masked_fill(unused, -torch.inf), top, tau, count < 0


def places_above(z: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """Rows, columns and values (M,) of the entries of z (N, V) above the threshold, and of NaNs; rows ascending.

    Returns:
        int64, int64 and float32; None where they are more than an eighth of some row.

    Cost: one read of z.
    """
    z = z.detach().contiguous()
    num_rows, length = z.shape
    columns, values, count = _places(num_rows, length)
    library().hf_sparse_above(
        z.data_ptr(), DTYPES.index(z.dtype), num_rows, length, threshold, columns.shape[1], torch.get_num_threads(),
        columns.data_ptr(), values.data_ptr(), count.data_ptr(),
    )  # fmt: skip
    width = int(count.max()) if num_rows else 0
    if num_rows and int(count.min()) < 0:
        return None
    used = torch.arange(width) < count[:, None]
    row = torch.repeat_interleave(torch.arange(num_rows), count)
    return row, columns[:, :width][used].long(), values[:, :width][used]


def _places(num_rows: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Room for as many places a row as are worth listing; what stays unused is never touched."""
    capacity = max(64, length // _LISTED)
    shape = (num_rows, capacity)
    return torch.empty(shape, dtype=torch.int32), torch.empty(shape), torch.empty(num_rows, dtype=torch.int32)
