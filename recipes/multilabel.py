"""Multilabel classification with sparse distributions over labels: a label is on when its probability is not zero.

Four pairs of a map and a loss are compared on documents made up from label-specific distributions over words, with
varied numbers of labels and varied length, on Mulan data sets, and as the head of a Transformers classifier.

The pairs, the made-up data and the measures are those of Laha et al. 2018, "On Controllable Sparse Alternatives to
Softmax", Sections 4 and 5.1 and Appendix A.6.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import matplotlib
import torch
from datasets import Dataset
from environment import environment
from multilabel_data import LABELS, WORDS, Part, Problem, divided, documents, read_mulan
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

import hf_sparse.functional as F
from hf_sparse.losses import (
    softmax_log_loss,
    sparsegen_lin_hinge_loss,
    sparsehourglass_hinge_loss,
    sparsemax_huber_loss,
)
from hf_sparse.metrics import jensen_shannon, support_size

matplotlib.use("Agg")
import matplotlib.pyplot as plt

STEPS, CHECK_EVERY, LEARNING_RATE = 250, 10, 0.1


class Pair(NamedTuple):
    """A map from scores to probabilities of labels, and the loss it is trained with.

    Both take a setting, chosen on validation data like the probability above which a label is on.
    """

    loss: Callable[[Tensor, Tensor, float], Tensor]
    probabilities: Callable[[Tensor, float], Tensor]
    settings: tuple[float, ...] = (0.0,)
    on_above: tuple[float, ...] = (0.0,)


PAIRS = {
    # "For softmax+log, we used a threshold p0, above which a label is predicted to be on." Section 5.1
    "softmax+log": Pair(
        lambda z, y, _: softmax_log_loss(z, y),
        lambda z, _: F.softmax(z),
        on_above=tuple(step / 50 for step in range(1, 20)),
    ),
    "sparsemax+huber": Pair(lambda z, y, _: sparsemax_huber_loss(z, y), lambda z, _: F.sparsemax(z)),
    # Eq. 7 at lambda = 0. With a linear model any other lambda gives the same predictions (Section 5.1).
    "sparsemax+hinge": Pair(lambda z, y, _: sparsegen_lin_hinge_loss(z, y), lambda z, _: F.sparsemax(z)),
    # Eq. 6. "We tune hyperparams for sparsehg+hinge and for softmax+log using validation set." Section 5.1
    "sparsehourglass+hinge": Pair(
        lambda z, y, q: sparsehourglass_hinge_loss(z, y, q),
        lambda z, q: F.sparsehourglass(z, q),
        settings=(0.1, 0.3, 1.0, 3.0, 10.0),
    ),
}


def micro_f1(labels: Tensor, on: Tensor) -> float:
    """F1 over all decisions of all rows together, ``2 TP / (2 TP + FP + FN)``; 0 where nothing is on or true."""
    right, wrong = int((labels & on).sum()), int((labels ^ on).sum())
    return 2 * right / max(2 * right + wrong, 1)


class Fit(NamedTuple):
    """Probabilities over labels of a trained model, the setting they were made with and what makes a label on."""

    probabilities: Callable[[Tensor], Tensor]
    setting: float
    on_above: float
    validation_f1: float

    def measured(self, part: Part) -> dict[str, float]:
        """Micro F1, Jensen-Shannon divergence (nats) from the labels shared out evenly, and labels on a row."""
        p = self.probabilities(part.features)
        labels = part.labels.float()
        return {
            "micro_f1": micro_f1(part.labels, p > self.on_above),
            "jensen_shannon": float(jensen_shannon(p, labels / labels.sum(1, keepdim=True))),
            "support_size": float(support_size(p).float().mean()),
            "labels_on": float((p > self.on_above).sum(1).float().mean()),
        }


def fit_linear(problem: Problem, pair: Pair, seed: int, steps: int) -> Fit:
    """The best on validation data of all settings, thresholds and stages of training of a linear model."""
    return max(_stages(problem, pair, seed, steps), key=lambda fit: fit.validation_f1)


def _stages(problem: Problem, pair: Pair, seed: int, steps: int) -> Iterator[Fit]:
    for setting in pair.settings:
        torch.manual_seed(seed)
        model = nn.Linear(problem.train.features.shape[1], problem.train.labels.shape[1])
        optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        best: Fit | None = None
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            pair.loss(model(problem.train.features), problem.train.labels, setting).backward()
            optimizer.step()
            schedule.step()
            if step % CHECK_EVERY and step != steps:
                continue
            weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
            predict = partial(_linear_probabilities, weight=weight, bias=bias, pair=pair, setting=setting)
            p = predict(problem.validation.features)
            for on_above in pair.on_above:
                f1 = micro_f1(problem.validation.labels, p > on_above)
                if best is None or f1 > best.validation_f1:
                    best = Fit(predict, setting, on_above, f1)
        assert best is not None
        yield best


def _linear_probabilities(features: Tensor, weight: Tensor, bias: Tensor, pair: Pair, setting: float) -> Tensor:
    return pair.probabilities(nn.functional.linear(features, weight, bias), setting)


def compare(problems: list[Problem], steps: int, progress: tqdm) -> dict[str, Any]:
    """Every pair on every problem: mean and standard deviation over the problems, which differ by seed only."""
    results = {}
    for name, pair in PAIRS.items():
        fits = []
        for seed, problem in enumerate(problems):
            fit = fit_linear(problem, pair, seed, steps)
            fits.append({"setting": fit.setting, "on_above": fit.on_above} | fit.measured(problem.test))
            progress.update()
        results[name] = {
            key: {"mean": fmean(values), "std": stdev(values) if len(values) > 1 else 0.0}
            for key in fits[0]
            for values in [[fit[key] for fit in fits]]
        }
    return results


def experiments(quick: bool) -> dict[str, dict[float, tuple[range, int]]]:
    """The three settings of Section 5.1.1: numbers of labels a document may have, and words a document.

    (1) "We draw number of labels uniformly at random from {mean-1, mean, mean+1}", mean 2 to 9; (2) "we draw uniformly
    at random from {5-r, ..., 5+r}"; (3) "vary document length from 200 to 2000"; 2000 words otherwise. The means and
    the range are our reading of a copy that lost them.
    """
    every = {
        "mean number of labels": {mean: (range(mean - 1, min(mean + 1, LABELS) + 1), 2000) for mean in range(2, 10)},
        "range of the number of labels": {r: (range(5 - r, 5 + r + 1), 2000) for r in range(5)},
        "words a document": {length: (range(4, 7), length) for length in (200, 500, 1000, 1500, 2000)},
    }
    return {name: dict(list(points.items())[:1]) for name, points in every.items()} if quick else every


def as_tokens(part: Part, limit: int) -> Dataset:
    """Documents as sequences of word numbers, in order of the words; the last one in the vocabulary is padding."""
    rows = []
    for counts, labels in zip(part.features.long()[:, :WORDS], part.labels):
        words = torch.arange(WORDS).repeat_interleave(counts)[:limit]
        ids = torch.cat([words, words.new_full((limit - len(words),), WORDS)])
        rows.append({"input_ids": ids, "attention_mask": (ids != WORDS).long(), "labels": labels.float()})
    return Dataset.from_list(rows).with_format("torch")


def transformer(folder: Path, rows: int, steps: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """The same four pairs as heads of a small sequence-classification model, trained with the stock Trainer."""
    length = 48
    data = documents(range(1, 4), length=length // 2, rows=rows, seed=seed)
    train, validation, test = (
        as_tokens(data.take(part), length)
        for part in torch.arange(rows).tensor_split([rows // 2, rows * 7 // 10])  # Appendix A.6
    )
    results = {}
    for name, pair in PAIRS.items():
        set_seed(seed)
        config = BertConfig(
            vocab_size=WORDS + 1, pad_token_id=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, max_position_embeddings=length, num_labels=LABELS,
            problem_type="multi_label_classification",
        )  # fmt: skip
        setting = pair.settings[len(pair.settings) // 2]
        arguments = TrainingArguments(
            str(folder), max_steps=steps, per_device_train_batch_size=64, per_device_eval_batch_size=256,
            learning_rate=2e-3, warmup_steps=min(50, steps // 2), lr_scheduler_type="cosine", logging_strategy="no",
            save_strategy="no", report_to="none", seed=seed, use_cpu=not torch.cuda.is_available(),
        )  # fmt: skip
        loss = partial(_loss_of_outputs, pair=pair, setting=setting)
        model = BertForSequenceClassification(config)
        trainer = Trainer(model, arguments, train_dataset=train, compute_loss_func=loss)
        trainer.train()
        trainer.save_model(str(folder / name))
        predict = partial(_probabilities_of_scores, pair=pair, setting=setting)
        chosen_on, reported = (_scored(trainer, part) for part in (validation, test))
        f1 = {on: micro_f1(chosen_on.labels, predict(chosen_on.features) > on) for on in pair.on_above}
        best = max(f1, key=f1.__getitem__)
        results[name] = Fit(predict, setting, best, f1[best]).measured(reported)
    return results


def _scored(trainer: Trainer, rows: Dataset) -> Part:
    predicted = trainer.predict(rows)
    return Part(torch.from_numpy(predicted.predictions), torch.from_numpy(predicted.label_ids) > 0)


def _probabilities_of_scores(scores: Tensor, pair: Pair, setting: float) -> Tensor:
    return pair.probabilities(scores, setting)


def _loss_of_outputs(outputs: Any, labels: Tensor, num_items_in_batch: Any = None, *, pair: Pair, setting: float):
    return pair.loss(outputs.logits, labels, setting)


def draw(result: dict[str, Any], path: Path) -> None:
    """F1 and labels of nonzero probability for the three varied settings."""
    figure, axes = plt.subplots(2, 3, figsize=(12, 6), sharex="col", layout="constrained")
    rows = (("micro_f1", "micro F1"), ("support_size", "labels of nonzero probability"))
    for column, (what, points) in enumerate(result["synthetic"].items()):
        for (key, title), axis in zip(rows, axes[:, column]):
            for name, marker in zip(PAIRS, "os^D"):
                x = [float(value) for value in points]
                axis.plot(x, [points[value][name][key]["mean"] for value in points], marker=marker, label=name)
            axis.set_ylabel(title if column == 0 else "")
            axis.grid(alpha=0.3)
        axes[1, column].set_xlabel(what)
    axes[0, 0].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def table(results: dict[str, dict[str, Any]]) -> str:
    """Pairs by data sets, micro F1 in percent."""
    width = max(map(len, PAIRS))
    lines = [" " * width + "".join(f"{name:>14}" for name in results)]
    lines += [f"{pair:<{width}}" + "".join(f"{_f1(results[d][pair]):>14.1%}" for d in results) for pair in PAIRS]
    return "\n".join(lines)


def _f1(row: dict[str, Any]) -> float:
    return row["micro_f1"]["mean"] if isinstance(row["micro_f1"], dict) else row["micro_f1"]


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run what the command line asks for; see ``--help``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="Mulan ARFF files, XML files beside them")
    parser.add_argument("--out", type=Path, default=Path("out/multilabel"), help="folder for results.json and picture")
    parser.add_argument("--seeds", type=int, default=3, help="runs of everything; mean and deviation are reported")
    parser.add_argument("--quick", action="store_true", help="one point of each setting, few rows and steps")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds must be at least 1, was {options.seeds}")
    mulan = {path.stem.removesuffix("-train"): read_mulan(path) for path in options.data}
    start, steps, rows = time.perf_counter(), 40 if options.quick else STEPS, 300 if options.quick else 5000
    varied = experiments(options.quick)
    total = sum(map(len, varied.values())) + len(mulan)
    synthetic: dict[str, Any] = {}
    with tqdm(total=total * len(PAIRS) * options.seeds, desc="linear models") as progress:
        for name, points in varied.items():
            synthetic[name] = {
                str(value): compare(
                    [divided(documents(*point, rows=rows, seed=seed), seed) for seed in range(options.seeds)],
                    steps, progress,
                )
                for value, point in points.items()
            }  # fmt: skip
        real = {
            name: compare([divided(part, seed) for seed in range(options.seeds)], steps, progress)
            for name, part in mulan.items()
        }
    settings = {"steps": steps, "learning_rate": LEARNING_RATE, "rows": rows, "seeds": options.seeds}
    heads = transformer(options.out / "trainer", rows, 20 if options.quick else 400)
    result = {
        "settings": settings, "synthetic": synthetic, "mulan": real, "transformer": heads,
        "seconds": time.perf_counter() - start, **environment(),
    }  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    draw(result, options.out / "multilabel.png")
    for name, points in synthetic.items():
        print(f"\nmicro F1 by {name}\n{table(points)}")
    if real:
        print(f"\nmicro F1 on Mulan data\n{table(real)}")
    print(f"\nmicro F1 as a head of BertForSequenceClassification\n{table({'BERT-like': heads})}")
    print(f"\n{result['seconds']:.0f} s; {options.out / 'results.json'}, {options.out / 'multilabel.png'}")
    return result


if __name__ == "__main__":
    main()
