"""The threshold at which alpha-ReLU weights of normal logits sum to one on average."""

from __future__ import annotations

import math

import torch


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


def moment_threshold(alpha: float, vocab_size: int, std: float) -> float:
    """The t that solves ``V ((alpha - 1) std)^beta I_beta(t) = 1``, ``beta = 1 / (alpha - 1)``.

    Args:
        alpha: above 1.
        vocab_size: V, number of classes.
        std: standard deviation of the logits, above 0.

    Returns:
        The threshold in standard deviations above the mean.

    Source: Tezekbayev et al. 2022, Section 3.1, generalized from alpha = 1.5 to any alpha.
    """
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
    return low
