"""alpha-entmax (Peters et al. 2019): from softmax at alpha = 1 over entmax15 to sparsemax at alpha = 2 and beyond."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels
from ..tracing import in_graph
from ._entmax_learned import EntmaxPerRow
from ._entmax_rows import EntmaxRows
from ._few_rows import FEW_ROWS, only_values_wanted, solve_few_rows
from ._softmax import softmax
from ._steep import LARGEST_ALPHA
from .candidates import CANDIDATES_FROM, candidates, put, take, values_on_candidates
from .negentropy import tsallis_negentropy
from .newton import exponent_of, is_softmax
from .registry import Setting, SparseMap, register
from .rows import check_scores, is_transformed, map_rows, per_row, upcast


def entmax_rows(x: Tensor, alpha: float, impl: str = "auto") -> Tensor:
    """entmax over the last axis of x, of any floating-point dtype."""
    impl = kernels.chosen(impl, x, alpha)
    if impl == "triton":
        return EntmaxRows.call(x, alpha, impl)
    p = _by_cpp(x, alpha) if impl == "cpp" else None
    if p is None:
        p = _by_candidates(x, alpha, impl)
    return _whole_rows(x, alpha, impl) if p is None else p


def _whole_rows(x: Tensor, alpha: float, impl: str) -> Tensor:
    """p of all entries. Its gradient is computed from p as the kernel returns it, and float16 loses small weights."""
    as_it_is = impl == "cpp" and x.dtype != torch.float16
    return EntmaxRows.call(x if as_it_is else upcast(x), alpha, impl).to(x.dtype)


def _by_cpp(x: Tensor, alpha: float) -> Tensor | None:
    """p by the C++ kernel; None for long rows whose gradient is cheaper on their candidates."""
    differentiable = torch.is_grad_enabled() and x.requires_grad
    if not differentiable and not is_transformed(x):
        # For one row autograd.Function takes twice as long as the kernel.
        return kernels.entmax_weights(x, alpha, exponent_of(alpha))
    if not differentiable or x.shape[-1] <= kernels.STREAM_ABOVE or _are_crowded(x, alpha):
        return _whole_rows(x, alpha, "cpp")
    return None


def _are_crowded(x: Tensor, alpha: float) -> bool:
    """Whether the last row, as a sample of them, is mostly support."""
    if is_transformed(x):  # its scores may not be readable
        return False
    last = x.reshape(-1, x.shape[-1])[-1:]
    return bool(kernels.entmax_supports(last, alpha, exponent_of(alpha)).crowded.any())


def _by_candidates(x: Tensor, alpha: float, impl: str) -> Tensor | None:
    """p of long rows on a CPU, solved on their candidates; None where dense arithmetic is faster."""
    length = x.shape[-1]
    if in_graph() or length < CANDIDATES_FROM or alpha > 2 or x.device.type != "cpu":
        return None
    only_values = only_values_wanted(x)
    p = solve_few_rows(x, alpha) if only_values and 0 < x.numel() <= FEW_ROWS * length else None
    # A single row is over before the search for candidates has paid for its many small operations.
    if p is not None or x.numel() <= length:
        return p
    return values_on_candidates(x, alpha) if only_values else _differentiable_on_candidates(x, alpha, impl)


def _differentiable_on_candidates(x: Tensor, alpha: float, impl: str) -> Tensor | None:
    """p of long rows; None where dense arithmetic is faster.

    Only candidates are in the support and receive a gradient. So the backward of take and put touches nothing else,
    and nothing else is saved.
    """
    rows = x.reshape(-1, x.shape[-1])
    columns, used = candidates(rows, alpha, impl)
    if columns.shape[-1] == 0:
        return None
    p = EntmaxRows.call(upcast(take(rows, columns, used, impl)).masked_fill(~used, -torch.inf), alpha, impl)
    return put(p.to(x.dtype), columns, used, x.shape[-1], impl).view(x.shape)


def entmax(z: Tensor, alpha: float | Tensor = 1.5, dim: int = -1, *, impl: str = "auto") -> Tensor:
    """``p_i = [(alpha - 1) z_i - tau]_+ ^ (1 / (alpha - 1))``, with the threshold ``tau`` at which p sums to one.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        alpha: from 1 to 64. 1 is softmax, 1.5 entmax15, 2 sparsemax; the larger, the sparser. A tensor gives each row
            its own: values in [1, 2], broadcastable to ``z`` with size 1 along ``dim``, for instance (heads, 1, 1)
            for attention scores (batch, heads, queries, keys). It receives a gradient, at alpha = 1 too.
        dim: the axis to map.
        impl: ``"torch"`` is the specification; ``"cpp"`` the compiled kernel, for float32 and half-precision scores
            on the CPU and alpha in (1, 2]; ``"triton"`` for one alpha from 1.1 on, on an NVIDIA GPU; ``"auto"``
            dispatches as ``kernels.chosen`` says.

    Returns:
        Probabilities with exact zeros, shape and dtype of ``z``; computed in float32 (float64 for float64 scores).
        A fully masked row gives zeros. A NaN affects its own row only.

    Raises:
        TypeError: ``z`` is not a floating-point tensor, or ``alpha`` is neither a number nor such a tensor.
        ValueError: alpha out of range, an empty axis, a tensor alpha that does not broadcast or leaves [1, 2], an
            unknown ``impl``, or an explicit kernel for scores or an alpha that it does not take.
        IndexError: ``dim`` is out of range.
        KernelUnavailable: ``impl="cpp"`` where the kernel cannot be built, ``"triton"`` where Triton cannot run.

    Source: Peters et al. 2019, Eq. 7 and Proposition 1 (Jacobian); Correia et al. 2019 (gradient in alpha).
    Cost: three to eleven Newton steps of a few passes in cache; a sort and up to thirty passes in float64 for alpha >
    2. On a CPU, rows of at least 1024 entries are read once (a single row only where no gradient is wanted), and the
    steps, the backward and what it saves are in proportion to the supports, unless a row is mostly support. A tensor
    alpha costs as much for each run of rows that share one; in graphs, and in torch where runs are short, all rows are
    solved together, with a logarithm and an exponential per pass. Where ``1 / (alpha - 1)`` is whole and at most 20,
    powers are products, and in torch those of 7/5, 5/3 and 9/5 are of square roots, which are faster: give 4/3 as it
    is, not as 1.33.

    >>> entmax(torch.tensor([2.0, 1.0, -1.0]), alpha=2.0)
    tensor([1., 0., 0.])
    """
    check_scores(z, dim)
    if torch.is_tensor(alpha):
        alphas = per_row("alpha", alpha, z, dim)
        # The C++ kernel takes one alpha for each run of rows, whatever the tensor's shape.
        impl = kernels.chosen(impl, z, alpha if impl == "triton" else None)
        return map_rows(lambda x: EntmaxPerRow.call(x, alphas.to(x.dtype), impl), z, dim)
    alpha = float(ALPHA.check("alpha", alpha))
    if is_softmax(alpha):
        kernels.chosen(impl, z, alpha)
        return softmax(z, dim)
    if dim in (-1, z.dim() - 1):  # a movedim of no effect would take a fifth of the time of a single row
        return entmax_rows(z, alpha, impl)
    return entmax_rows(z.movedim(dim, -1), alpha, impl).movedim(-1, dim)


ALPHA = Setting.between(
    1,
    LARGEST_ALPHA,
    default=1.5,
    # Correia et al. 2019: learned between softmax and sparsemax.
    from_real=lambda a: 1 + torch.sigmoid(a),
    to_real=lambda alpha: torch.logit(alpha - 1),
)

register(
    SparseMap(
        "entmax",
        entmax,
        tsallis_negentropy,
        settings={"alpha": ALPHA},
        as_entmax=lambda z, dim, alpha: (z, alpha),
    )
)
