"""Compile the Triton kernels for GPUs that are not here: `python -m tests.kernels.ahead_of_time [--all]`.

Run in a process of its own: under TRITON_INTERPRET=1, which other tests set, there is nothing to compile.
"""

from __future__ import annotations

import itertools
import os
import sys
import time

# The cache would hide that nothing was compiled.
os.environ["TRITON_ALWAYS_COMPILE"] = "1"

import torch
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hf_sparse.kernels._triton_attention import shared_memory_needed
from hf_sparse.kernels.gpu import _attention_backward as back
from hf_sparse.kernels.gpu import _attention_forward as front
from hf_sparse.kernels.gpu import _decode as decode
from hf_sparse.kernels.gpu import _row_kernels as rows
from hf_sparse.kernels.gpu import _support as support
from hf_sparse.kernels.gpu._attention import tiles_for

ARCHITECTURES = (80, 90, 100)
TORCH = {"bf16": torch.bfloat16, "fp32": torch.float32}
# Arguments by name: capitals are pointers, to the tensors' own dtype unless it is given here; the others are int32.
DTYPES = {
    **dict.fromkeys(("P", "SCORES", "PARTS", "TAU", "DELTA", "DALPHA", "ALPHA", "SINKS"), "fp32"),
    **dict.fromkeys(("PEAKS", "SOLUTION", "CONJUGATE", "GRAD", "VALUE"), "fp32"),
    **dict.fromkeys(("LIST", "COUNT", "ROW", "COLUMN"), "i32"),
    **dict.fromkeys(("LIVE", "MASK"), "i8"),
    **dict.fromkeys(("TARGET", "START", "INDEX"), "i64"),
}
FLOATS = {"alpha", "exponent", "tau", "tolerance", "scaling", "softcap", "factor", "lowest"}


def row_variants():
    for dtype, exponent in (("bf16", 2), ("fp32", 0)):
        shape = {"EXPONENT": exponent, "BLOCK": 1024}
        yield rows.solve_rows, dtype, shape | {"SOLVE": True, "COUNTING": True, "BLOCKS": 256}
        yield support.list_rows, dtype, shape | {"CAPPED": exponent == 0}
        yield rows.write_rows, dtype, shape | {"HAS_TARGET": exponent == 2, "HAS_GRAD": exponent == 2}
    yield (
        rows.solve_rows,
        "fp16",
        {"EXPONENT": 1, "BLOCK": 1024, "SOLVE": False, "COUNTING": False, "COUNT": None, "BLOCKS": 64},
    )
    yield support.sum_rows, "bf16", {"ENTRIES": 8, "COLUMNS": 512, "STEPS": 32}
    yield rows.multiply_by_jacobian, "bf16", {"BLOCK": 1024}
    yield decode.multiply_keys, "bf16", {"GROUP": 16, "HEAD": 128, "KEYS": 64}
    yield decode.multiply_values, "bf16", {"GROUP": 16, "VALUE": 128, "KEYS": 64}


def attention_variants(head_dims: tuple[int, ...], dtypes: tuple[str, ...]):
    """Each kernel as it is launched for plain causal attention, and with everything that scores can have."""
    plain = {
        "KIND": (True, False, False, False, 0), "SINKING": False, "LEARNED": False, "EXPONENT": 2,
    }  # fmt: skip
    everything = {
        "KIND": (True, True, True, True, 1), "SINKING": True, "LEARNED": True, "EXPONENT": 0,
    }  # fmt: skip
    absent = {"BIAS": None, "MASK": None, "SINKS": None, "DALPHA": None}
    for dtype, head_dim in itertools.product(dtypes, head_dims):
        tiles = tiles_for(head_dim, head_dim, TORCH[dtype])
        sizes = {"QUERIES": tiles.queries, "KEYS": tiles.keys, "HEAD": head_dim, "VALUE": head_dim}
        for settings in (plain | absent, everything):
            for kernel in (front.attend, back.differentiate_queries, back.differentiate_keys):
                constants = settings | sizes
                yield kernel, dtype, {name: value for name, value in constants.items() if name in kernel.arg_names}


def compiled(kernel, dtype: str, constants: dict, architecture: int):
    """The kernel for one architecture; raises what the compiler raises."""

    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name.isupper():
            return f"*{DTYPES.get(name, dtype)}"
        return "fp32" if name in FLOATS else "i32"

    names = kernel.arg_names
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if kind(name).startswith("*")}
    source = ASTSource(
        fn=kernel,
        signature={name: kind(name) for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs=aligned,
    )
    return compile(source, target=GPUTarget("cuda", architecture, 32))


def main(arguments: list[str]) -> int:
    """Every variant for one architecture in turn; with ``--all`` more of them, each for all."""
    everything = arguments == ["--all"]
    attention = [*attention_variants(*(((64, 128, 256), tuple(TORCH)) if everything else ((64,), ("bf16",))))]
    if not everything:
        # The plain backward is a part of the one with everything.
        attention = [attention[0], *attention[3:]]
    for number, (kernel, dtype, constants) in enumerate([*row_variants(), *attention]):
        # Not the remainder by three, which would give each of the three attention kernels an architecture of its own.
        turn = (number + number // len(ARCHITECTURES)) % len(ARCHITECTURES)
        for architecture in ARCHITECTURES if everything else ARCHITECTURES[turn : turn + 1]:
            start = time.perf_counter()
            shared = compiled(kernel, dtype, constants, architecture).metadata.shared
            print(
                kernel.__name__, dtype, constants.get("HEAD", ""), f"sm_{architecture}", f"{shared} bytes shared",
                f"{time.perf_counter() - start:.1f} s", flush=True,
            )  # fmt: skip
            head_dim = constants.get("HEAD", constants.get("VALUE", 0))
            # Small GPUs are compiled for as an A100 is; what comes after it has more than it has.
            largest = (head_dim, TORCH.get(dtype, torch.float16)) if architecture == 80 else (256, torch.float32)
            allowed = shared_memory_needed(largest[0], largest[0], largest[1])
            if shared > allowed:
                print(f"{shared} bytes of shared memory a block are more than {allowed}")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
