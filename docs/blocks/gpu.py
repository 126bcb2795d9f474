"""What the Triton kernels were checked for."""

from __future__ import annotations

from ._blocks import block, read


@block
def attention_kernels() -> str:
    """What flash entmax was checked for, with the relative errors found."""
    result = read("docs/gpu.json")
    columns = {"out": "output", **{name: f"d {name}" for name in ("q", "k", "v", "alpha", "sinks")}}
    lines = [f"| attention | {' | '.join(columns.values())} |", "|---" * (1 + len(columns)) + "|"]
    for name, errors in result["cases"].items():
        cells = [f"{errors[column]:.0e}" if column in errors else "" for column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", f"Relative errors against float64, on {result['device']}, triton {result['triton']}."]
    return "\n".join(lines)
