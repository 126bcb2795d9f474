"""Attention that a forward call of the whole model leaves out, run by the smallest part of the model that has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_sparse.attention import observe
from hf_sparse.model.doctor import logits_of
from tests.sweep.deliveries import Arguments, argument_sets

# Codecs and image tokenizers have no forward, or one that leaves half of them out.
METHODS = ("forward", "encode", "decode", "get_image_features", "get_audio_features")


@dataclass(frozen=True)
class Call:
    """A method of the part of a model at ``path``, with what to call it with, and the attention sites it reaches."""

    path: str
    method: str
    arguments: Arguments
    sites: frozenset[str] = frozenset()

    def outputs(self, model: nn.Module) -> list[Tensor]:
        """Every tensor of numbers that comes back. Drawn noise is the same at every call."""
        torch.manual_seed(0)
        return list(numbers(getattr(model.get_submodule(self.path), self.method)(**self.arguments)))

    def name(self, model: nn.Module) -> str:
        return f"{type(model.get_submodule(self.path)).__name__}.{self.method}"

    def in_float64(self) -> Call:
        return replace(self, arguments=widened(self.arguments))


def widened(arguments: Arguments) -> Arguments:
    """The same arguments, numbers in float64."""
    return {
        name: value.double() if torch.is_tensor(value) and value.is_floating_point() else value
        for name, value in arguments.items()
    }


def numbers(output: Any) -> Iterator[Tensor]:
    """The floating-point tensors inside what a model returned."""
    if torch.is_tensor(output):
        if output.is_floating_point() and output.numel():
            yield output
    elif isinstance(output, dict | list | tuple):
        for part in output.values() if isinstance(output, dict) else output:
            yield from numbers(part)


@torch.no_grad()
def outputs_of(model: nn.Module, inputs: Arguments, calls: list[Call]) -> list[Tensor]:
    """The logits of a forward call of the whole, and what further calls of parts return."""
    return [logits_of(model, inputs), *(output for call in calls for output in call.outputs(model))]


def calls_of_parts(model: nn.Module, idle: set[str]) -> list[Call]:
    """Calls of parts of a sparse model that together reach as many of the sites in ``idle`` as any reach."""
    calls, left = [], set(idle)
    for path in sorted(idle):
        if path in left:
            for call in _candidates(model, path):
                sites = _reached(model, call)
                if path in sites:
                    calls.append(replace(call, sites=sites))
                    left -= sites
                    break
    return calls


def _candidates(model: nn.Module, path: str) -> Iterator[Call]:
    owner = path
    while owner := owner.rpartition(".")[0]:
        part = model.get_submodule(owner)
        if isinstance(part, PreTrainedModel):
            for method in METHODS:
                if hasattr(part, method):
                    for arguments in argument_sets(getattr(part, method), part.config):
                        yield Call(owner, method, arguments)


@torch.no_grad()
def _reached(model: nn.Module, call: Call) -> frozenset[str]:
    with observe(model) as counts:
        try:
            call.outputs(model)
        except Exception:  # noqa: BLE001
            return frozenset()
    return frozenset(path for path, count in counts.items() if count.calls)
