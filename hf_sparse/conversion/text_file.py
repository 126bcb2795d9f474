"""Batches of a text file, in the form that a language model's own loss takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DataCollatorForLanguageModeling, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto import modeling_auto

_CAUSAL = set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
_MASKED = set(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values())


def text_batches(
    path: str | Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    batch_size: int = 8,
    max_length: int = 512,
) -> list[dict[str, Any]]:
    """The lines of a file as batches with labels, in the order of the file.

    Args:
        path: UTF-8 text, one example a line: text for causal and masked language models, source and target with a tab
            between them for encoder-decoders.
        model: a language model; it decides what the labels are.
        tokenizer: the model's own. Where it has no token for padding, the end of text pads.
        batch_size: lines a batch.
        max_length: tokens that are kept of a text.

    Returns:
        Keyword arguments for the model's forward, ``labels`` among them; padding is labelled -100. In texts for a
        masked language model 15 % of the tokens are masked, the same ones every time.

    Raises:
        ValueError: no line, a line without its tab, or a model without a loss over the words of a text.
    """
    lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{path} has no line of text")
    name, in_pairs = type(model).__name__, model.config.is_encoder_decoder
    if not in_pairs and name not in _CAUSAL | _MASKED:
        raise ValueError(f"{name} has no loss over the words of a text; call the Python function with a loader")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    options = {"padding": True, "truncation": True, "max_length": max_length, "return_tensors": "pt"}
    batches = []
    for start in range(0, len(lines), batch_size):
        some = lines[start : start + batch_size]
        if in_pairs:
            sources, targets = zip(*(_pair(path, line) for line in some))
            batch = dict(tokenizer(list(sources), text_target=list(targets), **options))
            batch["labels"] = _without_padding(batch["labels"], batch["labels"] != tokenizer.pad_token_id)
        else:
            batch = dict(tokenizer(some, **options))
            batch["labels"] = _without_padding(batch["input_ids"], batch["attention_mask"].bool())
            if name in _MASKED:
                batch = _masked(batch, tokenizer, start)
        batches.append(batch)
    return batches


def _pair(path: str | Path, line: str) -> tuple[str, str]:
    source, tab, target = line.partition("\t")
    if not tab:
        raise ValueError(f"a line of {path} has no tab between source and target: {line!r}")
    return source, target


def _without_padding(ids: Tensor, is_token: Tensor) -> Tensor:
    return ids.masked_fill(~is_token, -100)


def _masked(batch: dict[str, Any], tokenizer: PreTrainedTokenizerBase, seed: int) -> dict[str, Any]:
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        ids, labels = collator.torch_mask_tokens(batch["input_ids"].clone())
    return {**batch, "input_ids": ids, "labels": labels}
