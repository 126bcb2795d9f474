"""Optional compiled kernels: everything works without them, and nothing is compiled when this is imported."""

from ._build import KernelUnavailable
from ._choice import HIGHEST_ALPHA, IMPLS, LOWEST_ALPHA, chosen
from ._entmax import (
    STREAM_ABOVE,
    ReluSupports,
    Supports,
    entmax_supports,
    entmax_weights,
    jacobian_product,
    relu_supports,
    write_rows,
)
from ._self_check import triton_is_automatic
from ._triton import (
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
    "LOWEST_ALPHA",
    "LOWEST_ATTENTION_ALPHA",
    "STREAM_ABOVE",
    "KernelUnavailable",
    "ReluSupports",
    "Supports",
    "chosen",
    "entmax_supports",
    "entmax_weights",
    "jacobian_product",
    "relu_supports",
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
    "write_rows",
]
