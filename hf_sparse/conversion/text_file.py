"""Batches of a text file, in the form that a language model's own loss takes."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DataCollatorForLanguageModeling, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto import modeling_auto

from ..functional.arguments import check_count

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
        path: UTF-8 text, plain or ``.gz``, one example a line: text for causal and masked language models, source and
            target with a tab between them for encoder-decoders. Blank lines are left out.
        model: a language model; it decides what the labels are.
        tokenizer: the model's own. Where it has no token for padding, the end of text pads.
        batch_size: lines a batch.
        max_length: tokens that are kept of a text, where the model has positions for as many.

    Returns:
        Keyword arguments for the model's forward, ``labels`` among them; padding is labelled -100. In texts for a
        masked language model 15 % of the tokens are masked, the same ones every time.

    Raises:
        ValueError: no line, a line without its one tab, a file that ``read_lines`` refuses, a size below 1, or a model
            without a loss over the words of a text.
    """
    check_count("batch_size", batch_size)
    check_count("max_length", max_length)
    lines = [line for line in read_lines(path) if line.strip()]
    if not lines:
        raise ValueError(f"{path} has no line of text")
    name, in_pairs = type(model).__name__, model.config.is_encoder_decoder
    if not in_pairs and name not in _CAUSAL | _MASKED:
        raise ValueError(f"{name} has no loss over the words of a text; call the Python function with a loader")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    kept = min(max_length, _positions(model), tokenizer.model_max_length)
    options = {"padding": True, "truncation": True, "max_length": kept, "return_tensors": "pt"}
    batches = []
    for start in range(0, len(lines), batch_size):
        some = lines[start : start + batch_size]
        if in_pairs:
            sources, targets = zip(*(_pair(path, line) for line in some))
            batch = dict(tokenizer(list(sources), **options))
            written = tokenizer(text_target=list(targets), **options)
        else:
            batch = written = dict(tokenizer(some, **options))
        # The mask tells padding from an end of text, which may be one token.
        batch["labels"] = _without_padding(written["input_ids"], written["attention_mask"].bool())
        if name in _MASKED and not in_pairs:
            batch = _masked(batch, tokenizer, start)
        batches.append(batch)
    return batches


def read_lines(path: str | Path) -> list[str]:
    """The lines of a UTF-8 file, plain or ``.gz``, without line ends and byte-order mark; empty ones too.

    Raises:
        ValueError: the file is not UTF-8, or not gzip, whole and sound, where its name says so.
    """
    path = Path(path)
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8 text; byte {error.start} is not") from error
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path} must be UTF-8 text, gzipped if its name ends in .gz: {error}") from error
    # Other characters of Unicode end no line.
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _positions(model: PreTrainedModel) -> float:
    """How many tokens the model has positions for; some configurations say -1 where there is no end."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 0
    for name, part in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding) and part.padding_idx is not None:
            return min(positions, part.num_embeddings) - part.padding_idx - 1  # RoBERTa's begin after that of padding
    return positions if positions > 0 else math.inf


def _pair(path: str | Path, line: str) -> tuple[str, str]:
    fields = line.split("\t")
    if len(fields) != 2:
        raise ValueError(f"a line of {path} needs one tab, between source and target, has {len(fields) - 1}: {line!r}")
    return fields[0], fields[1]


def _without_padding(ids: Tensor, is_token: Tensor) -> Tensor:
    return ids.masked_fill(~is_token, -100)


def _masked(batch: dict[str, Any], tokenizer: PreTrainedTokenizerBase, seed: int) -> dict[str, Any]:
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        ids, labels = collator.torch_mask_tokens(batch["input_ids"].clone())
    return {**batch, "input_ids": ids, "labels": labels}
