"""sparsegen (Laha et al. 2018): sparsemax of transformed scores, with a setting for the sparsity."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ._entmax import entmax_rows
from ._in_chunks import in_chunks
from .negentropy import half_squared_norm
from .registry import Setting, SparseMap, register
from .rows import accumulation_dtype, check_scores, is_readable, map_rows, masked_as, per_row, unmasked, upcast


def sparsegen_lin(z: Tensor, lam: float | Tensor = 0.0, dim: int = -1) -> Tensor:
    """``argmin_p ||p - z||^2 - lam ||p||^2 = sparsemax(z / (1 - lam))`` over the simplex.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        lam: below 1, from -1e9 to 0.999999. 0 is sparsemax; towards 1 all weight goes to the maximum, towards -inf it
            is spread evenly. A tensor gives each row its own, as in ``entmax``; its values are not checked, and it
            receives a gradient.
        dim: the axis to map.

    Returns:
        Probabilities with exact zeros, shape and dtype of ``z``. A fully masked row gives zeros.

    Raises:
        TypeError, IndexError: see ``entmax``.
        ValueError: lam out of range, or an empty axis.

    Source: Laha et al. 2018, Eq. 1 and 2, Section 3.2.
    Cost: that of ``sparsemax``.

    >>> sparsegen_lin(torch.tensor([0.4, 0.2, 0.0]), lam=0.5)
    tensor([0.7000, 0.3000, 0.0000])
    """
    return _sparsegen(None, z, lam, dim)


def sparsegen_exp(z: Tensor, lam: float | Tensor = 0.0, dim: int = -1) -> Tensor:
    """``sparsemax(e^z / (1 - lam))``. With ``lam = 1 - sum e^z`` it is softmax.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry. In float32, scores above 88
            overflow to NaN.
        lam: below 1; the larger, the sparser.
        dim: the axis to map.

    Returns:
        Probabilities with exact zeros, shape and dtype of ``z``. A fully masked row gives zeros.

    Raises:
        TypeError, IndexError, ValueError: see ``sparsegen_lin``.

    Source: Laha et al. 2018, Section 3.1, Example 1.

    >>> sparsegen_exp(torch.tensor([0.4, 0.2, -2.0]), lam=0.0)
    tensor([0.6352, 0.3648, 0.0000])
    """
    return _sparsegen(_EXP, z, lam, dim)


def sparsegen_sq(z: Tensor, lam: float | Tensor = 0.0, dim: int = -1) -> Tensor:
    """``sparsemax(z^2 / (1 - lam))``, not monotone in z. With ``lam = 1 - sum z^2`` it is the spherical softmax.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        lam: below 1; the larger, the sparser.
        dim: the axis to map.

    Returns:
        Probabilities with exact zeros, shape and dtype of ``z``. A fully masked row gives zeros.

    Raises:
        TypeError, IndexError, ValueError: see ``sparsegen_lin``.

    Source: Laha et al. 2018, Section 3.1, Example 2.

    >>> sparsegen_sq(torch.tensor([-0.8, 0.5, 0.1]))
    tensor([0.6733, 0.2833, 0.0433])
    """
    return _sparsegen(_SQ, z, lam, dim)


def sparsegen_log(z: Tensor, lam: float | Tensor = 0.0, dim: int = -1) -> Tensor:
    """``sparsemax(log z / (1 - lam))``: scaling all scores by a constant leaves the weights as they are.

    Args:
        z: positive scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        lam: below 1; the larger, the sparser.
        dim: the axis to map.

    Returns:
        Probabilities with exact zeros, shape and dtype of ``z``. A fully masked row gives zeros.

    Raises:
        TypeError, IndexError: see ``entmax``.
        ValueError: lam out of range, an empty axis, or a score that is neither positive nor ``-inf``.

    Source: Laha et al. 2018, appendix A.2, Example 4.

    >>> sparsegen_log(torch.tensor([3.0, 2.0, 0.5]))
    tensor([0.7027, 0.2973, 0.0000])
    """
    check_scores(z, dim)
    if is_readable(z) and bool(((z <= 0) & (z > -torch.inf)).any()):
        raise ValueError(f"sparsegen_log needs scores > 0 (or -inf, masked), the smallest was {float(z.min()):g}")
    return _sparsegen(_LOG, z, lam, dim)


class Transform(NamedTuple):
    """A function of scores and its derivative."""

    of: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


_EXP = Transform(torch.exp, torch.exp)
_SQ = Transform(torch.square, lambda x: 2 * x)
_LOG = Transform(torch.log, torch.reciprocal)


def _sparsegen(transform: Transform | None, z: Tensor, lam: float | Tensor, dim: int) -> Tensor:
    return map_rows(lambda x: entmax_rows(x, 2.0), _as_sparsemax(z, dim, lam, transform), dim).to(z.dtype)


def _as_sparsemax(z: Tensor, dim: int, lam: float | Tensor, transform: Transform | None) -> Tensor:
    """The scores whose sparsemax the map is, in float32 or float64, shape of z."""
    check_scores(z, dim)
    if torch.is_tensor(lam):
        lam = upcast(per_row("lam", lam, z, dim)).movedim(-1, dim)
        return _transformed(upcast(z), 1 - lam, transform)
    divisor = 1 - float(LAM.check("lam", lam))
    if transform is None:
        return upcast(z) / divisor  # -inf stays
    slope = transform.slope
    return in_chunks(
        lambda x: _transformed(x, divisor, transform),
        lambda x, grad: slope(unmasked(x, 1.0)).div_(divisor).mul_(grad),
        z,
        accumulation_dtype(z),
    )


def _transformed(x: Tensor, divisor: float | Tensor, transform: Transform | None) -> Tensor:
    # Masked entries are transformed as 1, where every transform has a finite derivative, and masked again.
    visible = unmasked(x, 1.0)
    return masked_as(x, (visible if transform is None else transform.of(visible)) / divisor)


def scaled_half_squared_norm(p: Tensor, lam: float = 0.0) -> Tensor:
    """``Omega(p) = (1 - lam) (||p||^2 - 1) / 2`` over the last axis; zero at every one-hot p."""
    return (1 - lam) * half_squared_norm(p)


LAM = Setting.between(
    -1e9,
    1 - 1e-6,
    default=0.0,
    from_real=lambda a: 1 - torch.exp(a),
    to_real=lambda lam: torch.log(1 - lam),
)


def _register_sparsegen(
    name: str,
    function: Callable[..., Tensor],
    transform: Transform | None,
    regularizer: Callable[..., Tensor] | None = None,
    shift_invariant: bool = False,
    any_scores: bool = True,
) -> None:
    def as_entmax(z: Tensor, dim: int, lam: float) -> tuple[Tensor, float]:
        return _as_sparsemax(z, dim, lam, transform), 2.0

    register(
        SparseMap(
            name,
            function,
            regularizer,
            settings={"lam": LAM},
            shift_invariant=shift_invariant,
            any_scores=any_scores,
            as_entmax=as_entmax,
        )
    )


_register_sparsegen("sparsegen_lin", sparsegen_lin, None, scaled_half_squared_norm, shift_invariant=True)
# The transforms below have slopes that differ from score to score: these maps are not the gradient of a function.
_register_sparsegen("sparsegen_exp", sparsegen_exp, _EXP)
_register_sparsegen("sparsegen_sq", sparsegen_sq, _SQ)
_register_sparsegen("sparsegen_log", sparsegen_log, _LOG, any_scores=False)
