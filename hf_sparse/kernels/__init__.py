"""Optional compiled kernels: everything works without them, and nothing is compiled when this is imported."""

from ._build import KernelUnavailable
from ._choice import HIGHEST_ALPHA, IMPLS, LOWEST_ALPHA, chosen
from ._entmax import LONG_ROW, entmax_places, entmax_weights, jacobian_product, places_above
from ._triton import (
    triton_is_automatic,
    triton_jacobian_product,
    triton_list_support,
    triton_listing,
    triton_loss_gradients,
    triton_multiply,
    triton_solve,
    triton_weights,
)
from ._triton_attention import (
    LOWEST_ATTENTION_ALPHA,
    triton_attention,
    triton_attention_problem,
    triton_decode_scores,
    triton_decode_values,
)

__all__ = [
    "HIGHEST_ALPHA",
    "IMPLS",
    "LONG_ROW",
    "LOWEST_ALPHA",
    "LOWEST_ATTENTION_ALPHA",
    "KernelUnavailable",
    "chosen",
    "entmax_places",
    "entmax_weights",
    "jacobian_product",
    "places_above",
    "triton_attention",
    "triton_attention_problem",
    "triton_decode_scores",
    "triton_decode_values",
    "triton_is_automatic",
    "triton_jacobian_product",
    "triton_list_support",
    "triton_listing",
    "triton_loss_gradients",
    "triton_multiply",
    "triton_solve",
    "triton_weights",
]
