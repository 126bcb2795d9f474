"""Report of the length-generalisation recipe: accuracies, blocks of the README, model cards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ..lib import markdown
from ..lib.blocks import block, read
from ..lib.card import Card, Measure, alike
from ..lib.environment import origin
from ..lib.records import Figures, Record
from .pictures import by_seed, draw

RESULT, UNNORMALIZED = (
    f"recipes/length_generalisation/results/{name}.json" for name in ("copy_reverse_recall", "unnormalized")
)


def report(results: dict[str, Any], out: Path) -> None:
    """Print accuracies and draw them."""
    for (task, attention), at in by_seed(results["runs"], "exact").items():
        cells = "  ".join(f"{length}: {fmean(values):6.1%}" for length, values in at.items())
        print(f"{task:<8} {attention:<28} {cells}")
    draw(results["runs"], out / "length_generalisation.png")


def card(record: Record, records: Sequence[Record]) -> Card:
    """Model card of one run, compared with the other maps on the same task."""
    settings, figures = record["settings"], record["figures"]
    attention = settings["attention"]
    lengths = [entry["length"] for entry in figures["lengths"]]
    keys = figures["lengths"][0]["keys"]
    scaled = (
        " whose scores of attention are multiplied by a learned factor that grows with the number of keys, before "
        "entmax15 weighs them (after Vasylenko et al. 2025)"
    )
    return Card(
        name=f"length-generalisation-{record['run']}",
        title=f"A model trained to {settings['task']} at length {settings['longest']}, with {attention}",
        task="text-generation",
        what=f"A decoder of two layers and {figures['parameters']:,} parameters"
        f"{scaled if attention.startswith('adaptive') else f' with {attention} attention'}.",
        data=f"Made-up rows of the task {settings['task']}: lengths {settings['shortest']} to {settings['longest']} "
        f"in training, tested up to {lengths[-1]}; seed {settings['seed']}.",
        measures=tuple(Measure(f"right at {length}", f"tokens {length}", ".1%", "higher") for length in lengths)
        + tuple(Measure(f"loss at {length} (nats)", f"loss {length}", ".3f", "lower") for length in lengths[-1:]),
        rows={other["settings"]["attention"]: flat(other["figures"]) for other in alike(record, records, "attention")},
        own=attention,
        dense="softmax",
        limits="It knows symbols of a made-up task and no language. One run: another seed may differ by more than "
        "the maps do.",
        record=record,
        config=figures["maps"],
        support={"attention_support": keys[-1]} if keys else {},
    )


def flat(figures: Figures) -> dict[str, float]:
    """Accuracy and loss as one row, ``tokens 8`` for instance."""
    return {f"{key} {entry['length']}": entry[key] for entry in figures["lengths"] for key in ("tokens", "loss")}


@block
def length_accuracy() -> str:
    """Share of right answer tokens, by task, attention and length."""
    return _table("tokens", "{:.1%}", max)


@block
def length_unnormalized() -> str:
    """The same of maps whose weights need not sum to one."""
    return f"{_table('tokens', '{:.1%}', max, UNNORMALIZED)}\n\n{_origin_of(UNNORMALIZED)}"


@block
def length_loss() -> str:
    """Loss per answer token, by task, attention and length."""
    return _table("loss", "{:.3f}", min)


@block
def length_exact() -> str:
    """Share of rows without a mistake, by task, attention and length."""
    return _table("exact", "{:.0%}", max)


@block
def length_best() -> str:
    """Best attention of every task at 8 times the training length and at the end; and maps that did not learn."""
    lines, accuracies = [], _means("tokens")
    for task, by_attention in _means("loss").items():
        lengths = sorted(by_attention["softmax"])
        for length in (lengths[min(3, len(lengths) - 1)], lengths[-1]):
            accuracy = {name: at[length] for name, at in accuracies[task].items()}
            loss = {name: at[length] for name, at in by_attention.items()}
            best = min(loss, key=lambda name: loss[name])
            beside = "" if best == "softmax" else f", {best} {accuracy[best]:.1%} ({loss[best]:.3f})"
            lines.append(
                f"- {task}, {length // lengths[0]} times the training length: softmax {accuracy['softmax']:.1%} of "
                f"answer tokens right (loss {loss['softmax']:.3f}){beside or ', which is the lowest loss'}"
            )
        first = {name: at[lengths[0]] for name, at in accuracies[task].items()}
        lines += [
            f"- {task} was not learned by every seed of {name}: "
            f"{right:.1%} of answer tokens right at the training length"
            for name, right in first.items()
            if right < 0.95
        ]
    return "\n".join(lines)


@block
def length_keys() -> str:
    """Number of keys that the global layer attends to, and its learned settings, with the first seed."""
    runs = read(RESULT)["runs"]
    lengths = _lengths(runs)
    rows = []
    for run in runs:
        figures, settings = run["figures"], run["settings"]
        if settings["seed"] or settings["attention"] == "softmax":
            continue
        at = {entry["length"]: entry["keys"][-1] for entry in figures["lengths"]}
        cells = [f"{at[length]:.1f}" if length in at else "" for length in lengths]
        learned = ", ".join(
            f"{name} {' '.join(f'{v:.2f}' for v in by_layer[-1])}" for name, by_layer in figures["learned"].items()
        )
        rows.append([settings["task"], settings["attention"], *cells, learned or "-"])
    columns = ["task", "attention", *(f"keys at {length}" for length in lengths), "learned factor"]
    return markdown.table(columns, rows)


@block
def length_origin() -> str:
    """Data, training and origin of the figures."""
    return _origin_of(RESULT)


def _origin_of(result: str) -> str:
    runs = read(result)["runs"]
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


def _lengths(runs: Sequence[Record]) -> list[int]:
    return sorted({entry["length"] for run in runs for entry in run["figures"]["lengths"]})


def _means(measure: str, result: str = RESULT) -> dict[str, dict[str, dict[int, float]]]:
    """A measure by task, attention and length, averaged over seeds."""
    means: dict[str, dict[str, dict[int, float]]] = {}
    for (task, attention), at in by_seed(read(result)["runs"], measure).items():
        means.setdefault(task, {})[attention] = {length: fmean(seeds) for length, seeds in at.items()}
    return means


def _table(measure: str, form: str, best: Callable[[Iterable[float]], float], result: str = RESULT) -> str:
    runs = read(result)["runs"]
    lengths = _lengths(runs)
    trained = {run["settings"]["task"]: run["settings"]["longest"] for run in runs}
    rows = []
    for task, by_attention in _means(measure, result).items():
        for attention, at in by_attention.items():
            cells = []
            for length in lengths:
                rivals = [other[length] for other in by_attention.values() if length in other]
                text = form.format(at[length]) if length in at else ""
                first = len({form.format(rival) for rival in rivals}) > 1 and text == form.format(best(rivals))
                cells.append(f"**{text}**" if first else text)
            rows.append([f"{task}, {trained[task]}", attention, *cells])
    return markdown.table(["task, trained up to", "attention", *map(str, lengths)], rows)
