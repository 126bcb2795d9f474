"""Threshold and support of any map by its name."""

from __future__ import annotations

import torch
from torch import Tensor

from ._entmax_support import Support, entmax_support, entmax_threshold, ragged
from .registry import MAPS, get_map, underlying
from .rows import check_scores, upcast


def threshold(z: Tensor, name: str, dim: int = -1, **settings: float) -> Tensor:
    """The ``tau`` in ``p_i = [(alpha - 1) x_i - tau]_+ ^ (1 / (alpha - 1))``, p the weights of the map ``name`` at z.

    Args:
        z: scores, any shape, any floating-point dtype; ``-inf`` masks an entry.
        name: a map of the entmax family (``x = z``), or one that is the sparsemax (alpha 2) of scores x: sparsegen
            (``x = g(z) / (1 - lam)``), sparsehourglass and sparsecone (``x = z (1 + Kq) / (|sum z| + Kq)``).
        dim: the axis mapped.
        **settings: the map's settings, as numbers.

    Returns:
        float32 or float64, shape of ``z`` with size 1 along ``dim``, in units of ``(alpha - 1) x``; differentiable.
        ``inf`` for a fully masked row.

    Raises:
        ValueError: a map whose threshold is fixed (alpha-ReLU) or that has none (softmax, constrained maps), or a
            setting out of range.
        TypeError, IndexError: see ``entmax``.

    Cost: that of ``entmax_threshold``. For csparsemax see ``csparsemax_threshold``.

    >>> import torch
    >>> threshold(torch.tensor([0.4, 0.2, 0.0]), "sparsegen_lin", lam=0.5)
    tensor([0.1000])
    """
    found = _as_entmax(z, name, dim, settings)
    if found is None:
        known = ", ".join(repr(name) for name in sorted(MAPS) if name != "softmax" and _has_threshold(name))
        raise ValueError(f"{name!r} solves for no threshold; the maps that do are {known}")
    return entmax_threshold(*found, dim)


def support(z: Tensor, name: str, **settings: float) -> Support:
    """The nonzero weights of the map ``name`` over the last axis, ragged.

    Args:
        z: scores (..., V), any floating-point dtype; the leading dimensions are flattened to N rows.
        name: a registered map.
        **settings: the map's settings, as numbers; for csparsemax and csoftmax the bounds ``u`` (..., V).

    Returns:
        ``Support``, as ``entmax_support`` gives it for the maps that ``threshold`` takes. Other maps are computed
        densely on the way.

    Raises:
        ValueError, TypeError, IndexError: see the map.

    >>> import torch
    >>> support(torch.tensor([[0.4, 0.2, 0.0]]), "sparsegen_lin", lam=0.5)
    Support(indices=tensor([0, 1]), values=tensor([0.7000, 0.3000]), offsets=tensor([0, 2]))
    """
    found = _as_entmax(z, name, -1, settings)
    if found is None or (not torch.is_tensor(found[1]) and found[1] == 1):
        check_scores(z, -1)
        return ragged(get_map(name).function(upcast(z), **settings).reshape(-1, z.shape[-1]))
    return entmax_support(*found)


def _has_threshold(name: str) -> bool:
    return get_map(underlying(name, {})[0]).as_entmax is not None


def _as_entmax(z: Tensor, name: str, dim: int, settings: dict[str, float]) -> tuple[Tensor, float] | None:
    """Scores x and alpha of which the map is the entmax, or None."""
    if not _has_threshold(name):
        return None
    get_map(name).check_names(settings)
    base, own = underlying(name, settings)
    sparse_map = get_map(base)
    defaults = {key: setting.default for key, setting in sparse_map.settings.items()}
    assert sparse_map.as_entmax is not None
    return sparse_map.as_entmax(z, dim, **defaults | own)
