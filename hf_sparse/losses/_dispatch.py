"""Which way to the losses of a batch of rows: on the supports where that is faster, else by the map's own formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..functional import MAPS, SparseMap, get_map
from ..functional.candidates import CANDIDATES_FROM
from ..functional.registry import underlying
from ..functional.rows import in_graph, upcast
from ..kernels import chosen
from ._alpha_relu_support import relu_dense_loss, relu_support_loss
from ._entmax_support import entmax_rows_loss
from ._generic import dense_rows_loss
from ._learned_alpha import tsallis_negentropy_in_alpha
from ._triton_rows import solved_rows_loss


def checked_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of the map: those given, checked, and the defaults of the rest.

    Raises:
        ValueError: the map has no loss or no such setting, or a value is out of range.
        TypeError: a value is not a number (or a tensor, for the alpha of entmax).
    """
    sparse_map = get_map(name)
    sparse_map.loss_regularizer()
    known = sparse_map.settings
    unknown = sorted(set(settings) - set(known))
    if unknown:
        takes = ", ".join(map(repr, sorted(known))) or "none"
        raise ValueError(f"{name} takes no setting {unknown[0]!r}; it takes {takes}")
    values = {key: settings.get(key, setting.default) for key, setting in known.items()}
    for key, value in values.items():
        learned = torch.is_tensor(value) and (name, key) == ("entmax", "alpha")
        values[key] = value if learned else known[key].check(key, value)
        if values[key] == "auto":
            raise ValueError(f'{key} must be {known[key].allowed}, was "auto", which only sparsify can work out')
    return values


def chosen_for(name: str, settings: Mapping[str, Any], z: Tensor, impl: str) -> str:
    """What computes the losses of the scores ``z``, see ``kernels.chosen``.

    Raises:
        ValueError, KernelUnavailable: see ``kernels.chosen``; or a kernel for a map that it does not know.
    """
    base, base_settings = underlying(name, settings)
    if base == "alpha_relu":
        return chosen(impl, z)
    if base == "entmax":
        return chosen(impl, z, base_settings["alpha"])
    if impl in ("cpp", "triton"):
        bases = {known: underlying(known, {})[0] for known in MAPS if known != "softmax"}
        known = ", ".join(repr(name) for name, base in sorted(bases.items()) if base in ("alpha_relu", "entmax"))
        raise ValueError(f'impl="{impl}" knows {known}, not {name!r}; use impl="auto" or impl="torch"')
    return chosen("torch" if impl == "auto" else impl, z)


def loss_map(name: str, settings: Mapping[str, Any], impl: str = "auto") -> SparseMap:
    """The map with the regularizer its loss is written with: one that gives alpha its gradient where it wants one."""
    if name != "softmax" and underlying(name, settings)[0] == "entmax":
        known = MAPS[name]
        return replace(_with_regularizer(known, settings), function=partial(known.function, impl=impl))
    return _with_regularizer(MAPS[name], settings)


def _with_regularizer(sparse_map: SparseMap, settings: Mapping[str, Any]) -> SparseMap:
    if torch.is_tensor(settings.get("alpha")):
        return replace(sparse_map, regularizer=tsallis_negentropy_in_alpha)
    return sparse_map


def row_losses(
    z: Tensor, y: Tensor, counted: Tensor, name: str, settings: Mapping[str, Any], impl: str = "auto"
) -> Tensor:
    """``L(z, y)`` of each row (N,), float32 or float64; rows that do not count may hold anything, and get no gradient.

    Args:
        z: scores (N, V), any floating-point dtype.
        y: classes (N,), int64, or distributions (N, V).
        counted: (N,) bool.
        name: a registered map.
        settings: all of the map's settings.
        impl: see ``chosen_for``.
    """
    impl = chosen_for(name, settings, z, impl)
    base, base_settings = underlying(name, settings)
    if impl == "triton":
        return solved_rows_loss(z, y, **base_settings)
    long = z.shape[1] >= CANDIDATES_FROM and not in_graph()
    if base == "alpha_relu":
        z = _without_uncounted(z, counted)
        alpha, tau = settings["alpha"], settings["tau"]
        relu_dense = partial(relu_dense_loss, alpha=alpha, tau=tau)
        relu_listed = partial(relu_support_loss, alpha=alpha, tau=tau, impl=impl)
        return _listed(z, y, relu_listed, relu_dense) if long else relu_dense(z, y)
    alpha = base_settings["alpha"] if base == "entmax" else None
    if not torch.is_tensor(alpha) and alpha == 1 and not y.is_floating_point():
        z = _without_uncounted(z, counted)
        return F.cross_entropy(upcast(z), y, reduction="none")
    dense = partial(dense_rows_loss, sparse_map=loss_map(name, settings, impl), settings=settings)
    if torch.is_tensor(alpha):
        return dense(_without_uncounted(z, counted), y)
    if alpha is None or not 1 < alpha <= 2 or not long:
        return dense(z, y)
    return _listed(z, y, partial(entmax_rows_loss, alpha=alpha, impl=impl), dense)


def _listed(
    z: Tensor,
    y: Tensor,
    on_supports: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    dense: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """The losses on the supports, but for the rows that ``on_supports`` names as having too large a one."""
    loss, crowded = on_supports(z, y)
    num_crowded = int(crowded.sum())
    if num_crowded == len(z):
        return dense(z, y)
    return loss.index_put((crowded.nonzero()[:, 0],), dense(z[crowded], y[crowded])) if num_crowded else loss


def _without_uncounted(z: Tensor, counted: Tensor) -> Tensor:
    """Rows that do not count replaced by zeros, so that no NaN in them meets the zero gradient they get."""
    if not in_graph() and bool(counted.all()):
        return z
    return z.masked_fill(~counted[:, None], 0.0)
