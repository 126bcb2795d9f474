"""The losses of entmax and alpha-ReLU by the Triton kernels: the logits are read once, the gradient is written once.

Three numbers per row and the largest score of every block are kept between the two. Nothing here synchronizes with the
device, so torch.compile sees one graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.newton import exponent_of
from ..functional.rows import is_final
from ..kernels import triton_loss_gradients, triton_solve
from ._alpha_relu_support import relu_loss_from_mass
from ._row_terms import differentiable_gradient, from_conjugate


class _TritonLoss(torch.autograd.Function):
    """Losses (N,) of scores (N, V): the derivative in z is ``p - y``, the second one the Jacobian of the map."""

    @staticmethod
    def forward(ctx, z: Tensor, y: Tensor, alpha: float, tau: float | None) -> Tensor:
        ctx.alpha, ctx.tau = alpha, tau
        conjugate, solution, peaks = triton_solve(z, alpha, exponent_of(alpha), tau)
        ctx.save_for_backward(z, y, conjugate, solution, peaks)
        if tau is not None:
            return relu_loss_from_mass(conjugate, z, y, alpha, tau)
        return from_conjugate(conjugate, z, y, solution[:, :1], alpha).float()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:
        z, y, *solved = ctx.saved_tensors
        soft = y.is_floating_point()
        if not is_final(grad):  # a second derivative may be wanted: rebuild p with its own graph
            return differentiable_gradient(z, y, grad, ctx.alpha, ctx.tau, "triton"), None, None, None
        of_z = triton_loss_gradients(z, *solved, grad, None if soft else y, ctx.alpha, exponent_of(ctx.alpha))
        if soft:
            of_z = (of_z - grad[:, None] * y).to(z.dtype)
        return of_z, None, None, None


def triton_rows_loss(z: Tensor, y: Tensor, alpha: float, tau: float | None = None) -> Tensor:
    """``Omega*(z) + Omega(y) - <z, y>`` per row, for entmax, or for alpha-ReLU where tau is given.

    Args:
        z: scores (N, V), float32 or half precision, for which ``kernels.chosen`` returned ``"triton"``.
        y: classes (N,), int64, or distributions (N, V).
        alpha: in [1.1, 2]; for alpha-ReLU above 1.
        tau: the threshold of alpha-ReLU.

    Returns:
        Losses (N,), float32.

    Cost: one read of z in the forward pass, one write in the backward; O(N V / 1024) memory between them.
    """
    return _TritonLoss.apply(z, y, alpha, tau)
