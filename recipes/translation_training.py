"""The model of the translation recipe and how it is trained, in pieces that survive an interruption."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from progress import Progress
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    DataCollatorForSeq2Seq,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)
from transformers.trainer_callback import ProgressCallback
from transformers.trainer_utils import get_last_checkpoint
from translation_corpus import Pair

import hf_sparse

LONGEST = 128  # tokens; longer training pairs are left out, longer translations cut


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """A fresh Marian-like model of about two million parameters."""
    set_seed(seed)
    config = MarianConfig(
        vocab_size=len(tokenizer),
        d_model=160,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=640,
        decoder_ffn_dim=640,
        max_position_embeddings=LONGEST + 2,
        init_std=0.06,
        scale_embedding=True,  # without, sinusoidal positions drown the words and the source is never looked at
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
        forced_eos_token_id=None,
    )
    model = MarianMTModel(config)
    model.generation_config.max_length = None
    model.generation_config.max_new_tokens = LONGEST
    # The start token is the padding token, which Transformers would otherwise also forbid.
    model.generation_config.bad_words_ids = [[tokenizer.pad_token_id]]
    return model


def encode(pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerFast) -> Dataset:
    """Token ids of both sides, without pairs of more than ``LONGEST`` tokens."""
    sources = tokenizer([pair.source for pair in pairs]).input_ids
    targets = tokenizer([pair.target for pair in pairs]).input_ids
    rows = [
        {"input_ids": source, "labels": target, "length": len(source)}
        for source, target in zip(sources, targets)
        if max(len(source), len(target)) <= LONGEST
    ]
    return Dataset.from_list(rows)


class Collator(DataCollatorForSeq2Seq):
    """Pads a batch, with the fertility bounds of its source tokens where the rows have them."""

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> Any:
        """Pad ``features``; bounds of padding are zero."""
        bounds = [torch.tensor(row["fertility"]) for row in features if "fertility" in row]
        kept = [{key: row[key] for key in ("input_ids", "labels")} for row in features]
        batch = super().__call__(kept, return_tensors)
        if bounds:
            batch["fertility"] = pad_sequence(bounds, batch_first=True)
        return batch


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    rows: Dataset,
    folder: Path,
    *,
    steps: int,
    schedule_steps: int,
    lr: float,
    batch_size: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Train ``model`` in place, from the last checkpoint in ``folder`` where there is one.

    Args:
        model: dense or sparse.
        tokenizer: pads the batches.
        rows: what ``encode`` made, with a column ``fertility`` or without.
        folder: for checkpoints; gone when training has ended.
        steps: optimizer steps in all.
        schedule_steps: the learning rate rises over a tenth of these, then falls to zero along half a cosine; where
            they are more than ``steps``, it has not reached zero at the end.
        lr: peak learning rate.
        batch_size: sentence pairs a step.
        seed: for dropout and the order of the rows.

    Returns:
        What Trainer logged.
    """
    warmup = max(schedule_steps // 10, 1)
    sparse = hf_sparse.is_sparse(model)
    trainer_class = hf_sparse.SparseSeq2SeqTrainer if sparse else Seq2SeqTrainer
    arguments_class = hf_sparse.SparseTrainingArguments if sparse else Seq2SeqTrainingArguments
    arguments = arguments_class(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=batch_size,
        learning_rate=lr,
        warmup_steps=warmup,
        lr_scheduler_type="cosine",
        lr_scheduler_kwargs={"num_cycles": 0.5 * max(steps - warmup, 1) / max(schedule_steps - warmup, 1)},
        train_sampling_strategy="group_by_length",
        seed=seed,
        logging_steps=max(steps // 20, 1),
        save_steps=max(steps // 5, 1),
        save_total_limit=1,
        report_to="none",
        disable_tqdm=False,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )
    collator = Collator(tokenizer, model)
    trainer = trainer_class(model, arguments, collator, train_dataset=rows, processing_class=tokenizer)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(Progress)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)) if folder.is_dir() else None)
    shutil.rmtree(folder)
    return trainer.state.log_history
