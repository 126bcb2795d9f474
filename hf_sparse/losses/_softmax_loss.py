"""Cross-entropy by the C++ kernel, which keeps no copy of the scores in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.rows import is_final, upcast
from ..kernels import softmax_log_sums, write_softmax
from ._row_terms import score_gradient


class _CrossEntropy(torch.autograd.Function):
    """The losses; ``p - y`` in the backward, whose own derivative is the map's."""

    @staticmethod
    def forward(ctx, z: Tensor, y: Tensor) -> Tensor:
        top, log_sum = softmax_log_sums(z)
        ctx.save_for_backward(z, y, top, log_sum)
        return (log_sum - (z.gather(-1, y[:, None]).double()[:, 0] - top)).float()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        z, y, top, log_sum = ctx.saved_tensors
        if not is_final(grad):  # a second derivative may be wanted: rebuild p with its own graph
            return score_gradient(torch.softmax(upcast(z), -1), y, grad).to(z.dtype), None
        return write_softmax(z, top, log_sum, y, grad), None


def cross_entropy_by_kernel(z: Tensor, y: Tensor) -> Tensor:
    """``log sum exp z - z_y`` of each row (N,), float32.

    Args:
        z: scores (N, V) of a dtype that the kernel takes; ``-inf`` masks an entry. Rows whose losses get no gradient
            may hold anything.
        y: classes (N,), int64.

    Cost: two reads of z, the second in cache, in the forward pass; a read and a write in the backward.
    """
    return _CrossEntropy.apply(z, y)
