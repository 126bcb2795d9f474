"""The losses of the entmax family, softmax included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ._fenchel_young import fenchel_young_loss

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._targets import LossOptions


def entmax_loss(logits: Tensor, target: Tensor, alpha: float | Tensor = 1.5, **options: Unpack[LossOptions]) -> Tensor:
    """``L(z, y) = (p - y)^T z + H(p) - H(y)``, with ``p = entmax(z, alpha)`` and Tsallis entropy ``H``.

    Args:
        logits: raw scores (..., V).
        target: class indices (...), or distributions (..., V).
        alpha: from 1 to 64; 1 is cross-entropy. A tensor in [1, 2] that broadcasts to (..., 1), one alpha for all
            rows or one per row, gets its gradient, at 1 too.
        **options: ``weight``, ``ignore_index``, ``reduction``, ``label_smoothing``, ``num_items`` and ``impl`` as in
            ``fenchel_young_loss``.

    Returns:
        A scalar, or (...) for ``reduction="none"``; gradient ``p - y``. Zero once the target class leads every other
        by ``1 / (alpha - 1)``, which cross-entropy never is.

    Raises:
        ValueError, TypeError, IndexError: see ``fenchel_young_loss``.

    Source: Peters et al. 2019, Eq. 9, 10 and Proposition 2.
    Cost: for alpha in (1, 2] one read of the logits, and a backward of zeros and a scatter.

    >>> import torch
    >>> entmax_loss(torch.tensor([[3.0, 0.0, 0.0]]), torch.tensor([0]), alpha=1.5)
    tensor(0.)
    """
    return fenchel_young_loss(logits, target, "entmax", alpha=alpha, **options)


def entmax15_loss(logits: Tensor, target: Tensor, **options: Unpack[LossOptions]) -> Tensor:
    """``entmax_loss`` at alpha = 1.5; arguments, result and errors as there.

    >>> import torch
    >>> entmax15_loss(torch.zeros(1, 4), torch.tensor([2]))
    tensor(0.6667)
    """
    return fenchel_young_loss(logits, target, "entmax15", **options)


def sparsemax_loss(logits: Tensor, target: Tensor, **options: Unpack[LossOptions]) -> Tensor:
    """``entmax_loss`` at alpha = 2; arguments, result and errors as there.

    Source: Martins and Astudillo 2016, Eq. 22.

    >>> import torch
    >>> sparsemax_loss(torch.zeros(1, 4), torch.tensor([2]))
    tensor(0.3750)
    """
    return fenchel_young_loss(logits, target, "sparsemax", **options)


def softmax_loss(logits: Tensor, target: Tensor, **options: Unpack[LossOptions]) -> Tensor:
    """``entmax_loss`` at alpha = 1: cross-entropy in nats, under the same options as the sparse losses.

    Arguments, result and errors as in ``entmax_loss``. With class targets it is computed by
    ``torch.nn.functional.cross_entropy``, or on long rows on a CPU by the C++ kernel; label smoothing is the
    Fenchel-Young form, which differs from torch's by the entropy of the smoothed target and so is zero at its minimum.

    >>> import torch
    >>> softmax_loss(torch.zeros(1, 4), torch.tensor([2]))  # log 4
    tensor(1.3863)
    """
    return fenchel_young_loss(logits, target, "softmax", **options)
