"""Rows of scores, as long as a vocabulary: thresholds, weights and their derivatives.

A row is read in blocks. The first pass keeps each block's largest score, its peak. The threshold of the peaks alone is
a lower bound of the row's threshold, and a block whose peak lies below a lower bound holds no support: from then on
only the few blocks that can hold some are read again.

With ``x = (alpha - 1) (z - base)`` a row's weights are ``[x + shift]_+^P / mass``: for entmax ``base`` is the row's
maximum and ``shift = -tau``; for alpha-ReLU, whose threshold is given, ``base = 0`` and ``mass = 1``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ._newton import rise, slope_power


@triton.jit
def row_scores(Z, block, length, BLOCK: tl.constexpr):
    """One block of the row at Z in float32, ``-inf`` beyond its end."""
    entry = block * BLOCK + tl.arange(0, BLOCK)
    return tl.load(Z + entry, mask=entry < length, other=float("-inf")).to(tl.float32)


@triton.jit(do_not_specialize=["num_blocks"])
def solve_rows(
    Z, CONJUGATE, SOLUTION, PEAKS, COUNT, stride, length, num_blocks, alpha, exponent, tau, tolerance, max_steps,
    EXPONENT: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """One row per program: its peaks, its solution ``(base, shift, mass)``, its conjugate and the size of its support.

    The conjugate is ``Omega*(z) - max z`` for entmax. With ``rise = 1 + tau`` it is
    ``rise / (alpha - 1) + (sum p (u - 1) + mass - 1) / alpha``: the dual objective, stationary in tau, so Newton's
    remaining error enters squared. For alpha-ReLU it is ``sum u^(P + 1)``. A row with a NaN or an infinity counts as
    one entry. Without ``tau`` rows are those of entmax.
    """
    row = tl.program_id(0).to(tl.int64)
    Z += row * stride
    PEAKS += row * num_blocks
    scale = alpha - 1
    top = float("-inf")
    strange = tl.zeros((BLOCK,), tl.int32)
    for block in range(num_blocks):
        z = row_scores(Z, block, length, BLOCK)
        strange = strange | (~(z < float("inf"))).to(tl.int32)
        peak = tl.max(z, 0)
        tl.store(PEAKS + block, peak)
        top = tl.maximum(top, peak)
    is_strange = tl.max(strange, 0) > 0  # a NaN or an infinity: the row becomes NaN, alone
    tl.debug_barrier()

    if tau is None:
        base = tl.where((top > float("-inf")) & (top < float("inf")), top, 0.0)
        index = tl.arange(0, BLOCKS)
        peaks = tl.load(PEAKS + index, mask=index < num_blocks, other=float("-inf"))
        risen = 0.0
        shift = 1.0
        for _ in range(8):
            u = tl.maximum((peaks - base) * scale + shift, 0.0)
            slopes = slope_power(u, exponent, EXPONENT)
            step = rise(tl.sum(slopes * u, 0), tl.sum(slopes, 0), alpha, EXPONENT)
            risen += step
            shift -= step
    else:
        base = 0.0
        risen = 0.0
        shift = -tau

    mass = 0.0
    powers = 0.0
    count = tl.where(is_strange, 1, 0)
    step = 0.0
    num_steps = 0
    going = not is_strange
    while going:
        mass = 0.0
        powers = 0.0
        slope = 0.0
        count = 0
        # Kept apart, each to its own precision: V equal scores end at a shift of 1/V.
        risen += step
        shift -= step
        for block in range(num_blocks):
            if (tl.load(PEAKS + block) - base) * scale + shift > 0:
                u = tl.maximum((row_scores(Z, block, length, BLOCK) - base) * scale + shift, 0.0)
                slopes = slope_power(u, exponent, EXPONENT)
                mass += tl.sum(slopes * u, 0)
                slope += tl.sum(slopes, 0)
                if COUNT is not None:
                    count += tl.sum((u > 0).to(tl.int32), 0)
                if tau is None:
                    powers += tl.sum(slopes * u * (u - 1), 0)
                else:
                    powers += tl.sum(slopes * u * u, 0)
        step = rise(mass, slope, alpha, EXPONENT)
        num_steps += 1
        going = (tau is None) and (mass > 1 + tolerance) and (shift - step < shift) and (num_steps < max_steps)

    if tau is None:
        conjugate = risen / scale + (powers + (mass - 1)) / alpha
        mass = tl.where(mass > 0, mass, 1.0)
    else:
        conjugate = powers
        mass = 1.0
    tl.store(CONJUGATE + row, tl.where(is_strange, float("nan"), conjugate))
    tl.store(SOLUTION + row * 3, base)
    tl.store(SOLUTION + row * 3 + 1, shift)
    tl.store(SOLUTION + row * 3 + 2, tl.where(is_strange, float("nan"), mass))
    if COUNT is not None:
        tl.store(COUNT + row, count)


@triton.jit(do_not_specialize=["num_blocks"])
def write_weights(
    Z, SOLUTION, PEAKS, TARGET, GRAD, OUT, stride, length, num_blocks, alpha, exponent,
    EXPONENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One block per program: the weights p, or ``grad (p - y)`` for a class target y, or ``grad p`` without one."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    base = tl.load(SOLUTION + row * 3)
    shift = tl.load(SOLUTION + row * 3 + 1)
    mass = tl.load(SOLUTION + row * 3 + 2)
    entry = block * BLOCK + tl.arange(0, BLOCK)
    p = tl.zeros((BLOCK,), tl.float32)
    if (tl.load(PEAKS + row * num_blocks + block) - base) * (alpha - 1) + shift > 0:
        u = tl.maximum((row_scores(Z + row * stride, block, length, BLOCK) - base) * (alpha - 1) + shift, 0.0)
        p = slope_power(u, exponent, EXPONENT) * u
    p = p / mass
    if TARGET is not None:
        p = tl.where(entry == tl.load(TARGET + row), p - 1, p)
    if GRAD is not None:
        grad = tl.load(GRAD + row)
        # A row that does not count may hold a NaN, which must not come back as 0 * NaN.
        p = tl.where(grad == 0, 0.0, p * grad)
    tl.store(OUT + row * length + entry, p.to(OUT.dtype.element_ty), mask=entry < length)


@triton.jit(do_not_specialize=["num_blocks"])
def multiply_by_jacobian(P, GRAD, OUT, length, num_blocks, alpha, BLOCK: tl.constexpr):
    """One row per program: ``s (g - mean_s g)``, ``s = p^(2 - alpha)``. Where a block of p is zero, g is not read."""
    row = tl.program_id(0).to(tl.int64)
    P += row * length
    GRAD += row * length
    OUT += row * length
    entries = tl.arange(0, BLOCK)
    total = 0.0
    weighted = 0.0
    for block in range(num_blocks):
        entry = block * BLOCK + entries
        p = tl.load(P + entry, mask=entry < length, other=0.0).to(tl.float32)
        if tl.max((p != 0).to(tl.int32), 0) > 0:
            s = tl.where(p > 0, tl.exp2((2 - alpha) * tl.log2(tl.where(p > 0, p, 1.0))), p)
            # Off the support g may be anything, even infinite: it must not enter the mean.
            g = tl.load(GRAD + entry, mask=p != 0, other=0.0).to(tl.float32)
            total += tl.sum(s, 0)
            weighted += tl.sum(s * g, 0)
    mean = weighted / tl.where(total == 0, 1.0, total)
    for block in range(num_blocks):
        entry = block * BLOCK + entries
        p = tl.load(P + entry, mask=entry < length, other=0.0).to(tl.float32)
        product = tl.zeros((BLOCK,), tl.float32)
        if tl.max((p != 0).to(tl.int32), 0) > 0:
            s = tl.where(p > 0, tl.exp2((2 - alpha) * tl.log2(tl.where(p > 0, p, 1.0))), p)
            g = tl.load(GRAD + entry, mask=p != 0, other=0.0).to(tl.float32)
            product = tl.where(p != 0, s * (g - mean), 0.0)
        tl.store(OUT + entry, product.to(OUT.dtype.element_ty), mask=entry < length)
