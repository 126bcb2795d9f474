"""Whether the Triton kernels are right on this GPU: seen once a process, before ``impl="auto"`` takes them.

A driver, a version of Triton or a GPU that no test has seen must cost speed, never exactness.
"""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ._triton import (
    triton_jacobian_product,
    triton_list_support,
    triton_listing,
    triton_loss_gradients,
    triton_multiply,
    triton_problem,
    triton_solve,
    triton_weights,
)
from ._triton_attention import triton_attention, triton_decode_scores, triton_decode_values

# Largest difference from float64, relative to the largest entry. float32 products may keep 10 bits of mantissa only.
_ROWS, _ATTENTION = 1e-4, {torch.float32: 5e-3, torch.float16: 5e-3, torch.bfloat16: 4e-2}
_ALPHA, _EXPONENT = 1.5, 2.0


@torch.compiler.assume_constant_result
def triton_is_automatic(kernels: str, device: torch.device) -> bool:
    """Whether ``impl="auto"`` may take Triton kernels on ``device``.

    Where they can run at all, the environment decides if it sets ``HF_SPARSE_TRITON`` to 1 (yes) or 0 (no). Else they
    are compared with float64, once; where they are wrong or do not run, a warning says so. Nothing can be compared
    while a CUDA graph is captured: call them once before.

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
    """Compare Triton kernels with closed forms in float64, values and gradients, on one input: alpha is 1.5.

    Args:
        kernels: ``"rows"`` or ``"attention"``.
        device: where to run them.

    Returns:
        What is wrong, or None.
    """
    from triton.errors import TritonError

    compare: Callable[[torch.device], dict[str, float]] = {"rows": _rows, "attention": _attention}[kernels]
    # Whatever the caller is in the middle of: tracing, inference, autocast.
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
    """The largest difference, in tolerances."""
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
    return torch.randn(*shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu").to(device)


def _rows(device: torch.device) -> dict[str, float]:
    z = 2 * _random(4, 1500, seed=0, device=device)
    grad = _random(4, 1500, seed=1, device=device)
    wide = z.double().requires_grad_()
    p = _entmax15(wide)
    (product,) = torch.autograd.grad(p, wide, grad.double())
    p = p.detach()
    target = torch.tensor([3, 1499, 0, 700], device=device)
    ones = torch.ones(4, device=device)
    slopes = triton_loss_gradients(z, triton_solve(z, _ALPHA, _EXPONENT, None), ones, target, _ALPHA, _EXPONENT)
    listing = triton_listing(z.numel(), 1, device)
    triton_list_support(z, listing, 0, 0, z.numel(), _ALPHA, _EXPONENT, None, None, 1.0)
    row, column, value = (field[: int(listing.sizes[0])] for field in listing[:3])
    listed = torch.zeros_like(z).index_put((row.long(), column.long()), value, accumulate=True)
    table = _random(1500, 32, seed=2, device=device)
    product_of_list = triton_multiply(row, column, value, table, 4, torch.float32)
    return {
        "weights": _excess(triton_weights(z, _ALPHA, _EXPONENT), p, _ROWS),
        "their gradients": _excess(triton_jacobian_product(p.float(), grad, _ALPHA), product, _ROWS),
        "listed weights": _excess(listed, p, _ROWS),
        "products with the list": _excess(product_of_list, p @ table.double(), _ROWS),
        "gradients of the loss": _excess(slopes, p.scatter_add(1, target[:, None], -ones[:, None].double()), _ROWS),
    }


def _attention(device: torch.device) -> dict[str, float]:
    excess = {}
    for dtype, tolerance in _ATTENTION.items():
        if device.type == "cpu" and dtype == torch.bfloat16:
            continue  # where Triton's interpreter multiplies matrices wrongly
        query, key, value, grad = (
            _random(1, heads, 80, 32, seed=heads + seed, device=device).to(dtype).requires_grad_()
            for seed, heads in enumerate((4, 2, 2, 4))
        )
        inputs, wide = (query, key, value), [x.detach().double().requires_grad_() for x in (query, key, value)]
        shared = [x.repeat_interleave(2, dim=1) for x in wide[1:]]
        future = torch.ones(80, 80, dtype=torch.bool, device=device).triu(1)
        scores = (wide[0] @ shared[0].mT / 6).masked_fill(future, -1e4)
        expected = _entmax15(scores) @ shared[1]
        actual = triton_attention(*inputs, _ALPHA, _EXPONENT, scaling=1 / 6, causal=True)
        gradients = torch.autograd.grad(actual, inputs, grad.detach())
        expected_gradients = torch.autograd.grad(expected, wide, grad.detach().double())
        excess[f"attention, {dtype}"] = _excess(actual, expected.detach(), tolerance)
        for name, ours, theirs in zip(("queries", "keys", "values"), gradients, expected_gradients):
            excess[f"gradients of {name}, {dtype}"] = _excess(ours, theirs, tolerance)
        last = triton_decode_scores(query[:, :, -1:].detach(), key.detach(), 1 / 6)
        weights = triton_weights(last, _ALPHA, _EXPONENT)
        decoded = triton_decode_values(weights, value.detach())
        excess[f"one query, {dtype}"] = _excess(decoded, expected.detach()[:, :, -1:], tolerance)
    return excess
