"""Multilabel classification with sparse distributions over labels: a label is on when its probability is not zero.

Four pairs of a map and a loss are compared: in linear models of documents made up from label-specific distributions
over words, with varied numbers of labels and varied length; in linear models of a data set; and as the head of a
Transformers classifier.

The pairs, the made-up data and the measures are those of Laha et al. 2018, "On Controllable Sparse Alternatives to
Softmax", Sections 4 and 5.1 and Appendix A.6.

    python recipes/multilabel.py --list
    python recipes/multilabel.py --quick --only 'labels-2-*' 'classifier-*'
    python recipes/multilabel.py --only 'labels-*' 'range-*' 'words-*' --seeds 3
    python recipes/multilabel.py --only 'data-*' --data emotions-train.arff --out out/emotions    # XML file beside it
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from multilabel_data import LABELS, WORDS, Part, Problem, divided, documents, read_mulan, sample
from multilabel_report import report
from study import Settings, main, setting
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

import hf_sparse.functional as F
from hf_sparse.losses import (
    softmax_log_loss,
    sparsegen_lin_hinge_loss,
    sparsehourglass_hinge_loss,
    sparsemax_huber_loss,
)
from hf_sparse.metrics import jensen_shannon, support_size

CHECK_EVERY = 10  # steps of a linear model
LONGEST = 48  # words of a document that the classifier reads


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


@dataclasses.dataclass(frozen=True)
class Multilabel(Settings):
    """One run: a pair, and what it is trained on."""

    pair: str = setting("softmax+log", "softmax+log, sparsemax+huber, sparsemax+hinge, sparsehourglass+hinge", "5.1")
    model: str = setting("linear", "linear", "5.1.1")
    documents: bool = setting(True, "made-up data; Mulan data", "5.1.1; 5.1.2")
    data: str = setting("", "birds, emotions, scene", "5.1.2")
    mean_labels: int = setting(5, "2 to 9, as far as our copy can be read", "5.1.1 (1)")
    spread: int = setting(1, "1; 0 to 4 with 5 labels on average", "5.1.1 (1); (2)")
    words: int = setting(2000, "200 to 2000", "5.1.1 (3)")
    rows: int = setting(5000)
    steps: int = setting(250)
    lr: float = setting(0.1)
    batch_size: int = setting(0)  # 0: all rows at once
    report_to: str = setting("none")


def runs() -> dict[str, Multilabel]:
    """All runs: every pair at every point of the three settings of Section 5.1.1, on data, and in a classifier."""
    points = {f"labels-{mean}": Multilabel(mean_labels=mean) for mean in range(2, 10)}
    points |= {f"range-{spread}": Multilabel(spread=spread) for spread in range(5)}
    points |= {f"words-{words}": Multilabel(words=words) for words in (200, 500, 1000, 1500, 2000)}
    points["data"] = Multilabel(documents=False)
    points["classifier"] = Multilabel(
        model="classifier", mean_labels=2, words=LONGEST // 2, steps=400, lr=2e-3, batch_size=64
    )
    return {
        f"{name}-{pair}": dataclasses.replace(settings, pair=pair)
        for name, settings in points.items()
        for pair in PAIRS
    }


QUICK = {"rows": 300, "steps": 20}


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


def fit_linear(problem: Problem, pair: Pair, seed: int, steps: int, lr: float) -> Fit:
    """The best on validation data of all settings, thresholds and stages of training of a linear model."""
    return max(_stages(problem, pair, seed, steps, lr), key=lambda fit: fit.validation_f1)


def _stages(problem: Problem, pair: Pair, seed: int, steps: int, lr: float) -> Iterator[Fit]:
    for value in pair.settings:
        torch.manual_seed(seed)
        model = nn.Linear(problem.train.features.shape[1], problem.train.labels.shape[1])
        optimizer = torch.optim.Adam(model.parameters(), lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        best: Fit | None = None
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            pair.loss(model(problem.train.features), problem.train.labels, value).backward()
            optimizer.step()
            schedule.step()
            if step % CHECK_EVERY and step != steps:
                continue
            weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
            predict = partial(_linear_probabilities, weight=weight, bias=bias, pair=pair, setting=value)
            p = predict(problem.validation.features)
            for on_above in pair.on_above:
                f1 = micro_f1(problem.validation.labels, p > on_above)
                if best is None or f1 > best.validation_f1:
                    best = Fit(predict, value, on_above, f1)
        assert best is not None
        yield best


def _linear_probabilities(features: Tensor, weight: Tensor, bias: Tensor, pair: Pair, setting: float) -> Tensor:
    return pair.probabilities(nn.functional.linear(features, weight, bias), setting)


@lru_cache(maxsize=2)
def problem_of(settings: Multilabel) -> Problem:
    """The rows of a run, divided; ``settings`` without what does not concern them, so that pairs share them.

    Raises:
        ValueError: data for a run that makes up its own, or a wrong file; see ``read_mulan``.
    """
    if settings.documents and settings.data:
        raise ValueError(f"this run makes up its documents; {settings.data} can be read with --only 'data-*'")
    if settings.documents:
        return divided(made_up(settings), settings.seed)
    return divided(read_mulan(Path(settings.data)) if settings.data else sample(settings.rows), settings.seed)


def made_up(settings: Multilabel) -> Part:
    """Documents with about as many labels as asked for.

    Section 5.1.1: "We draw number of labels uniformly at random from {mean-1, mean, mean+1}", or "from
    {5-r, ..., 5+r}".
    """
    first, last = settings.mean_labels - settings.spread, settings.mean_labels + settings.spread
    return documents(range(first, min(last, LABELS) + 1), settings.words, settings.rows, settings.seed)


def as_tokens(part: Part, limit: int) -> Dataset:
    """Documents as sequences of word numbers, in order of the words; the last one in the vocabulary is padding."""
    rows = []
    for counts, labels in zip(part.features.long()[:, :WORDS], part.labels):
        words = torch.arange(WORDS).repeat_interleave(counts)[:limit]
        ids = torch.cat([words, words.new_full((limit - len(words),), WORDS)])
        rows.append({"input_ids": ids, "attention_mask": (ids != WORDS).long(), "labels": labels.float()})
    return Dataset.from_list(rows).with_format("torch")


def fit_classifier(settings: Multilabel, pair: Pair, folder: Path) -> tuple[Fit, Part]:
    """A pair as the head of a small sequence-classification model, trained with the stock Trainer.

    Returns:
        The fit, which goes from scores to probabilities, and the model's scores of the test rows with their labels.
    """
    parts = torch.arange(settings.rows).tensor_split([settings.rows // 2, settings.rows * 7 // 10])  # Appendix A.6
    train, validation, test = (as_tokens(made_up(settings).take(part), LONGEST) for part in parts)
    set_seed(settings.seed)
    config = BertConfig(
        vocab_size=WORDS + 1, pad_token_id=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=LONGEST, num_labels=LABELS,
        problem_type="multi_label_classification",
    )  # fmt: skip
    arguments = TrainingArguments(
        str(folder / "checkpoints"), max_steps=settings.steps, per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=256, learning_rate=settings.lr, warmup_steps=min(50, settings.steps // 2),
        lr_scheduler_type="cosine", logging_strategy="no", save_strategy="no", report_to=settings.report_to,
        seed=settings.seed, use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    chosen = pair.settings[len(pair.settings) // 2]

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return pair.loss(outputs.logits, labels, chosen)

    def scored(rows: Dataset) -> Part:
        predicted = trainer.predict(rows)
        return Part(torch.from_numpy(predicted.predictions), torch.from_numpy(predicted.label_ids) > 0)

    trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=train, compute_loss_func=loss)
    trainer.train()
    trainer.save_model(str(folder / "model"))
    predict, held_out = partial(_probabilities_of_scores, pair=pair, setting=chosen), scored(validation)
    f1 = {on: micro_f1(held_out.labels, predict(held_out.features) > on) for on in pair.on_above}
    best = max(f1, key=f1.__getitem__)
    return Fit(predict, chosen, best, f1[best]), scored(test)


def _probabilities_of_scores(scores: Tensor, pair: Pair, setting: float) -> Tensor:
    return pair.probabilities(scores, setting)


def perform(settings: Multilabel, folder: Path) -> dict[str, Any]:
    """Train one model, and measure it on the test rows."""
    pair = PAIRS[settings.pair]
    if settings.model == "classifier":
        fit, test = fit_classifier(settings, pair, folder)
    else:
        problem = problem_of(dataclasses.replace(settings, pair=""))
        fit, test = fit_linear(problem, pair, settings.seed, settings.steps, settings.lr), problem.test
    return {"setting": fit.setting, "on_above": fit.on_above, **fit.measured(test)}


if __name__ == "__main__":
    main("multilabel", __doc__, runs(), perform, report, QUICK)
