"""What the Triton kernels are to reach on an H200, and whether the rows of a run say that they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A candidate takes at most ``limit`` times what the fastest of its baselines takes, in every case.

    Attributes:
        promise: in words.
        section: the rows' section.
        candidate: ours.
        baselines: the others; one of them suffices.
        limit: the largest ratio of milliseconds.
        density: of the live tiles, where the target is for one only.
    """

    promise: str
    section: str
    candidate: str
    baselines: tuple[str, ...]
    limit: float
    density: float | None = None

    def ratios(self, rows: list[Row]) -> dict[str, float]:
        """By case, what was reached."""
        mine = [row for row in rows if row["section"] == self.section and "ms" in row]
        found = {}
        for row in mine:
            if row["candidate"] == self.candidate and (self.density is None or row.get("density") == self.density):
                others = [r["ms"] for r in mine if r["case"] == row["case"] and r["candidate"] in self.baselines]
                if others:
                    found[row["case"]] = row["ms"] / min(others)
        return found


@dataclass(frozen=True)
class Growth:
    """The peak memory of a token grows at most ``limit`` times from the shortest sequence to the longest.

    Attributes:
        promise: in words.
        section: the rows' section.
        candidate: ours.
        lengths: of the shortest and of the longest.
        limit: for O(T) it is 1, for a matrix of scores it would be their ratio.
    """

    promise: str
    section: str
    candidate: str
    lengths: tuple[int, int]
    limit: float

    def ratios(self, rows: list[Row]) -> dict[str, float]:
        """By density, what was reached."""
        of_token = {
            (row["density"], row["length"]): row["peak_mb"] / row["tokens"]
            for row in rows
            if row["section"] == self.section and row["candidate"] == self.candidate and "peak_mb" in row
        }
        short, long = self.lengths
        return {
            f"density {density}": of_token[density, long] / of_token[density, short]
            for density, length in of_token
            if length == long and (density, short) in of_token
        }


ATTENTION = "attention, forward + backward"
TARGETS: tuple[Target | Growth, ...] = (
    Target("fused linear entmax15 loss, of fused cross-entropy", "fused linear loss, forward + backward",
           "linear entmax15 loss", ("liger", "linear_cross_entropy"), 0.5),
    Target("entmax15 loss of rows, of cross-entropy", "rows, forward + backward", "entmax15 loss",
           ("cross_entropy",), 0.5),
    Target("sparsemax loss of rows, of cross-entropy", "rows, forward + backward", "sparsemax loss",
           ("cross_entropy",), 0.5),
    *(Target(f"flash entmax15 at density {density}, of FlashAttention-2", ATTENTION, "flash entmax15",
             ("SDPA flash",), limit, density)
      for density, limit in ((1.0, 1.5), (0.5, 1.0), (0.25, 0.5))),
    *(Target(f"flash entmax15 at density {density}, of adasplash 2", ATTENTION, "flash entmax15",
             ("adasplash 2",), 1.0, density)
      for density in (1.0, 0.5, 0.25)),
    Growth("peak memory of a token in flash entmax15, 32k of 2k tokens", ATTENTION, "flash entmax15",
           (2048, 32_768), 1.5),
)  # fmt: skip


def verdicts(rows: list[Row]) -> list[Row]:
    """For every target the ratio reached in its worst case, and whether that is enough."""
    found = []
    for target in TARGETS:
        ratios = target.ratios(rows)
        row: Row = {"target": target.promise, "at most": target.limit}
        if ratios:
            worst = max(ratios, key=lambda case: ratios[case])
            verdict = "met" if ratios[worst] <= target.limit else "MISSED"
            row |= {"reached": ratios[worst], "worst case": worst, "cases": len(ratios), "verdict": verdict}
        else:
            row["verdict"] = "not measured"
        found.append(row)
    return found
