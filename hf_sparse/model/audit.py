"""A dry run of a model on made-up input, watching where softmax is computed and what enters the head."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from ..attention import attention_call, attention_sites, is_softmax, named_attention, observe
from .lazy_logits import LinearLogits

_ATTENTION = re.compile(r"(.*_)?(attn|att|attention)", re.IGNORECASE)


class _SoftmaxWatch(TorchFunctionMode):
    """Notes which module every softmax over a last axis is computed in: the innermost whose forward is running.

    Softmax that an inline site replaces does not come by here.
    """

    def __init__(self, running: list[tuple[str, nn.Module]]) -> None:
        super().__init__()
        self.running = running
        self.seen: set[tuple[str, nn.Module]] = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if attention_call(func, args, kwargs or {}) is not None:
            path, module = next((entry for entry in reversed(self.running) if not is_softmax(entry[1])), ("", None))
            if module is not None:
                self.seen.add((path, module))
        return func(*args, **(kwargs or {}))


@contextmanager
def _running_modules(model: nn.Module, ran: set[str]) -> Iterator[list[tuple[str, nn.Module]]]:
    """The stack of modules whose forward is running, innermost last, while the block runs; all end up in ``ran``."""
    running: list[tuple[str, nn.Module]] = []
    handles = []
    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda m, _, path=path: running.append((path, m))))
        handles.append(module.register_forward_pre_hook(lambda m, _, path=path: ran.add(path)))
        handles.append(module.register_forward_hook(lambda m, *_: running.pop() and None, always_call=True))
    try:
        yield running
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def quiet_evaluation(model: nn.Module) -> Iterator[None]:
    """Run the block in evaluation mode without gradients; leave modes and random state as they were."""
    training = [(module, module.training) for module in model.modules()]
    devices = [model.device] if model.device.type == "cuda" else []
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            yield
    finally:
        for module, mode in training:
            module.training = mode


def input_device(model: PreTrainedModel) -> torch.device:
    """Where input for ``model`` goes; hooks of Accelerate, that keep its weights on disk, take it from anywhere."""
    is_offloaded = model.device.type == "meta" and hasattr(model, "_hf_hook")
    return torch.device("cpu") if is_offloaded else model.device


def audit_attention(model: PreTrainedModel, inputs: Mapping[str, Any]) -> None:
    """Run ``model`` once and check that no attention softmax was missed.

    Args:
        model: a sparse model.
        inputs: keyword arguments for one forward call.

    Raises:
        ValueError: an attention module computed a softmax of its own, or none where one was to be replaced; or no
            sparse attention was reached at all.
    """
    ran: set[str] = set()
    sites = {site.path: site for _, site in attention_sites(model)}
    sequential = [
        path for path, site in sites.items() if site.map_config is not None and site.map_config.is_sequential
    ]
    if sequential:
        # A mask without padding, and a cache, to see that both arrive.
        inputs = {**inputs, "target_mask": torch.ones(1, 1, device=input_device(model)), "use_cache": True}
    if any(site.is_constrained for site in sites.values()):
        inputs = {**inputs, "fertility": float("inf")}  # enough for any number of words
    with _running_modules(model, ran) as running, quiet_evaluation(model), observe(model) as counts:
        watch = _SoftmaxWatch(running)
        with watch:
            output = model(**inputs)
    for path in sequential:
        wanted = ["fertility"] if sites[path].is_constrained else ["target_mask"]
        wanted += [] if output.get("past_key_values") is None else ["past_key_values"]
        for argument in (name for name in wanted if counts[path].calls and name not in counts[path].brought):
            name = type(model.get_submodule(path)).__name__
            raise ValueError(
                f"{type(model).__name__} does not hand {argument} on to {name} at {path!r}, so that what its keys "
                "received cannot be followed; pass attn=None, or a map without bounds and coverage"
            )
    replaced = {path for path, site in sites.items() if counts[path].calls and not site.inline}
    missed = sorted(
        (path, type(module).__name__)
        for path, module in watch.seen
        if path not in replaced and (named_attention(type(module)) or _ATTENTION.fullmatch(path.rpartition(".")[2]))
    )
    if missed:
        path, name = missed[0]
        raise ValueError(
            f"{name} at {path!r} computes its own softmax, which hf_sparse cannot replace; pass attn=None to leave "
            "this model's attention as it is"
        )
    idle = sorted(path for path in ran & set(sites) if sites[path].inline and not counts[path].calls)
    if idle:
        name = type(model.get_submodule(idle[0])).__name__
        raise ValueError(
            f"{name} at {idle[0]!r} ran without calling softmax, so nothing could be replaced; pass an example in "
            'which it does, load the model with attn_implementation="eager" if it uses another, or pass attn=None'
        )
    if not any(count.calls for count in counts.values()):
        raise ValueError(f"no sparse attention was reached when {type(model).__name__} ran; pass attn=None")
    if all(count.keys <= count.rows for count in counts.values()):
        raise ValueError(
            f"every softmax in the attention of {type(model).__name__} is over a single score: there is nothing to "
            "make sparse; pass attn=None"
        )


def audit_fused_loss(model: PreTrainedModel, inputs: Mapping[str, Any]) -> None:
    """Run ``model`` once as in training and check that its loss does without the logits.

    Args:
        model: a sparse model with a fused loss.
        inputs: keyword arguments for one forward call.

    Raises:
        ValueError: something between head and loss computed the logits.
    """
    labels = inputs.get("labels", inputs.get("decoder_input_ids", inputs.get("input_ids")))
    with quiet_evaluation(model):
        model.training = True  # the root alone: dropout stays off
        logits = model(**{**inputs, "labels": labels}).logits
    if not isinstance(logits, LinearLogits) or logits.computed:
        name = type(model).__name__
        raise ValueError(f"{name} needs its logits for more than the loss; pass fused_loss=False")


def hidden_rms(model: PreTrainedModel, inputs: Mapping[str, Any]) -> float:
    """Root mean square of what enters the output embeddings of ``model`` on ``inputs``."""
    captured: list[torch.Tensor] = []
    head = model.get_output_embeddings()
    handle = head.register_forward_pre_hook(lambda _, args: captured.append(args[0].detach().double()))
    try:
        with quiet_evaluation(model):
            model(**inputs)
    finally:
        handle.remove()
    return float(captured[-1].pow(2).mean().sqrt())
