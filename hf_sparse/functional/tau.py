"""The threshold tau of an alpha-ReLU head, from the head's weights alone."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from ._alpha_relu import RELU_ALPHA
from ._entmax_support import entmax_threshold
from .arguments import between, check_count, check_flag, check_number, check_type
from .head_weight import is_quantized, num_classes

ROWS = 2000
# With fewer classes than this above the threshold, row sums vary too much for their mean to stand for them.
_FEW_CLASSES = 4


def positive_part_moment(t: float, beta: float) -> float:
    """``I_beta(t) = E[(G - t)_+^beta]`` for a standard normal G, by the trapezoid rule in float64.

    Args:
        t: finite.
        beta: finite, at least 0.

    Raises:
        ValueError: an argument out of range.
        TypeError: one that is no number.
        OverflowError: a moment beyond the range of float64.

    Source: equals ``Gamma(beta + 1) / sqrt(2 pi) exp(-t^2 / 4) D_{-beta-1}(t)``, D the parabolic cylinder function.

    >>> round(positive_part_moment(0.0, 2.0), 6)
    0.5
    """
    check_number("t", t, "a finite number", math.isfinite)
    check_number("beta", beta, "a finite number >= 0", lambda number: 0 <= number < math.inf)
    return math.exp(_log_moment(float(t), float(beta)))


def _log_moment(t: float, beta: float) -> float:
    """``log I_beta(t)``, for moments beyond the range of float64 too; ``-inf`` where nothing lies above t."""
    # g = t + y^2 keeps the integrand smooth at the threshold for every beta > 0. It is 0 there, and of no account
    # where g is below -12 or 12 beyond its peak, so that the trapezoid rule is a sum.
    low = math.sqrt(max(-12.0 - t, 0.0))
    high = math.sqrt(12.0 + 2 * math.sqrt(beta) + max(-t, 0.0))
    y = torch.linspace(low, high, 20_001, dtype=torch.float64, device="cpu")[1:]
    log_density = -0.5 * (t + y**2) ** 2 - 0.5 * math.log(2 * math.pi)
    return float((math.log((high - low) / 10_000) + (2 * beta + 1) * y.log() + log_density).logsumexp(0))


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
        return _log_moment(t, beta) > target

    low, high = -1.0, 11.0
    while not too_heavy(low):
        low *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if too_heavy(middle) else (low, middle)
    return low


def largest_normals(count: int, of: int, generator: torch.Generator) -> Tensor:
    """The ``count`` largest of ``of`` standard normal draws, in descending order, without drawing the others.

    Returns:
        ``ROWS`` independent rows (ROWS, count), float64.

    Source: Renyi's representation. The k-th smallest of n uniforms is ``1 - exp(-sum_{j <= k} E_j / (n - j + 1))``
    with independent standard exponentials ``E_j``.
    """
    draws = torch.empty(ROWS, count, dtype=torch.float64, device="cpu").exponential_(generator=generator)
    left = torch.arange(of, of - count, -1, dtype=torch.float64, device="cpu")
    uniforms = -torch.expm1(-(draws / left).cumsum(-1))
    return -torch.special.ndtri(uniforms)


def mean_threshold(alpha: float, vocab_size: int, std: float) -> float:
    """The mean threshold of entmax over rows of ``vocab_size`` normal logits of mean 0, in units of ``(alpha - 1) z``.

    Deterministic: the draw is seeded. Its standard error is that of a mean over 2,000 rows.
    """
    count = min(vocab_size, 64)
    while True:
        z = std * largest_normals(count, vocab_size, torch.Generator().manual_seed(0))
        tau = entmax_threshold(z, alpha)[:, 0]
        # A threshold of some entries is that of all entries if it excludes the ones left out.
        if count == vocab_size or bool(((alpha - 1) * z[:, -1] <= tau).all()):
            return float(tau.mean())
        count = min(vocab_size, 4 * count)


def estimate_tau(alpha: float, vocab_size: int, std: float, mean: float = 0.0) -> float:
    """The threshold at which alpha-ReLU's weights sum to one on average, for normally distributed logits.

    Solves ``V ((alpha - 1) std)^beta E[(G - t)_+^beta] = 1`` with ``beta = 1 / (alpha - 1)`` and G standard normal for
    ``tau = (alpha - 1) (mean + std t)``. Where fewer than four classes exceed that threshold on average, it is the
    mean threshold of entmax over 2,000 drawn rows instead.

    Args:
        alpha: from 1.001 to 5.
        vocab_size: V, number of classes.
        std: standard deviation of the logits over the vocabulary, from 1e-3 to 1e4.
        mean: their mean, up to 1e4 in size.

    Returns:
        tau, in units of ``(alpha - 1) z``; deterministic.

    Raises:
        ValueError: an argument out of range.
        TypeError: one that is no number.

    Source: Tezekbayev et al. 2022, Section 3.1 and Appendix B.2, generalized from alpha = 1.5 to any alpha.
    Cost: milliseconds; tenths of a second where rows are drawn and alpha is close to 1.

    >>> round(estimate_tau(1.5, 50257, 0.554), 2)
    0.81
    """
    check_count("vocab_size", vocab_size)
    RELU_ALPHA.check("alpha", alpha)
    check_number("std", std, *between(1e-3, 1e4))
    check_number("mean", mean, *between(-1e4, 1e4))
    t = moment_threshold(alpha, vocab_size, std)
    if vocab_size * math.erfc(t / math.sqrt(2)) / 2 < _FEW_CLASSES:
        return (alpha - 1) * mean + mean_threshold(alpha, vocab_size, std)
    return (alpha - 1) * (mean + std * t)


@torch.no_grad()
def estimate_tau_from_head(
    head: nn.Module, alpha: float, hidden_rms: float = 1.0, *, temperature: float = 1.0, centered: bool = False
) -> float:
    """``estimate_tau`` with the spread of the logits taken from the weights of the head.

    A hidden state of root mean square ``hidden_rms`` in a random direction gives logits of standard deviation
    ``hidden_rms`` times the root mean square length of the rows of the weight matrix. That holds for fresh heads. For
    a trained head, whose hidden states point towards few words, prefer an estimate from data.

    Args:
        head: the output embeddings, with ``weight`` (V, D) and perhaps ``bias`` (V,).
        alpha: from 1.001 to 5.
        hidden_rms: root mean square of the entries of what enters the head; 1 after a layer norm.
        temperature: above 0; divides the logits before the map.
        centered: whether the mean of the logits is subtracted before the map.

    Returns:
        tau for ``alpha_relu``.

    Raises:
        ValueError: a number out of range, or a quantized head; see ``estimate_tau``, too.
        TypeError: what is no module, no number or no flag.
    """
    check_type("head", head, nn.Module, "model.get_output_embeddings()")
    check_number("hidden_rms", hidden_rms, "a finite number >= 0", lambda number: 0 <= number < math.inf)
    check_number("temperature", temperature, "a finite number above 0", lambda number: 0 < number < math.inf)
    check_flag("centered", centered)
    mean, std = logit_moments(head, hidden_rms, temperature=temperature, centered=centered)
    return estimate_tau(alpha, num_classes(head), std, mean)


@torch.no_grad()
def logit_moments(
    head: nn.Module, hidden_rms: float = 1.0, *, temperature: float = 1.0, centered: bool = False
) -> tuple[float, float]:
    """Mean and standard deviation over the vocabulary of the logits of a fresh head.

    Args:
        head: the output embeddings, with ``weight`` (V, D) and perhaps ``bias`` (V,).
        hidden_rms: root mean square of the entries of what enters the head, in a random direction.
        temperature: above 0; divides the logits.
        centered: whether the mean of the logits is subtracted.

    >>> head = nn.Linear(4, 2, bias=False)
    >>> _ = nn.init.ones_(head.weight)
    >>> logit_moments(head, 3.0)
    (0.0, 6.0)
    """
    if is_quantized(head):
        raise ValueError(
            f"the head, a {type(head).__name__}, is quantized, so that tau cannot be estimated from its weights; give "
            "tau a number, and fit it to data with hf_sparse.calibrate(model, batches)"
        )
    weight = cast(Tensor, head.weight).double()
    bias = getattr(head, "bias", None)
    if centered:
        weight = weight - weight.mean(0)
    variance = hidden_rms**2 * float(weight.pow(2).sum(-1).mean())
    mean = 0.0
    if bias is not None:
        variance += float(bias.double().var(correction=0))
        mean = 0.0 if centered else float(bias.double().mean())
    return mean / temperature, math.sqrt(variance) / temperature
