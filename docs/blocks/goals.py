"""What sparse training was to reach at equal steps, and how far it came: means over seeds."""

from __future__ import annotations

from collections.abc import Callable
from statistics import stdev
from typing import Any, NamedTuple

from recipes.lib import markdown
from recipes.lib.blocks import block, read
from recipes.lib.records import Record
from recipes.lib.seeds import Mean, by_run

Figures = dict[str, Any]


class Aim(NamedTuple):
    """A figure, and how far from that of softmax it may be.

    Attributes:
        text: in words.
        figure: (figures of a record) -> the number.
        form: how it is written.
        met: (mean of the sparse runs, mean of softmax) -> whether it is reached.
        allows: whether softmax may be better by a margin; if not, a difference that seeds make is none.
    """

    text: str
    figure: Callable[[Figures], float]
    form: str
    met: Callable[[float, float], bool]
    allows: bool = False


def _sampled_accuracy(figures: Figures) -> float:
    return figures["decodings"]["sampling"]["accuracy"]


def _fitted(figures: Figures) -> float:
    """eps-perplexity at the temperature fitted on other rows, where there is one."""
    return (figures["calibrated"] or figures["decodings"]["sampling"])["eps_perplexity"]


def _perplexity(percent: int) -> Aim:
    text, most = f"eps-perplexity, at most {percent} % more", 1 + percent / 100
    return Aim(text, _fitted, ".1f", lambda ours, softmax: ours <= softmax * most, allows=True)


BLEU = Aim("BLEU, at least as high", lambda figures: figures["bleu"], ".1f", lambda ours, softmax: ours >= softmax)
CLOSE_BLEU = BLEU._replace(text="BLEU, within 1", met=lambda ours, softmax: ours >= softmax - 1, allows=True)
ACCURACY = Aim("accuracy, at least as high", _sampled_accuracy, ".2%", lambda ours, softmax: ours >= softmax)
OF_WORDS = Aim("accuracy, higher", lambda figures: figures["accuracy"], ".1%", lambda ours, softmax: ours > softmax)


class Goal(NamedTuple):
    """Runs that are held to an aim.

    Attributes:
        task: what is learned, with a link to where the runs are described.
        result: the summary that has softmax's runs.
        softmax: name of those.
        runs: names of sparse runs, and what they are called here.
        sparse: the summary that has the sparse runs, if another.
    """

    task: str
    aim: Aim
    result: str
    softmax: str
    runs: dict[str, str]
    sparse: str = ""


def _task(text: str, recipe: str, section: str) -> str:
    return f"[{text}](../recipes/{recipe}/README.md#{section})"


CONVERGED = "translation_sweep/results/multi30k_converged.json"


def _translation(text: str) -> str:
    return _task(text, "translation_sweep", "until-it-gains-little-more")


def _direction(direction: str, prefix: str) -> list[Goal]:
    task, softmax = _translation(f"translation, {direction}"), f"{prefix}softmax"
    heads = {
        f"{prefix}output-1.33": "alpha 1.33",
        f"{prefix}output-entmax15": "1.5-entmax",
        f"{prefix}entmax15": "1.5-entmax, in attention too",
        f"{prefix}output-alpha_relu": "alpha-ReLU",
    }
    late = {f"{prefix}sparsemax-from-entmax15": "sparsemax from alpha 1.5"}
    return [Goal(task, BLEU, CONVERGED, softmax, heads), Goal(task, CLOSE_BLEU, CONVERGED, softmax, late)]


def _two_thirds(direction: str, prefix: str) -> list[Goal]:
    task = _translation(f"the same, {direction}, two thirds of the steps for the sparse head")
    head = {f"{prefix}output-1.33": "alpha 1.33"}
    return [Goal(task, BLEU, CONVERGED, f"{prefix}softmax", head, "translation_sweep/results/multi30k_thirds.json")]


def _language(text: str, section: str, result: str) -> list[Goal]:
    task, path = _task(text, "language_modelling", section), f"language_modelling/results/{result}.json"
    near, far = {"entmax13": "alpha 1.3"}, {"entmax15": "1.5-entmax"}
    return [
        Goal(task, ACCURACY, path, "softmax", near | far),
        Goal(task, _perplexity(3), path, "softmax", near),
        Goal(task, _perplexity(10), path, "softmax", far),
    ]


def _inflection(text: str, section: str, result: str) -> Goal:
    task, path = _task(text, "inflection_grid", section), f"inflection_grid/results/{result}.json"
    runs = {"output-1.5-attention-1": "1.5-entmax", "output-2-from-1.5-attention-1": "sparsemax from alpha 1.5"}
    return Goal(task, OF_WORDS, path, "output-1-attention-1", runs)


GOALS = [
    *_direction("de-en", ""),
    *_direction("en-de", "en-de-"),
    Goal(
        _translation("the same, de-en, half of the steps for the sparse head"),
        BLEU,
        CONVERGED,
        "softmax",
        {"output-1.33": "alpha 1.33", "entmax15": "1.5-entmax, in attention too"},
        "translation_sweep/results/multi30k_half.json",
    ),
    *_two_thirds("de-en", ""),
    *_two_thirds("en-de", "en-de-"),
    *_language("language model", "over-three-seeds", "wikitext2"),
    *_language(
        "language model, the head with a matrix of its own, four times the steps",
        "a-matrix-of-its-own-for-the-head",
        "wikitext2_untied_longer",
    ),
    _inflection("inflection, a thousand words each", "eight-languages", "eight_languages"),
    _inflection("inflection, the same, three times the steps", "three-times-the-steps", "eight_languages_longer"),
    _inflection(
        "inflection, the same, LSTMs and the schedule of the paper",
        "the-models-of-the-paper",
        "eight_languages_lstm",
    ),
    _inflection(
        "inflection, ten thousand words each, three times the steps",
        "ten-thousand-words-in-each",
        "eight_languages_high_longer",
    ),
]


@block
def training_goals() -> str:
    """All goals, each with the figures of softmax and of the sparse runs."""
    rows: list[list[str]] = []
    seeds, task = set[int](), ""
    for goal in GOALS:
        softmax = _mean(goal.result, goal.softmax, goal.aim)
        for run, name in goal.runs.items():
            ours = _mean(goal.sparse or goal.result, run, goal.aim)
            seeds |= {len(ours.values), len(softmax.values)}
            figures = [f"{mean:{goal.aim.form}}" for mean in (ours, softmax)]
            rows.append(["" if goal.task == task else goal.task, name, goal.aim.text, *figures])
            rows[-1].append(_verdict(goal.aim, ours, softmax))
            task = goal.task
    columns = ["task", "sparse head", "aim beside softmax", "sparse", "softmax", ""]
    counted = " or ".join(map(str, sorted(seeds)))
    return (
        f"{markdown.table(columns, rows)}\n\n"
        f"Mean ± standard deviation over {counted} seeds. *Level*: apart by less than the larger of both deviations."
    )


def _verdict(aim: Aim, ours: Mean, softmax: Mean) -> str:
    if not aim.allows and abs(ours - softmax) < max(stdev(mean.values) for mean in (ours, softmax)):
        return "level"
    return "met" if aim.met(ours, softmax) else "**missed**"


def _mean(result: str, run: str, aim: Aim) -> Mean:
    records: list[Record] = by_run(read(f"recipes/{result}")["runs"])[run]
    return Mean([aim.figure(record["figures"]) for record in records])
