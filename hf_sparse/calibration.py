"""The threshold tau of an alpha-ReLU head, from the head's weights alone."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn


def positive_part_moment(t: float, beta: float) -> float:
    """``I_beta(t) = E[(G - t)_+^beta]`` for a standard normal G, by the trapezoid rule in float64.

    Source: equals ``Gamma(beta + 1) / sqrt(2 pi) exp(-t^2 / 4) D_{-beta-1}(t)``, D the parabolic cylinder function.

    >>> round(positive_part_moment(0.0, 2.0), 6)
    0.5
    """
    # g = t + y^2 keeps the integrand smooth at the threshold for every beta > 0.
    reach = math.sqrt(max(12.0 - t, 1.0))
    y = torch.linspace(0.0, reach, 20_001, dtype=torch.float64)
    log_density = -0.5 * (t + y**2) ** 2 - 0.5 * math.log(2 * math.pi)
    return float(torch.trapezoid(2 * y ** (2 * beta + 1) * log_density.exp(), y))


def estimate_tau(alpha: float, vocab_size: int, std: float, mean: float = 0.0) -> float:
    """The threshold at which alpha-ReLU weights sum to one on average, for normally distributed logits.

    Solves ``V ((alpha - 1) std)^beta I_beta(t) = 1`` with ``beta = 1 / (alpha - 1)``; then
    ``tau = (alpha - 1) (mean + std t)``.

    Args:
        alpha: above 1.
        vocab_size: V, number of classes.
        std: standard deviation of the logits over the vocabulary, above 0.
        mean: their mean.

    Returns:
        tau, in units of ``(alpha - 1) z``.

    Raises:
        ValueError: an argument out of range.

    Source: Tezekbayev et al. 2022, Section 3.1, generalized from alpha = 1.5 to any alpha. With ``std`` above about
    5 only one to three classes have weight and the mean over rows says little: estimate from data instead.

    >>> round(estimate_tau(1.5, 50257, 0.554), 2)
    0.81
    """
    if not (1 < alpha < math.inf and vocab_size >= 1 and 0 < std < math.inf and math.isfinite(mean)):
        raise ValueError(
            "estimate_tau needs alpha > 1, vocab_size >= 1, a finite std > 0 and a finite mean, "
            f"was given alpha={alpha}, vocab_size={vocab_size}, std={std}, mean={mean}"
        )
    beta = 1 / (alpha - 1)
    target = -math.log(vocab_size) - beta * math.log((alpha - 1) * std)

    def too_heavy(t: float) -> bool:
        moment = positive_part_moment(t, beta)
        return moment > 0 and math.log(moment) > target

    low, high = -1.0, 11.0
    while not too_heavy(low):
        low *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if too_heavy(middle) else (low, middle)
    return (alpha - 1) * (mean + std * low)


@torch.no_grad()
def estimate_tau_from_head(head: nn.Module, alpha: float, hidden_rms: float = 1.0, temperature: float = 1.0) -> float:
    """``estimate_tau`` with the spread of the logits read off the head's own weights.

    A hidden state of root mean square ``hidden_rms`` in no special direction gives logits of standard deviation
    ``hidden_rms`` times the root mean square length of a row of the weight matrix. It fits fresh heads. A trained
    head turns hidden states towards few words: prefer an estimate from data there.

    Args:
        head: the output embeddings, with ``weight`` (V, D) and perhaps ``bias`` (V,).
        alpha: above 1.
        hidden_rms: root mean square of the entries of what enters the head; 1 after a layer norm.
        temperature: above 0; what the logits are divided by before the map.

    Returns:
        tau for ``alpha_relu``.

    Raises:
        ValueError: see ``estimate_tau``.
    """
    weight = cast(Tensor, head.weight).double()
    bias = getattr(head, "bias", None)
    variance = hidden_rms**2 * float(weight.pow(2).sum(-1).mean())
    mean = 0.0
    if bias is not None:
        variance += float(bias.double().var(correction=0))
        mean = float(bias.double().mean())
    return estimate_tau(alpha, weight.shape[0], math.sqrt(variance) / temperature, mean / temperature)
