"""Tables of docs/gpu.md: checks of the Triton kernels, the backends of attention, the smoke run of the benchmark."""

from __future__ import annotations

from typing import Any

from recipes.lib.blocks import block, read


@block
def attention_kernels() -> str:
    """Relative errors of flash entmax, by the cases checked."""
    result = read("docs/gpu.json")
    gradients = {name: f"d {name}" for name in ("q", "k", "v", "alpha", "sinks")}
    return _errors("attention", {"out": "output", **gradients}, result["cases"], result)


@block
def attention_backends() -> str:
    """The calls of attention that each backend serves."""
    served = read("docs/gpu.json")["backends"]
    names = list(next(iter(served.values())))
    lines = [f"| attention | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    lines += [f"| {call} | {' | '.join('yes' if by[name] else '' for name in names)} |" for call, by in served.items()]
    return "\n".join(lines)


@block
def linear_kernels() -> str:
    """Relative errors of the fused losses, by the cases checked."""
    result = read("docs/gpu.json")
    gradients = {name: f"d {name}" for name in ("hidden", "weight", "bias")}
    return _errors("loss of a linear layer", {"loss": "loss", **gradients}, result["linear"], result)


def _errors(title: str, columns: dict[str, str], cases: dict[str, dict[str, float]], result: dict[str, Any]) -> str:
    lines = [f"| {title} | {' | '.join(columns.values())} |", "|---" * (1 + len(columns)) + "|"]
    for name, errors in cases.items():
        cells = [f"{errors[column]:.0e}" if column in errors else "" for column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", f"Relative errors against float64, on {result['device']}, triton {result['triton']}."]
    return "\n".join(lines)


@block
def gpu_benchmark() -> str:
    """Outcomes of the benchmark's smoke run on a CPU, case by case."""
    result = read("docs/gpu_benchmark.json")
    lines = ["| section | case | candidate | outcome |", "|---|---|---|---|"]
    for row in result["rows"]:
        if "errors" in row:
            outcome = f"{row['verdict']}: {max(row['errors']):.0e}"
        else:
            outcome = row.get("missing") or row.get("failed") or row.get("skipped") or "ran"
        lines.append(f"| {row['section']} | {row['case']} | {row['candidate']} | {outcome} |")
    machine = result["machine"]
    lines += ["", f"GPU: {machine['gpu']}; torch {machine['torch']}, triton {machine['triton']}."]
    return "\n".join(lines)
