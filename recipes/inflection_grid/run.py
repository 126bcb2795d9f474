"""Multilingual morphological inflection over a grid of alpha at the output and in attention.

    <german><V><...>: one model for all languages; a token names the language of each word

The grid is that of Peters, Niculae and Martins 2019, Table 1: alpha 1 (softmax), 1.5 and 2 (sparsemax) at the output
and in attention, and besides alpha-ReLU at the output. Each model is trained from scratch, with sparse maps at the
temperatures of docs/training.md; trials compare some on other rows of the development sets. Reported are accuracy by
language, the share of words with a single form of nonzero probability, the share for which beam search saw every
possible form, supports, and ensembles of several seeds that average probabilities at every step.

    python -m recipes.inflection_grid.run --list
    python -m recipes.inflection_grid.run --quick                        # English verbs
    python -m recipes.inflection_grid.run --data sigmorphon2018          # LANG-train-medium and LANG-dev there
    python -m recipes.inflection_grid.run --data sigmorphon2018 --only 'output-1.5*' --seeds 3
    python -m recipes.inflection_grid.run --data sigmorphon2018 --set size=high languages=german,turkish
    python -m recipes.inflection_grid.run --data sigmorphon2018 --only 'trial-*'
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM

import hf_sparse
from hf_sparse.functional import balanced_temperature

from ..inflection.lstm import build_lstm
from ..inflection.model import build_model, encode
from ..lib.batches import padding_collator
from ..lib.models import config_of, entmax_map, save
from ..lib.records import CannotRun, Figures, read_json
from ..lib.settings import Settings, check_one_of, check_positive, setting
from ..lib.study import Study, main
from ..lib.training import annealing, train
from .data import Task, joined, prepared
from .measures import measured
from .report import card, condensed, report

LANGUAGES = "arabic,basque,finnish,georgian,german,quechua,russian,turkish"  # of eight families
ALPHAS = (1, 1.5, 2)
MODELS = {"transformer": build_model, "lstm": build_lstm}
SCHEDULES = ("cosine", "halved")  # the second is the paper's: halved where the loss on other rows did not fall
KEYS = 16  # that the temperature of attention is for: letters and tags of a word


@dataclasses.dataclass(frozen=True)
class Grid(Settings):
    """Data, maps and training of one run; or the members of an ensemble."""

    data: str = setting("", "SIGMORPHON 2018 task 1", "4.1")
    languages: str = setting(LANGUAGES, "86 (high), 102 (medium)", "4.1")
    size: str = setting("medium", "high and medium", "Table 1")
    dev_rows: int = setting(150, "all", "4.1")  # per language
    part: str = setting("dev", "test", "4.1")  # the files that are evaluated on
    dev_from: int = setting(0)  # the first of their rows
    model: str = setting("transformer", "LSTM", "4")
    head: str | Mapping[str, Any] | None = setting(None, "softmax, 1.5-entmax, sparsemax", "Table 1")
    attention: str | Mapping[str, Any] | None = setting(None, "softmax, 1.5-entmax, sparsemax", "Table 1")
    head_from: Mapping[str, float] | None = setting(None)  # settings that the head starts at and leaves by and by
    over: float = setting(0.5)  # share of the steps on that way
    members: str = setting("", "ensembles of three runs", "4.1")
    member_seeds: int = setting(3, "3", "Table 1")
    steps: int = setting(2400)
    batch_size: int = setting(64, "64", "4")
    lr: float = setting(2e-3, "0.001", "4")
    schedule: str = setting("cosine", "halved on plateaus", "4")  # of the learning rate
    beams: int = setting(5, "5", "4")
    report_to: str = setting("none")

    def __post_init__(self) -> None:
        check_positive(self, "dev_rows", "member_seeds", "steps", "batch_size", "lr")
        if self.dev_from < 0:
            raise ValueError(f"dev_from must be at least 0, was {self.dev_from}")
        if self.beams < 2:
            raise ValueError(f"beams must be at least 2, was {self.beams}")
        check_one_of(self, model=MODELS, schedule=SCHEDULES)
        annealing(self.head_from, self.over)  # checks what it is given
        if self.maps:
            hf_sparse.SparseConfig.parse(**self.maps)

    @property
    def maps(self) -> dict[str, Any]:
        """Arguments of ``sparsify``; softmax is not replaced."""
        return {place: name for place, name in {"attn": self.attention, "head": self.head}.items() if name}


def within(alpha: float) -> dict[str, Any] | None:
    """Map of attention that is trained from scratch."""
    return entmax_map(alpha, balanced_temperature(alpha, KEYS))


def runs() -> dict[str, Grid]:
    """All runs, the most important first and ensembles last."""
    grid = {
        f"output-{output}-attention-{attention}": Grid(head=entmax_map(output, "auto"), attention=within(attention))
        for output in ALPHAS
        for attention in ALPHAS
    }
    first = [f"output-{alpha}-attention-{alpha}" for alpha in ALPHAS]
    made = {name: grid[name] for name in first}
    made["output-alpha_relu-attention-1.5"] = Grid(
        head={"name": "alpha_relu", "temperature": "auto"}, attention=within(1.5)
    )
    made |= grid
    begun = Grid(head=entmax_map(2, 4.0), head_from={"alpha": 1.5})
    for attention in (1, 1.5):
        made[f"output-2-from-1.5-attention-{attention}"] = dataclasses.replace(begun, attention=within(attention))
    return made | {f"ensemble-{name}": Grid(members=name) for name in made}


def trials() -> dict[str, Grid]:
    """Shorter runs on other rows, at several temperatures of one sparse map; the rest is softmax."""
    short = Grid(languages="english,german,turkish", dev_rows=200, dev_from=500, steps=800)
    maps = {"softmax": {}}
    for alpha, temperatures in ((1.5, (1, 2, 4)), (2, (1, 2, 4, 8))):
        for temperature in temperatures:
            maps[f"attention-{alpha}-at-{temperature}"] = {"attention": entmax_map(alpha, temperature)}
    for alpha, temperatures in ((1.5, (1, "auto")), (2, (1, 3, "auto"))):
        for temperature in temperatures:
            maps[f"output-{alpha}-at-{temperature}"] = {"head": entmax_map(alpha, temperature)}
    return {f"trial-{name}": dataclasses.replace(short, **places) for name, places in maps.items()}


# Settings that a trained model depends on.
TRAINING = ("data", "languages", "size", "model", "steps", "batch_size", "lr", "schedule")
QUICK = {"steps": 4, "batch_size": 16, "dev_rows": 6, "beams": 2, "member_seeds": 1}


def ensemble(settings: Grid, folder: Path) -> hf_sparse.Ensemble:
    """The runs of one name with seeds from 0, as one model.

    Raises:
        CannotRun: one of them has not been done, or was trained otherwise than these settings say.
    """
    members = []
    for seed in range(settings.member_seeds):
        member = folder.parent / f"{settings.members}-{seed}"
        if not (member / "result.json").is_file():
            command = f"--only {settings.members} --seeds {settings.member_seeds}"
            raise CannotRun(f"{member}: an ensemble needs its members; do {command}")
        trained = read_json(member / "result.json")["settings"]
        theirs = {name: trained.get(name, getattr(Grid, name)) for name in TRAINING}  # older ones lack some
        if other := {name: value for name, value in theirs.items() if value != getattr(settings, name)}:
            raise CannotRun(f"{member} was trained with other settings ({other}); give the ensemble the same")
        members.append(AutoModelForSeq2SeqLM.from_pretrained(member / "model"))
    return hf_sparse.Ensemble(members)


def task_of(settings: Grid) -> Task:
    """Rows and tokenizer of a run; read once for all runs that share them."""
    names = ("data", "languages", "size", "dev_rows", "part", "dev_from")
    return prepared(*(getattr(settings, name) for name in names))


def held_rows(settings: Grid) -> Dataset | None:
    """The rows that decide about the learning rate: those of the development sets after the ones evaluated on."""
    if settings.schedule == "cosine":
        return None
    start = settings.dev_from + settings.dev_rows
    return joined(settings.data, settings.languages, "dev", start, settings.dev_rows)


def check(settings: Grid) -> None:
    """Raise what ``prepared`` raises, before anything is trained."""
    task_of(settings)
    held_rows(settings)


def perform(settings: Grid, folder: Path) -> Figures:
    """Train one model, or load the members of an ensemble, and measure it."""
    task = task_of(settings)
    if settings.members:
        return measured(ensemble(settings, folder), task, settings.beams)
    model = MODELS[settings.model](task.tokenizer, max(map(len, task.train["form"])), settings.seed)
    if settings.maps:
        model = hf_sparse.sparsify(model, **settings.maps)
    held = held_rows(settings)
    log = train(
        model,
        task.tokenizer,
        encode(task.train, task.tokenizer),
        folder / "checkpoints",
        collator=padding_collator(task.tokenizer, model),
        steps=settings.steps,
        lr=settings.lr,
        batch_size=settings.batch_size,
        seed=settings.seed,
        held=None if held is None else encode(held, task.tokenizer),
        report_to=settings.report_to,
        callbacks=annealing(settings.head_from, settings.over),
    )
    save(model, task.tokenizer, folder)
    return {
        **measured(model, task, settings.beams),
        "class": type(model).__name__,
        "config": config_of(model),
        "parameters": model.num_parameters(),
        "loss": [{"step": entry["step"], "loss": entry["loss"]} for entry in log if "loss" in entry],
    }


STUDY = Study(
    name="inflection_grid",
    description=__doc__,
    runs=runs() | trials(),
    perform=perform,
    report=report,
    card=card,
    quick=QUICK,
    usual=("output-*",),  # ensembles need several seeds
    check=check,
    condensed=condensed,
)

if __name__ == "__main__":
    main(STUDY)
