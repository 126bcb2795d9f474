"""From softmax to sparse: the loss of replacing softmax in a trained model, and how much of it training regains.

A small GPT-2-like model and a small BART-like one are trained with softmax. Each is then made sparse in attention,
at the head, and in both, in six ways, and compared with the dense model trained for as many further steps:

    swap        the maps are replaced; no training
    calibrate   temperatures are fitted on a few training rows; no training
    train       swap, then train
    anneal      calibrate, then train while alpha moves from 1 (softmax) to its target
    distil      the same with the dense model as a teacher
    scratch     sparse from the first step, for the steps of the dense model and those of the conversion together

Losses of different maps are different functions. The loss that is compared is the log of the eps-perplexity (Martins,
Marinho and Martins 2020) on held-out rows: the negative log-likelihood in nats per token after one part in a hundred
of the uniform distribution has been mixed in, for dense and sparse models alike.

    python -m recipes.conversion.run --list
    python -m recipes.conversion.run --quick                                    # on English verbs, as without --data
    python -m recipes.conversion.run --only 'bart-head-*' --set alpha=1.3
    python -m recipes.conversion.run --only 'gpt2-*' --data my.txt --out out/mine
    python -m recipes.conversion.run --only 'bart-*' --data multi30k --out out/mine
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, TrainerCallback

import hf_sparse

from ..lib.models import config_of, save
from ..lib.records import Figures, sibling
from ..lib.settings import Settings, check_one_of, check_positive, setting
from ..lib.study import Study, main
from ..lib.training import train
from .model import TASKS, Task, evaluate
from .report import PARTS, card, condensed, report

DENSE = ("dense", "continue")
WAYS = ("swap", "calibrate", "train", "anneal", "distil", "scratch")
CURVE_POINTS = 5  # evaluations in a phase of training
TEACHER_WEIGHT = 0.5
GPT2 = "Martins et al. 2020, 5.1"


@dataclasses.dataclass(frozen=True)
class Conversion(Settings):
    """A dense model, or a conversion of it; the paper only fine-tunes a language model with a sparse head."""

    model: str = setting("gpt2", "GPT-2 medium", GPT2)
    place: str = setting("none", "head", GPT2)
    way: str = setting("dense", "train", GPT2)
    data: str = setting("", "WikiText-2, WikiText-103, BookCorpus", GPT2)
    source: str = setting("de")
    target: str = setting("en")
    alpha: float = setting(1.5, "tuned", GPT2)
    steps: int = setting(300)
    conversion_steps: int = setting(120)
    anneal_over: float = setting(0.6)  # share of the conversion's steps in which alpha moves
    batch_size: int = setting(16)
    lr: float = setting(2e-3)  # conversions: half of it
    width: int = setting(64, "1,024", "GPT-2 medium")
    layers: int = setting(3, "24", "GPT-2 medium")  # BART: one fewer in encoder and decoder
    vocabulary: int = setting(1000, "50,257", "GPT-2")
    train_rows: int = setting(0)  # 0: all
    dev_rows: int = setting(200)
    calibration_rows: int = setting(64)
    report_to: str = setting("none")

    def __post_init__(self) -> None:
        check_one_of(self, model=TASKS, place=("none", *PARTS), way=(*DENSE, *WAYS))
        if (self.place == "none") != (self.way in DENSE):
            raise ValueError(f"{self.way} does not go with place {self.place}; {' and '.join(DENSE)} are without one")
        check_positive(self, "steps", "conversion_steps", "batch_size", "lr", "layers", "dev_rows", "calibration_rows")
        if self.train_rows < 0:
            raise ValueError(f"train_rows must be at least 0, which means all, was {self.train_rows}")
        if not 0 < self.anneal_over <= 1:
            raise ValueError(f"anneal_over must be in (0, 1], was {self.anneal_over}")
        if not 1 < self.alpha <= 2:
            raise ValueError(f"alpha must be in (1, 2], was {self.alpha}")
        if self.width < 4 or self.width % 4:
            raise ValueError(f"width must be a multiple of 4, was {self.width}")
        if self.vocabulary < 300:
            raise ValueError(f"vocabulary must be at least 300, 256 of them bytes, was {self.vocabulary}")


def runs() -> dict[str, Conversion]:
    """All runs: each model dense, dense with further training, and converted in every place and way."""
    dense = {f"{model}-{way}": Conversion(model=model, way=way) for model in TASKS for way in DENSE}
    return dense | {
        f"{model}-{place}-{way}": Conversion(model=model, place=place, way=way)
        for model in TASKS
        for place in PARTS
        for way in WAYS
    }


QUICK = {
    "steps": 6,
    "conversion_steps": 4,
    "width": 16,
    "layers": 1,
    "vocabulary": 300,
    "dev_rows": 16,
    "calibration_rows": 16,
}


def needs(settings: Conversion) -> tuple[str, ...]:
    """The dense model, which conversions resume from, and the same with further training, for comparison."""
    dense, trained_on = f"{settings.model}-dense", f"{settings.model}-continue"
    return {"dense": (), "continue": (dense,)}.get(settings.way, (dense, trained_on))


class Curve(TrainerCallback):
    """Adds figures on the held-out rows to Trainer's log, which checkpoints keep."""

    def __init__(self, task: Task, settings: Conversion, first_step: int, steps: int) -> None:
        self.task, self.batch_size, self.first_step = task, settings.batch_size, first_step
        self.every = max(steps // CURVE_POINTS, 1)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Measure ``CURVE_POINTS`` times, and at the end."""
        if state.global_step % self.every == 0 or state.global_step == state.max_steps:
            point = {"step": self.first_step + state.global_step, **evaluate(model, self.task, self.batch_size)}
            state.log_history.append({"step": state.global_step, "held_out": point})


def trained(
    model: PreTrainedModel,
    task: Task,
    settings: Conversion,
    folder: Path,
    first_step: int = 0,
    callbacks: Sequence[TrainerCallback] = (),
    teacher: PreTrainedModel | None = None,
) -> list[dict[str, Any]]:
    """Train ``model`` in place for one phase, with a whole schedule of the learning rate; returns its curve."""
    steps = settings.conversion_steps if first_step else settings.steps
    log = train(
        model,
        task.tokenizer,
        task.train,
        folder / f"training-from-{first_step}",
        collator=task.collator,
        steps=steps,
        lr=settings.lr / 2 if first_step else settings.lr,
        batch_size=settings.batch_size,
        seed=settings.seed + first_step,
        report_to=settings.report_to,
        callbacks=[*callbacks, Curve(task, settings, first_step, steps)],
        teacher=teacher,
        teacher_weight=TEACHER_WEIGHT,
    )
    return [entry["held_out"] for entry in log if "held_out" in entry]


def made(settings: Conversion, task: Task, folder: Path) -> tuple[PreTrainedModel, list[dict[str, Any]]]:
    """The model of one run, and its curve; the last point is its result."""
    if settings.way == "dense":
        model = task.build(settings.seed)
        return model, trained(model, task, settings, folder)
    maps = {part: {"name": "entmax", "alpha": settings.alpha} for part in PARTS.get(settings.place, ())}
    if settings.way == "scratch":
        model = hf_sparse.sparsify(task.build(settings.seed), **maps)
        points = trained(model, task, settings, folder)
        return model, points + trained(model, task, settings, folder, settings.steps)
    return converted(settings, task, folder, maps)


def converted(
    settings: Conversion, task: Task, folder: Path, maps: dict[str, Any]
) -> tuple[PreTrainedModel, list[dict[str, Any]]]:
    """The trained dense model with other maps, after calibration and training; and its curve."""
    dense = sibling(folder, f"{settings.model}-dense", settings) / "model"
    model = task.model_class.from_pretrained(dense)
    if maps:
        model = hf_sparse.sparsify(model, **maps)
    if settings.way in ("calibrate", "anneal", "distil"):
        rows = task.train.select(range(min(settings.calibration_rows, len(task.train))))
        hf_sparse.calibrate(model, task.loader(rows, settings.batch_size), per_head=False, fit_alpha=False)
    if settings.way in ("swap", "calibrate"):
        return model, [{"step": settings.steps, **evaluate(model, task, settings.batch_size)}]
    annealed = settings.way in ("anneal", "distil")
    callbacks = [hf_sparse.AnnealingCallback(settings.anneal_over)] if annealed else []
    teacher = task.model_class.from_pretrained(dense) if settings.way == "distil" else None
    return model, trained(model, task, settings, folder, settings.steps, callbacks, teacher)


@functools.lru_cache(maxsize=2)
def _task(settings: Conversion) -> Task:
    return TASKS[settings.model](settings)


def task_of(settings: Conversion) -> Task:
    """Model and data of a run; read once for all runs that share them."""
    return _task(dataclasses.replace(settings, place="none", way="dense"))


def perform(settings: Conversion, folder: Path) -> Figures:
    """Train or convert one model and measure it."""
    task = task_of(settings)
    model, points = made(settings, task, folder)
    save(model, task.tokenizer, folder)
    return {
        **points[-1],
        "config": config_of(model),
        "curve": [{"step": point["step"], "loss": point["loss"]} for point in points],
        "data": {
            "what": task.what,
            "train_rows": len(task.train),
            "dev_rows": len(task.dev),
            "vocabulary": len(task.tokenizer),
            "parameters": model.num_parameters(),
        },
    }


STUDY = Study(
    name="conversion",
    description=__doc__,
    runs=runs(),
    perform=perform,
    report=report,
    card=card,
    quick=QUICK,
    needs=needs,
    check=task_of,
    condensed=condensed,
)

if __name__ == "__main__":
    main(STUDY)
