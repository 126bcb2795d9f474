"""The length-generalisation recipe."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from ._blocks import block, read
from ._cards import Card, Measure, cards
from ._studies import origin

RESULT = "recipes/results/length_generalisation.json"
ADAPTIVE = "adaptive-scalable entmax15"


@block
def length_accuracy() -> str:
    """The share of right answer tokens, by task, attention and length."""
    return _table("tokens", "{:.1%}", max)


@block
def length_loss() -> str:
    """The loss an answer token, by task, attention and length."""
    return _table("loss", "{:.3f}", min)


@block
def length_exact() -> str:
    """The share of rows without a mistake, by task, attention and length."""
    return _table("exact", "{:.0%}", max)


@block
def length_best() -> str:
    """The best attention of every task at 8 times the training length and at the end, and what was not learned."""
    lines = []
    for task, by_attention in _means("loss").items():
        lengths = sorted(by_attention["softmax"])
        for length in (lengths[min(3, len(lengths) - 1)], lengths[-1]):
            accuracy = {name: at[length] for name, at in _means("tokens")[task].items()}
            loss = {name: at[length] for name, at in by_attention.items()}
            best = min(loss, key=lambda name: loss[name])
            beside = "" if best == "softmax" else f", {best} {accuracy[best]:.1%} ({loss[best]:.3f})"
            lines.append(
                f"- {task}, {length // lengths[0]} times the training length: softmax {accuracy['softmax']:.1%} of "
                f"answer tokens right (loss {loss['softmax']:.3f}){beside or ', which is the lowest loss'}"
            )
        first = {name: at[lengths[0]] for name, at in _means("tokens")[task].items()}
        lines += [
            f"- {task} was not learned with {name}: {right:.1%} of answer tokens right at the training length"
            for name, right in first.items()
            if right < 0.5
        ]
    return "\n".join(lines)


@block
def length_keys() -> str:
    """How many keys the global layer attends to, and what its factor has become."""
    runs = read(RESULT)["runs"]
    lengths = _lengths(runs)
    lines = [
        f"| task | attention | {' | '.join(f'keys at {length}' for length in lengths)} | learned factor |",
        "|---" * (len(lengths) + 3) + "|",
    ]
    for run in runs:
        figures, settings = run["figures"], run["settings"]
        if settings["seed"] or settings["attention"] == "softmax":
            continue
        at = {entry["length"]: entry["keys"][-1] for entry in figures["lengths"]}
        cells = [f"{at[length]:.1f}" if length in at else "" for length in lengths]
        learned = ", ".join(
            f"{name} {' '.join(f'{v:.2f}' for v in by_layer[-1])}" for name, by_layer in figures["learned"].items()
        )
        lines.append(f"| {settings['task']} | {settings['attention']} | {' | '.join(cells)} | {learned or '-'} |")
    return "\n".join(lines)


@block
def length_origin() -> str:
    """What was trained, on what, in how much time."""
    runs = read(RESULT)["runs"]
    settings = {run["settings"]["task"]: run["settings"] for run in runs}
    seeds = {task: {run["settings"]["seed"] for run in runs if run["settings"]["task"] == task} for task in settings}
    trained = "; ".join(
        f"{task}: lengths {own['shortest']} to {own['longest']}, {own['steps']} steps of {own['batch_size']} rows, "
        f"mean of {len(seeds[task])} {'seeds' if len(seeds[task]) > 1 else 'seed'}"
        for task, own in settings.items()
    )
    return (
        f"{trained}. {runs[0]['figures']['parameters']:,} parameters; tested on "
        f"{runs[0]['settings']['test_rows']} rows of each length. Bold: the best of a task at that length. "
        f"{origin(runs)}"
    )


@cards
def adaptive_models() -> Iterator[Card]:
    """A card for each task, of adaptive-scalable entmax."""
    runs = [run for run in read(RESULT)["runs"] if run["settings"]["seed"] == 0]
    for task in dict.fromkeys(run["settings"]["task"] for run in runs):
        own = {run["settings"]["attention"]: run for run in runs if run["settings"]["task"] == task}
        rows = {name: _flat(run) for name, run in own.items()}
        settings = own[ADAPTIVE]["settings"]
        lengths = [settings["longest"] * multiple for multiple in settings["multiples"]]
        yield Card(
            name=f"length-{task}-adaptive-scalable-entmax15",
            title=f"A model trained to {task} at length {settings['longest']}, with adaptive-scalable entmax",
            task="text-generation",
            what=f"A decoder of two layers and {own[ADAPTIVE]['figures']['parameters']:,} parameters whose scores of "
            "attention are multiplied by a learned factor that grows with the number of keys, before entmax15 weighs "
            "them (after Vasylenko et al. 2025).",
            data=f"Made-up rows of the task {task}: lengths {settings['shortest']} to {settings['longest']} in "
            f"training, tested up to {lengths[-1]}; seed {settings['seed']}.",
            measures=tuple(Measure(f"right at {length}", f"tokens {length}", ".1%", "higher") for length in lengths)
            + tuple(Measure(f"loss at {length} (nats)", f"loss {length}", ".3f", "lower") for length in lengths[-1:]),
            rows=rows,
            own=ADAPTIVE,
            dense="softmax",
            command=f"python recipes/length_generalisation.py --only {own[ADAPTIVE]['run']}",
            weights=f"out/length_generalisation/runs/{own[ADAPTIVE]['run']}-0/model",
            limits="It knows symbols of a made-up task and no language. One run: another seed may differ by more than "
            "the maps do.",
            result=own[ADAPTIVE],
            config=own[ADAPTIVE]["figures"]["maps"],
            support={"attention_support": own[ADAPTIVE]["figures"]["lengths"][0]["keys"][-1]},
        )


def _flat(run: dict[str, Any]) -> dict[str, float]:
    return {
        f"{key} {entry['length']}": entry[key] for entry in run["figures"]["lengths"] for key in ("tokens", "loss")
    }


def _lengths(runs: list[dict[str, Any]]) -> list[int]:
    return sorted({entry["length"] for run in runs for entry in run["figures"]["lengths"]})


def _means(measure: str) -> dict[str, dict[str, dict[int, float]]]:
    """A measure by task, attention and length, the mean over seeds."""
    values: dict[str, dict[str, dict[int, list[float]]]] = {}
    for run in read(RESULT)["runs"]:
        at = values.setdefault(run["settings"]["task"], {}).setdefault(run["settings"]["attention"], {})
        for entry in run["figures"]["lengths"]:
            at.setdefault(entry["length"], []).append(entry[measure])
    return {
        task: {name: {length: fmean(seeds) for length, seeds in at.items()} for name, at in by_attention.items()}
        for task, by_attention in values.items()
    }


def _table(measure: str, form: str, best: Any) -> str:
    runs = read(RESULT)["runs"]
    lengths = _lengths(runs)
    trained = {run["settings"]["task"]: run["settings"]["longest"] for run in runs}
    lines = [
        f"| task, trained up to | attention | {' | '.join(map(str, lengths))} |",
        "|---" * (len(lengths) + 2) + "|",
    ]
    for task, by_attention in _means(measure).items():
        for attention, at in by_attention.items():
            cells = []
            for length in lengths:
                rivals = [other[length] for other in by_attention.values() if length in other]
                text = form.format(at[length]) if length in at else ""
                first = len({form.format(rival) for rival in rivals}) > 1 and text == form.format(best(rivals))
                cells.append(f"**{text}**" if first else text)
            lines.append(f"| {task}, {trained[task]} | {attention} | {' | '.join(cells)} |")
    return "\n".join(lines)
