"""Tables of benchmarks/README.md."""

from __future__ import annotations

from typing import Any

from recipes.lib import markdown
from recipes.lib.blocks import block, read


@block
def speed() -> str:
    """With an allocator that keeps its blocks."""
    return _ratios("warm-wall")


@block
def speed_parts() -> str:
    """Where the time of the missed targets goes, with an allocator that keeps its blocks."""
    return _parts("warm-wall")


@block
def speed_cold_parts() -> str:
    """The same with the default allocator."""
    return _parts("cold-wall")


@block
def speed_cold() -> str:
    """With the default allocator, where every fresh large block costs page faults."""
    return _ratios("cold-wall")


@block
def speed_attention() -> str:
    """Every candidate of the cases of attention, in CPU time."""
    return "\n".join([_candidates("attention-cpu"), "", _parts("attention-cpu")])


@block
def speed_density() -> str:
    """Losses and maps: the worst ratio over all shares of a row in the support, in CPU time."""
    return _worst("density-warm-cpu")


@block
def speed_density_avx2() -> str:
    """The same on an AMD processor of the third generation, without AVX-512."""
    return _worst("density-avx2-cpu")


@block
def speed_density_intel() -> str:
    """The same on an Intel processor, by an earlier kernel."""
    return _worst("density-intel-cpu")


@block
def speed_powers() -> str:
    """Maps at four alphas, in CPU time: every candidate, and the missed targets taken apart."""
    return "\n".join([_candidates("powers-warm-cpu"), "", _parts("powers-warm-cpu")])


@block
def speed_every() -> str:
    """Every map on scores of attention, in CPU time: a row for each map, a column for each case."""
    return _across("every-warm-cpu", "attention map, ")


@block
def speed_log_probabilities() -> str:
    """Log-probabilities with their gradient, in CPU time."""
    return _across("every-warm-cpu", "log-probabilities, forward + backward, ")


def _across(name: str, start: str) -> str:
    """The ratios of the cases that begin so: a row for each candidate, a column for each case."""
    result = read(f"benchmarks/results/{name}.json")
    ratios: dict[str, dict[str, float]] = {}
    for row in result["rows"]:
        if row["case"].startswith(start) and row["candidate"] != row["baseline"]:
            ratios.setdefault(row["candidate"], {})[row["case"].removeprefix(start)] = row["ratio"]
    rows = [[each, *(f"{ratio:.2f}" for ratio in own.values())] for each, own in ratios.items()]
    return f"{markdown.table(['', *next(iter(ratios.values()))], rows)}\n\n{_conditions(result)}"


def _worst(name: str) -> str:
    """The worst ratio over all shares of a row in the support."""
    result = read(f"benchmarks/results/{name}.json")
    worst: dict[tuple[str, ...], dict[str, tuple[float, str, str]]] = {}
    for row in result["rows"]:
        if row["candidate"] != row["baseline"]:
            what, alpha, share, dtype = row["case"].rsplit(", ", 3)
            of_case = worst.setdefault((what, alpha.removeprefix("alpha "), dtype, row["baseline"]), {})
            found = (row["ratio"], share.removesuffix(" in the support"), row["verdict"])
            of_case[row["candidate"]] = max(found, of_case.get(row["candidate"], found))
    columns = ["case", "alpha", "dtype", "to", "torch, worst ratio", "", "C++, worst ratio", ""]
    rows = []
    for case, candidates in worst.items():
        row = list(case)
        for ratio, share, verdict in candidates.values():
            row += [f"{ratio:.2f} at {share}", verdict]
        rows.append(row)
    return f"{markdown.table(columns, rows)}\n\n{_conditions(result)}"


@block
def speed_sizes() -> str:
    """Losses of few classes and of many, in CPU time."""
    return _worst("sizes-warm-cpu")


@block
def speed_options() -> str:
    """Losses of targets beside classes, in CPU time: the ratio of each to cross-entropy of the same targets."""
    return _side_by_side("options-warm-cpu")


@block
def speed_models() -> str:
    """Whole models, in CPU time: the ratio of each sparse one to the same model with softmax."""
    return _side_by_side("models-cold-cpu")


@block
def speed_models_torch() -> str:
    """The same where there is no C++ kernel."""
    return _side_by_side("models-cold-cpu-torch")


def _side_by_side(name: str) -> str:
    """A row for each case, with the ratios of its candidates."""
    result = read(f"benchmarks/results/{name}.json")
    ratios: dict[str, dict[str, float]] = {}
    for row in result["rows"]:
        if row["candidate"] != row["baseline"]:
            ratios.setdefault(row["case"], {})[row["candidate"]] = row["ratio"]
    rows = [[case, *(f"{each:.2f}" for each in own.values())] for case, own in ratios.items()]
    return f"{markdown.table(['case', *next(iter(ratios.values()))], rows)}\n\n{_conditions(result)}"


@block
def speed_cache() -> str:
    """A decoding step of attention over a cache, in CPU time."""
    return _candidates("cache-warm-cpu")


@block
def speed_learned() -> str:
    """Maps with learned alphas, in CPU time."""
    return _candidates("learned-warm-cpu")


@block
def speed_head() -> str:
    """Decoding with a head that is screened, in CPU time."""
    return _candidates("head-warm-cpu")


@block
def speed_linear() -> str:
    """Fused losses on a CPU with AMX, in CPU time."""
    return _candidates("linear-warm-cpu")


def _candidates(name: str) -> str:
    """Every candidate's ratio, with a target or without."""
    result = read(f"benchmarks/results/{name}.json")
    rows = []
    for row in result["rows"]:
        if row["candidate"] != row["baseline"] and not row.get("part"):
            target = f"{row['target']:.3g}" if "target" in row else ""
            ratio = [row["case"], row["candidate"], f"{row['ratio']:.2f}", row["baseline"]]
            rows.append([*ratio, target, row.get("verdict", "")])
    return f"{markdown.table(['case', 'candidate', 'ratio', 'to', 'target', ''], rows)}\n\n{_conditions(result)}"


def _ratios(name: str) -> str:
    """Every measured ratio that has a target, whether it was met, and the floor of that case."""
    result = read(f"benchmarks/results/{name}.json")
    measured = result["rows"]
    floors = {row["case"]: f"{row['ratio']:.2f}" for row in measured if row["candidate"].startswith("floor")}
    rows = []
    for row in measured:
        if "target" in row:
            ratio = [row["case"], row["candidate"], f"{row['ratio']:.2f}", row["baseline"]]
            rows.append([*ratio, f"{row['target']:.3g}", row["verdict"], floors.get(row["case"], "")])
    columns = ["case", "candidate", "ratio", "to", "target", "", "floor"]
    return f"{markdown.table(columns, rows)}\n\n{_conditions(result)}"


def _conditions(result: dict[str, Any]) -> str:
    """The machine and the state it was in."""
    machine, rows = result["machine"], result["rows"]
    clock = "wall-clock time" if machine["clock"] == "wall" else "CPU time of one thread"
    disturbed, rounds = (sum(row[key] for row in rows) for key in ("disturbed", "rounds"))
    kernel = "" if machine.get("kernel", True) else "no kernel, "
    return (
        f"{machine['cpu']} ({machine['capability']}), {machine['cores']} cores, {kernel}{clock}, "
        f"{machine['allocator']} allocator, load {machine['load']:.1f} at the start, {disturbed / rounds:.0%} of the "
        f"rounds disturbed by other processes; torch {machine['torch']}, commit {machine['commit']}."
    )


def _parts(name: str) -> str:
    """The missed targets, each with the pieces of it that were timed alone in the same rounds, and what they leave."""
    measured = read(f"benchmarks/results/{name}.json")["rows"]
    parts: dict[tuple[str, str], dict[str, float]] = {}
    for row in measured:
        if row.get("part"):
            parts.setdefault((row["case"], row["candidate"]), {})[row["part"]] = row["ratio"]
    missed = [row for row in measured if row.get("verdict") == "MISSED"]
    if not missed:
        return "No target is missed."
    rows = []
    for row in missed:
        own = parts.get((row["case"], row["candidate"]), {})
        pieces = ", ".join(f"{part} {ratio:.2f}" for part, ratio in own.items()) or "not taken apart"
        rest = f"{row['ratio'] - sum(own.values()):.2f}" if own else ""
        rows.append([row["case"], row["candidate"], f"{row['ratio']:.2f}", f"{row['target']:.3g}", pieces, rest])
    return markdown.table(["case", "candidate", "ratio", "target", "of which", "rest"], rows)
