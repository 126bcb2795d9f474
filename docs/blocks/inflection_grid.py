"""The inflection grid: alpha at the output and in attention, in several languages."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from ._blocks import block, read
from ._cards import Card, Measure, cards

MEDIUM, HIGH = "recipes/results/inflection_grid.json", "recipes/results/inflection_grid_high.json"
MEASURES = (
    Measure("accuracy", "accuracy", ".1%", "higher"),
    Measure("one form possible", "one_form", ".1%"),
    Measure("all possible forms seen", "all_forms_seen", ".1%"),
    Measure("certified by any proof", "certified", ".1%"),
    Measure("candidates a step", "head_support", ".2f"),
)


def trained(result: str = MEDIUM) -> dict[str, list[dict[str, Any]]]:
    """The records of every trained run, by name; one for each seed."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for record in read(result)["runs"]:
        if not record["settings"]["members"]:
            runs.setdefault(record["run"], []).append(record)
    return runs


def map_name(name: str) -> str:
    """A map of the settings, as the tables call it."""
    return {"": "softmax (1)", "entmax15": "entmax (1.5)", "sparsemax": "sparsemax (2)"}.get(name, name)


def grid(result: str) -> str:
    """The runs, with the accuracy of ensembles where they were made."""
    ensembles = {r["settings"]["members"]: r for r in read(result)["runs"] if r["settings"]["members"]}
    last = ["accuracy of the ensemble"] if ensembles else []
    heading = ["output", "attention", "seeds", *(measure.label for measure in MEASURES), *last]
    lines = [f"| {' | '.join(heading)} |", "|---" * len(heading) + "|"]
    for name, records in trained(result).items():
        settings = records[0]["settings"]
        means = {m.key: fmean(record["figures"][m.key] for record in records) for m in MEASURES}
        together = [f"{ensembles[name]['figures']['accuracy']:.1%}" if name in ensembles else ""] if ensembles else []
        cells = [map_name(settings["head"]), map_name(settings["attention"]), str(len(records))]
        lines.append(f"| {' | '.join([*cells, *(measure.text(means) for measure in MEASURES), *together])} |")
    return "\n".join(lines)


def languages(result: str) -> str:
    """Accuracy by language, the mean over seeds; and what was run."""
    runs = trained(result)
    names = list(next(iter(runs.values()))[0]["figures"]["accuracy_by_language"])
    lines = [f"| output | attention | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|"]
    for records in runs.values():
        settings = records[0]["settings"]
        cells = [
            f"{fmean(record['figures']['accuracy_by_language'][language] for record in records):.1%}"
            for language in names
        ]
        lines.append(f"| {map_name(settings['head'])} | {map_name(settings['attention'])} | {' | '.join(cells)} |")
    return f"{chr(10).join(lines)}\n\n{origin(result)}"


@block
def inflection_grid() -> str:
    """The grid with a thousand words a language."""
    return grid(MEDIUM)


@block
def inflection_languages() -> str:
    """The same by language."""
    return languages(MEDIUM)


@block
def inflection_grid_high() -> str:
    """The grid with ten thousand words a language."""
    return grid(HIGH)


@block
def inflection_languages_high() -> str:
    """The same by language."""
    return languages(HIGH)


def origin(result: str) -> str:
    """Settings and surroundings of the study."""
    record = next(iter(trained(result).values()))[0]
    settings, rows, versions = record["settings"], record["figures"]["rows"], record["versions"]
    everything = read(result)["runs"]
    commits = sorted({(record["commit"] or "unknown")[:10] for record in everything})
    return (
        f"SIGMORPHON 2018, `{settings['size']}`: {rows['train']:,} rows to train on, {rows['dev']} of the development "
        f"sets to evaluate on ({settings['dev_rows']} a language), {rows['vocabulary']} characters and tags; "
        f"{record['figures']['parameters']:,} parameters, {settings['steps']} steps of {settings['batch_size']} rows, "
        f"peak learning rate {settings['lr']:g}, {settings['beams']} beams. {len(everything)} runs, "
        f"{sum(record['cpu_seconds'] for record in everything) / 60:.0f} CPU minutes on one thread "
        f"({record['hardware']['device']}), torch {versions['torch']}, transformers {versions['transformers']}, "
        f"commits {', '.join(commits)}."
    )


@cards
def inflection_models() -> Iterator[Card]:
    """A card for every sparse model of both grids, of its first seed."""
    yield from cards_of(MEDIUM, "inflection-grid-", "")
    yield from cards_of(HIGH, "inflection-grid-high-", " --set size=high steps={steps}")


def cards_of(result: str, prefix: str, options: str) -> Iterator[Card]:
    """The cards of one grid, which the recipe runs with these options."""
    runs = {name: records[0] for name, records in trained(result).items()}
    for name, record in runs.items():
        settings, figures = record["settings"], record["figures"]
        if figures["config"] is None:
            continue
        maps = f"{map_name(settings['head'])} at the output and {map_name(settings['attention'])} in attention"
        names = list(figures["accuracy_by_language"])
        words = f"{figures['rows']['train'] // len(names):,} words a language"
        yield Card(
            name=f"{prefix}{name}",
            title=f"Multilingual inflection with {maps}, {words}",
            task="text2text-generation",
            what=f"A small encoder-decoder (BartForConditionalGeneration, {figures['parameters']:,} parameters) that "
            f"writes an inflected form from a language, a lemma and tags, character by character, with {maps} (the "
            "numbers are alpha).",
            data=f"SIGMORPHON 2018, `{settings['size']}` ({', '.join(names)}): {figures['rows']['train']:,} rows to "
            f"train on, {figures['rows']['dev']} to evaluate on; {settings['steps']} steps of "
            f"{settings['batch_size']} rows; seed {settings['seed']}.",
            measures=MEASURES,
            rows={key: other["figures"] for key, other in runs.items()},
            own=name,
            dense="output-1-attention-1",
            command=f"python recipes/inflection_grid.py --data sigmorphon2018 --only {name}"
            + options.format(**settings),
            weights=f"out/inflection_grid/runs/{name}-{settings['seed']}/model",
            limits="It knows the characters and tags of its training data and nothing else. Trained for minutes on "
            f"{words}; a point of accuracy means nothing.",
            result=record,
            config=figures["config"],
            support={"head_support": figures["head_support"]} if figures["config"]["head"] else {},
        )
