"""Report of the support-distillation recipe: the students beside the bytes they learned from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from hf_sparse.generation.labels import percent

from ..lib import markdown
from ..lib.blocks import block, read
from ..lib.environment import origin
from ..lib.records import Record
from ..lib.seeds import by_run

RESULT, SMOLLM2 = (f"recipes/support_distillation/results/{name}.json" for name in ("supports", "smollm2"))
TITLES = {
    "": "teacher",
    "labels": "labels alone",
    "full": "the full distribution",
    "support": "its calibrated support, `store_supports`",
    "top-k": "its {count} likeliest classes, renormalized",
    "sampled": "{count} draws from it with replacement (RS-KD)",
    "draws": "an unbiased estimate of it, `store_supports(draws={count})`",
}
MARKERS = {"support": "s", "top-k": "v", "sampled": "o", "draws": "D"}
HEADS = ("entmax15", "softmax")  # of the students
COST, SHARE = 0.01, 0.01  # of eps-perplexity and bytes: the aim


def report(results: dict[str, Any], out: Path) -> None:
    """Print the table and the verdict, and draw what the bytes bought."""
    print("\n".join([_table(results["runs"]), "", *_verdicts(results["runs"])]))
    draw(results["runs"], out / "support_distillation.png")


def draw(runs: Sequence[Record], path: Path) -> None:
    """Draw how far students of each store are behind one of the whole distribution, over bytes; a panel a teacher."""
    groups = by_run(runs)
    teachers = [group for group in groups.values() if not group[0]["settings"]["store"]]
    figure = Figure(figsize=(4.2 * len(teachers) + 0.6, 4.2), layout="constrained")
    panels = figure.subplots(1, len(teachers), squeeze=False, sharex=True, sharey=True)[0]
    for axes, teacher in zip(panels, teachers):
        whole = _mean(teacher, "bytes")
        for number, (kind, marker) in enumerate(MARKERS.items()):
            for head in HEADS:
                of_kind = {"store": kind, "head": head, "source": teacher[0]["settings"].get("source", "")}
                points = [
                    (100 * _mean(group, "bytes") / whole, 100 * (fmean(ratios) - 1))
                    for group in _all_like(groups, {**of_kind, "teacher_weight": 1.0})
                    if (full := _full_of(group[0]["settings"], groups)) and (ratios := _ratios(group, full))
                ]
                shares, changes = zip(*points) if points else ((), ())
                label = f"{TITLES[kind].format(count='K')}; {head}".replace("`", "")
                filled = f"C{number}" if head == HEADS[0] else "none"
                axes.scatter(shares, changes, marker=marker, edgecolor=f"C{number}", facecolor=filled, label=label)
        axes.axhline(100 * COST, color="grey", linewidth=0.8, linestyle="dashed")
        axes.axvline(100 * SHARE, color="grey", linewidth=0.8, linestyle="dashed")
        axes.set(xscale="log", xlabel="bytes a token, of those of the whole distribution")
        axes.set_yscale("symlog", linthresh=1)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}%")
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:+g}%" if value else "0")
        axes.set_title(f"teacher of {teacher[0]['figures']['vocabulary']:,} classes", fontsize="medium")
        axes.grid(alpha=0.3)
        axes.margins(0.1)
    panels[0].set_ylabel("eps-perplexity, against the whole distribution")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="x-small")
    figure.savefig(path, dpi=110)


@block
def support_distillation() -> str:
    """The students, what they learned from, and the bytes of it."""
    return _table(read(RESULT)["runs"])


@block
def support_distillation_verdict() -> str:
    """Whether the aim was met."""
    return "\n".join(_verdicts(read(RESULT)["runs"]))


@block
def support_distillation_origin() -> str:
    """Origin of the figures."""
    return origin(read(RESULT)["runs"])


@block
def support_distillation_smollm2() -> str:
    """The same for a pretrained teacher, and its verdicts."""
    runs = read(SMOLLM2)["runs"]
    return "\n".join([_table(runs), "", *_verdicts(runs), "", origin(runs)])


def _mean(records: Sequence[Record], name: str) -> float:
    return fmean(record["figures"][name] for record in records)


def _table(runs: Sequence[Record]) -> str:
    columns = [
        "learned from", "head", "seeds", "eps-perplexity", "against full", "accuracy", "right token impossible",
        "bytes a token", "teacher in memory",
    ]  # fmt: skip
    rows = []
    groups = by_run(runs)
    for records in groups.values():
        settings = records[0]["settings"]
        store, head = settings["store"], settings["head"] if settings["store"] else "softmax"
        perplexity = [f"{math.exp(_mean(records, 'eps_loss')):.1f}", _against(records, groups)]
        tokens = [f"{_mean(records, key):.1%}" for key in ("accuracy", "missed")]
        in_memory = "yes" if store == "full" else "-" if store in ("", "labels") else "no"
        student = [_title(settings), head, str(len(records))]
        rows.append([*student, *perplexity, *tokens, _stored(records, groups), in_memory])
    return markdown.table(columns, rows)


def _title(settings: dict[str, Any]) -> str:
    """What a student learned from."""
    labels = ", and labels" if settings["teacher_weight"] < 1 else ""
    return TITLES[settings["store"]].format(count=settings["count"]) + labels


def _against(records: Sequence[Record], groups: dict[str, list[Record]]) -> str:
    """The change of eps-perplexity from the student with the same head that saw the full distribution."""
    settings = records[0]["settings"]
    full = _full_of(settings, groups)
    if not settings["store"] or full is None or full[0]["run"] == records[0]["run"]:
        return "-"
    ratios = _ratios(records, full)
    if not ratios:
        return "-"
    spread = f" ({min(ratios) - 1:+.1%} to {max(ratios) - 1:+.1%})" if len(ratios) > 1 else ""
    return f"{fmean(ratios) - 1:+.1%}{spread}"


def _full_of(settings: dict[str, Any], groups: dict[str, list[Record]]) -> list[Record] | None:
    """The runs of the full distribution, for the same head and share of labels."""
    wanted = {"store": "full", "head": settings["head"], "teacher_weight": settings["teacher_weight"]}
    wanted["source"] = settings.get("source", "")
    return _like(groups, wanted)


def _teacher_of(settings: dict[str, Any], groups: dict[str, list[Record]]) -> list[Record]:
    """The runs of a student's teacher."""
    found = _like(groups, {"store": "", "source": settings.get("source", "")})
    assert found, "a student's teacher is run before it"
    return found


def _like(groups: dict[str, list[Record]], wanted: dict[str, Any]) -> list[Record] | None:
    """The first runs with these settings."""
    return next(iter(_all_like(groups, wanted)), None)


def _all_like(groups: dict[str, list[Record]], wanted: dict[str, Any]) -> list[list[Record]]:
    """All runs with these settings; older records have no source."""
    return [runs for runs in groups.values() if wanted.items() <= {"source": "", **runs[0]["settings"]}.items()]


def _ratios(records: Sequence[Record], full: Sequence[Record]) -> list[float]:
    """Eps-perplexities as multiples of those of the full distribution, of the seeds that both have."""
    losses = {record["settings"]["seed"]: record["figures"]["eps_loss"] for record in full}
    return [
        math.exp(record["figures"]["eps_loss"] - losses[record["settings"]["seed"]])
        for record in records
        if record["settings"]["seed"] in losses
    ]


def _stored(records: Sequence[Record], groups: dict[str, list[Record]]) -> str:
    """Bytes of what a student learns from for a token; of the whole distribution where that is made anew."""
    store = records[0]["settings"]["store"]
    if store in ("", "labels"):
        return "-"
    whole = _mean(_teacher_of(records[0]["settings"], groups), "bytes")
    size = whole if store == "full" else _mean(records, "bytes")
    return f"{size:,.0f} ({percent(size / whole, 1)})"


def _verdicts(runs: Sequence[Record]) -> list[str]:
    """For each store: whether the student is as good and the bytes are as few as was aimed at."""
    groups = by_run(runs)
    lines = [
        f"Aim: an eps-perplexity at most {COST:.0%} above that of the full distribution, at {SHARE:.0%} of its bytes."
        + _between_seeds(_like(groups, {"store": "full"}) or []),
        "",
    ]
    for name, records in groups.items():
        settings = records[0]["settings"]
        full = _full_of(settings, groups)
        if settings["store"] in ("", "labels", "full") or full is None or not (ratios := _ratios(records, full)):
            continue
        cost = fmean(ratios) - 1
        share = _mean(records, "bytes") / _mean(_teacher_of(settings, groups), "bytes")
        # Calibration reaches a mean number of classes on the rows it saw; what it keeps of others is a little off.
        met = cost <= COST and round(share, 3) <= SHARE
        change = _against(records, groups)
        lines.append(f"- `{name}`: {change} at {share:.2%} of the bytes, {'met' if met else 'missed'}.")
    return lines


def _between_seeds(full: Sequence[Record]) -> str:
    """How far seeds of the full distribution are apart, which no store can be expected to better."""
    if len(full) < 2:
        return ""
    losses = [record["figures"]["eps_loss"] for record in full]
    return f" Seeds of the full distribution are up to {math.expm1(max(losses) - min(losses)):.1%} apart."
