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

from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

import hf_sparse
from hf_sparse.functional import balanced_temperature

from ..lib.batches import padding_collator
from ..lib.models import config_of, entmax_map, save
from ..lib.records import Figures, read_json, write_json
from ..lib.settings import Settings, check_one_of, check_positive, setting
from ..lib.study import Study, main
from ..lib.training import StepSeconds, annealing, train
from ..translation.data import name_of_test
from ..translation.measures import bleu_of
from ..translation.model import Task, build_model, encode, for_training
from .data import read_task
from .measures import (
    METRICS,
    Curve,
    alphas,
    certificates,
    decode,
    decode_normalized,
    example,
    forced_figures,
    scores,
)
from .report import card, condensed, report

PARTS = ("test", "dev")  # that a run can be judged on
CURVE_ROWS = 256
KEYS = 81  # temperature 3 of 1.5-entmax attention, better than 2 on dev rows; a sentence has fewer tokens


@dataclasses.dataclass(frozen=True)
class Sweep(Settings):
    """Data, maps and training of one run."""

    data: str = setting("", "IWSLT 2017, KFTT, WMT 2016", "Peters et al. 2019, 4.2")
    source: str = setting("de")
    target: str = setting("en")
    test: str = setting("")  # name of the test set in a folder or data set; empty: the first there is
    reverse: bool = setting(False)
    train_rows: int = setting(0, "206,112 of de-en", "Peters et al. 2019, 4.2")  # 0: all
    test_rows: int = setting(200)
    part: str = setting("test")  # "dev": the rows by which settings are chosen
    vocabulary: int = setting(600, "32k merges, joint", "Peters et al. 2019, 4.2")
    head: str | Mapping[str, Any] | None = setting(
        None, "softmax, 1.5-entmax, sparsemax; 1.5-ReLU", "Peters et al. 2019, 4; Tezekbayev et al. 2022, 3"
    )
    attention: str | Mapping[str, Any] | None = setting(
        None, "that of the head; softmax", "Peters et al. 2019, Table 2; Tezekbayev et al. 2022, 3"
    )
    temperature: float = setting(0.5)  # of heads at "auto", as a multiple of that
    head_from: Mapping[str, float] | None = setting(None)  # settings that the head starts at and leaves by and by
    over: float = setting(0.5)  # share of the steps on that way
    label_smoothing: float = setting(0.0, "0", "Peters et al. 2019, 4")
    dropout: float = setting(0.1)
    tied: bool = setting(True)  # one matrix for both embeddings and the head
    bf16: bool = setting(False)  # products of training in bfloat16; decoding is in float32
    steps: int = setting(480, "100,000", "Peters et al. 2019, 4.2")
    batch_size: int = setting(32, "64", "Peters et al. 2019, 4")
    lr: float = setting(2e-3, "0.001, halved on plateaus", "Peters et al. 2019, 4")
    beams: int = setting(4, "5", "Peters et al. 2019, 4")
    metric: str = setting("bleu", "BLEU; ROUGE of headlines", "Laha et al. 2018, Table 2")
    report_to: str = setting("none")

    def __post_init__(self) -> None:
        check_one_of(self, part=PARTS, metric=METRICS)
        check_positive(self, "test_rows", "vocabulary", "temperature", "steps", "batch_size", "lr", "beams")
        if self.train_rows < 0:
            raise ValueError(f"train_rows must be above 0, or 0 for all, was {self.train_rows}")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be at least 0 and below 1, was {self.label_smoothing}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, was {self.dropout}")
        annealing(self.head_from, self.over)  # checks what it is given
        if self.head or self.attention:
            hf_sparse.SparseConfig.parse(attn=self.attention, head=self.head)


def output(alpha: float) -> dict[str, Any] | None:
    """Map of a head that is trained from scratch; see ``tempered``."""
    return entmax_map(alpha, "auto")


def within(alpha: float) -> dict[str, Any] | None:
    """Map of attention that is trained from scratch, at the temperature of docs/training.md."""
    return entmax_map(alpha, balanced_temperature(alpha, KEYS))


def relu(**settings: float) -> dict[str, Any]:
    """Head of alpha-ReLU that is trained from scratch."""
    return {"name": "alpha_relu", "temperature": "auto", **settings}


def runs() -> dict[str, Sweep]:
    """All runs, the most important first."""
    both = {"softmax": 1, "entmax15": 1.5, "sparsemax": 2}
    made = {name: Sweep(head=output(alpha), attention=within(alpha)) for name, alpha in both.items()}
    made["softmax-tempered"] = Sweep(head={"name": "softmax", "temperature": "auto"})
    made["output-alpha_relu"] = Sweep(head=relu())
    for lam in (-1.0, 0.0, 0.5, 0.9):
        made[f"cross-sparsegen_lin-{lam:g}"] = Sweep(attention={"cross": {"name": "sparsegen_lin", "lam": lam}})
    for q in (0.1, 1.0, 10.0):
        made[f"cross-sparsehourglass-{q:g}"] = Sweep(attention={"cross": {"name": "sparsehourglass", "q": q}})
    made["output-entmax15"] = Sweep(head=output(1.5))
    made["output-sparsemax"] = Sweep(head=output(2))
    reversed_too = [*both, "output-entmax15", "output-alpha_relu"]
    made |= {f"en-de-{name}": dataclasses.replace(made[name], reverse=True) for name in reversed_too}
    made |= {f"output-{alpha:g}": Sweep(head=output(alpha), attention=within(1.5)) for alpha in (1, 1.33, 2)}
    made |= {f"attention-{alpha:g}": Sweep(head=output(1.5), attention=within(alpha)) for alpha in (1.33, 2)}
    made["en-de-output-1.33"] = dataclasses.replace(made["output-1.33"], reverse=True)
    for name in ("softmax", "entmax15", "output-1.33", "output-alpha_relu"):
        made[f"{name}-smoothed"] = dataclasses.replace(made[name], label_smoothing=0.1)
    for tau in (0.0, 1.0, 5.0):
        made[f"output-alpha_relu-tau-{tau:g}"] = Sweep(head=relu(tau=tau))
    made["sparsemax-from-entmax15"] = Sweep(head=entmax_map(2.0, 4.0), attention=within(2), head_from={"alpha": 1.5})
    made["en-de-sparsemax-from-entmax15"] = dataclasses.replace(made["sparsemax-from-entmax15"], reverse=True)
    learned = {"name": "entmax", "alpha": "learned", "temperature": balanced_temperature(1.5, KEYS)}
    made["attention-learned"] = Sweep(attention=learned)
    made |= {
        f"{name}-untied": dataclasses.replace(made[name], tied=False) for name in ("softmax", "output-alpha_relu")
    }
    made["cross-softmax-temperature"] = Sweep(attention={"cross": {"name": "softmax", "temperature": 0.5}})
    return made


def trials() -> dict[str, Sweep]:
    """Short runs on dev rows that choose temperatures and learning rates: as many of softmax as of 1.5-entmax."""
    short = Sweep(part="dev", steps=300, test_rows=1000, beams=1, temperature=1.0)
    settings: dict[str, dict[str, Any]] = {f"softmax-lr-{lr:g}": {"lr": lr} for lr in (1.5e-3, 2e-3, 3e-3, 4.5e-3)}
    settings["softmax-head-0.5"] = {"head": {"name": "softmax", "temperature": 0.5}}
    heads: dict[str, float | str] = {"auto": "auto", "half": 4.0, "twice": 16.0}  # "auto" is 8 for 4,000 tokens
    for name, temperature in heads.items():
        settings[f"entmax15-head-{name}"] = {"head": entmax_map(1.5, temperature), "attention": entmax_map(1.5, 2.0)}
    settings["entmax15-attention-3"] = {"head": output(1.5), "attention": entmax_map(1.5, 3.0)}
    settings["entmax15-lr-0.003"] = {"head": output(1.5), "attention": entmax_map(1.5, 2.0), "lr": 3e-3}
    return {f"trial-{name}": dataclasses.replace(short, **changes) for name, changes in settings.items()}


# Half of the steps of the longest runs, judged on dev rows.
HALF_OF_THE_LONGEST: dict[str, Any] = {"part": "dev", "steps": 3400, "test_rows": 1000, "beams": 1}


def temperatures() -> dict[str, Sweep]:
    """Temperatures and starts of sparse heads, on dev rows, at half the steps of the longest runs."""
    half = Sweep(**HALF_OF_THE_LONGEST)
    made = {"temperature-softmax": half}
    for alpha, values in {1.33: (4.0, 2.0, 1.4), 1.5: (8.0, 4.0, 2.8, 2.0)}.items():
        attended = dataclasses.replace(half, attention=within(1.5))
        made |= {
            f"temperature-{alpha:g}-at-{t:g}": dataclasses.replace(attended, head=entmax_map(alpha, t)) for t in values
        }
    sparsemax = dataclasses.replace(half, attention=within(2))
    made |= {f"temperature-{t:g}": dataclasses.replace(sparsemax, head=entmax_map(2.0, t)) for t in (31.6, 8, 4, 2)}
    start = {"temperature": 31.6}
    made["temperature-31.6-to-4"] = dataclasses.replace(made["temperature-4"], head_from=start, over=0.8)
    for t in (4, 2):
        made[f"temperature-{t}-from-entmax15"] = dataclasses.replace(
            made[f"temperature-{t}"], head_from={"alpha": 1.5}
        )
    made["temperature-4-from-entmax15-later"] = dataclasses.replace(made["temperature-4-from-entmax15"], over=0.8)
    made["temperature-4-from-1.33"] = dataclasses.replace(made["temperature-4"], head_from={"alpha": 1.33}, over=0.8)
    return made


def rates() -> dict[str, Sweep]:
    """Learning rates of five heads, on dev rows, at half the steps of the longest runs: as many for each."""
    made = runs()
    heads = {"softmax": "softmax", "1.33": "output-1.33", "1.5": "entmax15"}
    heads |= {"alpha_relu": "output-alpha_relu", "sparsemax": "sparsemax-from-entmax15"}
    return {
        f"tune-{head}-lr-{lr:g}": dataclasses.replace(made[run], lr=lr, **HALF_OF_THE_LONGEST)
        for head, run in heads.items()
        for lr in (1e-3, 2e-3, 3e-3)
    }


QUICK = {"steps": 4, "batch_size": 8, "train_rows": 200, "test_rows": 6, "vocabulary": 400, "beams": 2}


def written(settings: Sweep) -> str:
    """The language that is translated into."""
    return settings.source if settings.reverse else settings.target


def test_name(settings: Sweep) -> str:
    """What the rows that a run is judged on are called; empty for those of one table or data set."""
    if settings.part == "dev":
        return "dev"
    return name_of_test(settings.data, settings.source, settings.target, settings.test)


def check(settings: Sweep) -> None:
    """Read the data of a run, and find out whether BLEU can be counted in its language."""
    task_of(settings)
    bleu_of(written(settings))


def task_of(settings: Sweep) -> Task:
    """Corpus, tokenizer and rows of a run; read once for all runs that share them."""
    names = ("data", "source", "target", "test", "reverse", "train_rows", "vocabulary")
    return read_task(*(getattr(settings, name) for name in names))


def tempered(head: str | Mapping[str, Any] | None, multiple: float, vocabulary: int) -> Any:
    """A head with the temperature ``"auto"`` at a multiple of it, any other head as it is."""
    if not isinstance(head, Mapping) or head.get("temperature") != "auto":
        return head
    map_config = hf_sparse.SparseConfig.parse(head=head).head
    return {**head, "temperature": multiple * balanced_temperature(map_config.alpha, vocabulary)}


def built(settings: Sweep) -> PreTrainedModel:
    """The untrained model of a run."""
    tokenizer = task_of(settings).tokenizer
    model = for_training(build_model(tokenizer, settings.seed, settings.dropout, settings.tied), settings.bf16)
    if settings.head or settings.attention:
        head = tempered(settings.head, settings.temperature, len(tokenizer))
        model = hf_sparse.sparsify(model, attn=settings.attention, head=head)
    return model


def trained(settings: Sweep, folder: Path) -> tuple[PreTrainedModel, Figures]:
    """The trained model of a run, saved in ``folder``; one that is there already is read.

    Returns:
        The model, and of its training ``log``, trainer's, and ``step_cpu_seconds``, a step of this process, if any.
    """
    told = folder / "training.json"
    if told.is_file():  # interrupted while it was measured
        return AutoModelForSeq2SeqLM.from_pretrained(folder / "model"), read_json(told)
    corpus, tokenizer, rows = task_of(settings)
    model = built(settings)
    collator, clock = padding_collator(tokenizer, model), StepSeconds()
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
        bf16=settings.bf16,
        callbacks=[clock, curve, *annealing(settings.head_from, settings.over)],
    )
    save(model, tokenizer, folder)
    seconds = fmean(clock.seconds) if clock.seconds else None  # resumed after the last step
    training = {"log": log, "step_cpu_seconds": seconds}
    write_json(told, training)
    return model, training


def perform(settings: Sweep, folder: Path) -> Figures:
    """Train one model from scratch and measure it."""
    corpus, tokenizer, rows = task_of(settings)
    test = getattr(corpus, settings.part)[: settings.test_rows]
    model, training = trained(settings, folder)
    sources, references = [pair.source for pair in test], [pair.target for pair in test]
    texts, empty = decode(model, tokenizer, sources, settings.beams)
    normalized = decode_normalized(model, tokenizer, sources, settings.beams)
    (folder / "translations.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    target_tokens, seconds = fmean(map(len, rows["labels"])) * settings.batch_size, training["step_cpu_seconds"]
    return {
        **scores(settings.metric, texts, references, written(settings)),
        "normalized": scores(settings.metric, normalized, references, written(settings)),
        **empty,
        **(certificates(model, tokenizer, sources, settings.beams) if settings.beams > 1 else {}),
        **forced_figures(model, tokenizer, test),
        **alphas(model),
        "tokens_per_cpu_second": None if seconds is None else target_tokens / seconds,
        "config": config_of(model),
        "parameters": model.num_parameters(),
        "test_set": test_name(settings),
        "rows": {"train": len(rows), "test": len(test), "vocabulary": len(tokenizer)},
        "curve": [entry for entry in training["log"] if "threshold" in entry],
        "loss": [{"step": entry["step"], "loss": entry["loss"]} for entry in training["log"] if "loss" in entry],
        "example": example(model, tokenizer, test),
    }


STUDY = Study(
    name="translation_sweep",
    description=__doc__,
    runs=runs() | trials() | temperatures() | rates(),
    usual=("[!t]*",),  # all but those that choose settings
    perform=perform,
    report=report,
    card=card,
    quick=QUICK,
    check=check,
    condensed=condensed,
)

if __name__ == "__main__":
    main(STUDY)
