"""Attention that computes softmax inside its own module: replace the call there, and only there."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, SupportsIndex, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..functional.rows import lowest_visible
from ._scores import attention_scores, grouped_product
from .find import cached, calls_softmax
from .site import SITE, AttentionSite, attention_sites, weigh
from .swap_class import change_class


def _softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> None:
    """The signature of ``torch.nn.functional.softmax``."""


def _method(input: Tensor, dim: int | None = None, dtype: torch.dtype | None = None) -> None:
    """The signature of ``torch.softmax`` and ``Tensor.softmax``."""


def _dot_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> None:
    """The signature of ``torch.nn.functional.scaled_dot_product_attention``."""


_SIGNATURES: dict[object, inspect.Signature] = {
    nn.functional.softmax: inspect.signature(_softmax),
    torch.softmax: inspect.signature(_method),
    torch.special.softmax: inspect.signature(_method),
    Tensor.softmax: inspect.signature(_method),
    nn.functional.scaled_dot_product_attention: inspect.signature(_dot_product),
    nn.functional.multi_head_attention_forward: inspect.signature(nn.functional.multi_head_attention_forward),
}


def attention_call(func: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, Any] | None:
    """The arguments of a call that computes attention weights, by name; None for any other call.

    Softmax counts only over the last axis: ConvBERT's attention also normalizes the kernels of its convolution, over
    another axis.
    """
    signature = _SIGNATURES.get(func)
    if signature is None:
        return None
    call = signature.bind(*args, **kwargs)
    call.apply_defaults()
    named = call.arguments
    if "input" in named and named["dim"] not in (-1, named["input"].dim() - 1):
        return None
    return named


class DivertedSoftmax(TorchFunctionMode):
    """Inside this block, attention softmax is the map of the module's site; without a site it stays softmax.

    Replacements are hidden from enclosing blocks: an attention module inside another decides for itself, and so does a
    router inside an attention module.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def __torch_function__(self, func, types, args=(), kwargs=None):
        call = attention_call(func, args, kwargs or {})
        if call is None:
            return func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            if SITE not in self.module.__dict__:
                return func(*args, **(kwargs or {}))
            if func is nn.functional.multi_head_attention_forward:
                return _multi_head_attention(self.module, call["num_heads"])(*args, **(kwargs or {}))
            return weighted_values(self.module, **call) if "query" in call else weights(self.module, **call)


def weights(module: nn.Module, input: Tensor, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    """Replacement for ``softmax(input, dim=-1, dtype=dtype)`` in ``module``."""
    scores = input.masked_fill(input <= lowest_visible(input.dtype), -torch.inf)
    p = weigh(module, scores if dtype is None else scores.to(dtype))
    site: AttentionSite = module.__dict__[SITE]
    for observer in site.observers.of(module):
        observer.add(module, scores, p)
    return p


def weighted_values(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """Replacement for ``scaled_dot_product_attention`` in ``module``."""
    if not enable_gqa and min(query.dim(), key.dim()) > 2 and query.shape[-3] > key.shape[-3] > 1:
        raise ValueError(f"{query.shape[-3]} heads share the keys of {key.shape[-3]} only with enable_gqa=True")
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    p = weights(module, attention_scores(query, key, attn_mask, scale))
    return grouped_product(nn.functional.dropout(p, dropout_p), value)


def _multi_head_attention(module: nn.Module, num_heads: int) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """torch's ``multi_head_attention_forward``, with the map of the site in the place of softmax.

    It is torch's own code, projections, masks and biases included, with other functions under the names of two.
    """

    def softmax(input: Tensor, dim: int) -> Tensor:
        by_head = input.unflatten(0, (-1, num_heads))
        return weights(module, by_head).flatten(0, 1)

    def dot_product(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool
    ) -> Tensor:
        return weighted_values(module, query, key, value, attn_mask, dropout_p, is_causal, None, False)

    original = nn.functional.multi_head_attention_forward
    names = {"softmax": softmax, "scaled_dot_product_attention": dot_product}
    return FunctionType(original.__code__, original.__globals__ | names)


class InlineAttention:
    """Mixin that ``inline_class`` puts before a module's own class."""

    _dense_class: type[nn.Module]

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        state = cast(tuple[object, ...], super().__reduce_ex__(protocol))[2:]
        return (_empty_inline_module, (self._dense_class,), *state)


@cached
def inline_class(dense: type[nn.Module]) -> type[nn.Module]:
    """A subclass of ``dense`` whose forward uses the map of the site; its name and signature stay."""

    @functools.wraps(dense.forward)
    def forward(self: nn.Module, *args: object, **kwargs: object) -> object:
        with DivertedSoftmax(self):
            return dense.forward(self, *args, **kwargs)

    body = {"_dense_class": dense, "__module__": dense.__module__, "__doc__": dense.__doc__, "forward": forward}
    return cast(type[nn.Module], type(dense.__name__, (InlineAttention, dense), body))


def _empty_inline_module(dense: type[nn.Module]) -> nn.Module:
    cls = inline_class(dense)
    return cls.__new__(cls)


def divert(model: nn.Module) -> None:
    """Make every inline site of ``model`` use its map, and modules inside it that compute a softmax keep theirs.

    Args:
        model: a model whose attention modules carry their sites.
    """
    for module, site in attention_sites(model):
        if site.inline:
            for part in module.modules():
                cls = type(part)
                own = part is module or (calls_softmax(cls) and not is_softmax(part))
                if own and not isinstance(part, InlineAttention):
                    change_class(part, inline_class(cls))


def restore(model: nn.Module) -> None:
    """Undo ``divert``."""
    for part in model.modules():
        if isinstance(part, InlineAttention):
            change_class(part, part._dense_class)


def is_softmax(module: nn.Module) -> bool:
    """Whether a module is only a softmax (``nn.Softmax``, I-BERT's ``IntSoftmax``), on behalf of its caller."""
    return "softmax" in type(module).__name__.lower()


_SHORT_INPUT = (
    "computes block-sparse attention and replaces its attention modules once an input is short; "
    'load the model with attention_type="original_full"'
)
REFUSED = {
    "BigBirdBlockSparseAttention": _SHORT_INPUT,
    "BigBirdPegasusBlockSparseAttention": _SHORT_INPUT,
    "NystromformerSelfAttention": "approximates the softmax matrix by three softmax factors, which approximate "
    "nothing when other maps take their place",
}

# I-BERT, whose modules have the switch.
_INTEGERS = "computes its softmax in integers and calls none; load the model with quant_mode=False"
# Attention whose scores are right up to a constant of each row.
_SHIFTED = {
    "MptAttention": "adds a constant to its scores that depends on the length of the whole input",
}


def inline_refusal(model: nn.Module, sites: list[AttentionSite]) -> str | None:
    """The reason why some site cannot be made sparse, or not with its map; None where all can."""
    for site in sites:
        module = model.get_submodule(site.path)
        name = type(module).__name__
        if name in REFUSED:
            return f"{name} at {site.path!r} {REFUSED[name]}"
        if getattr(module, "quant_mode", False):
            return f"{name} at {site.path!r} {_INTEGERS}"
        own = site.map_config
        if name in _SHIFTED and own is not None and not own.map.shift_invariant:
            return f"{name} at {site.path!r} {_SHIFTED[name]}, and a constant changes the weights of {own.name}"
    return None
