"""Find the attention modules of a model, their kinds, and how they compute weights, from the code of the modules."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from types import CodeType
from typing import TypeVar, cast

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from ..config import SparseConfig
from .site import AttentionSite

_Function = TypeVar("_Function", bound=Callable[..., object])


def cached(function: _Function) -> _Function:
    """``functools.cache`` for functions of classes, which its annotations do not take."""
    return cast(_Function, cache(function))


def kind_of(
    path: str, module: nn.Module, is_encoder_decoder: bool, causal_model: bool = False, model_name: str = ""
) -> str:
    """The kind of attention of a module, by its path, then by the name of its model, then by its attributes.

    Cross-attention is recognized by name. In an encoder-decoder the first part of the path that names either side
    decides; a part that is a model of its own (``PegasusXDecoder``) says it in the name of its class, and its modules
    have the kind that they have in the whole. Elsewhere causal modules are a decoder's (BERT as a decoder sits below
    ``encoder``), and so are modules that do not say but belong to a causal model.
    """
    parts = path.lower().split(".")
    if any(mark in part for part in parts[-2:] for mark in ("cross", "encoder_attn", "encdecattention")):
        return "cross"
    side = _first_side(parts) or _only_side(model_name.lower())
    if side == "decoder" or (side == "encoder" and is_encoder_decoder):
        return side
    causal = getattr(module, "is_causal", getattr(module, "is_decoder", causal_model))
    return "decoder" if causal else "encoder"


def _first_side(parts: list[str]) -> str | None:
    """The first of "decoder" and "encoder" that occurs in the parts of a path; None for neither."""
    return next((side for part in parts for side in ("decoder", "encoder") if side in part), None)


def _only_side(name: str) -> str | None:
    """The one of "decoder" and "encoder" that occurs in a name; None for neither and for both."""
    sides = [side for side in ("decoder", "encoder") if side in name]
    return sides[0] if len(sides) == 1 else None


def inspected_functions(cls: type) -> list[CodeType]:
    """The code of every function defined by a module class and its bases, decorators unwrapped."""
    owners = [base for base in cls.__mro__ if base is not nn.Module and issubclass(base, nn.Module)]
    functions = [inspect.unwrap(value) for base in owners for value in vars(base).values() if callable(value)]
    return [function.__code__ for function in functions if inspect.isfunction(function)]


_OWN_ATTENTION = "eager_attention_forward"
# Models with an indexer restrict their own eager attention by this argument, outside the mask.
_INDEXER_ARGUMENTS = {"block_indices"}


@cached
def named_arguments(cls: type[nn.Module]) -> frozenset[str]:
    """Keywords named by the model's own eager attention; others, in its ``**kwargs``, cannot affect weights."""
    eager = getattr(sys.modules[cls.__module__], _OWN_ATTENTION, None)
    named = set(inspect.signature(eager).parameters) if eager else set()
    return frozenset(named | _INDEXER_ARGUMENTS) - {"sliding_window"}  # in the mask already


@cached
def goes_through_interface(cls: type[nn.Module]) -> bool:
    """Whether the code of a module class gets its attention function from Transformers' attention interface.

    Kosmos-2.5's vision uses ``getattr``, where functions are entries, not attributes: it gets its own eager attention.
    """
    if issubclass(cls, PreTrainedModel):
        return False
    for code in inspected_functions(cls):
        names = [instruction.argval for instruction in dis.get_instructions(code)]
        if any(name == "ALL_ATTENTION_FUNCTIONS" and before != "getattr" for before, name in pairwise(names)):
            return True
    return False


@cached
def through_interface(cls: type[PreTrainedModel]) -> bool:
    """Whether a model class can be built with an attention implementation of any name.

    Some files map ``config._attn_implementation`` to attention modules by a dictionary of their own.
    """
    namespace = vars(sys.modules[cls.__module__])
    return cls._can_set_attn_implementation() and not any(name.endswith("ATTENTION_CLASSES") for name in namespace)


_COMPUTES_WEIGHTS = {
    "softmax",
    "Softmax",
    "scaled_dot_product_attention",
    _OWN_ATTENTION,
    "multi_head_attention_forward",  # of torch, which nn.MultiheadAttention calls
}


@cached
def calls_softmax(cls: type[nn.Module]) -> bool:
    """Whether the code of a module class names softmax, or its file's function that computes attention with it."""
    return any(not _COMPUTES_WEIGHTS.isdisjoint(code.co_names) for code in inspected_functions(cls))


def mixes_layers(cls: type) -> bool:
    """Whether a module class attends to outputs of earlier layers (Inkling 2), not to positions: no attention here."""
    return "attentionresidual" in cls.__name__.lower()


def named_attention(cls: type) -> bool:
    """Whether the name of a module class says attention; gates over features and mixtures of layers do not count."""
    name = cls.__name__.lower().replace("flatten", "").replace("pattern", "")
    return "att" in name and "gatedattention" not in name and not mixes_layers(cls)


@cached
def computes_inline(cls: type[nn.Module]) -> bool:
    """Whether a module class is attention that computes its own softmax."""
    if issubclass(cls, PreTrainedModel) or goes_through_interface(cls):
        return False
    return named_attention(cls) and calls_softmax(cls)


def is_attention(cls: type[nn.Module]) -> bool:
    """Whether a module class is attention whose softmax can be replaced, in either way."""
    return computes_inline(cls) or (goes_through_interface(cls) and not mixes_layers(cls))


def own_attention(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The attention with softmax of the file that defines a module."""
    function: Callable[..., tuple[Tensor, Tensor | None]] = vars(sys.modules[type(module).__module__])[_OWN_ATTENTION]
    return function


def _is_causal_family(model: PreTrainedModel) -> bool:
    """Whether models of this type are causal language models and never masked ones."""
    family = model.config.model_type
    return family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and family not in MODEL_FOR_MASKED_LM_MAPPING_NAMES


def _is_decoder(model: PreTrainedModel) -> bool:
    """Whether a model decodes and its configuration says so, where its attention may not (BLIP's text decoder)."""
    return bool(getattr(model.config, "is_decoder", False)) and model.can_generate()


def find_sites(model: PreTrainedModel, config: SparseConfig) -> list[AttentionSite]:
    """The sites that ``config`` gives ``model``: every module that calls the attention interface, and every attention
    module that computes its own softmax. What wraps such a module and computes softmax too (TransformerLens) is a site
    of the same layer. None where ``config`` leaves attention dense.
    """
    if not config.attn:
        return []
    sites: list[AttentionSite] = []
    causal, is_decoder = dict[str, bool](), _is_decoder(model)
    for path, module in model.named_modules():
        owner = path.rpartition(".")[0]
        causal[path] = _is_causal_family(module) if isinstance(module, PreTrainedModel) else causal.get(owner, False)
        cls = type(module)
        if is_attention(cls):
            causal_model = is_decoder or causal[path]
            kind = kind_of(path, module, model.config.is_encoder_decoder, causal_model, type(model).__name__)
            layers = {site.layer for site in sites if site.kind == kind}
            wrapper = next((site for site in sites if path.startswith(f"{site.path}.")), None)
            layer = len(layers) if wrapper is None else wrapper.layer
            rule = config.rule(kind, layer)
            named = named_arguments(cls)
            sites.append(AttentionSite(path, kind, rule.map, layer, computes_inline(cls), rule.coverage, named))
    return sites
