"""Multilingual morphological inflection over a grid of alpha at the output and in attention.

    <german><V><...>: one model for all languages; a token names the language of each word

The grid is that of Peters, Niculae and Martins 2019, Table 1: alpha 1 (softmax), 1.5 and 2 (sparsemax) at the output
and in attention, and besides alpha-ReLU at the output. Each model is trained from scratch. Reported are accuracy by
language, the share of words with a single form of nonzero probability, the share for which beam search saw every
possible form, supports, and ensembles of several seeds that average probabilities at every step.

    python -m recipes.inflection_grid.run --list
    python -m recipes.inflection_grid.run --quick                        # English verbs
    python -m recipes.inflection_grid.run --data sigmorphon2018          # LANG-train-medium and LANG-dev there
    python -m recipes.inflection_grid.run --data sigmorphon2018 --only 'output-1.5*' --seeds 3
    python -m recipes.inflection_grid.run --data sigmorphon2018 --set size=high languages=german,turkish
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from transformers import AutoModelForSeq2SeqLM

import hf_sparse

from ..inflection.model import build_model, encode
from ..lib.batches import padding_collator
from ..lib.models import config_of, save
from ..lib.records import CannotRun, Figures, read_json
from ..lib.settings import Settings, check_positive, setting
from ..lib.study import Study, main
from ..lib.training import train
from .data import Task, prepared
from .measures import measured
from .report import card, condensed, report

LANGUAGES = "english,german,turkish"  # little, mixed and agglutinating morphology
ALPHAS = {"1": "", "1.5": "entmax15", "2": "sparsemax"}  # empty: softmax, which is not replaced


@dataclasses.dataclass(frozen=True)
class Grid(Settings):
    """Data, maps and training of one run; or the members of an ensemble."""

    data: str = setting("", "SIGMORPHON 2018 task 1", "4.1")
    languages: str = setting(LANGUAGES, "86 (high), 102 (medium)", "4.1")
    size: str = setting("medium", "high and medium", "Table 1")
    dev_rows: int = setting(150, "all", "4.1")  # per language
    part: str = setting("dev", "test", "4.1")  # the files that are evaluated on
    head: str = setting("", "softmax, 1.5-entmax, sparsemax", "Table 1")
    attention: str = setting("", "softmax, 1.5-entmax, sparsemax", "Table 1")
    members: str = setting("", "ensembles of three runs", "4.1")
    member_seeds: int = setting(3, "3", "Table 1")
    steps: int = setting(1600)
    batch_size: int = setting(64, "64", "4")
    lr: float = setting(2e-3, "0.001, halved on plateaus", "4")
    beams: int = setting(5, "5", "4")
    report_to: str = setting("none")

    def __post_init__(self) -> None:
        check_positive(self, "dev_rows", "member_seeds", "steps", "batch_size", "lr")
        if self.beams < 2:
            raise ValueError(f"beams must be at least 2, was {self.beams}")
        if self.maps:
            hf_sparse.SparseConfig.parse(**self.maps)

    @property
    def maps(self) -> dict[str, str]:
        """Arguments of ``sparsify``; softmax is not replaced."""
        return {place: name for place, name in {"attn": self.attention, "head": self.head}.items() if name}


def runs() -> dict[str, Grid]:
    """All runs, the most important first and ensembles last."""
    grid = {
        f"output-{output}-attention-{attention}": Grid(head=head, attention=within)
        for output, head in ALPHAS.items()
        for attention, within in ALPHAS.items()
    }
    first = [f"output-{alpha}-attention-{alpha}" for alpha in ALPHAS]
    trained = {name: grid[name] for name in first}
    trained["output-alpha_relu-attention-1.5"] = Grid(head="alpha_relu", attention="entmax15")
    trained |= grid
    return trained | {f"ensemble-{name}": Grid(members=name) for name in trained}


TRAINING = ("data", "languages", "size", "steps", "batch_size", "lr")  # settings that a trained model depends on
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
        if other := {name: trained[name] for name in TRAINING if trained[name] != getattr(settings, name)}:
            raise CannotRun(f"{member} was trained with other settings ({other}); give the ensemble the same")
        members.append(AutoModelForSeq2SeqLM.from_pretrained(member / "model"))
    return hf_sparse.Ensemble(members)


def task_of(settings: Grid) -> Task:
    """Rows and tokenizer of a run; read once for all runs that share them."""
    return prepared(settings.data, settings.languages, settings.size, settings.dev_rows, settings.part)


def perform(settings: Grid, folder: Path) -> Figures:
    """Train one model, or load the members of an ensemble, and measure it."""
    task = task_of(settings)
    if settings.members:
        return measured(ensemble(settings, folder), task, settings.beams)
    model = build_model(task.tokenizer, max(map(len, task.train["form"])), settings.seed)
    if settings.maps:
        model = hf_sparse.sparsify(model, **settings.maps)
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
        report_to=settings.report_to,
    )
    save(model, task.tokenizer, folder)
    return {
        **measured(model, task, settings.beams),
        "config": config_of(model),
        "parameters": model.num_parameters(),
        "loss": [{"step": entry["step"], "loss": entry["loss"]} for entry in log if "loss" in entry],
    }


STUDY = Study(
    name="inflection_grid",
    description=__doc__,
    runs=runs(),
    perform=perform,
    report=report,
    card=card,
    quick=QUICK,
    usual=("output-*",),  # ensembles need several seeds
    check=task_of,
    condensed=condensed,
)

if __name__ == "__main__":
    main(STUDY)
