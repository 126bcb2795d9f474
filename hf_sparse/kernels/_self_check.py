"""A check of the Triton kernels on this GPU, once per process, before ``impl="auto"`` takes them.

A driver, a version of Triton or a GPU that no test has seen may cost speed, never exactness.
"""

from __future__ import annotations

import os
import subprocess
import warnings
from functools import cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ._attention_operators import triton_attention, triton_decode_scores, triton_decode_values
from ._row_operators import (
    triton_jacobian_product,
    triton_list_support,
    triton_loss_gradients,
    triton_multiply,
    triton_solve,
    triton_weights,
)
from ._triton_device import triton_problem
from .gpu.listing import Listing

# Largest difference from float64, relative to the largest entry. Products of float32 may keep 10 bits of mantissa.
_ROW_TOLERANCE = 1e-4
_ATTENTION_TOLERANCE = {torch.float32: 5e-3, torch.float16: 5e-3, torch.bfloat16: 4e-2}
_PADDED_TOLERANCE = 5e-3  # in float16
_ALPHA, _EXPONENT = 1.5, 2.0
# Numerically 1.5, with its closed form, but takes the code path of any exponent.
_ANY_ALPHA, _ANY_EXPONENT = 1.5 + 1e-9, 2.0 - 1e-9


@torch.compiler.assume_constant_result
def triton_is_automatic(kernels: str, device: torch.device) -> bool:
    """Whether ``impl="auto"`` may take Triton kernels on ``device``.

    ``HF_SPARSE_TRITON`` set to 1 (yes, where they can run) or 0 (no) decides. Otherwise they are compared with
    float64, once; where they are wrong or do not run, a warning says so. Nothing can be compared while a CUDA graph is
    captured: call them once before.

    Args:
        kernels: ``"rows"`` or ``"attention"``.
        device: where the scores are.
    """
    if triton_problem(device) is not None:
        return False
    if os.environ.get("HF_SPARSE_TRITON") == "1":
        return True
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    return not capturing and _agrees(kernels, device)


@cache
def _agrees(kernels: str, device: torch.device) -> bool:
    found = self_check(kernels, device)
    if found is None:
        return True
    warnings.warn(
        f"hf_sparse computes in torch on {device}, which is slower: its Triton kernels for {kernels} failed their "
        f"check there ({found}). Please report this; HF_SPARSE_TRITON=0 silences it",
        RuntimeWarning,
        stacklevel=2,
    )
    return False


def self_check(kernels: str, device: torch.device) -> str | None:
    """Compare Triton kernels with closed forms in float64, values and gradients.

    Rows: maps, losses and lists of supports at alpha 1.5, by its own code path and by that of any alpha; sparsemax;
    alpha-ReLU. Attention: causal at alpha 1.5, each dtype, heads sharing keys, with one query over a cache; and with
    an alpha per head, not causal, with padding on the left and more keys than queries, and with no key to see.

    Args:
        kernels: ``"rows"`` or ``"attention"``.
        device: where to run them.

    Returns:
        A description of what is wrong, or None.
    """
    from triton.errors import TritonError

    compare = _row_errors if kernels == "rows" else _attention_errors
    # The caller may be tracing, in inference mode or under autocast.
    with (
        _disable_current_modes(),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
    ):
        try:
            excess = compare(device)
        # Triton runs a C compiler, which may be missing (OSError) or fail.
        except (RuntimeError, OSError, subprocess.SubprocessError, TritonError) as error:
            return f"{type(error).__name__}: {error}"
    wrong = [f"{what} off by {times:.2g} times the tolerance" for what, times in excess.items() if not times <= 1]
    return "; ".join(wrong) or None


def _excess(actual: Tensor, expected: Tensor, tolerance: float) -> float:
    """The largest difference, in units of the tolerance."""
    difference = (actual.detach().double() - expected).abs().max()
    return float(difference / expected.abs().max() / tolerance)


def _entmax15(z: Tensor) -> Tensor:
    """1.5-entmax of the last axis in closed form: Peters, Niculae and Martins 2019, Algorithm 2. Differentiable."""
    x = z / 2
    top = x.sort(-1, descending=True).values
    size = torch.arange(1, z.shape[-1] + 1, device=z.device)
    mean = top.cumsum(-1) / size
    spread = top.square().cumsum(-1) - size * mean.square()
    tau = mean - ((1 - spread) / size).clamp(min=1e-12).sqrt()
    support = (tau <= top).sum(-1, keepdim=True)
    return (x - tau.gather(-1, support - 1)).clamp(min=0).square()


def _random(*shape: int, seed: int, device: torch.device) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float32, device="cpu").to(device)


def _sparsemax(z: Tensor) -> Tensor:
    """Sparsemax of the last axis in closed form: Martins and Astudillo 2016, Algorithm 1."""
    top = z.sort(-1, descending=True).values
    tau = (top.cumsum(-1) - 1) / torch.arange(1, z.shape[-1] + 1, device=z.device)
    support = (tau < top).sum(-1, keepdim=True)
    return (z - tau.gather(-1, support - 1)).clamp(min=0)


def _row_errors(device: torch.device) -> dict[str, float]:
    z = 2 * _random(4, 1500, seed=0, device=device)
    grad = _random(4, 1500, seed=1, device=device)
    exact = z.double().requires_grad_()
    p = _entmax15(exact)
    (product,) = torch.autograd.grad(p, exact, grad.double())
    p, exact = p.detach(), exact.detach()
    target = torch.tensor([3, 1499, 0, 700], device=device)
    ones = torch.ones(4, dtype=torch.float32, device=device)
    solved = triton_solve(z, _ALPHA, _EXPONENT, None)
    # <p, z>, minus Omega(p), minus the largest score.
    conjugate = (p * exact).sum(-1) - (p.pow(_ALPHA).sum(-1) - 1) / (_ALPHA * (_ALPHA - 1)) - exact.amax(-1)
    slopes = triton_loss_gradients(z, *solved, ones, target, _ALPHA, _EXPONENT)
    residual = p.scatter_add(1, target[:, None], -ones[:, None].double())
    given = triton_solve(z, _ALPHA, _EXPONENT, 2.0)
    relu = (exact * (_ALPHA - 1) - 2.0).clamp(min=0)
    listing = Listing.empty(z.numel(), 1, device)
    triton_list_support(z, listing, 0, 0, z.numel(), _ALPHA, _EXPONENT, None, None, 1.0)
    row, column, value = (field[: int(listing.sizes[0])] for field in listing[:3])
    listed = torch.zeros_like(z).index_put((row.long(), column.long()), value, accumulate=True)
    table = _random(1500, 32, seed=2, device=device)
    product_of_list = triton_multiply(row, column, value, table, 4, torch.float32)
    return {
        "weights": _excess(triton_weights(z, _ALPHA, _EXPONENT), p, _ROW_TOLERANCE),
        "weights of any alpha": _excess(triton_weights(z, _ANY_ALPHA, _ANY_EXPONENT), p, _ROW_TOLERANCE),
        "weights of sparsemax": _excess(triton_weights(z, 2.0, 1.0), _sparsemax(exact), _ROW_TOLERANCE),
        "their gradients": _excess(triton_jacobian_product(p.float(), grad, _ALPHA), product, _ROW_TOLERANCE),
        "listed weights": _excess(listed, p, _ROW_TOLERANCE),
        "products with the list": _excess(product_of_list, p @ table.double(), _ROW_TOLERANCE),
        "the loss": _excess(solved[0], conjugate, _ROW_TOLERANCE),
        "gradients of the loss": _excess(slopes, residual, _ROW_TOLERANCE),
        "the loss of alpha-ReLU": _excess(given[0], relu.pow(_EXPONENT + 1).sum(-1), _ROW_TOLERANCE),
        "its gradients": _excess(
            triton_loss_gradients(z, *given, ones, None, _ALPHA, _EXPONENT), relu.pow(_EXPONENT), _ROW_TOLERANCE
        ),
    }


def _attention_errors(device: torch.device) -> dict[str, float]:
    excess: dict[str, float] = {}
    future = torch.ones(80, 80, dtype=torch.bool, device=device).triu(1)
    padded = torch.zeros(1, 1, 50, 80, dtype=torch.bool, device=device)
    padded[..., :21] = True
    alphas = torch.full((4,), _ALPHA, dtype=torch.float32, device=device)
    for dtype, tolerance in _ATTENTION_TOLERANCE.items():
        if device.type == "cpu" and dtype == torch.bfloat16:
            continue  # where Triton's interpreter multiplies matrices wrongly
        causal = _attention_pairs(80, dtype, future, _ALPHA, causal=True)
        excess |= {f"{what}, {dtype}": _excess(*pair, tolerance) for what, pair in causal.items()}
    others = _attention_pairs(50, torch.float16, padded, alphas, mask=~padded)
    excess |= {f"{what} with padding": _excess(*pair, _PADDED_TOLERANCE) for what, pair in others.items()}
    q, k = (_random(1, 4, length, 32, seed=length, device=device).half() for length in (50, 80))
    nothing = triton_attention(q, k, k, 0.8 * alphas, 0.0, scaling=1 / 6, mask=padded.new_zeros(padded.shape))
    return excess | {"queries that see no key": _excess(nothing + 1, torch.ones_like(q).double(), _PADDED_TOLERANCE)}


def _attention_pairs(
    num_queries: int,
    dtype: torch.dtype,
    hidden: Tensor,
    alpha: float | Tensor,
    causal: bool = False,
    mask: Tensor | None = None,
) -> dict[str, tuple[Tensor, Tensor]]:
    """Attention over 80 keys and its gradients, by the kernels and in float64; if causal, the last query alone too."""
    query, key, value, grad = (
        _random(1, heads, length, 32, seed=heads + seed, device=hidden.device).to(dtype).requires_grad_()
        for seed, (heads, length) in enumerate(((4, num_queries), (2, 80), (2, 80), (4, num_queries)))
    )
    inputs, exact = (query, key, value), [x.detach().double().requires_grad_() for x in (query, key, value)]
    shared = [x.repeat_interleave(2, dim=1) for x in exact[1:]]
    scores = (exact[0] @ shared[0].mT / 6).masked_fill(hidden, -1e4)
    expected = _entmax15(scores) @ shared[1]
    actual = triton_attention(*inputs, alpha, _EXPONENT, scaling=1 / 6, causal=causal, mask=mask)
    gradients = torch.autograd.grad(actual, inputs, grad.detach())
    expected_gradients = torch.autograd.grad(expected, exact, grad.detach().double())
    found = {"attention": (actual, expected.detach())}
    for name, ours, theirs in zip(("queries", "keys", "values"), gradients, expected_gradients):
        found[f"gradients of {name}"] = (ours, theirs)
    if causal:
        last = triton_decode_scores(query[:, :, -1:].detach(), key.detach(), 1 / 6)
        decoded = triton_decode_values(triton_weights(last, _ALPHA, _EXPONENT), value.detach())
        found["one query"] = (decoded, expected.detach()[:, :, -1:])
    return found
