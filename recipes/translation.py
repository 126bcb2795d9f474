"""Translation with sparse and constrained cross-attention, and what it repeats and leaves out.

A small Marian model is trained with softmax, once. From it every system goes on for equally many steps with its own
cross-attention: softmax, sparsemax, both with coverage vectors, and constrained softmax and sparsemax with constant,
guided and predicted fertilities; two more search with a coverage penalty. With ``--base-steps 0`` every system is
trained from scratch, from the same untrained weights. The run prints BLEU, chrF, REP and DROP of each, and draws how
softmax and constrained sparsemax attend in a sentence where softmax repeats itself.

Each step is kept in the folder of results: the same command goes on where an earlier run was interrupted.

The task and its systems are those of Malaviya, Ferreira and Martins 2018, "Sparse and Constrained Attention for
Neural Machine Translation", Section 5, with a Transformer in place of recurrent networks.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import datasets
import sacrebleu
import torch
import transformers
from environment import environment
from study import write
from training import train
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerFast
from translation_corpus import Corpus, Pair, build_tokenizer, read_dataset, read_folder, read_scenes, read_table, words
from translation_report import comparison, data_text, draw, example_text, most_repeated, rep_without_worst
from translation_systems import (
    SYSTEMS,
    Translations,
    align_tokens,
    attention_figures,
    attention_of,
    make_sparse,
    train_predictor,
    translate,
    with_fertility,
)
from translation_training import Collator, build_model, encode

import hf_sparse
from hf_sparse import CoveragePenalty, FertilityPredictor, GuidedFertility, WordAligner
from hf_sparse.evaluation import load
from hf_sparse.hub import fresh_folder

QUICK = {"base_steps": 20, "steps": 6, "predictor_steps": 10, "test_rows": 12, "dev_rows": 6}
WEIGHTS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # where Trainer trains, too
PICTURED = ("softmax", "csparsemax-predicted")


class Run:
    """One folder of results, and what all its systems share."""

    def __init__(self, options: argparse.Namespace, corpus: Corpus) -> None:
        self.options, self.corpus, self.out = options, corpus, options.out
        self.tokenizer: PreTrainedTokenizerFast = build_tokenizer(corpus.train, options.vocabulary)
        self.rows = encode(corpus.train, self.tokenizer)
        self.dev, self.test = corpus.dev[: options.dev_rows], corpus.test[: options.test_rows]

    @cached_property
    def word_aligner(self) -> WordAligner:
        """An aligner of words, for DROP."""
        folder = self.out / "words"
        if not folder.is_dir():
            sources, targets = ([words(pair[side]) for pair in self.corpus.train] for side in (0, 1))
            with fresh_folder(folder) as new:
                WordAligner.train(sources, targets).save_pretrained(new)
        return WordAligner.from_pretrained(folder)

    def base(self) -> Path:
        """The model every system starts from, trained with softmax unless all are trained from scratch."""
        folder, steps = self.out / "base", self.options.base_steps
        if not (folder / "config.json").is_file():
            model = build_model(self.tokenizer, self.options.seed)
            if steps:
                print(f"\nthe model all systems start from, {steps} steps", flush=True)
                self.train(model, self.rows, "base", steps=steps, schedule_steps=steps * 5 // 3, lr=self.options.lr)
            model.save_pretrained(folder)
        return folder

    def train(self, model: PreTrainedModel, rows: datasets.Dataset, name: str, **schedule: Any) -> None:
        """Train, and write down the log and the seconds, those of the last piece where training was interrupted."""
        checkpoints = self.out / "checkpoints" / name
        started, cpu_started = time.perf_counter(), time.process_time()
        schedule |= {"batch_size": self.options.batch_size, "seed": self.options.seed}
        schedule["collator"] = Collator(self.tokenizer, model)
        log = train(model, self.tokenizer, rows, checkpoints, **schedule)
        record = {
            "training_seconds": round(time.perf_counter() - started, 1),
            "training_cpu_seconds": round(time.process_time() - cpu_started, 1),
            "training_log": log,
        }
        write(self.out / "logs" / f"{name}.json", record)

    def fertilities(self) -> tuple[list[list[int]], dict[str, Any]]:
        """Fertilities of the training rows, and what tells bounds of source tokens, made from them."""
        counts_file, folder = self.out / "fertilities.json", self.out / "fertility"
        if not counts_file.is_file():
            print("\naligning subwords", flush=True)
            write(counts_file, align_tokens(self.rows))
        counts = json.loads(counts_file.read_text())
        if not (folder / "predictor" / "config.json").is_file():
            print(f"\nthe fertility predictor, {self.options.predictor_steps} steps", flush=True)
            GuidedFertility.from_counts(list(self.rows["input_ids"]), counts, len(self.tokenizer)).save_pretrained(
                folder
            )
            steps, seed = self.options.predictor_steps, self.options.seed
            predictor = train_predictor(self.rows, counts, self.tokenizer, self.out / "checkpoints", steps, seed)
            predictor.save_pretrained(folder / "predictor")
        predictor = FertilityPredictor.from_pretrained(folder / "predictor")
        return counts, {"guided": GuidedFertility.from_pretrained(folder), "predicted": predictor}

    def model(self, name: str) -> PreTrainedModel:
        """The trained model of a system."""
        system, folder = SYSTEMS[name], self.out / "systems" / SYSTEMS[name].model_name / "model"
        if not (folder / "config.json").is_file():
            counts, bounds = self.fertilities() if isinstance(system.fertility, str) else ([], {})
            model = make_sparse(AutoModelForSeq2SeqLM.from_pretrained(self.base()), system, bounds)
            rows = with_fertility(self.rows, system, counts)
            steps, lr = self.options.steps, self.options.tuning_lr if self.options.base_steps else self.options.lr
            self.train(model, rows, system.model_name, steps=steps, schedule_steps=steps, lr=lr)
            hf_sparse.save_pretrained(model, folder)
        return hf_sparse.from_pretrained(folder).to(DEVICE)

    def translate(
        self, model: PreTrainedModel, pairs: Sequence[Pair], penalty: CoveragePenalty | None
    ) -> Translations:
        """Translations of the sources of ``pairs``."""
        return translate(model, self.tokenizer, [p.source for p in pairs], penalty, self.options.beams)

    def tuned_penalty(self, model: PreTrainedModel) -> CoveragePenalty:
        """The penalty of highest BLEU on the development pairs: first beta, then alpha."""

        def bleu(penalty: CoveragePenalty) -> float:
            texts = self.translate(model, self.dev, penalty).texts
            return sacrebleu.corpus_bleu(texts, [[p.target for p in self.dev]]).score

        beta = max(WEIGHTS[1:], key=lambda beta: bleu(CoveragePenalty(beta)))
        return CoveragePenalty(beta, max(WEIGHTS, key=lambda alpha: bleu(CoveragePenalty(beta, alpha))))

    def result(self, name: str) -> dict[str, Any]:
        """What a system achieves, from its file where there is one."""
        path, system = self.out / "systems" / name / "result.json", SYSTEMS[name]
        if not path.is_file():
            model = self.model(name)
            penalty = self.tuned_penalty(model) if system.penalty else None
            translated = self.translate(model, self.test, penalty)
            targets = [p.target for p in self.test]
            log = json.loads((self.out / "logs" / f"{system.model_name}.json").read_text())
            figures = {
                "system": name,
                "attention": system.attention,
                "fertility": system.fertility,
                "penalty": None if penalty is None else vars(penalty),
                "settings": hf_sparse.sparse_config(model).to_dict(),
                "bleu": sacrebleu.corpus_bleu(translated.texts, [targets]).score,
                "chrf": sacrebleu.corpus_chrf(translated.texts, [targets]).score,
                **self.coverage(translated.texts),
                **attention_figures(attention_of(model, self.tokenizer, pairs_of(self.test, translated.texts))),
                "architecture": type(model).__name__,
                "parameters": model.num_parameters(),
                "decoding_seconds": round(translated.seconds, 1),
                **log,
            }
            (path.parent / "translations.txt").parent.mkdir(parents=True, exist_ok=True)
            (path.parent / "translations.txt").write_text("\n".join(translated.texts) + "\n", encoding="utf-8")
            write(path, figures)
        return json.loads(path.read_text(encoding="utf-8"))

    def coverage(self, texts: Sequence[str]) -> dict[str, float]:
        """REP and DROP, on lower-cased words."""
        sources, targets = ([words(pair[side]) for pair in self.test] for side in (0, 1))
        translations = [words(text) for text in texts]
        links = [
            [" ".join(f"{j}-{i}" for j, i in sentence) for sentence in self.word_aligner.align(sources, side)]
            for side in (translations, targets)
        ]
        joined = [[" ".join(sentence) for sentence in side] for side in (translations, targets)]
        rep = load("rep").compute(predictions=joined[0], references=joined[1])
        rep["rep_without_worst"] = rep_without_worst(self.test, texts)
        return {**rep, **load("drop").compute(predictions=links[0], references=links[1])}

    def example(self) -> dict[str, Any]:
        """The sentence in which softmax repeats most beyond constrained sparsemax, with a picture of each."""
        texts = {
            name: (self.out / "systems" / name / "translations.txt").read_text(encoding="utf-8").split("\n")[:-1]
            for name in PICTURED
        }
        index = most_repeated(self.test, *texts.values())
        pair = self.test[index]
        for name, lines in texts.items():
            weights = attention_of(self.model(name), self.tokenizer, [Pair(pair.source, lines[index])])[0]
            path = self.out / f"attention_{SYSTEMS[name].attention}.png"
            draw(weights, self.tokenizer, pair.source, lines[index], name, path)
        chosen = {name: lines[index] for name, lines in texts.items()}
        return {"source": pair.source, "reference": pair.target, "translations": chosen}


def pairs_of(pairs: Sequence[Pair], texts: Sequence[str]) -> list[Pair]:
    """The sources of ``pairs`` with other targets."""
    return [Pair(pair.source, text) for pair, text in zip(pairs, texts)]


def parse_arguments(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Corpus]:
    """Read the command line and the corpus it names; leaves the program with a message where either is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    corpus = parser.add_argument_group("corpus (default: an embedded sample, German to English)")
    corpus = corpus.add_mutually_exclusive_group()
    corpus.add_argument("--folder", type=Path, metavar="DIR",
        help="files aligned by line: train.de beside train.en, likewise val and test, plain or .gz")  # fmt: skip
    corpus.add_argument("--tables", type=Path, nargs=3, metavar=("TRAIN", "DEV", "TEST"),
        help="three files of lines source TAB target, UTF-8, plain or .gz")  # fmt: skip
    corpus.add_argument("--dataset", metavar="NAME",
        help="what datasets.load_dataset takes; with a column translation, or one column a language")  # fmt: skip
    add("--source", default="de", metavar="LANG", help="source language, for --folder and --dataset (%(default)s)")
    add("--target", default="en", metavar="LANG", help="target language (%(default)s)")
    add("--out", type=Path, default=Path("out/translation"), metavar="DIR", help="folder for results (%(default)s)")
    add("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS, metavar="SYSTEM",
        help=f"systems to compare, of: {', '.join(SYSTEMS)} (default: all)")  # fmt: skip
    add("--base-steps", type=int, default=960,
        help="steps with softmax that all systems share; 0 trains each from scratch (%(default)s)")  # fmt: skip
    add("--steps", type=int, default=100, help="further steps of each system (%(default)s)")
    add("--predictor-steps", type=int, default=300, help="training steps of the fertility predictor (%(default)s)")
    add("--batch-size", type=int, default=64, help="sentence pairs in a step (%(default)s)")
    add("--lr", type=float, default=1.5e-3, help="peak learning rate from scratch (%(default)s)")
    add("--tuning-lr", type=float, default=6e-4, help="peak learning rate of steps after shared ones (%(default)s)")
    add("--vocabulary", type=int, default=4000, help="subwords of both languages together (%(default)s)")
    add("--beams", type=int, default=4, help="hypotheses kept in beam search, at least 2 (%(default)s)")
    add("--test-rows", type=int, default=1000, help="translate this many test sentences (%(default)s)")
    add("--dev-rows", type=int, default=100, help="tune penalties on this many development sentences (%(default)s)")
    add("--seed", type=int, default=0, help="for weights, dropout and the order of the rows (%(default)s)")
    add("--quick", action="store_true", help="a few steps and rows: shows that all works, learns nothing")
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(QUICK if options.base_steps else QUICK | {"base_steps": 0})
    if options.base_steps < 0:
        parser.error(f"--base-steps must be at least 0, was {options.base_steps}")
    for name in ("steps", "predictor_steps", "batch_size", "lr", "tuning_lr", "vocabulary", "test_rows", "dev_rows"):
        if not getattr(options, name) > 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0, was {getattr(options, name)}")
    if options.beams < 2:
        parser.error(f"--beams must be at least 2, was {options.beams}")
    if options.out.is_file():
        parser.error(f"--out {options.out} is a file; choose a folder")
    if importlib.util.find_spec("matplotlib") is None:
        parser.error("the pictures need matplotlib: pip install 'hf_sparse[plots]'")
    options.systems = [name for name in SYSTEMS if name in options.systems]
    settings, record = settings_of(options), options.out / "settings.json"
    if record.is_file() and json.loads(record.read_text(encoding="utf-8")) != settings:
        parser.error(f"--out {options.out} holds a run with other settings ({record}); choose another folder")
    if not record.is_file() and options.out.is_dir() and any(options.out.iterdir()):
        parser.error(f"--out {options.out} exists and holds something else than an earlier run; choose another folder")
    try:
        corpus = read_corpus(options)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    write(record, settings)
    return options, corpus


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that a folder of results stands for: all but where it is and which systems are asked for."""
    plain = {key: value for key, value in vars(options).items() if key not in ("out", "systems")}
    return json.loads(json.dumps(plain, default=str))


def read_corpus(options: argparse.Namespace) -> Corpus:
    """The corpus the command line names."""
    if options.folder is not None:
        return read_folder(options.folder, options.source, options.target)
    if options.tables is not None:
        return Corpus(*map(read_table, options.tables))
    if options.dataset is not None:
        return read_dataset(options.dataset, options.source, options.target)
    return read_scenes()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe."""
    options, corpus = parse_arguments(arguments)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    run = Run(options, corpus)
    result: dict[str, Any] = {
        "settings": settings_of(options),
        "data": {
            "train_rows": len(run.rows),
            "dev_rows": len(run.dev),
            "test_rows": len(run.test),
            "vocabulary": len(run.tokenizer),
        },
        "systems": [],
        **environment(),
    }
    result["versions"]["sacrebleu"] = sacrebleu.__version__
    print(data_text(result["data"]))
    for number, name in enumerate(options.systems, 1):
        print(f"\n[{number}/{len(options.systems)}] {name}", flush=True)
        result["systems"].append(run.result(name))
    print(f"\n{comparison(result['systems'])}\n")
    if set(PICTURED) <= set(options.systems):
        result["example"] = run.example()
        print(example_text(result["example"]))
    if options.base_steps:
        result["base"] = json.loads((options.out / "logs" / "base.json").read_text(encoding="utf-8"))
    write(options.out / "results.json", result)
    print(f"Results in {options.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
