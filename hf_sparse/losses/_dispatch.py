"""Dispatch of row losses: Triton, supports only where the rows are long, else the generic formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..functional import MAPS, SparseMap, get_map
from ..functional.candidates import CANDIDATES_FROM
from ..functional.newton import is_softmax
from ..functional.registry import underlying
from ..functional.rows import is_readable, is_transformed, row_by_row, upcast
from ..kernels import chosen
from ..tracing import in_graph
from ._alpha_relu_support import relu_dense_loss, relu_support_loss
from ._dense_rows import dense_rows_loss
from ._entmax_support import entmax_support_loss
from ._generic import generic_rows_loss, transformable_rows_loss
from ._learned_alpha import tsallis_negentropy_in_alpha
from ._short_rows import short_rows_loss
from ._softmax_loss import cross_entropy_by_kernel
from ._targets import MapSettings
from ._triton_rows import triton_rows_loss

_WITH_KERNELS = ("alpha_relu", "entmax")
# Shorter rows of alpha-ReLU take the C++ kernel longer than torch.
_RELU_BY_KERNEL_FROM = 256


def checked_settings(name: str, settings: MapSettings) -> dict[str, float | Tensor]:
    """All settings of the map: the given ones, checked, and the defaults of the rest.

    Raises:
        ValueError: the map has no loss or no such setting, or a value is out of range.
        TypeError: a value is not a number (or a tensor, for the alpha of entmax).
    """
    sparse_map = get_map(name)
    sparse_map.loss_regularizer()
    known = sparse_map.settings
    sparse_map.check_names(settings)
    checked: dict[str, float | Tensor] = {}
    for key, setting in known.items():
        value = settings.get(key, setting.default)
        if isinstance(value, Tensor) and (name, key) == ("entmax", "alpha"):
            checked[key] = value
            continue
        number = setting.check(key, value)
        if isinstance(number, str):
            raise ValueError(f'{key} must be {setting.allowed}, was "{number}", which only sparsify can work out')
        checked[key] = number
    return checked


def chosen_for(name: str, settings: MapSettings, z: Tensor, impl: str) -> str:
    """The implementation of the map's loss of the scores ``z``: ``"cpp"``, ``"torch"`` or ``"triton"``.

    Raises:
        ValueError, KernelUnavailable: see ``kernels.chosen``; ValueError too for a kernel that does not know the map.
    """
    base, base_settings = underlying(name, settings)
    if base in _WITH_KERNELS:
        return chosen(impl, z, base_settings["alpha"])
    if impl in ("cpp", "triton"):
        bases = {known: underlying(known, {})[0] for known in MAPS if known != "softmax"}
        known = ", ".join(repr(name) for name, base in sorted(bases.items()) if base in _WITH_KERNELS)
        raise ValueError(f'impl="{impl}" knows {known}, not {name!r}; use impl="auto" or impl="torch"')
    return chosen("torch" if impl == "auto" else impl, z)


def loss_map(name: str, settings: MapSettings, impl: str = "auto") -> SparseMap:
    """The map bound to ``impl``, with a regularizer that is differentiable in alpha where alpha is a tensor."""
    known = MAPS[name]
    if name != "softmax" and underlying(name, settings)[0] == "entmax":
        known = replace(known, function=partial(known.function, impl=impl))
    if torch.is_tensor(settings.get("alpha")):
        known = replace(known, regularizer=tsallis_negentropy_in_alpha)
    return known


def row_losses(z: Tensor, y: Tensor, counted: Tensor, name: str, settings: MapSettings, impl: str = "auto") -> Tensor:
    """``L(z, y)`` of each row (N,), float32 or float64; uncounted rows may hold anything, and get no gradient.

    Args:
        z: scores (N, V), any floating-point dtype.
        y: classes (N,), int64, or distributions (N, V).
        counted: (N,) bool.
        name: a registered map.
        settings: all of the map's settings.
        impl: see ``chosen_for``.
    """
    base, base_settings = underlying(name, settings)
    transformed = is_transformed(z, y)
    if transformed and impl in ("cpp", "triton"):
        raise ValueError(
            f'impl="{impl}" computes losses that neither torch.func nor forward mode can differentiate; use '
            'impl="auto" or impl="torch"'
        )
    if base == "entmax" and not y.is_floating_point() and _is_softmax(base_settings["alpha"]):
        return _cross_entropies(z, y, counted, impl)
    impl = chosen_for(name, settings, z, impl)
    if transformed:
        z = _without_uncounted(z, counted)
        return transformable_rows_loss(z, y, loss_map(name, settings, "torch"), settings)
    if impl == "triton":
        return triton_rows_loss(z, y, **base_settings)
    if base == "alpha_relu":
        return _alpha_relu_losses(z, y, counted, **base_settings, impl=impl)

    def generic(z: Tensor, y: Tensor) -> Tensor:
        return generic_rows_loss(z, y, loss_map(name, settings, impl), settings)

    if base == "entmax":
        return _entmax_losses(z, y, counted, base_settings["alpha"], impl, generic)
    return generic(z, y)


def _is_softmax(alpha: float | Tensor) -> bool:
    return not isinstance(alpha, Tensor) and is_softmax(alpha)


def _cross_entropies(z: Tensor, y: Tensor, counted: Tensor, impl: str) -> Tensor:
    """Cross-entropy of each row (N,): by the C++ kernel for long rows on a CPU, else by torch."""
    by_kernel = z.device.type == "cpu" and (impl == "cpp" or (_is_long(z) and not is_transformed(z)))
    if chosen(impl, z, None if by_kernel else 1.0) == "cpp":
        return cross_entropy_by_kernel(z, y)
    return F.cross_entropy(upcast(_without_uncounted(z, counted)), y, reduction="none")


def _alpha_relu_losses(z: Tensor, y: Tensor, counted: Tensor, alpha: float, tau: float, impl: str) -> Tensor:
    dense = partial(dense_rows_loss, alpha=alpha, tau=tau)
    if not row_by_row(z):
        z, dense = _without_uncounted(z, counted), partial(relu_dense_loss, alpha=alpha, tau=tau)
    if _is_long(z) or (impl == "cpp" and z.shape[1] >= _RELU_BY_KERNEL_FROM):
        return _on_supports(z, y, partial(relu_support_loss, alpha=alpha, tau=tau, impl=impl), dense)
    return dense(z, y)


def _entmax_losses(
    z: Tensor,
    y: Tensor,
    counted: Tensor,
    alpha: float | Tensor,
    impl: str,
    generic: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    if isinstance(alpha, Tensor):
        return generic(_without_uncounted(z, counted), y)
    dense = partial(dense_rows_loss, alpha=alpha) if row_by_row(z) and alpha <= 2 else generic
    if _is_softmax(alpha) or alpha > 2:
        return dense(z, y)
    if _is_long(z):
        return _on_supports(z, y, partial(entmax_support_loss, alpha=alpha, impl=impl), dense)
    return short_rows_loss(z, y, alpha) if impl == "cpp" else dense(z, y)


def _is_long(z: Tensor) -> bool:
    """Whether rows are long enough for a search of their supports to pay, outside graphs, where it can run."""
    return not in_graph() and z.shape[1] >= CANDIDATES_FROM


def _on_supports(
    z: Tensor,
    y: Tensor,
    listed: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    dense: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """The losses by ``listed``; those of the rows that it reports as crowded, by ``dense``."""
    loss, crowded = listed(z, y)
    num_crowded = int(crowded.sum())
    if num_crowded == len(z):
        return dense(z, y)
    return loss.index_put((crowded.nonzero()[:, 0],), dense(z[crowded], y[crowded])) if num_crowded else loss


def _without_uncounted(z: Tensor, counted: Tensor) -> Tensor:
    """Uncounted rows replaced by zeros, so that no NaN in them meets the zero gradient they get."""
    if is_readable(counted) and bool(counted.all()):
        return z
    return z.masked_fill(~counted[:, None], 0.0)
