"""Translation with sparse and constrained cross-attention, and what it repeats and drops.

A small Marian model is trained with softmax, once. Every system resumes from it for equally many steps with its own
cross-attention: softmax, sparsemax, both with coverage vectors, and constrained softmax and sparsemax with constant,
guided and predicted fertilities; two more search with a coverage penalty. With ``base_steps=0`` every system is
trained from scratch, from the same untrained weights. Reported are BLEU, chrF, REP and DROP of each, and the attention
of softmax and constrained sparsemax in a sentence where softmax repeats itself.

The task and its systems are those of Malaviya, Ferreira and Martins 2018, "Sparse and Constrained Attention for
Neural Machine Translation", Section 5, with a Transformer in place of recurrent networks.

    python -m recipes.translation.run --list
    python -m recipes.translation.run --quick --only softmax csparsemax-predicted example
    python -m recipes.translation.run --data multi30k
    python -m recipes.translation.run --data multi30k --set base_steps=0 steps=1000 temperature=3 --out out/scratch
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import sacrebleu
import torch
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

import hf_sparse
from hf_sparse import CoveragePenalty, FertilityPredictor, GuidedFertility, WordAligner

from ..lib.batches import padding_collator
from ..lib.records import Figures, read_json, sibling, write_json
from ..lib.settings import Settings, check_one_of, check_positive, setting
from ..lib.study import Study, main
from ..lib.training import train
from .data import Pair, name_of_test, read_named, words
from .measures import bleu_of, coverage, most_repeated
from .model import Task, as_read, build_model, for_training, prepared
from .report import card, condensed, report
from .systems import (
    SYSTEMS,
    System,
    align_tokens,
    attention_figures,
    attention_of,
    make_sparse,
    train_predictor,
    translate,
    with_fertility,
)

WEIGHTS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # of a coverage penalty
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # as Trainer chooses it
PICTURED = ("softmax", "csparsemax-predicted")


@dataclasses.dataclass(frozen=True)
class Translation(Settings):
    """One run: a system, a part that systems share, or the example in which they are compared."""

    makes: str = setting(
        "softmax",
        "softmax, sparsemax, both with penalty or vector, csoftmax, csparsemax; four fertilities",
        "Tables 1, 2",
    )
    data: str = setting("", "IWSLT 2014 De-En, KFTT Ja-En, WMT 2016 Ro-En", "Section 5")
    source: str = setting("de", "German, Japanese, Romanian", "Section 5")
    target: str = setting("en", "English", "Section 5")
    test: str = setting("")  # name of the test set in a folder or data set; empty: the first there is
    base_steps: int = setting(960)  # with softmax, shared by all systems; 0: each is trained from scratch
    steps: int = setting(100, "13 epochs", "footnote 4")  # per system
    predictor_steps: int = setting(300)
    batch_size: int = setting(64)
    lr: float = setting(1.5e-3)
    tuning_lr: float = setting(6e-4)  # of the steps after the shared ones
    temperature: float = setting(1.0)  # of sparse cross-attention
    bf16: bool = setting(False)  # products of training in bfloat16; decoding is in float32
    vocabulary: int = setting(4000, "32k merges, joint", "Section 5")
    beams: int = setting(4)
    test_rows: int = setting(1000)
    dev_rows: int = setting(100)  # for tuning penalties
    report_to: str = setting("none")

    def __post_init__(self) -> None:
        check_one_of(self, makes=MADE)
        if self.base_steps < 0:
            raise ValueError(f"base_steps must be at least 0, was {self.base_steps}")
        if self.beams < 2:
            raise ValueError(f"beams must be at least 2, was {self.beams}")
        check_positive(self, "steps", "predictor_steps", "batch_size", "lr", "tuning_lr", "temperature", "vocabulary")
        check_positive(self, "test_rows", "dev_rows")


QUICK = {"base_steps": 20, "steps": 6, "predictor_steps": 10, "test_rows": 12, "dev_rows": 6}


def needs(settings: Translation) -> tuple[str, ...]:
    """Runs that a system resumes from or is measured with."""
    if settings.makes == "example":
        return PICTURED
    if settings.makes not in SYSTEMS:
        return ()
    system = SYSTEMS[settings.makes]
    if system.model_name != settings.makes:
        return (system.model_name,)
    return ("base", "aligner", "fertility") if isinstance(system.fertility, str) else ("base", "aligner")


@functools.lru_cache(maxsize=2)
def _task(data: str, source: str, target: str, test: str, vocabulary: int) -> Task:
    return prepared(read_named(data, source, target, test), vocabulary)


def task_of(settings: Translation) -> Task:
    """Corpus, tokenizer and rows of a run; read once for all runs that share them."""
    return _task(settings.data, settings.source, settings.target, settings.test, settings.vocabulary)


def check(settings: Translation) -> None:
    """Read the data of a run, and find out whether BLEU can be counted in its language."""
    task_of(settings)
    bleu_of(settings.target)


def test_of(settings: Translation) -> list[Pair]:
    """Test pairs."""
    return task_of(settings).corpus.test[: settings.test_rows]


def trained(
    model: PreTrainedModel,
    rows: Dataset,
    settings: Translation,
    folder: Path,
    steps: int,
    lr: float,
    schedule_steps: int | None = None,
) -> Figures:
    """Train ``model`` in place; returns the log and the seconds, without those before an interruption."""
    tokenizer = task_of(settings).tokenizer
    started, cpu_started = time.perf_counter(), time.process_time()
    log = train(
        model,
        tokenizer,
        rows,
        folder / "checkpoints",
        collator=padding_collator(tokenizer, model),
        steps=steps,
        lr=lr,
        batch_size=settings.batch_size,
        seed=settings.seed,
        schedule_steps=schedule_steps,
        report_to=settings.report_to,
        bf16=settings.bf16,
    )
    return {
        "training_seconds": round(time.perf_counter() - started, 1),
        "training_cpu_seconds": round(time.process_time() - cpu_started, 1),
        "training_log": log,
    }


def base(settings: Translation, folder: Path) -> Figures:
    """Make the model that every system resumes from: trained with softmax, or untrained if ``base_steps`` is 0."""
    task, steps, figures = task_of(settings), settings.base_steps, {}
    model = for_training(build_model(task.tokenizer, settings.seed), settings.bf16)
    if steps:
        # The learning rate does not fall to zero, because systems resume from here.
        figures = trained(model, task.rows, settings, folder, steps, settings.lr, schedule_steps=steps * 5 // 3)
    model.save_pretrained(folder / "model")
    return figures


def aligner(settings: Translation, folder: Path) -> Figures:
    """Train the word aligner of DROP."""
    pairs = task_of(settings).corpus.train
    sources, targets = ([words(pair[side]) for pair in pairs] for side in (0, 1))
    WordAligner.train(sources, targets).save_pretrained(folder / "model")
    return {"pairs": len(pairs)}


def fertility(settings: Translation, folder: Path) -> Figures:
    """Align the training rows; from the fertilities of their tokens make guided bounds and a predictor of bounds."""
    task, counts_file = task_of(settings), folder / "counts.json"
    if not counts_file.is_file():
        print("aligning subwords", flush=True)
        write_json(counts_file, align_tokens(task.rows))
    counts = read_json(counts_file)
    guided = GuidedFertility.from_counts(list(task.rows["input_ids"]), counts, len(task.tokenizer))
    guided.save_pretrained(folder / "guided")
    predictor = train_predictor(
        task.rows, counts, task.tokenizer, folder / "checkpoints", settings.predictor_steps, settings.seed
    )
    predictor.save_pretrained(folder / "predictor")
    return {"mean_fertility": fmean(count for row in counts for count in row)}


def made(settings: Translation, folder: Path, system: System) -> Figures:
    """Train the model of a system unless an earlier command did; returns log and seconds of the training."""
    log = folder / "training.json"  # written last: without it the model may be half saved
    if not log.is_file():
        counts: list[list[int]] = []
        bounds: dict[str, Any] = {}
        if isinstance(system.fertility, str):
            shared = sibling(folder, "fertility", settings)
            counts = read_json(shared / "counts.json")
            bounds = {
                "guided": GuidedFertility.from_pretrained(shared / "guided"),
                "predicted": FertilityPredictor.from_pretrained(shared / "predictor"),
            }
        start = AutoModelForSeq2SeqLM.from_pretrained(sibling(folder, "base", settings) / "model")
        model = make_sparse(for_training(start, settings.bf16), system, bounds, settings.temperature)
        rows = with_fertility(task_of(settings).rows, system, counts)
        lr = settings.tuning_lr if settings.base_steps else settings.lr
        figures = trained(model, rows, settings, folder, settings.steps, lr)
        hf_sparse.save_pretrained(model, folder / "model")
        write_json(log, figures)
    return read_json(log)


def tuned_penalty(model: PreTrainedModel, settings: Translation) -> CoveragePenalty:
    """The penalty of highest BLEU on the development pairs; beta is tuned first, then alpha."""
    task = task_of(settings)
    dev = task.corpus.dev[: settings.dev_rows]

    def bleu(penalty: CoveragePenalty) -> float:
        texts = translate(model, task.tokenizer, [p.source for p in dev], penalty, settings.beams).texts
        return bleu_of(settings.target).corpus_score(texts, [[p.target for p in dev]]).score

    beta = max(WEIGHTS[1:], key=lambda beta: bleu(CoveragePenalty(beta)))
    return CoveragePenalty(beta, max(WEIGHTS, key=lambda alpha: bleu(CoveragePenalty(beta, alpha))))


def translated(settings: Translation, folder: Path) -> Figures:
    """Train a system or load the model that it shares, translate the test pairs, and measure."""
    system, task, test = SYSTEMS[settings.makes], task_of(settings), test_of(settings)
    own = system.model_name == settings.makes
    training = made(settings, folder, system) if own else {}
    model = hf_sparse.from_pretrained(sibling(folder, system.model_name, settings) / "model").to(DEVICE)
    penalty = tuned_penalty(model, settings) if system.penalty else None
    found = translate(model, task.tokenizer, [p.source for p in test], penalty, settings.beams)
    (folder / "translations.txt").write_text("\n".join(found.texts) + "\n", encoding="utf-8")
    targets = [p.target for p in test]
    word_aligner = WordAligner.from_pretrained(sibling(folder, "aligner", settings) / "model")
    forced = [Pair(pair.source, text) for pair, text in zip(test, found.texts)]
    return {
        "attention": system.attention,
        "fertility": system.fertility,
        "throughout": system.throughout,
        "penalty": None if penalty is None else vars(penalty),
        "config": hf_sparse.sparse_config(model).to_dict(),
        "bleu": bleu_of(settings.target).corpus_score(found.texts, [targets]).score,
        "chrf": sacrebleu.corpus_chrf(found.texts, [targets]).score,
        **coverage(test, found.texts, word_aligner),
        **attention_figures(attention_of(model, task.tokenizer, forced)),
        "architecture": type(model).__name__,
        "parameters": model.num_parameters(),
        "decoding_seconds": round(found.seconds, 1),
        "test_set": name_of_test(settings.data, settings.source, settings.target, settings.test),
        "rows": {
            "train": len(task.rows),
            "dev": len(task.corpus.dev[: settings.dev_rows]),
            "test": len(test),
            "vocabulary": len(task.tokenizer),
        },
        **training,
    }


def example(settings: Translation, folder: Path) -> Figures:
    """Find the sentence in which softmax repeats most beyond constrained sparsemax; attention of both in it."""
    tokenizer, test = task_of(settings).tokenizer, test_of(settings)
    folders = {name: sibling(folder, name, settings) for name in PICTURED}
    texts = {
        name: (place / "translations.txt").read_text(encoding="utf-8").split("\n")[:-1]
        for name, place in folders.items()
    }
    index = most_repeated(test, *texts.values())
    pair, attention = test[index], {}
    for name, place in folders.items():
        text = texts[name][index]
        model = hf_sparse.from_pretrained(place / "model").to(DEVICE)
        sides = (as_read(side, tokenizer).input_ids[0] for side in (pair.source, text))
        keys, queries = map(tokenizer.convert_ids_to_tokens, sides)
        weights = attention_of(model, tokenizer, [Pair(pair.source, text)])[0]
        attention[name] = {"keys": keys, "queries": queries, "weights": weights.tolist()}
    chosen = {name: lines[index] for name, lines in texts.items()}
    return {"source": pair.source, "reference": pair.target, "translations": chosen, "attention": attention}


SHARED: dict[str, Callable[[Translation, Path], Figures]] = {
    "base": base,
    "aligner": aligner,
    "fertility": fertility,
}
MADE = SHARED | dict.fromkeys(SYSTEMS, translated) | {"example": example}


def perform(settings: Translation, folder: Path) -> Figures:
    """Do one run; its models stay in ``folder``."""
    return MADE[settings.makes](settings, folder)


STUDY = Study(
    name="translation",
    description=__doc__,
    runs={name: Translation(makes=name) for name in MADE},
    perform=perform,
    report=report,
    card=card,
    quick=QUICK,
    needs=needs,
    check=check,
    condensed=condensed,
)

if __name__ == "__main__":
    main(STUDY)
