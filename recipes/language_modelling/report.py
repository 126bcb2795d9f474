"""Report of the language-model recipe: tables, blocks of the README, model cards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from operator import mul
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ..lib import markdown
from ..lib.blocks import block, read
from ..lib.card import Card, Measure, alike
from ..lib.environment import origin
from ..lib.records import Figures, Record
from ..lib.seeds import Mean, by_run, mean_of, over_seeds, seeds_text
from .measures import COUNTS
from .pictures import draw, draw_curves, plain
from .trials import TRIALS

RESULT = "recipes/language_modelling/results/wikitext2.json"
LONGER = "recipes/language_modelling/results/wikitext2_longer.json"
EMBEDDING = "recipes/language_modelling/results/wikitext2_embedding.json"
UNTIED = "recipes/language_modelling/results/wikitext2_untied.json"
UNTIED_LONGER = "recipes/language_modelling/results/wikitext2_untied_longer.json"
OF_TRIALS = "recipes/language_modelling/results/wikitext2_trials.json"
CUT = "nucleus 0.9"  # the truncation of softmax that the tables over seeds have beside it
MEASURES = (
    Measure("eps-perplexity", "eps_perplexity", ".1f", "lower"),
    Measure("sparsemax score", "sparsemax_score", ".3f", "higher"),
    Measure("Jensen-Shannon (nats)", "jensen_shannon", ".3f", "lower"),
    Measure("tokens missed", "missed", ".1%", "lower"),
    Measure("tokens possible", "support", ".0f"),
)
# Of the tables over seeds: heading, figure, factor, format. A fitted temperature leaves accuracy as it is.
FITTED = (
    ("eps-perplexity", "eps_perplexity", 1, ".1f"),
    ("tokens missed", "missed", 100, ".2f"),
    ("tokens possible", "support", 1, ".0f"),
)
SEEDS = (("accuracy", "accuracy", 100, ".2f"), ("sparsemax score", "sparsemax_score", 1, ".3f"), *FITTED)
CONVERSIONS = {"none": "maps replaced, no training", "lora": "LoRA", "full": "all weights trained on"}
SAMPLE = 1  # of the continuations of a run, the one that is shown and kept in git


def report(results: dict[str, Any], out: Path) -> None:
    """Print the figures and draw them."""
    print(f"{'':<34} eps-ppl      ppl  sp-score  JS (nats)  missed  support     rep    wrep")
    for run in results["runs"]:
        for decoding, row in run["figures"]["decodings"].items():
            perplexity = "-" if row["perplexity"] is None else f"{row['perplexity']:.1f}"
            name = f"{run['run']}, {decoding}"
            print(
                f"{name:<34}{row['eps_perplexity']:8.1f} {perplexity:>8}  {row['sparsemax_score']:8.3f}  "
                f"{row['jensen_shannon']:9.3f}  {row['missed']:6.1%}  {row['support']:7.1f}  {row['rep']:6.1%}  "
                f"{row['wrep']:6.1%}"
            )
    draw(results, out / "language_modelling.png")
    draw_curves(results, out / "learning_curves.png")


def condensed(figures: Figures) -> Figures:
    """The figures that git keeps: one continuation of each way to decode."""
    written = dict(figures["written"])
    written["beginnings"] = written["beginnings"][SAMPLE : SAMPLE + 1]
    for name, text in written.items():
        if name != "beginnings":
            written[name] = {**text, "examples": text["examples"][SAMPLE : SAMPLE + 1]}
    return figures | {"written": written}


def card(record: Record, records: Sequence[Record]) -> Card:
    """Model card of one run: of a model trained from scratch beside softmax, of a conversion beside the others."""
    settings, figures = record["settings"], record["figures"]
    comparable = {other["run"]: other for other in alike(record, records, "head", "attention", "conversion")}
    own, dense = record["run"], "softmax, sampling"
    sampled: dict[str, Figures] = {}
    if settings["conversion"]:
        names = {"softmax-on": "softmax, trained on"}
        own, dense = names.get(own, own), names["softmax-on"]
        for name, other in comparable.items():
            if other["settings"]["conversion"]:
                sampled[names.get(name, name)] = other["figures"]["decodings"]["sampling"]
    elif "softmax" in comparable and own != "softmax":
        decodings = comparable["softmax"]["figures"]["decodings"]
        sampled = {f"softmax, {name}": row for name, row in decodings.items()}
    return Card(
        name=f"language-modelling-{record['run']}",
        title=f"A small GPT-2-like language model: {record['run']}",
        task="text-generation",
        what=f"A model of {figures['parameters']:,} parameters with the head {settings['head']}, "
        f"{_training(settings)}.",
        data=f"{figures['data']}: {figures['train_rows']:,} rows of {settings['context']} tokens to train on, "
        f"{figures['tokens']:,} held-out tokens; {settings['steps']} steps of {settings['batch_size']} rows; seed "
        f"{settings['seed']}.",
        measures=(*MEASURES, Measure("wREP", "wrep", ".1%", "lower")),
        rows=sampled | {own: figures["decodings"]["sampling"]},
        own=own,
        dense=dense,
        limits="A model of this size, trained for seconds, writes no sense. Only the fit of its distributions and "
        "their repetition can be compared. One run: differences of a hundredth mean nothing.",
        record=record,
        config=figures["maps"],
        is_adapter=settings["conversion"] == "lora",
        support={"head_support": figures["decodings"]["sampling"]["support"]} if figures["maps"] else {},
    )


def _training(settings: dict[str, Any]) -> str:
    further = {
        "": "trained from scratch",
        "none": "made sparse in head and attention after its training with softmax, and not trained further",
        "lora": "made sparse in head and attention after its training with softmax, and trained further by a LoRA "
        "adapter alone",
        "full": "made sparse in head and attention after its training with softmax, and trained further",
    }
    if settings["head"] == "softmax" and settings["conversion"]:
        return "trained from scratch in two phases"
    return further[settings["conversion"]]


@block
def language_fit() -> str:
    """Fit to held-out text, by run and way to decode."""
    measures = (*MEASURES, Measure("accuracy", "accuracy", ".1%", "higher"))
    columns = ["head", "attention", "drawn from", "perplexity", *(measure.label for measure in measures)]
    rows = []
    for drawn in _drawn():
        perplexity = "-" if drawn.figures["perplexity"] is None else f"{drawn.figures['perplexity']:.1f}"
        rows.append([*drawn.cells, perplexity, *(measure.text(drawn.figures) for measure in measures)])
    return markdown.table(columns, rows)


@block
def language_seeds() -> str:
    """All heads under softmax attention."""
    return seeds_table(RESULT)


@block
def language_longer() -> str:
    """The same after four times the steps."""
    return seeds_table(LONGER)


@block
def language_embedding() -> str:
    """All heads again, with a higher learning rate for the embedding."""
    return seeds_table(EMBEDDING)


@block
def language_untied() -> str:
    """The same where the head has a matrix of its own."""
    return seeds_table(UNTIED)


@block
def language_untied_longer() -> str:
    """That after four times the steps."""
    return seeds_table(UNTIED_LONGER)


@block
def language_trials() -> str:
    """Fit of heads to dev rows with one setting of training changed, and how far they are behind softmax."""
    records = read(OF_TRIALS)["runs"]
    runs = by_run(records)
    heads = list(dict.fromkeys(record["settings"]["head"] for record in records))
    columns = ["changed", *(f"{head}: {column}" for head in heads for column in ("accuracy", "eps-perplexity"))]
    rows = []
    for trial, (changed, _) in TRIALS.items():
        row, softmax = [changed], 0.0
        for head in heads:
            dev = [record["figures"]["dev"] for record in runs.get(f"trial-{trial}-{head}", [])]
            perplexity = Mean([each["eps_perplexity"] for each in dev]) if dev else None
            softmax = perplexity if head == "softmax" else softmax
            behind = "" if head == "softmax" or not perplexity else f" ({perplexity / softmax - 1:+.0%})"
            row.append(over_seeds([100 * each["accuracy"] for each in dev], ".2f") if dev else "")
            row.append(f"{perplexity:.1f}{behind}" if perplexity else "")
        rows.append(row)
    return f"{markdown.table(columns, rows)}\n\nOn dev rows, {seeds_text(records)}. {origin(records)}"


@block
def language_errors() -> str:
    """eps-perplexity with errors in the scores, and by how much it is higher than without."""
    errors = list(read(EMBEDDING)["runs"][0]["figures"]["with_errors"])
    rows = []
    for name, runs in _embedding().items():
        each = [run["figures"] for run in runs]
        before = [figures["decodings"]["sampling"]["eps_perplexity"] for figures in each]
        row = [name, over_seeds(before, ".1f")]
        for error in errors:
            after = [figures["with_errors"][error] for figures in each]
            risen = fmean(new / old - 1 for new, old in zip(after, before))
            row.append(f"{over_seeds(after, '.1f')} ({risen:+.0%})")
        rows.append(row)
    return markdown.table(["run", "no error", *(f"deviation {error}" for error in errors)], rows)


@block
def language_counts() -> str:
    """What eps-perplexity charges a token, by its count in the training text: softmax, and the others beyond it."""
    runs = _embedding()
    dense = runs.pop("softmax")
    softmax = {run["settings"]["seed"]: _charged(run) for run in dense}
    bins = [f"{start:,} to {end - 1:,}" for start, end in pairwise(COUNTS)]
    shares = [each["tokens"] for each in dense[0]["figures"]["by_count"]]
    rows = [
        ["share of the tokens", *(f"{share:.1%}" for share in shares), "100%"],
        ["softmax", *(over_seeds(each, ".3f") for each in zip(*softmax.values()))],
    ]
    for name, records in runs.items():
        beyond = [
            [own - other for own, other in zip(_charged(run), softmax[run["settings"]["seed"]])] for run in records
        ]
        missed = [each["missed"] for each in mean_of([run["figures"]["by_count"] for run in records])]
        missed.append(sum(map(mul, missed, shares)))
        cells = [f"{over_seeds(nats, '.3f')} ({share:.1%})" for nats, share in zip(zip(*beyond), missed)]
        rows.append([f"{name}, beyond it", *cells])
    return markdown.table(["times in the training text", *bins, f"{COUNTS[-1]:,} or more", "all"], rows)


def _embedding() -> dict[str, list[Record]]:
    return by_run(read(EMBEDDING)["runs"])


def _charged(run: Record) -> list[float]:
    bins = run["figures"]["by_count"]
    nats = [each["eps_loss"] for each in bins]
    return [*(part / each["tokens"] for part, each in zip(nats, bins)), sum(nats)]


def seeds_table(result: str) -> str:
    """Runs under softmax attention, and softmax cut to a nucleus: over seeds, and at a fitted temperature."""
    records = [run for run in _from_scratch(result) if run["settings"]["attention"] == "softmax"]
    seeds = by_run(records)
    columns = ["run", "temperature", *(label for label, *_ in SEEDS), "fitted: temperature"]
    columns += [*(label for label, *_ in FITTED), "behind softmax"]
    softmax = _lowest(seeds["softmax"])
    rows = []
    for name, runs in seeds.items():
        maps, drawn = runs[0]["figures"]["maps"], [run["figures"]["decodings"] for run in runs]
        start = [name, f"{maps['head'].get('temperature', 1.0):.2f}" if maps else "1"]
        behind = "" if name == "softmax" else f"{_lowest(runs) / softmax - 1:+.0%}"
        rows.append([*start, *_over_seeds([way["sampling"] for way in drawn], SEEDS), *_fitted(runs), behind])
        if CUT in drawn[0]:
            rows.append([f"{name}, {CUT}", "1", *_over_seeds([way[CUT] for way in drawn], SEEDS), *_fitted([]), ""])
    settings, count = records[0]["settings"], max(map(len, seeds.values()))
    multiple = settings.get("embedding_lr", 1.0)
    of_embedding = f", {multiple:g} times that for the embedding" if multiple != 1 else ""
    if not settings.get("tied", True):
        of_embedding += " and the head's own matrix"
    over = "One seed"
    if count > 1:
        over = f"Mean ± standard deviation over {count} seeds, one seed where no deviation stands"
    return (
        f"{markdown.table(columns, rows)}\n\n"
        f"{over}; accuracy and tokens missed in per cent; {settings['steps']} steps at the learning rate "
        f"{settings['lr']:g}{of_embedding}. {origin(records)}"
    )


def _lowest(runs: Sequence[Record]) -> float:
    """Mean eps-perplexity over seeds, at the fitted temperature where there is one."""
    return fmean(
        (run["figures"]["calibrated"] or run["figures"]["decodings"]["sampling"])["eps_perplexity"] for run in runs
    )


def _fitted(runs: Sequence[Record]) -> list[str]:
    fitted = [run["figures"]["calibrated"] for run in runs]
    if not fitted or not all(fitted):  # one that was not is no seed of a mean
        return ["", *("" for _ in FITTED)]
    return [over_seeds([each["temperature"] for each in fitted], ".2f"), *_over_seeds(fitted, FITTED)]


def _over_seeds(rows: Sequence[Figures], columns: Sequence[tuple[str, str, float, str]]) -> list[str]:
    return [over_seeds([row[key] * factor for row in rows], form) for _, key, factor, form in columns]


@block
def language_repetition() -> str:
    """Repetition in drawn text, beside human text."""
    columns = ["head", "attention", "drawn from", "REP", "wREP", "distinct-1", "distinct-2", "distinct-3"]
    human = _human()

    def shares(distinct: dict[str, float]) -> list[str]:
        return [f"{distinct[n]:.3f}" for n in ("1", "2", "3")]

    rows = [["human text", "", "", f"{human['rep']:.1%}", "-", *shares(human["distinct"])]]
    for drawn in _drawn():
        repeated = [f"{drawn.figures[key]:.1%}" for key in ("rep", "wrep")]
        rows.append([*drawn.cells, *repeated, *shares(drawn.distinct)])
    return markdown.table(columns, rows)


@block
def language_best() -> str:
    """The best way to draw from softmax beside the best sparse head, by measure."""
    rep, different = _human()["rep"], _human()["distinct"]["2"]
    criteria: list[tuple[str, Callable[[Drawn], float], str, Callable[[float], float]]] = [
        ("eps-perplexity, lowest", lambda drawn: drawn.figures["eps_perplexity"], ".1f", lambda value: value),
        ("sparsemax score, highest", lambda drawn: drawn.figures["sparsemax_score"], ".3f", lambda value: -value),
        ("Jensen-Shannon, lowest (nats)", lambda drawn: drawn.figures["jensen_shannon"], ".3f", lambda value: value),
        (
            f"REP, nearest to human text ({rep:.1%})",
            lambda drawn: drawn.figures["rep"],
            ".1%",
            lambda value: abs(value - rep),
        ),
        (
            f"distinct-2, nearest to human text ({different:.3f})",
            lambda drawn: drawn.distinct["2"],
            ".3f",
            lambda value: abs(value - different),
        ),
    ]
    rows = []
    for label, value_of, form, cost in criteria:
        row = [label]
        for dense in (True, False):
            values = {drawn.name: value_of(drawn) for drawn in _drawn() if drawn.dense == dense}
            best = min(values, key=lambda name: cost(values[name]))
            row.append(f"{best}: {values[best]:{form}}")
        rows.append(row)
    return markdown.table(["measure", "softmax", "sparse"], rows)


@block
def language_conversion() -> str:
    """A trained softmax model made sparse: not trained further, with LoRA, and with all weights."""
    converted = by_run(run for run in read(RESULT)["runs"] if run["settings"]["conversion"])
    columns = ["", "head", "weights trained", *(measure.label for measure in MEASURES)]
    rows = []
    for runs in converted.values():
        figures, settings = mean_of([run["figures"] for run in runs], Mean), runs[0]["settings"]
        dense = settings["head"] == "softmax"
        way = "softmax, trained on" if dense else CONVERSIONS[settings["conversion"]]
        trained = runs[0]["figures"]["trained"] / runs[0]["figures"]["parameters"]
        cells = [measure.text(figures["decodings"]["sampling"]) for measure in MEASURES]
        rows.append([way, settings["head"], f"{trained:.1%}", *cells])
    return (
        f"{markdown.table(columns, rows)}\n\n"
        f"{settings['conversion_steps']} steps after {settings['steps']} with softmax; LoRA of rank "
        f"{settings['lora_rank']} in every linear layer of every block; sparse models with entmax15 attention."
    )


@block
def language_samples() -> str:
    """Continuations of the same beginning by all heads."""
    figures = {
        name: runs[0]["figures"]["written"]
        for name, runs in _plain().items()
        if runs[0]["settings"]["attention"] == "softmax"
    }
    softmax = figures["softmax"]
    shown = {"human text": softmax["human"]}
    shown |= {f"softmax, {name}": softmax[name] for name in ("sampling", "greedy", "top-k 10", "nucleus 0.9")}
    shown |= {name: written["sampling"] for name, written in figures.items() if name != "softmax"}
    rows = [[name, _quoted(written["examples"][0])] for name, written in shown.items()]
    return f"After {_quoted(softmax['beginnings'][0])}\n\n{markdown.table(['', ''], rows)}"


@block
def language_origin() -> str:
    """Data, training and origin of the figures."""
    runs = read(RESULT)["runs"]
    first, settings = runs[0]["figures"], runs[0]["settings"]
    return (
        f"{first['data']}, one article in ten held out: {first['train_rows']:,} rows of {settings['context']} tokens "
        f"to train on, {first['tokens']:,} tokens to measure on; {first['vocabulary']:,} tokens in the vocabulary, "
        f"{first['parameters']:,} parameters; {settings['steps']} steps of {settings['batch_size']} rows, learning "
        f"rate {settings['lr']:g}; eps so that one part in {1 / settings['uniform']:.0f} is uniform; repetition "
        f"within {settings['span']} tokens; {max(map(len, by_run(runs).values()))} seeds. {origin(runs)}"
    )


class Drawn(NamedTuple):
    """One way to draw from the models of one run.

    Attributes:
        name: of the run, and of the way to decode if the head is softmax.
        dense: whether the head is softmax.
        cells: head, attention and way to decode, as the tables have them.
        figures: on held-out text, means over seeds.
        distinct: shares of distinct n-grams in drawn text, by n, means over seeds.
    """

    name: str
    dense: bool
    cells: list[str]
    figures: Figures
    distinct: dict[str, float]


def _drawn() -> Iterator[Drawn]:
    for run, runs in _plain().items():
        head, attention = runs[0]["settings"]["head"], runs[0]["settings"]["attention"]
        means = mean_of([each["figures"] for each in runs], Mean)
        for decoding, figures in means["decodings"].items():
            name = f"{run}, {decoding}" if head == "softmax" else run
            cells = [head, attention, "all of it" if decoding == "sampling" else decoding]
            yield Drawn(name, head == "softmax", cells, figures, means["written"][decoding]["distinct"])


def _plain() -> dict[str, list[Record]]:
    return by_run(plain(read(RESULT)["runs"]))


def _from_scratch(result: str) -> list[Record]:
    return [run for run in read(result)["runs"] if not run["settings"]["conversion"]]


def _human() -> Figures:
    """Repetition in the held-out text, the same for every run: ``rep``, and ``distinct`` by n."""
    figures = _from_scratch(RESULT)[0]["figures"]
    return {"rep": figures["human"]["rep"], "distinct": figures["written"]["human"]["distinct"]}


def _quoted(text: str) -> str:
    return f"“{text.strip().replace(chr(10), ' / ').replace('<', '&lt;')}”"
