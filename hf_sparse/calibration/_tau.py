"""The threshold tau of an alpha-ReLU head, from the head's weights alone."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from ._moment import moment_threshold
from ._monte_carlo import mean_threshold

# With fewer classes above the threshold than this, rows differ too much for the mean of their sums to speak for them.
_FEW_CLASSES = 4


def estimate_tau(alpha: float, vocab_size: int, std: float, mean: float = 0.0) -> float:
    """The threshold of alpha-ReLU that is entmax's own on average, for normally distributed logits.

    Solves ``V ((alpha - 1) std)^beta E[(G - t)_+^beta] = 1`` with ``beta = 1 / (alpha - 1)`` and G standard normal: at
    ``tau = (alpha - 1) (mean + std t)`` the weights sum to one on average. Where fewer than four classes exceed that
    threshold on average, the mean threshold of entmax over 2,000 drawn rows is taken instead.

    Args:
        alpha: above 1.
        vocab_size: V, number of classes.
        std: standard deviation of the logits over the vocabulary, above 0.
        mean: their mean.

    Returns:
        tau, in units of ``(alpha - 1) z``; the same every time.

    Raises:
        ValueError: an argument out of range.

    Source: Tezekbayev et al. 2022, Section 3.1 and Appendix B.2, generalized from alpha = 1.5 to any alpha.
    Cost: milliseconds; tenths of a second where rows are drawn and alpha is close to 1.

    >>> round(estimate_tau(1.5, 50257, 0.554), 2)
    0.81
    """
    if not (1 < alpha < math.inf and vocab_size >= 1 and 0 < std < math.inf and math.isfinite(mean)):
        raise ValueError(
            "estimate_tau needs alpha > 1, vocab_size >= 1, a finite std > 0 and a finite mean, "
            f"was given alpha={alpha}, vocab_size={vocab_size}, std={std}, mean={mean}"
        )
    t = moment_threshold(alpha, vocab_size, std)
    if vocab_size * math.erfc(t / math.sqrt(2)) / 2 < _FEW_CLASSES:
        return (alpha - 1) * mean + mean_threshold(alpha, vocab_size, std)
    return (alpha - 1) * (mean + std * t)


@torch.no_grad()
def estimate_tau_from_head(
    head: nn.Module, alpha: float, hidden_rms: float = 1.0, *, temperature: float = 1.0, centered: bool = False
) -> float:
    """``estimate_tau`` with the spread of the logits read off the head's own weights.

    A hidden state of root mean square ``hidden_rms`` in no special direction gives logits of standard deviation
    ``hidden_rms`` times the root mean square length of a row of the weight matrix. It fits fresh heads. A trained
    head turns hidden states towards few words: prefer an estimate from data there.

    Args:
        head: the output embeddings, with ``weight`` (V, D) and perhaps ``bias`` (V,).
        alpha: above 1.
        hidden_rms: root mean square of the entries of what enters the head; 1 after a layer norm.
        temperature: above 0; what the logits are divided by before the map.
        centered: whether the mean of the logits is taken off before the map.

    Returns:
        tau for ``alpha_relu``.

    Raises:
        ValueError: see ``estimate_tau``.
    """
    weight = cast(Tensor, head.weight).double()
    bias = getattr(head, "bias", None)
    if centered:
        weight = weight - weight.mean(0)
    variance = hidden_rms**2 * float(weight.pow(2).sum(-1).mean())
    mean = 0.0
    if bias is not None:
        variance += float(bias.double().var(correction=0))
        mean = 0.0 if centered else float(bias.double().mean())
    return estimate_tau(alpha, weight.shape[0], math.sqrt(variance) / temperature, mean / temperature)
