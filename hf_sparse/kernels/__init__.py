"""Compiled kernels, all of them optional: nothing is compiled, and no Triton imported, before one is used."""

from ._attention_operators import (
    triton_attention,
    triton_attention_problem,
    triton_decode_scores,
    triton_decode_values,
)
from ._cache import KernelUnavailable
from ._choice import BUILD_FROM, ROW_IMPLS, chosen
from ._cpp_attention import cpp_attention_backward, cpp_attention_forward, cpp_attention_problem
from ._cpp_coded_keys import CodedKeys, RowsRead, attend_to_coded, code_keys_, coding_problem
from ._cpp_few_queries import attend_few
from ._cpp_rows import (
    STREAM_ABOVE,
    ReluSupports,
    Runs,
    Supports,
    entmax_residuals,
    entmax_supports,
    entmax_weights,
    jacobian_product,
    log_weights_,
    products_by_run,
    relu_supports,
    slopes_by_run,
    softmax_log_sums,
    weights_by_run,
    write_crowded,
    write_rows,
    write_softmax,
)
from ._cpp_screen import CodedRows, code_rows, fingerprint, refine_, screen, screening_problem
from ._cpp_screened_rows import Candidates, RoundedRows, bfloat16_is_fast, list_candidates, round_rows
from ._library import available as cpp_available
from ._library import library as require_cpp
from ._limits import HIGHEST_ALPHA, LOWEST_ALPHA, attention_alpha_problem
from ._row_operators import (
    triton_jacobian_product,
    triton_list_support,
    triton_loss_gradients,
    triton_multiply,
    triton_solve,
    triton_weights,
)
from ._self_check import triton_is_automatic
from .gpu.listing import Listing
from .gpu.scores import Scores

__all__ = [
    "BUILD_FROM",
    "HIGHEST_ALPHA",
    "LOWEST_ALPHA",
    "ROW_IMPLS",
    "STREAM_ABOVE",
    "Candidates",
    "CodedKeys",
    "CodedRows",
    "KernelUnavailable",
    "Listing",
    "ReluSupports",
    "RoundedRows",
    "RowsRead",
    "Runs",
    "Scores",
    "Supports",
    "attend_few",
    "attend_to_coded",
    "attention_alpha_problem",
    "bfloat16_is_fast",
    "chosen",
    "code_keys_",
    "code_rows",
    "coding_problem",
    "cpp_attention_backward",
    "cpp_attention_forward",
    "cpp_attention_problem",
    "cpp_available",
    "entmax_residuals",
    "entmax_supports",
    "entmax_weights",
    "fingerprint",
    "jacobian_product",
    "list_candidates",
    "log_weights_",
    "products_by_run",
    "refine_",
    "relu_supports",
    "require_cpp",
    "round_rows",
    "screen",
    "screening_problem",
    "slopes_by_run",
    "softmax_log_sums",
    "triton_attention",
    "triton_attention_problem",
    "triton_decode_scores",
    "triton_decode_values",
    "triton_is_automatic",
    "triton_jacobian_product",
    "triton_list_support",
    "triton_loss_gradients",
    "triton_multiply",
    "triton_solve",
    "triton_weights",
    "weights_by_run",
    "write_crowded",
    "write_rows",
    "write_softmax",
]
