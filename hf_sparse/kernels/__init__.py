"""Optional compiled kernels: everything works without them, and nothing is compiled when this is imported."""

from ._build import KernelUnavailable
from ._choice import IMPLS, chosen
from ._entmax import LONG_ROW, entmax_places, entmax_weights, jacobian_product, places_above
from ._triton import triton_jacobian_product, triton_loss_gradients, triton_solve, triton_weights

__all__ = [
    "IMPLS",
    "LONG_ROW",
    "KernelUnavailable",
    "chosen",
    "entmax_places",
    "entmax_weights",
    "jacobian_product",
    "places_above",
    "triton_jacobian_product",
    "triton_loss_gradients",
    "triton_solve",
    "triton_weights",
]
