"""What the translation recipe reports: the comparison, the example, and the picture of both ways to attend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import hf_sparse


def report(results: dict[str, Any], out: Path) -> None:
    """Print the comparison and the example, and draw how both systems attend in that."""
    systems = [record for record in results["runs"] if "bleu" in record["figures"]]
    if systems:
        rows = systems[0]["figures"]["rows"]
        print(
            f"\n{rows['train']:,} pairs to train on, {rows['dev']:,} to tune penalties on, {rows['test']:,} to test "
            f"on; {rows['vocabulary']:,} subwords\n\n{comparison(systems)}"
        )
    example = next((record["figures"] for record in results["runs"] if record["run"] == "example"), None)
    if example:
        print(f"\n{example_text(example)}")
        for name, seen in example["attention"].items():
            path = out / f"attention_{name}.png"
            hf_sparse.plot_attention(
                torch.tensor(seen["weights"]), seen["keys"], seen["queries"], title=name, path=path
            )


def comparison(records: Sequence[dict[str, Any]]) -> str:
    """The comparison, one line a system; the model of a system with a penalty was trained by that without."""
    lines = ["system                 BLEU   chrF    REP   DROP   tokens/step   tokens attended   training   decoding"]
    for record in records:
        row, seed = record["figures"], record["settings"]["seed"]
        name = f"{record['run']}, {seed}" if seed else record["run"]
        training = f"{row['training_seconds']:.0f}s" if "training_seconds" in row else ""
        lines.append(
            f"{name:<21}{row['bleu']:>6.2f} {row['chrf']:>6.2f} {row['rep']:>6.2f} {row['drop']:>6.2f} "
            f"{row['attended_at_a_step']:>13.2f} {row['attended_share']:>17.1%} {training:>10} "
            f"{row['decoding_seconds']:>9.0f}s"
        )
    return "\n".join(lines)


def example_text(example: dict[str, Any]) -> str:
    """The example as text."""
    lines = [f"source      {example['source']}", f"reference   {example['reference']}"]
    return "\n".join([*lines, *(f"{name:<11} {text}" for name, text in example["translations"].items())])
