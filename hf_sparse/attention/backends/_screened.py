"""entmax attention of a few queries over a ``ScreenedCache``, which reads the keys that can have weight."""

from __future__ import annotations

from torch import Tensor

from ...kernels import CodedKeys, attend_to_coded
from .._call import AttentionCall
from ..screened_cache import ScreenedLayer
from ._cpp import kernel_scores
from ._prepared import needs_gradient

# More queries together see most keys, and a product of matrices reads them faster.
MOST_QUERIES = 16


def screened_output(
    layer: ScreenedLayer, call: AttentionCall, alpha: float | Tensor, problem: str | None
) -> Tensor | None:
    """The output (batch, heads, queries, value_dim), counted by the layer; None where everything is to be read.

    Args:
        layer: the keys of the call are its own.
        call: see ``AttentionCall``.
        alpha: of entmax, a number or (heads,).
        problem: why the C++ kernel cannot serve the call, or None.
    """
    coded = layer.coded_keys(call.value)
    if call.query.shape[2] > MOST_QUERIES:
        return None
    asked = (call.query, alpha, call.temperature)
    if problem is None and any(map(needs_gradient, asked)):
        problem = "gives no gradient, which queries, alpha or temperature ask for"
    if problem is not None:
        layer.record(f"the kernel {problem}")
        return None
    if not isinstance(coded, CodedKeys):
        layer.record(coded)
        return None
    scores, temperatures = kernel_scores(call, alpha)
    found = attend_to_coded(call.query, call.key, call.value, coded, scores, temperatures)
    if found is None:
        layer.record("a score is not finite, or not within its bound")
        return None
    output, read = found
    layer.record(read)
    return output
