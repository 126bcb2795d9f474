"""How far the output of a sparse model is from that of the dense one: measures by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from ..functional.arguments import check_number
from ..metrics import jensen_shannon

# Share of the uniform distribution that is mixed in where zeros would cost without end.
UNIFORM = 1e-4


def eps_kl(q: Tensor, p: Tensor) -> Tensor:
    """``KL(p' || q')`` in nats, where ``p' = (1 - u) p + u / V`` and q' likewise, ``u = UNIFORM``: zeros stay finite.

    It is what the log-likelihood of classes drawn from p' loses; a class that q makes impossible costs about its
    probability times ``log(p V / u)``. ``KL(q || p)``, finite too, never looks where q is zero: on a confident model
    it prefers supports of one class.

    Args:
        q: distributions (..., V).
        p: dense distributions (..., V).

    Returns:
        Divergences (...).

    >>> import torch
    >>> eps_kl(torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5]))
    tensor(0.)
    """
    q, p = ((1 - UNIFORM) * each + UNIFORM / each.shape[-1] for each in (q, p))
    return (p * (p / q).log()).sum(-1)


# Of distributions (..., V) from dense ones, in nats.
DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "eps_kl": eps_kl,
    "js": partial(jensen_shannon, reduction="none"),
}
MEASURES = ("auto", *DIVERGENCES, "states")


def check_measure(measure: object, uniform_share: object) -> None:
    """Refuse a measure of another name, and a share of the uniform distribution that is none.

    Raises:
        ValueError: one of the two.
        TypeError: ``uniform_share`` is no number.
    """
    check_number("uniform_share", uniform_share, "in (0, 1)", lambda share: 0 < share < 1)
    if measure not in MEASURES:
        raise ValueError(f"measure must be one of {', '.join(map(repr, MEASURES))}, was {measure!r}")


def lost_variance(h: Tensor, dense: Tensor) -> tuple[Tensor, Tensor]:
    """``sum ||h - h0||^2`` and ``sum ||h0 - mean h0||^2``: their ratio is the share of the variance that is lost.

    A constant part that all positions share, which hidden states have, does not make it look small. Of the second,
    batches have parts that do not add up: see ``between``.

    Args:
        h: outputs (N, d).
        dense: the dense model's (N, d).
    """
    return (h - dense).square().sum(), (dense - dense.mean(0)).square().sum()


def between(count: int, mean: Tensor, h: Tensor) -> float:
    """What ``sum ||h - mean h||^2`` of two sets of rows together has above the sum of both: how far apart they are.

    Args:
        count: of the rows before, at least 1.
        mean: of them (d,).
        h: further rows (N, d), N at least 1.

    >>> import torch
    >>> between(1, torch.tensor([0.0]), torch.tensor([[2.0]]))  # (0 - 1)^2 + (2 - 1)^2
    2.0
    """
    return float((h.mean(0) - mean).square().sum()) * count * len(h) / (count + len(h))
