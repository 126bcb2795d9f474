"""Compile Triton kernels for GPUs that are not here: `python -m tests.kernels.ahead_of_time` prints one line a variant.

Run in a process of its own: under TRITON_INTERPRET=1, which other tests set, there is nothing to compile.
"""

from __future__ import annotations

import os
import sys

os.environ.pop("TRITON_INTERPRET", None)
# The cache would hide that nothing was compiled.
os.environ["TRITON_ALWAYS_COMPILE"] = "1"

from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hf_sparse.kernels.gpu import _row_kernels as rows

ARCHITECTURES = (80, 90, 100)
# Arguments that are not int32, by name; capitals are pointers.
DTYPES = {"PEAKS": "fp32", "SOLUTION": "fp32", "CONJUGATE": "fp32", "GRAD": "fp32", "TARGET": "i64"}
FLOATS = {"alpha", "exponent", "tau", "tolerance"}


def row_variants():
    for dtype, exponent in (("bf16", 2), ("fp32", 0)):
        shape = {"EXPONENT": exponent, "BLOCK": 1024}
        yield rows.solve_rows, dtype, shape | {"SOLVE": True, "BLOCKS": 256}
        yield rows.write_rows, dtype, shape | {"HAS_TARGET": exponent == 2, "HAS_GRAD": exponent == 2}
    yield rows.solve_rows, "fp16", {"EXPONENT": 1, "BLOCK": 1024, "SOLVE": False, "BLOCKS": 64}
    yield rows.multiply_by_jacobian, "bf16", {"BLOCK": 1024}


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


def main() -> int:
    for number, (kernel, dtype, constants) in enumerate(row_variants()):
        architecture = ARCHITECTURES[number % len(ARCHITECTURES)]
        binary = compiled(kernel, dtype, constants, architecture)
        print(kernel.__name__, dtype, architecture, f"spills {binary.asm['ptx'].count('.local')}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
