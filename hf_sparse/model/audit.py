"""Checks of a sparse model's dry run: no attention was missed, and what it needs arrives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from ..attention import AttentionSite, attention_sites
from ..attention.find import named_attention
from ..cache_name import CACHE
from .dry_run import DryRun, dry_run, input_device
from .find import sparse_config
from .lazy_logits import LinearLogits
from .sparse_model import has_logits

_ATTENTION = re.compile(r"(.*_)?(attn|att|attention)", re.IGNORECASE)


def audit(model: PreTrainedModel, inputs: Mapping[str, Any]) -> DryRun:
    """Run a sparse model once and check that it is sparse where it was asked to be.

    Args:
        model: a sparse model.
        inputs: keyword arguments for one forward call.

    Returns:
        The record of the run.

    Raises:
        ValueError: a check failed; the message names the module and what to do.
        NotImplementedError: the head is sparse, and its logits have another name in the output.
    """
    fused = sparse_config(model).fused_loss
    try:
        record = dry_run(model, with_arguments(model, inputs), training=fused)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        if not fused or "labels" in inputs:
            raise
        raise ValueError(
            f"{type(model).__name__} does not run with its input for labels ({type(error).__name__}, {error}), as is "
            "tried for a fused loss; pass example={...}, keyword arguments for one forward call, with labels"
        ) from error
    for problem in filter(None, (check(record) for check in CHECKS.values())):
        raise ValueError(problem)
    return record


def with_arguments(model: PreTrainedModel, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``inputs`` with the arguments whose arrival is checked: masks and caches of attention that follows its keys,
    and labels where the loss is fused.
    """
    config = sparse_config(model)
    added: dict[str, Any] = {}
    if config.is_sequential:  # a mask without padding, and a cache
        added = {"target_mask": torch.ones(1, 1, dtype=torch.float32, device=input_device(model)), "use_cache": True}
    if any(site.is_constrained for _, site in attention_sites(model)):
        added["fertility"] = float("inf")  # enough for any number of words
    if config.fused_loss:
        added["labels"] = inputs.get("labels", inputs.get("decoder_input_ids", inputs.get("input_ids")))
    return {**inputs, **added}


def _sites(record: DryRun) -> dict[str, AttentionSite]:
    return {site.path: site for _, site in attention_sites(record.model)}


def _class_at(record: DryRun, path: str) -> str:
    return f"{type(record.model.get_submodule(path)).__name__} at {path!r}"


def _missing_arguments(record: DryRun) -> Iterator[tuple[str, str]]:
    """Sites that follow what their keys received, with an argument that did not reach them."""
    for path, site in _sites(record).items():
        if not site.is_sequential or not record.counts[path].calls:
            continue
        wanted = ["fertility"] if site.is_constrained else ["target_mask"]
        wanted += [] if record.output.get(CACHE) is None else [CACHE]
        yield from ((path, name) for name in wanted if name not in record.counts[path].received)


def arguments_arrive(record: DryRun) -> str | None:
    """Why attention that follows what its keys received cannot, or None."""
    for path, name in _missing_arguments(record):
        return (
            f"{type(record.model).__name__} does not hand {name} on to {_class_at(record, path)}, so that what its "
            "keys received cannot be followed; pass attn=None, or a map without bounds and coverage"
        )
    return None


def every_softmax_replaced(record: DryRun) -> str | None:
    """Name an attention module that computed a softmax of its own, or None."""
    reached = {path for path, site in _sites(record).items() if record.counts[path].calls}
    replaced = {path for path in reached if not _sites(record)[path].inline}
    for path in sorted(record.softmaxes) if record.counts else ():
        own = path not in replaced and _says_attention(record, path)
        owner = path if own else _dense_owner(record, path, reached)
        if owner is not None:
            return (
                f"{_class_at(record, owner)} computes its own softmax, which hf_sparse cannot replace; pass attn=None "
                "to leave this model's attention as it is"
            )
    return None


def _says_attention(record: DryRun, path: str) -> bool:
    """Whether a module is attention by the name of its class or of its place."""
    module = record.model.get_submodule(path)
    return named_attention(type(module)) or _ATTENTION.fullmatch(path.rpartition(".")[2]) is not None


def _dense_owner(record: DryRun, path: str, reached: set[str]) -> str | None:
    """The attention module around a part that computed a softmax over heads, or None; none if it is sparse itself.

    The name of the part need not say attention: a module may leave its product of queries and keys to a ``Core``.
    """
    if path not in record.heads or path in reached:
        return None
    while path:
        path = path.rpartition(".")[0]
        if path and _says_attention(record, path):
            inside = any(f"{site}.".startswith(f"{path}.") for site in reached)
            return None if inside else path
    return None


def inline_modules_call_softmax(record: DryRun) -> str | None:
    """Name a module that ran without the softmax that was to be replaced in it, or None.

    One that wraps the attention that did run has none of its own to compute.
    """
    reached = [path for path in _sites(record) if record.counts[path].calls]
    idle = [path for path, site in _sites(record).items() if site.inline and path not in reached]
    wrappers = {path for path in idle if any(inner.startswith(f"{path}.") for inner in reached)}
    for path in sorted(record.ran & set(idle) - wrappers):
        return (
            f"{_class_at(record, path)} ran without calling softmax over the last axis, so nothing could be replaced; "
            'pass an example in which it does, load the model with attn_implementation="eager" if it uses another, or '
            "pass attn=None"
        )
    return None


def attention_reached(record: DryRun) -> str | None:
    """That no sparse attention ran at all, or None."""
    if not record.counts or any(count.calls for count in record.counts.values()):
        return None
    return f"no sparse attention was reached when {type(record.model).__name__} ran; pass attn=None"


def more_than_one_key(record: DryRun) -> str | None:
    """That every softmax is over a single score, or None."""
    counts = record.counts.values()
    if not counts or any(count.keys > count.rows for count in counts):
        return None
    if not any(count.rows for count in counts):
        return (
            f"no query in the attention of {type(record.model).__name__} sees a key, since the masks of the example "
            "hide all of them: its rows are padding alone; pass an example, or a first batch, in which a token counts"
        )
    return (
        f"every softmax in the attention of {type(record.model).__name__} is over a single score: there is nothing to "
        "make sparse; pass attn=None, or an example with more positions if it can attend to more"
    )


def fused_loss_without_logits(record: DryRun) -> str | None:
    """That something between the head and a fused loss computed the logits, or None."""
    if not sparse_config(record.model).fused_loss:
        return None
    logits = record.output.logits if has_logits(record.model, record.output) else None
    if isinstance(logits, LinearLogits) and not logits.computed:
        return None
    return f"{type(record.model).__name__} needs its logits for more than the loss; pass fused_loss=False"


# By name: the reason why a dry run shows that the model is not what was asked for, or None.
CHECKS: dict[str, Callable[[DryRun], str | None]] = {
    "arguments reach the attention": arguments_arrive,
    "every softmax is replaced": every_softmax_replaced,
    "inline modules call softmax": inline_modules_call_softmax,
    "attention reached": attention_reached,
    "more than one key": more_than_one_key,
    "fused loss without logits": fused_loss_without_logits,
}
