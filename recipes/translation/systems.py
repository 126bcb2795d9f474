"""The systems that are compared: cross-attention, fertilities, search; and their training and decoding."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from torch import Tensor
from tqdm.auto import tqdm
from transformers import (
    BertConfig,
    BertForTokenClassification,
    DataCollatorForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

import hf_sparse
from hf_sparse import CoveragePenalty, FertilityPredictor, WordAligner
from hf_sparse.fertility import fertility_counts
from hf_sparse.fertility.predictor import fertility_dataset
from hf_sparse.metrics import attended_words

from ..lib.batches import by_length
from .data import Pair
from .model import as_read

EXHAUSTION = 0.2
SPARSE = ("sparsemax", "csparsemax")
MAX_FERTILITY = 5


@dataclass(frozen=True)
class System:
    """One line of the table.

    Attributes:
        attention: map in cross-attention.
        fertility: a number for constant bounds, ``"guided"``, ``"predicted"``, or None for no bounds.
        throughout: whether training has the predicted bounds, too, and not those of the aligner's counts in the very
            sentence, as in the paper.
        penalty: whether beam search has a coverage penalty; the model is that of the system without.
        coverage: whether attention received at earlier steps enters the scores, through learned vectors.
    """

    attention: str
    fertility: float | str | None = None
    throughout: bool = False
    penalty: bool = False
    coverage: bool = False

    @property
    def cross(self) -> dict[str, Any]:
        """The map of cross-attention, for ``sparsify``."""
        if self.coverage:
            return {"name": self.attention, "coverage": "vector"}
        if self.fertility is None:
            return {"name": self.attention}
        return {"name": self.attention, "fertility": self.fertility, "exhaustion": EXHAUSTION, "sink": True}

    @property
    def model_name(self) -> str:
        """Name of the system that trains this one's model."""
        return next(name for name, other in SYSTEMS.items() if other == replace(self, penalty=False))


SYSTEMS = {
    "softmax": System("softmax"),
    "softmax-penalty": System("softmax", penalty=True),
    "softmax-coverage": System("softmax", coverage=True),
    "sparsemax": System("sparsemax"),
    "sparsemax-penalty": System("sparsemax", penalty=True),
    "sparsemax-coverage": System("sparsemax", coverage=True),
    "csoftmax-predicted": System("csoftmax", "predicted"),
    "csparsemax-2": System("csparsemax", 2.0),
    "csparsemax-3": System("csparsemax", 3.0),
    "csparsemax-guided": System("csparsemax", "guided"),
    "csparsemax-predicted": System("csparsemax", "predicted"),
    "csoftmax-predicted-throughout": System("csoftmax", "predicted", throughout=True),
    "csparsemax-predicted-throughout": System("csparsemax", "predicted", throughout=True),
}


def align_tokens(rows: Dataset) -> list[list[int]]:
    """Fertility of every source token, by an aligner trained on the token ids of ``rows``."""
    sources, targets = list(rows["input_ids"]), list(rows["labels"])
    links = WordAligner.train(sources, targets).align(sources, targets)
    return fertility_counts(links, [len(source) for source in sources])


def train_predictor(
    rows: Dataset, counts: list[list[int]], tokenizer: PreTrainedTokenizerFast, folder: Path, steps: int, seed: int
) -> FertilityPredictor:
    """Train a small token classifier to predict the fertilities of source tokens."""
    set_seed(seed)
    model = BertForTokenClassification(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=256,
            num_labels=MAX_FERTILITY + 1,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=128,
        learning_rate=2e-3,
        warmup_steps=max(steps // 10, 1),
        seed=seed,
        save_strategy="no",
        logging_steps=max(steps // 5, 1),
        report_to="none",
        dataloader_pin_memory=False,
    )
    data = fertility_dataset(list(rows["input_ids"]), counts, MAX_FERTILITY)
    collator = DataCollatorForTokenClassification(tokenizer)
    Trainer(model, arguments, collator, train_dataset=data, processing_class=tokenizer).train()
    return FertilityPredictor(model)


def with_fertility(rows: Dataset, system: System, counts: list[list[int]]) -> Dataset:
    """Add the bounds under which a model that predicts them at test is trained: the counts plus one."""
    if system.fertility != "predicted" or system.throughout:
        return rows
    return rows.add_column("fertility", [[count + 1.0 for count in row] for row in counts])


class Translations(NamedTuple):
    """Result of beam search, and its wall time."""

    texts: list[str]
    seconds: float


@torch.no_grad()
def translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    sources: Sequence[str],
    penalty: CoveragePenalty | None = None,
    beams: int = 4,
    batch_size: int = 64,
) -> Translations:
    """Translate by beam search for the likeliest string, without length normalization unless ``penalty`` has one.

    Args:
        model: dense or sparse.
        tokenizer: of the model.
        sources: sentences.
        penalty: coverage penalty of the search; None for none.
        beams: width of the beam.
        batch_size: sentences per batch.
    """
    model.eval()
    started = time.perf_counter()
    texts = [""] * len(sources)
    for batch in tqdm(list(by_length(sources, batch_size)), desc="  translating", leave=False):
        inputs = as_read([sources[index] for index in batch], tokenizer).to(model.device)
        longest = min(2 * inputs.input_ids.shape[1] + 10, model.generation_config.max_new_tokens)
        options = {"num_beams": beams, "max_new_tokens": longest}
        if penalty is not None:
            options["custom_generate"] = penalty
        else:
            options |= {"length_penalty": 0.0, "early_stopping": "never"}
        output = model.generate(**inputs, **options)
        for index, text in zip(batch, tokenizer.batch_decode(output, skip_special_tokens=True)):
            texts[index] = text
    return Translations(texts, time.perf_counter() - started)


@torch.no_grad()
def attention_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, pairs: Sequence[Pair]) -> list[Tensor]:
    """Cross-attention (target, source) of each pair, averaged over the heads of the last layer, without padding."""
    model.eval()
    maps = []
    for start in range(0, len(pairs), 64):
        batch = pairs[start : start + 64]
        inputs, labels = (as_read(side, tokenizer).to(model.device) for side in zip(*batch))
        output = model(**inputs, labels=labels.input_ids, output_attentions=True)
        weights = output.cross_attentions[-1].mean(1)
        sizes = zip(labels.attention_mask.sum(1).tolist(), inputs.attention_mask.sum(1).tolist())
        maps += [matrix[:target, :source].cpu() for matrix, (target, source) in zip(weights, sizes)]
    return maps


def attention_figures(maps: Sequence[Tensor]) -> dict[str, float]:
    """Mean number of source tokens attended per target token, and mean share of the source attended at all."""
    steps = torch.cat([(weights > 0).sum(-1).float() for weights in maps])
    share = torch.tensor([float(attended_words(weights)) / weights.shape[1] for weights in maps])
    return {"attended_at_a_step": float(steps.mean()), "attended_share": float(share.mean())}


def make_sparse(
    model: PreTrainedModel, system: System, bounds: dict[str, Any], temperature: float = 1.0
) -> PreTrainedModel:
    """``model`` with the cross-attention of a system, softmax included: the coverage penalty reads it.

    Args:
        model: dense.
        system: the system.
        bounds: ``fertility`` of ``sparsify`` for those that learn it, by ``System.fertility``.
        temperature: of attention that can be zero without bounds.
    """
    cross = system.cross | ({"temperature": temperature} if system.attention in SPARSE else {})
    return hf_sparse.sparsify(model, attn={"cross": cross}, fertility=bounds.get(system.fertility))
