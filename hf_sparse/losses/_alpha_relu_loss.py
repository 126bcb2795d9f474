"""The alpha-ReLU loss: the Fenchel-Young loss of the map whose threshold is fixed, separable over the classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ._fenchel_young import fenchel_young_loss

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._targets import LossOptions


def alpha_relu_loss(
    logits: Tensor, target: Tensor, alpha: float, tau: float, **options: Unpack[LossOptions]
) -> Tensor:
    """``(1/alpha) sum_j [u_j]_+^(alpha/(alpha-1)) - u_y/(alpha-1) + 1/(alpha (alpha-1))``, ``u = (alpha-1) z - tau``.

    Args:
        logits: raw scores (..., V). The loss is not shift invariant.
        target: class indices (...).
        alpha: from 1.001 to 5.
        tau: the threshold of ``alpha_relu``.
        **options: ``weight``, ``ignore_index``, ``reduction``, ``label_smoothing``, ``num_items`` and ``impl`` as
            in ``fenchel_young_loss``.

    Returns:
        A scalar, or (...) for ``reduction="none"``; gradient ``alpha_relu(z) - e_y``. Zero iff ``u_y = 1`` and every
        other ``u_j <= 0``.

    Raises:
        ValueError, TypeError, IndexError: see ``fenchel_young_loss``.

    Source: Tezekbayev et al. 2022, Lemma 1, with the one of its two entropies that yields that gradient.

    >>> import torch
    >>> alpha_relu_loss(torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([0]), alpha=1.5, tau=0.5)
    tensor(0.)
    """
    return fenchel_young_loss(logits, target, "alpha_relu", alpha=alpha, tau=tau, **options)
