"""Translation with every map at the output and in attention, each trained from scratch.

A small Marian model learns German to English, and English to German, for a few hundred steps: softmax, sparsemax,
entmax and alpha-ReLU (Peters et al. 2019, Tables 2 and 3, Figure 4; Tezekbayev et al. 2022, Tables 1 and 2, Figures 5
to 9), a finer grid of alpha, smoothed targets, other thresholds of alpha-ReLU, and cross-attention whose sparsity is
controlled by one number (Laha et al. 2018, Section 5.2). Reported are BLEU or ROUGE, words per second in training, how
often the empty string is preferred, supports, and the course of thresholds and logits during training.

    python -m recipes.translation_sweep.run --list
    python -m recipes.translation_sweep.run --quick --only softmax entmax15
    python -m recipes.translation_sweep.run --data multi30k --only '*softmax' 'entmax*'
    python -m recipes.translation_sweep.run --data headlines.tsv --set metric=rouge    # article TAB headline
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import hf_sparse

from ..lib.batches import Collator
from ..lib.models import config_of, save
from ..lib.records import Figures
from ..lib.settings import Settings, setting
from ..lib.study import Study, main
from ..lib.training import StepSeconds, train
from ..translation.model import Task, build_model, encode
from .data import read_task
from .measures import Curve, decode, example, forced_figures, scores
from .report import card, condensed, report

CURVE_ROWS = 64


@dataclasses.dataclass(frozen=True)
class Sweep(Settings):
    """Data, maps and training of one run."""

    data: str = setting("", "IWSLT 2017, KFTT, WMT 2016", "Peters et al. 2019, 4.2")
    source: str = setting("de")
    target: str = setting("en")
    reverse: bool = setting(False)
    train_rows: int = setting(0, "206,112 of de-en", "Peters et al. 2019, 4.2")  # 0: all
    test_rows: int = setting(200)
    vocabulary: int = setting(600, "32k merges, joint", "Peters et al. 2019, 4.2")
    head: str | Mapping[str, Any] | None = setting(
        None, "softmax, 1.5-entmax, sparsemax; 1.5-ReLU", "Peters et al. 2019, 4; Tezekbayev et al. 2022, 3"
    )
    attention: str | Mapping[str, Any] | None = setting(
        None, "that of the head; softmax", "Peters et al. 2019, Table 2; Tezekbayev et al. 2022, 3"
    )
    label_smoothing: float = setting(0.0, "0", "Peters et al. 2019, 4")
    steps: int = setting(480, "100,000", "Peters et al. 2019, 4.2")
    batch_size: int = setting(32, "64", "Peters et al. 2019, 4")
    lr: float = setting(2e-3, "0.001, halved on plateaus", "Peters et al. 2019, 4")
    beams: int = setting(4, "5", "Peters et al. 2019, 4")
    metric: str = setting("bleu", "BLEU; ROUGE of headlines", "Laha et al. 2018, Table 2")
    report_to: str = setting("none")


def entmax(alpha: float) -> Any:
    """Map of the entmax family at ``alpha``; None for softmax, which is not replaced."""
    return {1: None, 1.5: "entmax15", 2: "sparsemax"}.get(alpha, {"name": "entmax", "alpha": alpha})


def runs() -> dict[str, Sweep]:
    """All runs, the most important first."""
    both = {"softmax": None, "entmax15": "entmax15", "sparsemax": "sparsemax"}
    relu = Sweep(head="alpha_relu")
    made = {name: Sweep(head=map_name, attention=map_name) for name, map_name in both.items()}
    made["output-alpha_relu"] = relu
    for lam in (-1.0, 0.0, 0.5, 0.9):
        made[f"cross-sparsegen_lin-{lam:g}"] = Sweep(attention={"cross": {"name": "sparsegen_lin", "lam": lam}})
    for q in (0.1, 1.0, 10.0):
        made[f"cross-sparsehourglass-{q:g}"] = Sweep(attention={"cross": {"name": "sparsehourglass", "q": q}})
    made["output-entmax15"] = Sweep(head="entmax15")
    made["output-sparsemax"] = Sweep(head="sparsemax")
    made |= {f"en-de-{name}": dataclasses.replace(made[name], reverse=True) for name in [*both, "output-alpha_relu"]}
    made |= {f"output-{alpha:g}": Sweep(head=entmax(alpha), attention="entmax15") for alpha in (1, 1.33, 2)}
    made |= {f"attention-{alpha:g}": Sweep(head="entmax15", attention=entmax(alpha)) for alpha in (1.33, 2)}
    made["en-de-output-1.33"] = dataclasses.replace(made["output-1.33"], reverse=True)
    for name in ("softmax", "entmax15", "output-alpha_relu"):
        made[f"{name}-smoothed"] = dataclasses.replace(made[name], label_smoothing=0.1)
    for tau in (0.0, 1.0, 5.0):
        made[f"output-alpha_relu-tau-{tau:g}"] = Sweep(head={"name": "alpha_relu", "tau": tau})
    made["cross-softmax-temperature"] = Sweep(attention={"cross": {"name": "softmax", "temperature": 0.5}})
    return made


QUICK = {"steps": 4, "batch_size": 8, "train_rows": 200, "test_rows": 6, "vocabulary": 400, "beams": 2}


def task_of(settings: Sweep) -> Task:
    """Corpus, tokenizer and rows of a run; read once for all runs that share them."""
    names = ("data", "source", "target", "reverse", "train_rows", "vocabulary")
    return read_task(*(getattr(settings, name) for name in names))


def perform(settings: Sweep, folder: Path) -> Figures:
    """Train one model from scratch and measure it."""
    corpus, tokenizer, rows = task_of(settings)
    test = corpus.test[: settings.test_rows]
    model = build_model(tokenizer, settings.seed)
    if settings.head or settings.attention:
        model = hf_sparse.sparsify(model, attn=settings.attention, head=settings.head)
    collator, clock = Collator(tokenizer, model), StepSeconds()
    curve = Curve(collator(list(encode(corpus.dev[:CURVE_ROWS], tokenizer))), max(settings.steps // 20, 1))
    log = train(
        model,
        tokenizer,
        rows,
        folder / "checkpoints",
        collator=collator,
        steps=settings.steps,
        lr=settings.lr,
        batch_size=settings.batch_size,
        seed=settings.seed,
        label_smoothing=settings.label_smoothing,
        report_to=settings.report_to,
        callbacks=[clock, curve],
    )
    save(model, tokenizer, folder)
    texts, empty = decode(model, tokenizer, [pair.source for pair in test], settings.beams)
    (folder / "translations.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    target_tokens = fmean(map(len, rows["labels"])) * settings.batch_size
    return {
        **scores(settings.metric, texts, [pair.target for pair in test]),
        **empty,
        **forced_figures(model, tokenizer, test),
        "tokens_per_cpu_second": target_tokens / fmean(clock.seconds),
        "config": config_of(model),
        "parameters": model.num_parameters(),
        "rows": {"train": len(rows), "test": len(test), "vocabulary": len(tokenizer)},
        "curve": [entry for entry in log if "threshold" in entry],
        "loss": [{"step": entry["step"], "loss": entry["loss"]} for entry in log if "loss" in entry],
        "example": example(model, tokenizer, test),
    }


STUDY = Study(
    name="translation_sweep",
    description=__doc__,
    runs=runs(),
    perform=perform,
    report=report,
    card=card,
    quick=QUICK,
    check=task_of,
    condensed=condensed,
)

if __name__ == "__main__":
    main(STUDY)
