"""Decoding of a pretrained language model over a long cache of which few keys are read, and over one read whole."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

import hf_sparse
from hf_sparse.cache_name import CACHE

from ..lib.records import CannotRun, Figures, Record
from .data import windows
from .language import WINDOWS, rows_of
from .part import Part, Verdict
from .pictures import draw_cache
from .sources import load

_CHUNK = 512  # tokens of a prompt that are read at once


def decoding(settings: Any, folder: Path) -> Figures:
    """Calibrate attention on windows of a text, then decode its second half over longer and longer contexts."""
    dense, tokenizer = load(settings.source, "causal")
    fit, _ = windows(tokenizer, Path(settings.data), settings.length, settings.rows)
    ids = torch.tensor(tokenizer(Path(settings.data).read_text(encoding="utf-8"), verbose=False)["input_ids"])
    longest = max(settings.contexts) + settings.tokens
    if len(ids) < 2 * longest:
        raise ValueError(f"{settings.data} has {len(ids)} tokens; {2 * longest} are needed")
    text = ids[len(ids) // 2 :][None, :longest]
    model = hf_sparse.sparsify(copy.deepcopy(dense), attn=settings.map, example={"input_ids": fit[:1]})
    _check_screens(model, fit[:1, :4])
    hf_sparse.calibrate(model, rows_of(fit), edges=settings.edges or None, progress=False)
    for each in (model, dense):
        each.to(getattr(torch, settings.dtype))
    contexts = {}
    for context, screened, usual in _read(model, dense, text, settings.contexts):
        found = contexts[str(context)] = _compared(model, dense, text, context, settings.tokens, screened, usual)
        print(context, found, flush=True)
    return {"contexts": contexts}


@torch.no_grad()
def _check_screens(model: PreTrainedModel, ids: Tensor) -> None:
    """Take two steps over a screened cache; raises ``CannotRun`` where no layer of the model reads one."""
    cache = hf_sparse.ScreenedCache(config=model.config)
    if not cache.is_screened:
        raise CannotRun(f"{type(model).__name__}: every layer has a sliding window, or is no attention")
    for part in (ids[:, :-1], ids[:, -1:]):
        model(input_ids=part, **{CACHE: cache})
    try:
        list(cache.reads)
    except RuntimeError as error:
        raise CannotRun(f"{type(model).__name__}: {error}") from error


@torch.no_grad()
def _read(
    model: PreTrainedModel, dense: PreTrainedModel, text: Tensor, contexts: tuple[int, ...]
) -> Iterator[tuple[int, hf_sparse.ScreenedCache, DynamicCache]]:
    """The text read by both models, up to each context; the caches may be changed."""
    screened, usual, start = hf_sparse.ScreenedCache(config=model.config), DynamicCache(config=dense.config), 0
    for context in sorted(contexts):
        while start < context:
            part = text[:, start : min(start + _CHUNK, context)]
            for each, cache in ((model, screened), (dense, usual)):
                each(input_ids=part, **{CACHE: cache}, logits_to_keep=1)
            start += part.shape[1]
        yield context, copy.deepcopy(screened), copy.deepcopy(usual)


def _unscreened(cache: hf_sparse.ScreenedCache) -> DynamicCache:
    """A cache with the same keys and values, all of which a step reads."""
    usual = DynamicCache([(layer.keys, layer.values) for layer in cache.layers])
    for number, layer in enumerate(cache.layers):
        if layer.is_sliding:
            usual.layers[number] = copy.deepcopy(layer)
    return usual


@torch.no_grad()
def _compared(
    model: PreTrainedModel,
    dense: PreTrainedModel,
    text: Tensor,
    context: int,
    num_tokens: int,
    screened: hf_sparse.ScreenedCache,
    usual: DynamicCache,
) -> Figures:
    """The next tokens of the text, one at a time: by the sparse model with both caches, and by the dense one."""
    before = {step.keys for step in screened.reads}
    ways: dict[str, tuple[PreTrainedModel, Cache]] = {
        "screened": (model, screened),
        "sparse": (model, _unscreened(screened)),
        "dense": (dense, usual),
    }
    seconds, furthest, differing = dict.fromkeys(ways, 0.0), 0.0, 0
    for i in range(context, context + num_tokens):
        p = {}
        for way, (each, cache) in ways.items():
            start = time.process_time()
            logits = each(input_ids=text[:, i : i + 1], **{CACHE: cache}).logits[0, -1]
            seconds[way] += time.process_time() - start
            p[way] = logits.double().softmax(-1)
        furthest = max(furthest, float((p["screened"] - p["sparse"]).abs().max()))
        differing += int(p["screened"].argmax() != p["sparse"].argmax())
    steps = [step for step in screened.reads if step.keys not in before]
    whole = Counter[str]()
    for step in steps:
        whole.update(step.whole)
    return {
        "share": sum(step.coded_bytes + step.exact_bytes for step in steps) / sum(step.half_bytes for step in steps),
        "exact_share": sum(step.exact_bytes for step in steps) / sum(step.half_bytes for step in steps),
        "proved": sum(step.proved for step in steps) / sum(step.calls for step in steps),
        "whole": dict(whole),
        "furthest": furthest,
        "differing": differing,
        "tokens": num_tokens,
        "milliseconds": {way: round(1000 * spent / num_tokens, 2) for way, spent in seconds.items()},
    }


def _verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    for record in records:
        context, found = max(record["figures"]["contexts"].items(), key=lambda item: int(item[0]))
        faster = found["milliseconds"]["dense"] / found["milliseconds"]["screened"]
        model = f"SmolLM2 in {record['settings']['dtype']}, {int(context):,} tokens in the cache"
        yield Verdict(
            f"{model}: at most 30 % of the bytes read in a step, all proved, faster than dense",
            f"{found['share']:.1%}, {found['proved']:.0%}, {faster:.1f} times as fast",
            found["share"] <= 0.3 and faster > 1 and found["proved"] == 1,
        )


PART = Part(
    name="cache",
    run=decoding,
    reads=(*WINDOWS, "map", "edges", "contexts", "tokens", "dtype"),
    verdicts=_verdicts,
    pictures={"screened_cache.png": draw_cache},
)
