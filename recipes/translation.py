"""Translation with sparse and constrained cross-attention, and what it repeats and leaves out.

A small Marian model is trained with softmax, once. From it every system goes on for equally many steps with its own
cross-attention: softmax, sparsemax, both with coverage vectors, and constrained softmax and sparsemax with constant,
guided and predicted fertilities; two more search with a coverage penalty. With ``base_steps=0`` every system is
trained from scratch, from the same untrained weights. Reported are BLEU, chrF, REP and DROP of each, and how softmax
and constrained sparsemax attend in a sentence where softmax repeats itself.

The task and its systems are those of Malaviya, Ferreira and Martins 2018, "Sparse and Constrained Attention for
Neural Machine Translation", Section 5, with a Transformer in place of recurrent networks.

    python recipes/translation.py --list
    python recipes/translation.py --quick --only softmax csparsemax-predicted example
    python recipes/translation.py --data multi30k
    python recipes/translation.py --data multi30k --set base_steps=0 steps=700 --out out/from_scratch
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import sacrebleu
import torch
from datasets import Dataset
from study import Settings, check_positive, main, setting, sibling, write
from training import train
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel
from translation_corpus import Pair, words
from translation_measures import coverage, most_repeated
from translation_report import report
from translation_systems import (
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
from translation_training import Collator, Task, build_model, prepared

import hf_sparse
from hf_sparse import CoveragePenalty, FertilityPredictor, GuidedFertility, WordAligner

WEIGHTS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # of a coverage penalty
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # where Trainer trains, too
PICTURED = ("softmax", "csparsemax-predicted")


@dataclasses.dataclass(frozen=True)
class Translation(Settings):
    """One run: a system, or what systems share or are compared in."""

    makes: str = setting(
        "softmax",
        "softmax, sparsemax, both with penalty or vector, csoftmax, csparsemax; four fertilities",
        "Tables 1, 2",
    )
    data: str = setting("", "IWSLT 2014 De-En, KFTT Ja-En, WMT 2016 Ro-En", "Section 5")
    source: str = setting("de", "German, Japanese, Romanian", "Section 5")
    target: str = setting("en", "English", "Section 5")
    base_steps: int = setting(960)  # with softmax, shared by all systems; 0 trains each from scratch
    steps: int = setting(100, "13 epochs", "footnote 4")  # of each system
    predictor_steps: int = setting(300)
    batch_size: int = setting(64)
    lr: float = setting(1.5e-3)
    tuning_lr: float = setting(6e-4)  # of steps after shared ones
    vocabulary: int = setting(4000, "32k merges, joint", "Section 5")
    beams: int = setting(4)
    test_rows: int = setting(1000)
    dev_rows: int = setting(100)  # penalties are tuned on these
    report_to: str = setting("none")

    def __post_init__(self) -> None:
        if self.makes not in MADE:
            raise ValueError(f"makes must be one of {', '.join(MADE)}, was {self.makes!r}")
        if self.base_steps < 0:
            raise ValueError(f"base_steps must be at least 0, was {self.base_steps}")
        if self.beams < 2:
            raise ValueError(f"beams must be at least 2, was {self.beams}")
        check_positive(self, "steps", "predictor_steps", "batch_size", "lr", "tuning_lr", "vocabulary")
        check_positive(self, "test_rows", "dev_rows")


QUICK = {"base_steps": 20, "steps": 6, "predictor_steps": 10, "test_rows": 12, "dev_rows": 6}


def needs(settings: Translation) -> tuple[str, ...]:
    """What a system begins with and is measured by."""
    if settings.makes == "example":
        return PICTURED
    if settings.makes not in SYSTEMS:
        return ()
    system = SYSTEMS[settings.makes]
    if system.model_name != settings.makes:
        return (system.model_name,)
    return ("base", "aligner", "fertility") if isinstance(system.fertility, str) else ("base", "aligner")


def task_of(settings: Translation) -> Task:
    """The corpus, the tokenizer and the rows of a run; read once for all that share them."""
    return prepared(settings.data, settings.source, settings.target, False, 0, settings.vocabulary)


def test_of(settings: Translation) -> list[Pair]:
    """The pairs to test on."""
    return task_of(settings).corpus.test[: settings.test_rows]


def trained(
    model: PreTrainedModel,
    rows: Dataset,
    settings: Translation,
    folder: Path,
    steps: int,
    lr: float,
    schedule_steps: int | None = None,
) -> dict[str, Any]:
    """Train ``model`` in place, and what it took: of training that was interrupted, the seconds of the last piece."""
    tokenizer = task_of(settings).tokenizer
    started, cpu_started = time.perf_counter(), time.process_time()
    log = train(
        model, tokenizer, rows, folder / "checkpoints", collator=Collator(tokenizer, model), steps=steps, lr=lr,
        batch_size=settings.batch_size, seed=settings.seed, schedule_steps=schedule_steps,
        report_to=settings.report_to,
    )  # fmt: skip
    return {
        "training_seconds": round(time.perf_counter() - started, 1),
        "training_cpu_seconds": round(time.process_time() - cpu_started, 1),
        "training_log": log,
    }


def base(settings: Translation, folder: Path) -> dict[str, Any]:
    """The model every system starts from, trained with softmax unless all are trained from scratch."""
    task, steps, figures = task_of(settings), settings.base_steps, {}
    model = build_model(task.tokenizer, settings.seed)
    if steps:
        # The rate stays up, because systems go on from here.
        figures = trained(model, task.rows, settings, folder, steps, settings.lr, schedule_steps=steps * 5 // 3)
    model.save_pretrained(folder / "model")
    return figures


def aligner(settings: Translation, folder: Path) -> dict[str, Any]:
    """An aligner of words, for DROP."""
    pairs = task_of(settings).corpus.train
    sources, targets = ([words(pair[side]) for pair in pairs] for side in (0, 1))
    WordAligner.train(sources, targets).save_pretrained(folder / "model")
    return {"pairs": len(pairs)}


def fertility(settings: Translation, folder: Path) -> dict[str, Any]:
    """Fertilities of the tokens of the training rows, and what tells bounds of source tokens, made from them."""
    task, counts_file = task_of(settings), folder / "counts.json"
    if not counts_file.is_file():
        print("aligning subwords", flush=True)
        write(counts_file, align_tokens(task.rows))
    counts = json.loads(counts_file.read_text(encoding="utf-8"))
    guided = GuidedFertility.from_counts(list(task.rows["input_ids"]), counts, len(task.tokenizer))
    guided.save_pretrained(folder / "guided")
    checkpoints = folder / "checkpoints"
    predictor = train_predictor(
        task.rows, counts, task.tokenizer, checkpoints, settings.predictor_steps, settings.seed
    )
    predictor.save_pretrained(folder / "predictor")
    return {"mean_fertility": fmean(count for row in counts for count in row)}


def made(settings: Translation, folder: Path, system: System) -> dict[str, Any]:
    """Train the model of a system, unless it is there from before an interruption; what training took."""
    log = folder / "training.json"
    if not (folder / "model").is_dir():
        counts: list[list[int]] = []
        bounds: dict[str, Any] = {}
        if isinstance(system.fertility, str):
            shared = sibling(folder, "fertility", settings)
            counts = json.loads((shared / "counts.json").read_text(encoding="utf-8"))
            bounds = {"guided": GuidedFertility.from_pretrained(shared / "guided"),
                      "predicted": FertilityPredictor.from_pretrained(shared / "predictor")}  # fmt: skip
        start = AutoModelForSeq2SeqLM.from_pretrained(sibling(folder, "base", settings) / "model")
        model = make_sparse(start, system, bounds)
        rows = with_fertility(task_of(settings).rows, system, counts)
        lr = settings.tuning_lr if settings.base_steps else settings.lr
        write(log, trained(model, rows, settings, folder, settings.steps, lr))
        hf_sparse.save_pretrained(model, folder / "model")
    return json.loads(log.read_text(encoding="utf-8"))


def tuned_penalty(model: PreTrainedModel, settings: Translation) -> CoveragePenalty:
    """The penalty of highest BLEU on the development pairs: first beta, then alpha."""
    task = task_of(settings)
    dev = task.corpus.dev[: settings.dev_rows]

    def bleu(penalty: CoveragePenalty) -> float:
        texts = translate(model, task.tokenizer, [p.source for p in dev], penalty, settings.beams).texts
        return sacrebleu.corpus_bleu(texts, [[p.target for p in dev]]).score

    beta = max(WEIGHTS[1:], key=lambda beta: bleu(CoveragePenalty(beta)))
    return CoveragePenalty(beta, max(WEIGHTS, key=lambda alpha: bleu(CoveragePenalty(beta, alpha))))


def translated(settings: Translation, folder: Path) -> dict[str, Any]:
    """Train a system, or take its model where that is another's, translate, and measure."""
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
        "penalty": None if penalty is None else vars(penalty),
        "config": hf_sparse.sparse_config(model).to_dict(),
        "bleu": sacrebleu.corpus_bleu(found.texts, [targets]).score,
        "chrf": sacrebleu.corpus_chrf(found.texts, [targets]).score,
        **coverage(test, found.texts, word_aligner),
        **attention_figures(attention_of(model, task.tokenizer, forced)),
        "architecture": type(model).__name__,
        "parameters": model.num_parameters(),
        "decoding_seconds": round(found.seconds, 1),
        "rows": {
            "train": len(task.rows),
            "dev": len(task.corpus.dev[: settings.dev_rows]),
            "test": len(test),
            "vocabulary": len(task.tokenizer),
        },
        **training,
    }


def example(settings: Translation, folder: Path) -> dict[str, Any]:
    """The sentence in which softmax repeats most beyond constrained sparsemax, and how both attend in it."""
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
        keys, queries = (tokenizer.convert_ids_to_tokens(tokenizer(side).input_ids) for side in (pair.source, text))
        weights = attention_of(model, tokenizer, [Pair(pair.source, text)])[0]
        attention[name] = {"keys": keys, "queries": queries, "weights": weights.tolist()}
    chosen = {name: lines[index] for name, lines in texts.items()}
    return {"source": pair.source, "reference": pair.target, "translations": chosen, "attention": attention}


SHARED: dict[str, Callable[[Translation, Path], dict[str, Any]]] = {
    "base": base, "aligner": aligner, "fertility": fertility,
}  # fmt: skip
MADE = SHARED | dict.fromkeys(SYSTEMS, translated) | {"example": example}


def perform(settings: Translation, folder: Path) -> dict[str, Any]:
    """Do one run; what it makes stays in ``folder``."""
    return MADE[settings.makes](settings, folder)


def run(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the recipe from the command line."""
    assert __doc__
    runs = {name: Translation(makes=name) for name in MADE}
    return main("translation", __doc__, runs, perform, report, QUICK, arguments, needs=needs, check=task_of)


if __name__ == "__main__":
    run()
