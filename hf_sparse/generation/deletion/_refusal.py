"""Models and inputs for which no token can be certified, each by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...attention import attention_sites
from ...config.settings import BY_LENGTH
from ...model.find import divides_heads, prompt_adapter, sparse_config, transformers_model
from ._record import SiteCall

_INPUTS = ("input_ids", "attention_mask", "decoder_input_ids")
_MIXING = (
    nn.modules.conv._ConvNd,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.MultiheadAttention,
    nn.Fold,
    nn.Unfold,
)


def check_model(model: PreTrainedModel, inputs: object) -> None:
    """Refuse models and inputs before anything runs.

    Raises:
        TypeError: not a Transformers model.
        ValueError: the reason, with what to do.
    """
    inner = transformers_model(model)
    for problem in (
        *_adapter_problems(model),
        *_model_problems(inner),
        *_site_problems(inner),
        *_input_problems(inputs),
    ):
        raise ValueError(f"no certificate for this {type(inner).__name__}: {problem}")


def _adapter_problems(model: PreTrainedModel) -> Iterator[str]:
    adapter = prompt_adapter(model)
    if adapter is not None:
        yield f"{adapter} puts a prompt before every input, whose keys are no tokens of it; use another adapter"


def _model_problems(model: PreTrainedModel) -> Iterator[str]:
    if not sparse_config(model).attn:
        yield "its attention is dense, and no weight is zero; sparsify(model, attn=...)"
    if model.dtype in (torch.float16, torch.bfloat16):
        yield f"its weights are {model.dtype}, in which small weights become zeros; use model.float()"
    if divides_heads(model):
        yield "tensor parallelism divides its attention heads, and each process sees its own alone; use one process"
    if getattr(model.config.get_text_config(decoder=True), "expert_capacity", None) is not None:
        yield "its experts have a capacity, for which tokens compete; it cannot be certified"
    arguments = inspect.signature(model.forward).parameters
    if not model.config.is_encoder_decoder and "position_ids" not in arguments:
        yield "its forward takes no position_ids, so that tokens would move when others go"


def _site_problems(model: PreTrainedModel) -> Iterator[str]:
    for module, site in attention_sites(model):
        name = f"{type(module).__name__} at {site.path!r}"
        if site.inline:
            yield f"{name} computes its own softmax, where keys need not be tokens"
        if site.is_sequential:
            yield f"{name} follows what keys received before, so that keys of weight zero count"
        if site.map_config is not None and site.map_config.scaled_by_length:
            own = " or ".join(setting for setting, _ in site.map_config.settings if setting in BY_LENGTH)
            yield f"{name} scales scores by the number of keys, so that keys of weight zero count; give no {own}"


def _input_problems(inputs: object) -> Iterator[str]:
    for name in inputs if isinstance(inputs, Mapping) else ():
        if name not in _INPUTS:
            yield f"inputs must be among {', '.join(_INPUTS)}, were given {name!r}: only text tokens can be deleted"


def check_modules(model: PreTrainedModel, ran: Iterable[str]) -> None:
    """Refuse a model in which modules ran that mix positions.

    Args:
        model: the model.
        ran: the paths of its modules that ran.

    Raises:
        ValueError: the first of them.
    """
    for path in sorted(ran):
        part = model.get_submodule(path)
        if isinstance(part, _MIXING) or type(part).__module__ == nn.modules.pooling.__name__:
            raise ValueError(
                f"no certificate for this {type(model).__name__}: {type(part).__name__} at {path!r} mixes positions "
                "outside of attention"
            )


def check_calls(model: PreTrainedModel, calls: list[SiteCall], real: Mapping[str, Tensor]) -> None:
    """Refuse attention whose keys are not the tokens, or that hides keys by other rules than position and padding.

    Args:
        model: the model.
        calls: of one pass.
        real: by kind, (rows, positions) whether a position is a token: of the keys, and for ``"decoder"`` of the
            queries of decoder and cross-attention too.

    Raises:
        ValueError: the first such call.
    """
    wanted = {"encoder", "decoder", "cross"} if model.config.is_encoder_decoder else {"decoder"}
    missing = wanted - {call.kind for call in calls}
    problems = [f"{call.name} {problem}" for call in calls for problem in _call_problems(call, wanted, real)]
    problems += [f"{', '.join(sorted(missing))} attention did not run"] if missing else []
    for problem in problems:
        raise ValueError(f"no certificate for this {type(model).__name__}: {problem}")


def _call_problems(call: SiteCall, wanted: set[str], real: Mapping[str, Tensor]) -> Iterator[str]:
    if call.kind not in wanted:
        yield f"is {call.kind} attention, which a certificate for this model does not follow"
        return
    queries, keys = real["encoder" if call.kind == "encoder" else "decoder"], real[call.kind]
    shape = (*queries.shape, keys.shape[1])
    if tuple(call.visible.shape) != shape:
        yield f"has queries and keys {tuple(call.visible.shape)}, which are not the tokens {shape}"
        return
    visible = call.visible & queries[..., None]
    if call.kind == "decoder" and bool(visible.triu(1).any()):
        yield "sees later tokens"
    if not bool(is_interval(visible, keys).all()):
        yield "shows padding, or hides keys by other rules than their positions"


def is_interval(visible: Tensor, real: Tensor) -> Tensor:
    """(rows, queries) whether the visible keys of a query are all tokens from one to another, and no padding.

    Args:
        visible: (rows, queries, keys).
        real: (rows, keys) whether a key is a token.
    """
    tokens = real[:, None].expand_as(visible)
    before, after = visible.cumsum(-1), visible.flip(-1).cumsum(-1).flip(-1)
    between = (before > 0) & (after > 0) & tokens
    return ~((between != visible).any(-1))
