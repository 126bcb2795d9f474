"""Every kernel against float64, on inputs of this run."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from hf_sparse.losses import entmax15_loss

from ._attends import flash, local_inputs, one_query, written_down
from ._losses import FUSED, LOSSES, trained_like, two_steps
from ._report import DEVICE, DTYPE, SMOKE, Report, with_gradients

# Relative to the size of the whole result: what rounding weights and results to the dtype costs, with room.
TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}


def check(report: Report) -> None:
    """Every kernel against float64, on inputs of this run."""
    length = 40 if SMOKE else 1000
    for width, key_heads, causal in ((None, 1, True), (length / 8, 2, True), (length / 8, 1, False)):
        q, k, v = local_inputs(length, 2, key_heads, 16 if SMOKE else 128, width)
        ours = with_gradients(lambda *x, causal=causal: flash(*x, causal), q, k, v)
        true = with_gradients(lambda *x, causal=causal: written_down(*x, causal), *(x.double() for x in (q, k, v)))
        case = f"T = {length}, {'flat' if width is None else 'local'}, {key_heads} of 2 heads, causal {causal}"
        report.add("check", case, "flash entmax15", lambda ours=ours, true=true: checked(ours(), true()))
    q, k, v = local_inputs(length, 2, 1, 16 if SMOKE else 128, length / 8)
    exact = written_down(q[:, :, -1:].double(), k.double(), v.double(), causal=False)
    report.add(
        "check", f"decode, T = {length}", "entmax15", lambda: checked((one_query(q[:, :, -1:], k, v),), (exact,))
    )
    z = torch.randn(4, 300 if SMOKE else 131_072, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0)) * 3
    y = torch.arange(4, device=DEVICE)
    for name, loss in LOSSES.items():
        ours = with_gradients(lambda z, loss=loss: loss(z, y, impl="triton"), z.to(DTYPE))
        true = with_gradients(lambda z, loss=loss: loss(z, y, impl="torch"), z.to(DTYPE).double())
        report.add("check", f"rows, V = {z.shape[1]}", name, lambda ours=ours, true=true: checked(ours(), true()))
    report.add("check", "rows, N V > 2^31: the last of them", "entmax15 loss", check_last_rows)
    # Supports of trained-like logits are listed; those of a hundredth of them are too long.
    hidden, weight, y = trained_like(*((8, 300, 16) if SMOKE else (256, 32_768, 512)))
    for size, kind in ((1.0, "short"), (0.01, "long")):
        for name, loss in FUSED.items():
            exact = [x.double() for x in (hidden * size, weight)]
            ours = with_gradients(partial(loss, y=y, impl="triton"), hidden * size, weight)
            true = with_gradients(two_steps(LOSSES[name.removeprefix("linear ")], y), *exact)
            case = f"fused linear loss, {len(hidden)} x {len(weight)}, {kind} supports"
            report.add("check", case, name, lambda ours=ours, true=true: checked(ours(), true()))


def check_last_rows() -> dict[str, Any]:
    """Rows so many and so long that no 32 bits count their entries."""
    num_rows, length = (6, 300) if SMOKE else (16_384, 262_144)
    generator = torch.Generator(DEVICE).manual_seed(0)
    z = torch.randn(num_rows, length, device=DEVICE, dtype=DTYPE, generator=generator)
    y = torch.arange(num_rows, device=DEVICE)
    results = []
    for leaf, rows, impl in ((z, y, "triton"), (z[-2:].double(), y[-2:], "torch")):
        loss = entmax15_loss(leaf.requires_grad_(), rows, reduction="none", impl=impl)
        results.append((loss[-2:], torch.autograd.grad(loss.sum(), leaf)[0][-2:]))
    return checked(*results)


def checked(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> dict[str, Any]:
    errors = [error(*pair) for pair in zip(actual, expected)]
    return {"errors": errors, "verdict": "right" if max(errors) < TOLERANCE[DTYPE] else "WRONG"}


def error(actual: Tensor, expected: Tensor) -> float:
    return float(((actual.double() - expected).norm() / expected.norm()).detach())
