"""Compile the Triton kernels for GPUs that are not here: `python -m tests.kernels.ahead_of_time [--all]`.

The launches are those of the package, with a stand-in for a GPU's driver. So what is compiled is what that GPU would
be given: the same variant, for the same alignments, strides and sizes of tiles.

Run in a process of its own: under TRITON_INTERPRET=1, which other tests set, there is nothing to compile.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

# The cache would hide that nothing was compiled.
os.environ["TRITON_ALWAYS_COMPILE"] = "1"

import torch
from triton import JITFunction, knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from hf_sparse.kernels import Listing
from hf_sparse.kernels._attention_operators import shared_memory_needed
from hf_sparse.kernels.gpu.attention import attention_backward, attention_forward
from hf_sparse.kernels.gpu.decode import decode_scores, decode_values
from hf_sparse.kernels.gpu.rows import row_jacobian_product, row_solutions, row_weights
from hf_sparse.kernels.gpu.scores import Scores
from hf_sparse.kernels.gpu.support import list_support, multiply

ARCHITECTURES = (80, 90, 100)
# Bytes of shared memory a block may have where it is not what ``shared_memory_needed`` says.
H100 = 227 * 1024
HEAD_DIMS = (16, 32, 64, 72, 80, 96, 128, 256)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ALPHA = {0: 1.4, 1: 2.0, 2: 1.5}  # by the exponent that chooses the variant


class Driver:
    """In place of a GPU's driver: it knows what to compile for, which is also the number of its device."""

    def __init__(self, architecture: int) -> None:
        self.architecture = architecture

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architecture, 32)

    def get_current_device(self) -> int:
        return self.architecture

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def launching(architecture: int, launched: Callable[[Any], None]) -> Iterator[None]:
    """Hand every kernel that is launched to ``launched``, compiled for an architecture, instead of running it."""

    def launch(kernel: JITFunction, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **options: launched(kernel.run(*args, grid=grid, warmup=True, **options))

    driver.set_active(Driver(architecture))
    with mock.patch.object(JITFunction, "__getitem__", launch):
        yield


# ---- What is launched ------------------------------------------------------------------------------------------


def rows(dtype: torch.dtype, exponent: int, length: int = 32_000) -> None:
    """A map and its derivative; the losses of entmax and of alpha-ReLU; a list of supports and a product."""
    alpha = ALPHA[exponent]
    given = alpha, 1 / (alpha - 1)
    z, target = torch.empty(2, length, dtype=dtype), torch.zeros(2, dtype=torch.int64)
    solved = row_solutions(z, *given, counting=True)
    row_weights(z, solved, *given)
    row_weights(z, row_solutions(z, *given, tau=0.0), *given, torch.empty(2), target)
    row_jacobian_product(z, z, alpha)
    listing = Listing.empty(8, 1, z.device)
    list_support(z, solved, listing, 0, 0, 8, *given, softcap=30.0 if exponent == 0 else None)
    table = torch.empty(length, 64, dtype=dtype)
    multiply(listing.row, listing.column, listing.value, table, 2, dtype)


def decoding(dtype: torch.dtype, head_dim: int, num_keys: int = 128, heads: int = 8, key_heads: int = 2) -> None:
    """One query over a cache."""
    q = torch.empty(1, heads, 1, head_dim, dtype=dtype)
    cache = torch.empty(1, key_heads, num_keys, head_dim, dtype=dtype)
    decode_values(decode_scores(q, cache, 0.1), cache)


def plain(dtype: torch.dtype, length: int) -> tuple[Scores, bool]:
    """1.5-entmax, causal."""
    return Scores(torch.full((4,), 1.5), 2, 0.1, causal=True), False


def with_everything(dtype: torch.dtype, length: int) -> tuple[Scores, bool]:
    """Any alpha, learned, and all that scores can have; the mask is added, as Transformers' are."""
    added = torch.zeros(1, 1, length, length, dtype=dtype).expand(1, 4, length, length)
    scores = Scores(torch.full((4,), 1.4), 0, 0.1, True, 8, 30.0, bias=added, mask=added, sinks=torch.zeros(4))
    return scores, True


def masked(dtype: torch.dtype, length: int) -> tuple[Scores, bool]:
    """Sparsemax with a boolean mask."""
    visible = torch.ones(1, 4, length, length, dtype=torch.bool)
    return Scores(torch.full((4,), 2.0), 1, 0.1, mask=visible), False


Kind = Callable[[torch.dtype, int], tuple[Scores, bool]]


def attention(dtype: torch.dtype, head_dim: int, kind: Kind, length: int = 128) -> None:
    """Attention and its derivative, of tensors laid out as Transformers' are."""
    q, k, v = (torch.empty(1, length, heads, head_dim, dtype=dtype).transpose(1, 2) for heads in (4, 2, 2))
    scores, learned = kind(dtype, length)
    out, tau, live = attention_forward(q, k, v, scores)
    attention_backward(torch.empty_like(out), q, k, v, tau, live, scores, learned)


Case = tuple[str, int, Callable[[], None]]


def attention_case(dtype: torch.dtype, head_dim: int, kind: Callable[..., Any]) -> Case:
    name = f"attention {kind.__name__.replace('_', ' ')}, {head_dim} of {dtype}"
    needed = shared_memory_needed(head_dim, head_dim, dtype)
    return name, needed, partial(attention, dtype, head_dim, kind)


def decoding_case(dtype: torch.dtype, head_dim: int) -> Case:
    needed = shared_memory_needed(head_dim, head_dim, dtype)
    return f"decode, {head_dim} of {dtype}", needed, partial(decoding, dtype, head_dim)


def rows_case(dtype: torch.dtype, exponent: int) -> Case:
    anywhere = shared_memory_needed(64, 64, torch.float16)
    return f"rows, alpha {ALPHA[exponent]}, {dtype}", anywhere, partial(rows, dtype, exponent)


def cases(every: bool) -> Iterator[Case]:
    """What is compiled, by name, with the bytes of shared memory that the smallest GPU has that is to run it."""
    half, single = torch.bfloat16, torch.float32
    if not every:
        yield rows_case(half, 2)
        yield rows_case(single, 0)
        yield decoding_case(half, 128)
        yield attention_case(half, 64, plain)
        yield attention_case(half, 64, masked)
        yield attention_case(single, 16, with_everything)
        return
    for dtype in DTYPES:
        for exponent in ALPHA:
            yield rows_case(dtype, exponent)
        for head_dim in HEAD_DIMS:
            yield decoding_case(dtype, head_dim)
            yield attention_case(dtype, head_dim, plain)
    for dtype in (half, single):
        yield attention_case(dtype, 64, masked)
        for head_dim in (64, 128, 256):
            yield attention_case(dtype, head_dim, with_everything)


# ---- What is found ---------------------------------------------------------------------------------------------


def usage(cubin: bytes) -> tuple[int, int]:
    """Registers a thread has, and bytes that it keeps elsewhere for want of more."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(re.findall(r"REG:(\d+)", listed)[0]), int(re.findall(r"STACK:(\d+)", listed)[0])


def narrow_products(ttir: str) -> list[str]:
    """Products of 32 bits of two numbers known only at run time, which large tensors would let overflow.

    Heads times a group, and a part times its tiles, number heads and tiles: those stay small.
    """
    constant = set(re.findall(r"(%\S+) = arith.constant", ttir)) | {"%group", "%tiles_each"}
    products = re.findall(r"arith.muli (%\S+), (%\S+) : (\S+)", ttir)
    return [f"{a} * {b}" for a, b, kind in products if "i64" not in kind and not constant & {a, b}]


def spent() -> float:
    """Seconds that processors have worked for this process and for its compilers."""
    return sum(os.times()[:4])


def compile_case(case: Case, architecture: int) -> list[str]:
    """Compile one case for an architecture, print what each kernel takes, and return what is wrong."""
    name, needed, launches = case
    allowed = needed if architecture == 80 else H100
    problems: list[str] = []
    seen, start = set(), spent()

    def launched(compiled: Any) -> None:
        nonlocal start
        kernel, shared = compiled.metadata.name, compiled.metadata.shared
        if id(compiled) in seen:
            return
        seen.add(id(compiled))
        registers, spilled = usage(compiled.asm["cubin"])
        print(
            f"sm_{architecture} {name}: {kernel}, {shared} bytes shared, {registers} registers, {spilled} spilled, "
            f"{spent() - start:.1f} s",
            flush=True,
        )
        if shared > allowed:
            problems.append(f"{kernel} takes {shared} bytes of shared memory, over {allowed}")
        if kernel == "find_thresholds" and "max.NaN.f32" not in compiled.asm["ptx"]:
            problems.append(f"{kernel} passes over a NaN")
        products = narrow_products(compiled.asm["ttir"])
        problems.extend(f"{kernel} computes {product} in 32 bits" for product in products)
        start = spent()

    with launching(architecture, launched):
        launches()
    return [f"sm_{architecture} {name}: {problem}" for problem in problems]


def variants(launches: Callable[[int], None], lengths: range) -> set[tuple[str, str]]:
    """The variants of kernels that the lengths lead to, by name and key; nothing is compiled."""
    found: set[tuple[str, str]] = set()
    with (
        mock.patch.object(JITFunction, "_do_compile", lambda kernel, key, *_: (kernel.fn.__name__, key)),
        launching(ARCHITECTURES[0], found.add),
    ):
        for length in lengths:
            launches(length)
    return found


def compiled_again() -> list[str]:
    """The kernels that are compiled again as sequences or rows grow longer.

    Multiples of 16 are a variant, other lengths one, and a length of one another. A mask is a multiple of 16 for
    lengths that are multiples of 4, too: that makes three. Row kernels are launched for two purposes, with larger
    blocks beyond 256 entries. What is compiled by 331 serves all that is longer, until rows have 16,384 entries.
    """
    dtype = torch.bfloat16
    growing: dict[str, tuple[Callable[[int], None], int]] = {
        "attention": (partial(attention, dtype, 64, plain), 2),
        "attention with everything": (partial(attention, dtype, 80, with_everything), 3),
        "decode": (partial(decoding, dtype, 64), 2),
        "rows": (partial(rows, dtype, 2), 8),
    }
    problems = []
    for name, (launches, most) in growing.items():
        few = variants(launches, range(2, 301))
        for kernel, count in Counter(kernel for kernel, _ in few).items():
            if count > most:
                problems.append(f"{name}: {kernel} is compiled {count} times for lengths of 2 to 300, over {most}")
        longer = variants(launches, range(301, 332))
        more = variants(launches, range(332, 3000, 89))
        problems += [f"{name}: {kernel} is compiled again for longer ones" for kernel, _ in more - longer - few]
        print(f"{name}: {len(few)} variants of {len({kernel for kernel, _ in few})} kernels, whatever the length")
    return problems


def main(arguments: list[str]) -> int:
    """Every case for one architecture in turn; with ``--all`` more of them, each for all."""
    every, start = arguments == ["--all"], spent()
    problems = compiled_again()
    for number, case in enumerate(cases(every)):
        turn = number % len(ARCHITECTURES)
        for architecture in ARCHITECTURES if every else ARCHITECTURES[turn : turn + 1]:
            problems += compile_case(case, architecture)
    print(f"{spent() - start:.0f} s of a processor", *problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
