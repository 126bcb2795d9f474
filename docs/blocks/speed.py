"""What was measured by benchmarks/."""

from __future__ import annotations

from ._blocks import block, read


@block
def speed() -> str:
    """Every measured ratio that has a target, and where the target is missed."""
    result = read("benchmarks/results/warm-cpu.json")
    machine = result["machine"]
    lines = ["| case | candidate | ratio | to | target | |", "|---|---|---|---|---|---|"]
    for row in result["rows"]:
        if row["target"] is not None:
            lines.append(
                f"| {row['case']} | {row['candidate']} | {row['ratio']:.2f} | {row['baseline']} | {row['target']:g} | "
                f"{row['verdict']} |"
            )
    lines += [
        "",
        f"{machine['cpu']} ({machine['capability']}), CPU time of one thread on a shared machine (load "
        f"{machine['load']:.1f}), {machine['allocator']} allocator, commit {machine['commit']}.",
    ]
    return "\n".join(lines)
