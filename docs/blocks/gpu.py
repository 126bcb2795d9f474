"""Tables of docs/gpu.md: checks of the Triton kernels, the backends of attention, the benchmark."""

from __future__ import annotations

from typing import Any

from recipes.lib import markdown
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
    rows = [[call, *("yes" if by[name] else "" for name in names)] for call, by in served.items()]
    return markdown.table(["attention", *names], rows)


@block
def linear_kernels() -> str:
    """Relative errors of the fused losses, by the cases checked."""
    result = read("docs/gpu.json")
    gradients = {name: f"d {name}" for name in ("hidden", "weight", "bias")}
    return _errors("loss of a linear layer", {"loss": "loss", **gradients}, result["linear"], result)


def _errors(title: str, columns: dict[str, str], cases: dict[str, dict[str, float]], result: dict[str, Any]) -> str:
    rows = [
        [name, *(f"{errors[column]:.0e}" if column in errors else "" for column in columns)]
        for name, errors in cases.items()
    ]
    return (
        f"{markdown.table([title, *columns.values()], rows)}\n\n"
        f"Relative errors against float64, on {result['device']}, triton {result['triton']}."
    )


@block
def gpu_targets() -> str:
    """What the benchmark was to reach, and what it did in its worst case."""
    rows = []
    for target in read("benchmarks/results/gpu.json")["targets"]:
        reached = f"{target['reached']:.2f}, {target['worst case']}" if "reached" in target else ""
        rows.append([target["target"], str(target["at most"]), reached, target["verdict"]])
    return markdown.table(["target", "at most", "reached, worst case", ""], rows)


@block
def gpu_benchmark() -> str:
    """Times of the benchmark, a table per section; first what its checks found, last where it ran."""
    result = read("benchmarks/results/gpu.json")
    checks = [row for row in result["rows"] if row["section"] == "check"]
    wrong = sum(row["verdict"] != "right" for row in checks)
    error = max(error for row in checks for error in row["errors"])
    lines = [f"{len(checks)} comparisons with float64, {wrong} of them wrong; largest relative error {error:.1e}."]
    for section in dict.fromkeys(row["section"] for row in result["rows"] if "ms" in row):
        lines += ["", _times(section, [row for row in result["rows"] if row["section"] == section])]
    reasons = {
        f"Not measured: {row['section']}, {row['candidate']} ({why})."
        for row in result["rows"]
        if (why := row.get("failed") or row.get("missing") or row.get("skipped"))
    }
    for reason in sorted(reasons):
        lines += ["", reason]
    machine = result["machine"]
    commits = sorted({row.get("commit") or machine["commit"] for row in result["rows"]})
    where = f"{machine['gpu']}, torch {machine['torch']}, triton {machine['triton']}, commit {', '.join(commits)}"
    return "\n".join([*lines, "", f"Milliseconds, the ratio to the first column, and peak memory. {where}."])


def _times(section: str, measured: list[dict[str, Any]]) -> str:
    """A row per case and a column per candidate that ran in some case."""
    names = list(dict.fromkeys(row["candidate"] for row in measured if "ms" in row))
    rows = []
    for case in dict.fromkeys(row["case"] for row in sorted(measured, key=lambda row: row.get("length", 0))):
        found = {row["candidate"]: row for row in measured if row["case"] == case and "ms" in row}
        rows.append([case, *(_time(found.get(name)) for name in names)])
    return markdown.table([section, *names], rows)


def _time(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    ratio = f" ({row['ratio']:.2f})" if "ratio" in row else ""
    memory = ""
    if "peak_mb" in row:
        memory = f", {row['peak_mb'] / 1024:.1f} GB" if row["peak_mb"] >= 1000 else f", {row['peak_mb']:.0f} MB"
    milliseconds = f"{row['ms']:.3g}" if row["ms"] < 1000 else f"{row['ms']:.0f}"
    return f"{milliseconds}{ratio}{memory}"
