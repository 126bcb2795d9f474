"""Report of the inflection grid: a table, a picture, blocks of the README, model cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ..lib import markdown
from ..lib.blocks import block, read
from ..lib.card import Card, Measure, alike
from ..lib.environment import hardware_of, short_commit, versions_of
from ..lib.records import Figures, Record
from ..lib.seeds import by_run, over_seeds
from .pictures import draw

RESULTS = "recipes/inflection_grid/results/{}.json"  # by the name of a summary
TRANSFORMER = "BartForConditionalGeneration"
DATA = {"": "English verbs of the repository", "sigmorphon2018": "SIGMORPHON 2018"}
MEASURES = (
    Measure("accuracy", "accuracy", ".1%", "higher"),
    Measure("one form possible", "one_form", ".1%"),
    Measure("all possible forms seen", "all_forms_seen", ".1%"),
    Measure("certified by any proof", "certified", ".1%", "higher"),
    Measure("candidates a step", "head_support", ".2f"),
)


def report(results: dict[str, Any], out: Path) -> None:
    """Print the table and draw the picture."""
    print(table(results["runs"]))
    draw(results["runs"], out / "inflection_grid.png")


def table(records: Sequence[Record]) -> str:
    """Figures of all runs, one line per run."""
    lines = ["run                                      seed  accuracy   one form   all seen   certified   candidates"]
    for record in records:
        figures = record["figures"]
        lines.append(
            f"{record['run']:<40} {record['settings']['seed']:>4} {figures['accuracy']:>9.1%} "
            f"{figures['one_form']:>10.1%} {figures['all_forms_seen']:>10.1%} {figures['certified']:>11.1%} "
            f"{figures['head_support']:>12.2f}"
        )
    return "\n".join(lines)


def condensed(figures: Figures) -> Figures:
    """The figures that git keeps: without the training log."""
    return {name: value for name, value in figures.items() if name != "loss"}


def name_of(given: str | Mapping[str, Any] | None) -> str:
    """The name of a map of the settings, which may be given by name alone."""
    return given["name"] if isinstance(given, Mapping) else given or "softmax"


def map_name(given: str | Mapping[str, Any] | None) -> str:
    """A map of the settings, as the tables call it."""
    name = name_of(given)
    return {"softmax": "softmax (1)", "entmax15": "entmax (1.5)", "sparsemax": "sparsemax (2)"}.get(name, name)


def start_name(settings: Mapping[str, Any]) -> str:
    """What follows the name of a head that started at other settings than it ended at; empty for others."""
    start = settings.get("head_from") or {}  # older records have none
    return "".join(f" from {name} {value:g}" for name, value in start.items())


def output_name(settings: Mapping[str, Any]) -> str:
    """The map of the head, as the tables call it, and where it started."""
    return map_name(settings["head"]) + start_name(settings)


def card(record: Record, records: Sequence[Record]) -> Card:
    """Model card of one run, compared with the runs that differ in their maps only."""
    settings, figures = record["settings"], record["figures"]
    maps = f"{output_name(settings)} at the output and {map_name(settings['attention'])} in attention"
    names = list(figures["accuracy_by_language"])
    words = f"{figures['rows']['train'] // len(names):,} words a language"
    folder = Path(settings["data"]).name
    source = f"{DATA.get(folder, folder)}, `{settings['size']}`" if settings["data"] else DATA[""]
    config = figures["config"]
    return Card(
        name=f"inflection-grid-{record['run']}",
        title=f"Multilingual inflection with {maps}, {words}",
        task="text2text-generation",
        what=f"A small encoder-decoder ({class_name(figures)}, {figures['parameters']:,} parameters) that "
        f"writes an inflected form from a language, a lemma and tags, character by character, with {maps} (the "
        "numbers are alpha).",
        data=f"{source} ({', '.join(names)}): {figures['rows']['train']:,} rows to "
        f"train on, {figures['rows']['dev']} to evaluate on ({held_out(settings)}); {settings['steps']} steps of "
        f"{settings['batch_size']} rows; seed {settings['seed']}.",
        measures=MEASURES,
        rows={other["run"]: other["figures"] for other in alike(record, records, "head", "attention", "head_from")},
        own=record["run"],
        dense="output-1-attention-1",
        limits="It knows the characters and tags of its training data and nothing else. Trained for minutes on "
        f"{words}; a point of accuracy means nothing.{loading(figures)}",
        record=record,
        config=config,
        support={"head_support": figures["head_support"]} if config and config["head"] else {},
    )


def class_name(figures: Figures) -> str:
    """The class of the model; older records, which do not say, have transformers alone."""
    name: str = figures.get("class", TRANSFORMER)
    return name


def loading(figures: Figures) -> str:
    """What must be imported before a model can be loaded, as a sentence; empty for a class of Transformers."""
    own = class_name(figures) != TRANSFORMER
    return " Its class is of this repository: import `recipes.inflection.lstm` before you load it." if own else ""


def held_out(settings: Mapping[str, Any]) -> str:
    """The files that a run was evaluated on."""
    return f"{'test' if settings.get('part') == 'test' else 'development'} sets"  # older records have no part


def records_of(result: str) -> list[Record]:
    """All records of a summary, by its name."""
    records: list[Record] = read(RESULTS.format(result))["runs"]
    return records


def trained(result: str) -> dict[str, list[Record]]:
    """Records of the trained runs of a summary by name, one per seed; ensembles are left out."""
    return by_run(record for record in records_of(result) if not record["settings"]["members"])


def grid(result: str) -> str:
    """The grid as a table of the documentation, with the accuracy of ensembles if there are any."""
    ensembles = {r["settings"]["members"]: r for r in records_of(result) if r["settings"]["members"]}
    last = ["accuracy of the ensemble"] if ensembles else []
    rows = []
    for name, records in trained(result).items():
        settings = records[0]["settings"]
        shown = [over_seeds([record["figures"][m.key] for record in records], m.form) for m in MEASURES]
        together = [f"{ensembles[name]['figures']['accuracy']:.1%}" if name in ensembles else ""] if ensembles else []
        cells = [output_name(settings), map_name(settings["attention"]), str(len(records))]
        rows.append([*cells, *shown, *together])
    return markdown.table(["output", "attention", "seeds", *(measure.label for measure in MEASURES), *last], rows)


def with_origin(result: str) -> str:
    """The grid, with the origin of the figures."""
    return f"{grid(result)}\n\n{origin(result)}"


def languages(result: str) -> str:
    """Accuracy by language, averaged over seeds, with the origin of the figures."""
    runs = trained(result)
    names = list(next(iter(runs.values()))[0]["figures"]["accuracy_by_language"])
    rows = []
    for records in runs.values():
        settings = records[0]["settings"]
        cells = [
            f"{fmean(record['figures']['accuracy_by_language'][language] for record in records):.1%}"
            for language in names
        ]
        rows.append([output_name(settings), map_name(settings["attention"]), *cells])
    return f"{markdown.table(['output', 'attention', *names], rows)}\n\n{origin(result)}"


def origin(result: str) -> str:
    """Data, training, hardware and versions of a summary."""
    record = next(iter(trained(result).values()))[0]
    settings, rows = record["settings"], record["figures"]["rows"]
    everything = records_of(result)
    commits = sorted(set(map(short_commit, everything)))
    halved = settings.get("schedule") == "halved"  # older records have no schedule
    rate = f"{'' if halved else 'peak '}learning rate {settings['lr']:g}{', halved on plateaus' if halved else ''}"
    return (
        f"SIGMORPHON 2018, `{settings['size']}`: {rows['train']:,} rows to train on, {rows['dev']} of the "
        f"{held_out(settings)} to evaluate on ({settings['dev_rows']} a language), "
        f"{rows['vocabulary']} characters and tags; "
        f"{class_name(record['figures'])} of {record['figures']['parameters']:,} parameters, "
        f"{settings['steps']} steps of {settings['batch_size']} rows, "
        f"{rate}, {settings['beams']} beams. {len(everything)} runs, "
        f"{sum(record['cpu_seconds'] for record in everything) / 60:.0f} CPU minutes ({hardware_of(everything)}), "
        f"{versions_of(everything)}, commits {', '.join(commits)}."
    )


def trials(result: str) -> str:
    """The choice of temperatures: accuracy with one map in the place of softmax."""
    columns = ["map", "in", "temperature", "accuracy", "all possible forms seen"]
    rows = []
    for records in trained(result).values():
        settings, config = records[0]["settings"], records[0]["figures"]["config"] or {}
        place, key = ("head", "head") if settings["head"] else ("attention", "attn")
        given, used = settings[place] or {}, (config.get(key) or {}).get("temperature", 1)
        temperature = f"{used:.3g}" + (' (`"auto"`)' if given.get("temperature") == "auto" else "")
        keys = ("accuracy", "all_forms_seen")
        shares = [over_seeds([record["figures"][key] for record in records], ".1%") for key in keys]
        rows.append([map_name(settings[place]), place if given else "", temperature, *shares])
    return f"{markdown.table(columns, rows)}\n\n{origin(result)}"


@block
def inflection_grid() -> str:
    """The grid with a thousand words in each of eight languages."""
    return grid("eight_languages")


@block
def inflection_languages() -> str:
    """The same by language."""
    return languages("eight_languages")


@block
def inflection_grid_longer() -> str:
    """A part of that grid, trained for longer."""
    return grid("eight_languages_longer")


@block
def inflection_languages_longer() -> str:
    """The same by language."""
    return languages("eight_languages_longer")


@block
def inflection_grid_halved() -> str:
    """The same part in as many steps, under the paper's schedule of the learning rate."""
    return with_origin("eight_languages_halved")


@block
def inflection_grid_lstm() -> str:
    """The same with LSTMs, the models of the paper."""
    return grid("eight_languages_lstm")


@block
def inflection_languages_lstm() -> str:
    """The same by language."""
    return languages("eight_languages_lstm")


@block
def inflection_grid_lstm_faster() -> str:
    """LSTMs at twice the learning rate of the paper."""
    return with_origin("eight_languages_lstm_faster")


@block
def inflection_grid_lstm_fastest() -> str:
    """Softmax in LSTMs at four times the learning rate of the paper."""
    return with_origin("eight_languages_lstm_fastest")


@block
def inflection_grid_high() -> str:
    """The grid with ten thousand words in each of eight languages, as far as there are so many, in part."""
    return grid("eight_languages_high")


@block
def inflection_languages_high() -> str:
    """The same by language."""
    return languages("eight_languages_high")


@block
def inflection_grid_high_longer() -> str:
    """A part of that grid, trained for longer."""
    return with_origin("eight_languages_high_longer")


@block
def inflection_trials() -> str:
    """The choice of temperatures."""
    return trials("trials")
