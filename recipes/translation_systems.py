"""The systems the translation recipe compares: which cross-attention, which fertilities, which search."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
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
from translation_corpus import Pair

import hf_sparse
from hf_sparse import CoveragePenalty, FertilityPredictor, WordAligner
from hf_sparse.fertility import fertility_counts
from hf_sparse.fertility.predictor import fertility_dataset
from hf_sparse.metrics import attended_words

EXHAUSTION = 0.2
MAX_FERTILITY = 5


@dataclass(frozen=True)
class System:
    """One line of the table.

    Attributes:
        attention: the map in cross-attention.
        fertility: a number for constant bounds, ``"guided"``, ``"predicted"``, or None for none.
        penalty: whether beam search charges for words left out; the model is that of the system without.
        coverage: whether what words received before goes into their scores, by learned vectors.
    """

    attention: str
    fertility: float | str | None = None
    penalty: bool = False
    coverage: bool = False

    @property
    def cross(self) -> dict[str, Any]:
        """What ``sparsify`` is given for cross-attention."""
        if self.coverage:
            return {"name": self.attention, "coverage": "vector"}
        if self.fertility is None:
            return {"name": self.attention}
        return {"name": self.attention, "fertility": self.fertility, "exhaustion": EXHAUSTION, "sink": True}

    @property
    def model_name(self) -> str:
        """The system whose model this one uses."""
        return next(name for name, other in SYSTEMS.items() if other.cross == self.cross)


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
}


def align_tokens(rows: Dataset) -> list[list[int]]:
    """Fertility of every source token in ``rows``, by an aligner trained on their token ids."""
    sources, targets = list(rows["input_ids"]), list(rows["labels"])
    links = WordAligner.train(sources, targets).align(sources, targets)
    return fertility_counts(links, [len(source) for source in sources])


def train_predictor(
    rows: Dataset, counts: list[list[int]], tokenizer: PreTrainedTokenizerFast, folder: Path, steps: int, seed: int
) -> FertilityPredictor:
    """A small token classifier over source tokens, trained with ``Trainer`` to tell their fertilities."""
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
    """Where the model predicts bounds, add those it is trained under: the counts plus one."""
    if system.fertility != "predicted":
        return rows
    return rows.add_column("fertility", [[count + 1.0 for count in row] for row in counts])


class Translations(NamedTuple):
    """What beam search gave, and how it looked at the source."""

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
        tokenizer: its tokenizer.
        sources: sentences.
        penalty: charges hypotheses for what they leave out.
        beams: how many hypotheses are kept.
        batch_size: sentences at a time.
    """
    model.eval()
    started = time.perf_counter()
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))  # little padding
    texts = [""] * len(sources)
    for start in tqdm(range(0, len(order), batch_size), desc="  translating", leave=False):
        batch = order[start : start + batch_size]
        inputs = tokenizer([sources[index] for index in batch], padding=True, return_tensors="pt").to(model.device)
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
    """Cross-attention (target, source) of each pair's target, averaged over heads of the last layer, padding cut."""
    model.eval()
    maps = []
    for start in range(0, len(pairs), 64):
        batch = pairs[start : start + 64]
        inputs = tokenizer([p.source for p in batch], padding=True, return_tensors="pt").to(model.device)
        labels = tokenizer([p.target for p in batch], padding=True, return_tensors="pt").to(model.device)
        output = model(**inputs, labels=labels.input_ids, output_attentions=True)
        weights = output.cross_attentions[-1].mean(1)
        sizes = zip(labels.attention_mask.sum(1).tolist(), inputs.attention_mask.sum(1).tolist())
        maps += [matrix[:target, :source].cpu() for matrix, (target, source) in zip(weights, sizes)]
    return maps


def attention_figures(maps: Sequence[Tensor]) -> dict[str, float]:
    """Source tokens attended at each target token, and at all, in tokens and as a share of the sentence."""
    steps = torch.cat([(weights > 0).sum(-1).float() for weights in maps])
    share = torch.tensor([float(attended_words(weights)) / weights.shape[1] for weights in maps])
    return {"attended_at_a_step": float(steps.mean()), "attended_share": float(share.mean())}


def make_sparse(model: PreTrainedModel, system: System, bounds: dict[str, Any]) -> PreTrainedModel:
    """``model`` with the cross-attention of a system; softmax too, so that the coverage penalty can read it."""
    return hf_sparse.sparsify(model, attn={"cross": system.cross}, fertility=bounds.get(system.fertility))
