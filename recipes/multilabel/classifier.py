"""A Transformers classifier with a pair of map and loss as its head, trained with the stock Trainer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

from .data import LABELS, WORDS, Part
from .model import Fit, Pair, best_threshold

LONGEST = 48  # words of a document that the classifier reads


def as_tokens(part: Part, limit: int) -> Dataset:
    """Documents as sorted sequences of at most ``limit`` word ids; the id ``WORDS`` is padding."""
    rows = []
    for counts, labels in zip(part.features.long()[:, :WORDS], part.labels):
        words = torch.arange(WORDS).repeat_interleave(counts)[:limit]
        ids = torch.cat([words, words.new_full((limit - len(words),), WORDS)])
        rows.append({"input_ids": ids, "attention_mask": (ids != WORDS).long(), "labels": labels.float()})
    return Dataset.from_list(rows).with_format("torch")


def fit_classifier(
    rows: Part, pair: Pair, folder: Path, *, steps: int, lr: float, batch_size: int, seed: int, report_to: str
) -> tuple[Fit, Part]:
    """Train a small BERT on documents, split as in Appendix A.6.

    Args:
        rows: documents.
        pair: map and loss.
        folder: of the run; the model stays in its ``model``.
        steps: optimizer steps.
        lr: peak learning rate.
        batch_size: rows per step.
        seed: of the weights and of the order of the rows.
        report_to: a logger of Trainer.

    Returns:
        The fit, whose features are scores, and the model's scores of the test rows with their labels.
    """
    count = len(rows.labels)
    parts = torch.arange(count).tensor_split([count // 2, count * 7 // 10])
    train, validation, test = (as_tokens(rows.take(part), LONGEST) for part in parts)
    set_seed(seed)
    config = BertConfig(
        vocab_size=WORDS + 1,
        pad_token_id=WORDS,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=LONGEST,
        num_labels=LABELS,
        problem_type="multi_label_classification",
    )
    arguments = TrainingArguments(
        str(folder / "checkpoints"),
        max_steps=steps,
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=256,
        learning_rate=lr,
        warmup_steps=min(50, steps // 2),
        lr_scheduler_type="cosine",
        logging_strategy="no",
        save_strategy="no",
        report_to=report_to,
        seed=seed,
        use_cpu=not torch.cuda.is_available(),
    )
    setting = pair.settings[len(pair.settings) // 2]

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return pair.loss(outputs.logits, labels, setting)

    def scored(rows: Dataset) -> Part:
        predicted = trainer.predict(rows)
        return Part(torch.from_numpy(predicted.predictions), torch.from_numpy(predicted.label_ids) > 0)

    trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=train, compute_loss_func=loss)
    trainer.train()
    trainer.save_model(str(folder / "model"))
    predict = partial(_probabilities, pair=pair, setting=setting)
    return best_threshold(predict, setting, pair, scored(validation)), scored(test)


def _probabilities(scores: Tensor, pair: Pair, setting: float) -> Tensor:
    return pair.probabilities(scores, setting)
