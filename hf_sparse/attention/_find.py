"""Where attention is in a model, of which kind, and how it computes its weights: read off the code of its modules."""

from __future__ import annotations

import dis
import inspect
import sys
from functools import cache
from itertools import pairwise
from types import CodeType
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from ..config import SparseConfig
from ._site import AttentionSite


def kind_of(path: str, module: nn.Module, is_encoder_decoder: bool, causal_model: bool = False) -> str:
    """Which kind of attention a module does, read off its path, then off what it says of itself.

    Cross-attention is told by its name; in an encoder-decoder the first part of the path that names one of the
    two decides; elsewhere a causal module is a decoder's (BERT used as a decoder sits below ``encoder``), and so is
    one that does not say but belongs to a causal model.
    """
    parts = path.lower().split(".")
    if any(mark in part for part in parts[-2:] for mark in ("cross", "encoder_attn", "encdecattention")):
        return "cross"
    sides = [side for part in parts for side in ("decoder", "encoder") if side in part]
    if sides and (is_encoder_decoder or sides[0] == "decoder"):
        return sides[0]
    causal = getattr(module, "is_causal", getattr(module, "is_decoder", causal_model))
    return "decoder" if causal else "encoder"


def inspected_functions(cls: type) -> list[CodeType]:
    """The code of every function a module's classes define, decorators taken off."""
    owners = [base for base in cls.__mro__ if base is not nn.Module and issubclass(base, nn.Module)]
    functions = [inspect.unwrap(value) for base in owners for value in vars(base).values() if callable(value)]
    return [function.__code__ for function in functions if inspect.isfunction(function)]


# Models with an indexer restrict their own eager attention by this, outside the mask.
_INDEXER_ARGUMENTS = {"block_indices"}


@cache
def heeded_arguments(cls: Any) -> frozenset[str]:
    """Arguments that the model's own eager attention names: what it swallows unnamed cannot change the weights."""
    eager = getattr(sys.modules[cls.__module__], "eager_attention_forward", None)
    named = set(inspect.signature(eager).parameters) if eager else set()
    return frozenset(named | _INDEXER_ARGUMENTS) - {"sliding_window"}  # in the mask already


@cache
def goes_through_interface(cls: Any) -> bool:
    """Whether the code of a module class asks Transformers' attention interface for its attention function.

    Kosmos-2.5's vision asks by ``getattr`` for what is an entry and no attribute, and gets its own eager attention.
    """
    if issubclass(cls, PreTrainedModel):
        return False
    for code in inspected_functions(cls):
        names = [instruction.argval for instruction in dis.get_instructions(code)]
        if any(name == "ALL_ATTENTION_FUNCTIONS" and before != "getattr" for before, name in pairwise(names)):
            return True
    return False


@cache
def through_interface(cls: Any) -> bool:
    """Whether a model class can be built with attention of any name, rather than of the names its file lists.

    Some files choose attention modules by ``config._attn_implementation`` from a dictionary of their own.
    """
    namespace = vars(sys.modules[cls.__module__])
    return cls._can_set_attn_implementation() and not any(name.endswith("ATTENTION_CLASSES") for name in namespace)


@cache
def calls_softmax(cls: Any) -> bool:
    """Whether the code of a module class names softmax, or the function of its file that computes attention by it."""
    names = {"softmax", "Softmax", "scaled_dot_product_attention", "eager_attention_forward"}
    return any(not names.isdisjoint(code.co_names) for code in inspected_functions(cls))


def named_attention(cls: type) -> bool:
    """Whether a module class is attention by its name. Gates over features and mixtures of layers are not."""
    name = cls.__name__.lower()
    return "att" in name and not any(other in name for other in ("gatedattention", "attentionresidual"))


@cache
def computes_inline(cls: Any) -> bool:
    """Whether a module class is attention with a softmax of its own."""
    if issubclass(cls, PreTrainedModel) or goes_through_interface(cls):
        return False
    return named_attention(cls) and calls_softmax(cls)


def _is_causal_family(model: PreTrainedModel) -> bool:
    """Whether models of this type are language models and never masked ones."""
    family = model.config.model_type
    return family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and family not in MODEL_FOR_MASKED_LM_MAPPING_NAMES


def find_sites(model: nn.Module, config: SparseConfig, is_encoder_decoder: bool) -> list[AttentionSite]:
    """The sites ``config`` gives to ``model``: one for every module that goes through the attention interface, and
    one for every attention module that computes a softmax of its own.
    """
    sites: list[AttentionSite] = []
    causal: dict[str, bool] = {}
    for path, module in model.named_modules():
        owner = path.rpartition(".")[0]
        causal[path] = _is_causal_family(module) if isinstance(module, PreTrainedModel) else causal.get(owner, False)
        inline = computes_inline(type(module))  # type: ignore[arg-type]
        if inline or goes_through_interface(type(module)):  # type: ignore[arg-type]
            kind = kind_of(path, module, is_encoder_decoder, causal[path])
            layer = sum(site.kind == kind for site in sites)
            heeded = heeded_arguments(type(module))  # type: ignore[arg-type]
            rule = config.rule(kind, layer)
            sites.append(AttentionSite(path, kind, rule.map, layer, inline, rule.coverage, heeded))
    return sites
