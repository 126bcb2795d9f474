"""Report of the translation sweep: tables, blocks of the README, model cards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ..lib import environment, markdown
from ..lib.blocks import block, read
from ..lib.card import Card, Measure, alike
from ..lib.environment import hardware_of, short_commit, versions_of
from ..lib.records import Figures, Record
from ..lib.seeds import Mean, by_run, mean_of, over_seeds, seeds_text
from ..translation.data import sides
from .pictures import draw

RESULTS = "recipes/translation_sweep/results"
RESULT, LONGER_SCENES = f"{RESULTS}/scenes.json", f"{RESULTS}/scenes_longer.json"
MULTI30K, CONVERGED = f"{RESULTS}/multi30k.json", f"{RESULTS}/multi30k_converged.json"
HALF, THIRDS, TWICE = (f"{RESULTS}/multi30k_{name}.json" for name in ("half", "thirds", "30_epochs"))
TIMES = f"{RESULTS}/multi30k_times.json"
BEAMS, DROPOUT = f"{RESULTS}/multi30k_beams.json", f"{RESULTS}/multi30k_dropout.json"
TRIALS, RATES, TEMPERATURES = (f"{RESULTS}/multi30k_{name}.json" for name in ("trials", "rates", "temperatures"))
DATA = {"": "The embedded sample (`recipes/data`)", "multi30k": "Multi30k"}
SCORES = ("bleu", "rouge1", "rouge2", "rougeL")
MEASURES = (
    Measure("BLEU", "bleu", ".2f", "higher"),
    Measure("chrF", "chrf", ".2f", "higher"),
    Measure("right next tokens", "accuracy", ".1%", "higher"),
    Measure("tokens missed", "missed", ".1%", "lower"),
    Measure("empty string preferred", "empty_preferred", ".1%", "lower"),
    Measure("tokens possible a step", "head_support", ",.1f"),
    Measure("source tokens attended", "attended", ".1f"),
)
# Of longer runs, too: the search that divides by the length, and what the other one proves.
LONGER = (
    Measure("BLEU, divided by length", "bleu_by_length", ".2f", "higher"),
    Measure("proved likeliest", "certified", ".1%", "higher"),
)
FEWER_MEASURES = ("bleu", "chrf", "accuracy", "missed", "head_support", "bleu_by_length")


def report(results: dict[str, Any], out: Path) -> None:
    """Print the table and draw the pictures."""
    print(table(results["runs"]))
    draw(results["runs"], out)


def table(records: Sequence[Record]) -> str:
    """Figures of all runs, one line per run."""
    lines = []
    for record in records:
        figures = record["figures"]
        score = " ".join(f"{name} {figures[name]:5.2f}" for name in SCORES if name in figures)
        speed = figures["tokens_per_cpu_second"]
        lines.append(
            f"{record['run']:<32} {score}  empty preferred {figures['empty_preferred']:5.1%}  support "
            f"{figures['head_support']:7.1f}  attended {figures['attended']:5.2f}  "
            f"{'-' if speed is None else f'{speed:.0f}':>5} tokens/s"
        )
    return "\n".join(lines)


def condensed(figures: Figures) -> Figures:
    """The figures that git keeps: four points of the curve; no log, no histogram, no matrix of attention."""
    left_out = ("curve", "loss", "example", "head_support_histogram", "normalized")
    curve = figures["curve"]
    points = [curve[0], curve[len(curve) // 4], curve[len(curve) // 2], curve[-1]]
    by_length = {f"{name}_by_length": value for name, value in figures["normalized"].items() if name in SCORES}
    kept = {name: value for name, value in figures.items() if name not in left_out}
    return kept | by_length | {"curve": points}


def map_text(map_config: Any) -> str:
    """A map as ``sparsify`` takes it, in words."""
    if not map_config:
        return "softmax"
    if isinstance(map_config, str):
        return map_config
    if map_config == {"name": "softmax", "temperature": "auto"}:
        return "softmax (tempered)"
    if "cross" in map_config:
        return f"cross: {map_text(map_config['cross'])}"
    shown = {name: value for name, value in map_config.items() if name not in ("name", "temperature")}
    settings = ", ".join(
        f"{name} {value}" if value == "learned" else f"{name} {value:g}" for name, value in shown.items()
    )
    return f"{map_config['name']} ({settings})" if shown else map_config["name"]


def is_dense(record: Record) -> bool:
    """Whether a run is that of softmax alone, without smoothed targets."""
    return not any(record["settings"][name] for name in ("head", "attention", "label_smoothing"))


def card(record: Record, records: Sequence[Record]) -> Card:
    """Model card of one run, compared with softmax of the same direction."""
    figures, settings, config = record["figures"], record["settings"], record["figures"]["config"]
    comparable = alike(record, records, "head", "attention", "label_smoothing")
    dense = next((other for other in comparable if is_dense(other)), record)
    maps = f"{map_text(settings['head'])} at the output and {map_text(settings['attention'])} in attention"
    smoothed = f", targets smoothed by {settings['label_smoothing']:g}" if settings["label_smoothing"] else ""
    named = sides(settings["data"], settings["source"], settings["target"])
    direction = " to ".join(reversed(named) if settings["reverse"] else named)
    test = f" ({figures['test_set']})" if figures.get("test_set") else ""  # older records have none
    scored = {measure.key for measure in MEASURES} & set(figures)
    rouge = tuple(Measure(name, name, ".2f", "higher") for name in SCORES[1:] if name in figures)
    return Card(
        name=f"translation-sweep-{record['run']}",
        title=f"{direction[0].upper()}{direction[1:]} with {maps}",
        task="translation",
        what=f"A small encoder-decoder (MarianMTModel, {figures['parameters']:,} parameters) trained from "
        f"scratch, {direction}, with {maps}{smoothed}.",
        data=f"{DATA.get(settings['data'], settings['data']).split(' (')[0]}: {figures['rows']['train']:,} pairs to "
        f"train on, {figures['rows']['test']} to test on{test}; {settings['steps']} steps of "
        f"{settings['batch_size']} pairs; seed {settings['seed']}.",
        measures=rouge + tuple(measure for measure in MEASURES if measure.key in scored),
        rows={dense["run"]: dense["figures"], record["run"]: figures},
        own=record["run"],
        dense=dense["run"],
        limits="A small model of one kind of sentences, trained to compare maps: no use as a translator. One run: "
        "other seeds and other sentences move BLEU, by as much as a point.",
        record=record,
        config=config,
        support={"head_support": figures["head_support"]} if config and config["head"] else {},
    )


def selected(*patterns: str, result: str = RESULT) -> list[Record]:
    """Records of a summary whose names match a pattern, in the order of the study."""
    return [record for record in read(result)["runs"] if any(fnmatchcase(record["run"], name) for name in patterns)]


def comparison(*patterns: str, result: str = RESULT, measures: Sequence[Measure] = MEASURES) -> str:
    """Selected runs as a table of the documentation."""
    runs = by_run(selected(*patterns, result=result))
    several = any(len(records) > 1 for records in runs.values())
    columns = ["run", "output", "attention", *(["seeds"] if several else []), *(measure.label for measure in measures)]
    rows = []
    for name, records in runs.items():
        figures, settings = [record["figures"] for record in records], records[0]["settings"]
        cells = [name, map_text(settings["head"]), map_text(settings["attention"])]
        cells += [str(len(records))] if several else []
        cells += [over_seeds([each[measure.key] for each in figures], measure.form) for measure in measures]
        rows.append(cells)
    return markdown.table(columns, rows)


def origin(result: str = RESULT) -> str:
    """Data, training, hardware and versions of a summary."""
    everything = selected("*", result=result)
    first, minutes = everything[0], sum(record["cpu_seconds"] for record in everything) / 60
    settings, rows = first["settings"], first["figures"]["rows"]
    commits = sorted(set(map(short_commit, everything)))
    interval = fmean(record["figures"]["bleu_interval"] for record in everything)
    return (
        f"{DATA[settings['data']]}, {rows['train']:,} pairs, {rows['vocabulary']:,} subwords, "
        f"{first['figures']['parameters']:,} parameters; {settings['steps']} steps of {settings['batch_size']} pairs "
        f"from scratch, peak learning rate {settings['lr']:g}, {seeds_text(everything)}; "
        f"{rows['test']} test sentences, {settings['beams']} beams, no length penalty; "
        f"BLEU of one run ± {interval:.1f} (95 %, sentences drawn again). "
        f"{len(everything)} runs, {minutes:.0f} CPU minutes ({hardware_of(everything)}), "
        f"{versions_of(everything)}, commits {', '.join(commits)}."
    )


@block
def sweep_maps() -> str:
    """Softmax, entmax, sparsemax and alpha-ReLU, in both directions, and with smoothed targets."""
    names = ("softmax", "entmax15", "sparsemax", "output-entmax15", "output-sparsemax", "output-alpha_relu")
    patterns = (*names, "softmax-tempered", *(f"en-de-{name}" for name in names), "*-smoothed", "*-untied")
    return f"{comparison(*patterns)}\n\n{origin()}"


@block
def sweep_alpha() -> str:
    """A finer grid of alpha at the output and in attention, the other place at 1.5."""
    return comparison("output-entmax15", "output-[12]*", "attention-*", "entmax15")


@block
def sweep_control() -> str:
    """Cross-attention whose sparsity one number controls."""
    return comparison("softmax", "cross-*")


@block
def sweep_multi30k() -> str:
    """All runs on Multi30k."""
    return f"{comparison('*', result=MULTI30K)}\n\n{origin(MULTI30K)}"


@block
def sweep_converged() -> str:
    """The runs on Multi30k that were trained until they gained little more."""
    return f"{comparison('*', result=CONVERGED, measures=(*MEASURES, *LONGER))}\n\n{origin(CONVERGED)}"


@block
def sweep_first() -> str:
    """The most important of them in short."""
    runs = ("softmax", "softmax-smoothed", "output-1.33", "entmax15", "sparsemax-from-entmax15", "output-alpha_relu")
    measures = [measure for measure in MEASURES if measure.key in ("bleu", "chrf", "head_support", "attended")]
    return comparison(*runs, result=CONVERGED, measures=measures)


@block
def sweep_fewer() -> str:
    """Runs of fewer steps, and of more, beside softmax with as many as above."""
    measures = [measure for measure in (*MEASURES, *LONGER) if measure.key in FEWER_MEASURES]
    others = [record for result in (HALF, THIRDS, TWICE) for record in selected("*", result=result)]
    as_above = [record for prefix in ("", "en-de-") for record in selected(f"{prefix}softmax", result=CONVERGED)]
    by_steps: dict[tuple[bool, str, int], list[Record]] = {}
    for record in (*as_above, *others):
        settings = record["settings"]
        by_steps.setdefault((settings["reverse"], record["run"], settings["steps"]), []).append(record)
    rows = []
    for (_, run, steps), records in sorted(by_steps.items(), key=lambda entry: entry[0][0]):
        figures = [record["figures"] for record in records]
        head = with_temperature((figures[0]["config"] or {}).get("head"))
        cells = [over_seeds([each[measure.key] for each in figures], measure.form) for measure in measures]
        rows.append([run, head, f"{steps:,}", str(len(records)), *cells])
    columns = ["run", "head", "steps", "seeds", *(measure.label for measure in measures)]
    return f"{markdown.table(columns, rows)}\n\n{environment.origin(others)}"


def training_speeds(figures: Figures) -> dict[str, list[float]]:
    """Steps a CPU second of the models that were trained in turns, as multiples of softmax's, by system and turn."""
    seconds = figures["step_cpu_seconds"]
    return {name: [base / own for base, own in zip(seconds["softmax"], each)] for name, each in seconds.items()}


def late(turns: Sequence[float]) -> float:
    """The median of the second half of some turns."""
    return median(turns[len(turns) // 2 :])


def settled(turns: Sequence[float]) -> str:
    """That median, and in parentheses the least and the most of that half."""
    half = turns[len(turns) // 2 :]
    return f"{late(turns):.2f} ({min(half):.2f} to {max(half):.2f})"


def speeds(figures: Figures) -> str:
    """Those speeds in the first turn and in the second half of the turns, as a table."""
    rows = [
        [name, settled(figures["step_cpu_seconds"][name]), f"{turns[0]:.2f}", settled(turns)]
        for name, turns in training_speeds(figures).items()
    ]
    return markdown.table(["system", "CPU seconds a step", "speed at first", "speed"], rows)


@block
def sweep_times() -> str:
    """How fast the maps train, one model after the other in turns."""
    (record,) = records = selected("times", result=TIMES)
    figures, settings = record["figures"], record["settings"]
    turns = len(figures["step_cpu_seconds"]["softmax"])
    return (
        f"{speeds(figures)}\n\n"
        f"{DATA[settings['data']]}, {settings['vocabulary']:,} subwords: {turns} turns of {settings['steps']} steps "
        f"of {settings['batch_size']} pairs; median of the second half of the turns, and their range; load of the "
        f"machine before {figures['load']:.1f}. {environment.origin(records)}"
    )


@block
def sweep_beams() -> str:
    """What the number of beams does to the likeliest translation found by each of the longer runs."""
    records = selected("*", result=BEAMS)
    rows = []
    for name, of_run in by_run(records).items():
        for beams in sorted({record["settings"]["beams"] for record in of_run}):
            seeds = [record["figures"] for record in of_run if record["settings"]["beams"] == beams]
            forms = {"bleu": ".2f", "length": ".3f", "empty_found": ".1%"}
            cells = [over_seeds([each[key] for each in seeds], form) for key, form in forms.items()]
            rows.append([name, str(beams), str(len(seeds)), *cells])
    columns = ["run", "beams", "seeds", "BLEU", "length", "empty string found"]
    return f"{markdown.table(columns, rows)}\n\n{environment.origin(records)}"


@block
def sweep_learned() -> str:
    """Alphas that the heads of attention learned, by kind of attention and layer."""
    rows = [
        [str(record["settings"]["seed"]), kind, str(layer), ", ".join(f"{alpha:.2f}" for alpha in heads)]
        for record in selected("attention-learned", result=CONVERGED)
        for kind, layers in record["figures"]["alphas"].items()
        for layer, heads in enumerate(layers, 1)
    ]
    return markdown.table(["seed", "attention", "layer", "alphas of its heads"], rows)


@block
def sweep_dropout() -> str:
    """The dropout of the longer runs, chosen on development rows."""
    names = {record["run"] for record in selected("*", result=DROPOUT)}
    rows = []
    for path in (CONVERGED, DROPOUT):
        for name, records in by_run(selected("*", result=path)).items():
            if name in names:
                figures = [record["figures"] for record in records]
                accuracy = over_seeds([each["curve"][-1]["accuracy"] for each in figures], ".1%")
                bleu = over_seeds([each["bleu"] for each in figures], ".2f")
                rows.append([name, f"{records[0]['settings']['dropout']:g}", str(len(records)), accuracy, bleu])
    return markdown.table(["run", "dropout", "seeds", "right next tokens, development rows", "BLEU, test rows"], rows)


@block
def sweep_trials() -> str:
    """The short runs by which temperatures and learning rates were chosen."""
    return _by_rate(selected("trial-*", result=TRIALS), "bleu", "accuracy", "missed")


@block
def sweep_rates() -> str:
    """The learning rate of longer runs, by their maps."""
    return _by_rate(selected("tune-*", result=RATES), "bleu", "chrf", "accuracy", "missed", "head_support")


def _by_rate(records: Sequence[Record], *keys: str) -> str:
    """A table of runs that were judged on development rows, by their maps and learning rate."""

    def described(record: Record) -> list[str]:
        config = record["figures"]["config"] or {}
        maps = [with_temperature(config.get(place)) for place in ("head", "attn")]
        return [*maps, f"{record['settings']['lr']:g}"]

    return _on_dev_rows(records, ["head", "attention", "learning rate"], described, keys)


@block
def sweep_temperatures() -> str:
    """Sparsemax at the output at several temperatures."""
    records = selected("temperature-*", result=TEMPERATURES)

    def described(record: Record) -> list[str]:
        return [record["run"], with_temperature(record["settings"]["head"])]

    return _on_dev_rows(records, ["run", "head"], described, ("bleu", "chrf", "accuracy", "missed", "head_support"))


def _on_dev_rows(
    records: Sequence[Record], heading: Sequence[str], described: Callable[[Record], list[str]], keys: Sequence[str]
) -> str:
    """A table of runs that were judged on development rows: what they are, their seeds, and some measures of them."""
    shown = [measure for measure in MEASURES if measure.key in keys]
    rows = []
    for of_run in by_run(records).values():
        figures = mean_of([{key: record["figures"][key] for key in keys} for record in of_run], Mean)
        rows.append([*described(of_run[0]), str(len(of_run)), *(measure.text(figures) for measure in shown)])
    settings, sizes = records[0]["settings"], records[0]["figures"]["rows"]
    columns = [*heading, "seeds", *(measure.label for measure in shown)]
    return (
        f"{markdown.table(columns, rows)}\n\n"
        f"{DATA[settings['data']]}: {settings['steps']:,} steps of {settings['batch_size']} pairs, "
        f"{seeds_text(records)}; {sizes['test']:,} dev sentences, greedy search. {environment.origin(records)}"
    )


def with_temperature(config: Any) -> str:
    """A map of a model's configuration, with its temperature."""
    return f"{config['name']}, T = {config.get('temperature', 1):.3g}" if config else "softmax"


@block
def sweep_relu() -> str:
    """alpha-ReLU: thresholds, accuracy early and late in training, and the sum of its weights; means over seeds."""
    return _relu_table(selected("output-alpha_relu", "output-alpha_relu-*", "en-de-output-alpha_relu"))


@block
def sweep_relu_longer() -> str:
    """The same for longer training."""
    records = selected("*", result=LONGER_SCENES)
    return f"{_relu_table(records)}\n\n{records[0]['settings']['steps']:,} steps. {environment.origin(records)}"


def _relu_table(selection: Sequence[Record]) -> str:
    columns = ["run", "tau", "right next tokens at a quarter", "at a half", "at the end", "BLEU", "sum of the weights"]
    rows = []
    for name, records in by_run(selection).items():
        seeds = [record["figures"] for record in records]
        figures, bleu = mean_of(seeds), over_seeds([each["bleu"] for each in seeds], ".2f")
        sums, accuracies = figures["head_sum"], [f"{point['accuracy']:.1%}" for point in figures["curve"][1:]]
        tau = f"{figures['config']['head']['tau']:.3g}"
        rows.append([name, tau, *accuracies, bleu, f"{sums['mean']:.2f} ± {sums['std']:.2f}"])
    return markdown.table(columns, rows)


@block
def sweep_training() -> str:
    """Threshold of 1.5-entmax and norm of the logits, before and after training; means over seeds."""
    columns = ["run", "threshold, untrained", "at the end", "norm of the logits, untrained", "at the end"]
    rows = []
    names = ("softmax", "entmax15", "sparsemax", "output-entmax15", "output-sparsemax", "output-alpha_relu")
    for name, records in by_run(selected(*names)).items():
        first, *_, last = mean_of([record["figures"]["curve"] for record in records])
        thresholds, norms = ([point[key] for point in (first, last)] for key in ("threshold", "logit_norm"))
        rows.append([name, *(f"{each:.2f}" for each in thresholds), *(f"{each:.0f}" for each in norms)])
    return markdown.table(columns, rows)
