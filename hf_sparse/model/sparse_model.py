"""The language-model head: what logits mean, and the distribution that is decoded.

One rule: ``output.logits`` are the model's raw scores, in training and evaluation alike, and the loss is computed
from them. Only when asked with ``log_probs=True``, as ``generate`` does at every step, are they replaced by the
logarithm of the sparse distribution. That is a fixed point of the log_softmax some decoding modes apply, so every
mode reads the same distribution.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..attention import check_fertility
from ..attention.swap_class import leads_to
from ..config import MapConfig, SparseConfig
from ..fertility.source import source_bounds
from .adapter_settings import save_adapter_settings
from .distribution import log_distribution
from .head_loss import HeadLoss, check_asked
from .kept_support import KeptSupport
from .model_card import update_card
from .trainer_guard import guard_evaluation
from .visible_loss import visible_methods, with_visible_loss

_DENSE_AGAIN = (
    "attn_implementation={!r} would take this model's sparse attention away; call unsparsify(model) first, or "
    "hf_sparse.attention.set_impl for how sparse attention is computed"
)
_ANOTHER_FORWARD = (
    "this {} is sparse, and {} in the place of its forward would compute the dense model: for Liger's kernels pass "
    'liger_kernel_config={{"fused_linear_cross_entropy": False, "cross_entropy": False}}; wrap a forward with '
    "functools.wraps"
)
_PACKED = ("cu_seq_lens_q", "cu_seq_lens_k")  # where sequences begin in a row, for flash attention


class SparseModel:
    """Mixed in before a model's own class by ``sparse_class``; tells sparse models from dense ones."""

    _dense_class: type[PreTrainedModel]
    _takes_any_keyword: bool
    _dense_forward: Callable[..., Any]
    _constrained: frozenset[str]
    _sparse_config: SparseConfig
    _sparsity_figures: dict[str, float]
    _attention_of: list[tuple[Any, str, str]]  # configurations, with the attention they name when dense and now
    config: Any
    get_output_embeddings: Callable[[], Any]

    @property
    def accepts_loss_kwargs(self) -> bool:
        """Read by Trainer: whether the loss is divided by ``num_items_in_batch`` over all accumulated batches."""
        guard_evaluation()
        return self.get_output_embeddings() is not None

    def __setattr__(self, name: str, value: Any) -> None:
        """A module's own, which lets others wrap the sparse forward, but not put another in its place."""
        if name == "forward" and not leads_to(value, type(self).forward):  # type: ignore[attr-defined]
            raise ValueError(_ANOTHER_FORWARD.format(type(self).__name__, getattr(value, "__qualname__", value)))
        super().__setattr__(name, value)

    def set_attn_implementation(self, attn_implementation: Any, *args: Any, **kwargs: Any) -> None:
        """The model's own where attention is dense, refused where it is sparse: it would be dense without a word."""
        if self._sparse_config.attn is not None:
            raise ValueError(_DENSE_AGAIN.format(attn_implementation))
        cast(Any, super()).set_attn_implementation(attn_implementation, *args, **kwargs)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """The model's own, with a section on sparsity in the model card; adapters with the settings beside them."""
        cast(Any, super()).save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", args[0] if args else True):
            update_card(save_directory, self._sparse_config, self._sparsity_figures)
            save_adapter_settings(self, Path(save_directory))

    def _upload_modified_files(self, working_dir: Any, repo_id: str, *args: Any, **kwargs: Any) -> Any:
        """Every push to the Hub comes by here, with the card that it found there or made."""
        update_card(working_dir, self._sparse_config, self._sparsity_figures, load_from=repo_id)
        return cast(Any, super())._upload_modified_files(working_dir, repo_id, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        state: Any = super().__reduce_ex__(protocol)[2:]
        return (_empty_sparse_model, (self._dense_class, self._constrained), *state)


def forward(
    self: Any,
    *args: Any,
    label_smoothing: float = 0.0,
    log_probs: bool = False,
    fertility: float | Tensor | None = None,
    **kwargs: Any,
) -> Any:
    """``forward`` of a sparse model: its own, with the loss of the head's map.

    Args:
        self: the sparse model.
        *args: as the model takes them.
        label_smoothing: mixes the targets with the uniform distribution, in [0, 1].
        log_probs: return log-probabilities (float32) of the head's distribution, softmax where the head is dense, in
            ``output.logits`` in place of raw scores.
        fertility: for constrained attention, in the place of the fertility it was made with: a number, or for
            cross-attention a tensor (batch, source length), ``inf`` for no bound. In target words a source word. Where
            it was made with ``"predicted"`` or ``"guided"``, None has the model work it out from ``input_ids``.
        **kwargs: as the model takes them; ``num_items_in_batch`` is honoured for every language model.

    Returns:
        The model's own output.

    Raises:
        ValueError: ``label_smoothing`` for a model without a language-model head; ``num_items_in_batch`` without
            labels where the head is sparse; fertilities that are negative or NaN, or for a model without constrained
            attention; packed sequences that are told by ``cu_seq_lens`` alone.
        TypeError: fertilities that are no numbers.
        RuntimeError: sparse attention was taken out behind this package's back, by way of the configuration.
    """
    for config, _, now in self._attention_of:
        if config._attn_implementation != now and self._sparse_config.attn is not None:
            raise RuntimeError(_DENSE_AGAIN.format(config._attn_implementation))
    _check_packed(self, args, kwargs)
    kwargs |= _credit_arguments(self, fertility, args, kwargs)
    num_items = kwargs.get("num_items_in_batch")
    if not self._takes_any_keyword:
        kwargs.pop("num_items_in_batch", None)
    map_config, head = self._sparse_config.head, self.get_output_embeddings()
    if label_smoothing and head is None:
        raise ValueError(
            f"label_smoothing is for language models; {type(self).__name__} has no head over a vocabulary"
        )
    has_labels = len(args) > 1 or any(value is not None for name, value in kwargs.items() if "labels" in name)
    if map_config is not None and num_items is not None and not has_labels:
        raise ValueError(
            "num_items_in_batch came without labels, so that the loss would be computed outside the model and be "
            "dense: for Trainer's label_smoothing_factor use SparseTrainer with sparse_label_smoothing; for a "
            "compute_loss_func, override compute_loss"
        )
    if has_labels and head is not None:
        loss = HeadLoss(map_config, head, num_items, label_smoothing, self.training and self._sparse_config.fused_loss)
        with loss:
            output = self._dense_forward(self, *args, **kwargs)
        check_asked(loss, type(self).__name__, output, self._takes_any_keyword)
    else:
        output = self._dense_forward(self, *args, **kwargs)
    if log_probs:
        output.logits = log_distribution(map_config or MapConfig("softmax"), output.logits)
    return output


def _check_packed(model: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Refuse rows that hold several sequences, by the lengths that flash attention takes, where they would mix."""
    if model._sparse_config.attn is None or all(kwargs.get(name) is None for name in _PACKED):
        return
    call = inspect.signature(model._dense_class.forward).bind_partial(model, *args, **kwargs).arguments
    use_cache = call.get("use_cache")
    if call.get("position_ids") is None or (model.config.use_cache if use_cache is None else use_cache):
        raise ValueError(
            "sparse attention does not read cu_seq_lens, so that packed sequences would attend to each other: give "
            "position_ids that begin anew with every sequence, no attention_mask, and use_cache=False"
        )


def _credit_arguments(model: Any, fertility: Any, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """What the model hands down to attention that follows what its keys received, besides its own arguments."""
    if fertility is not None and not model._constrained:
        raise ValueError(
            f"fertility is for constrained attention, and {type(model).__name__} has none; "
            'make it sparse with attn={"cross": {"name": "csparsemax", ...}}'
        )
    if not any(map_config.is_sequential for map_config in model._sparse_config.attention_maps):
        return {}
    arguments: dict[str, Any] = {}
    call = inspect.signature(model._dense_class.forward).bind_partial(model, *args, **kwargs).arguments
    if fertility is None:
        fertility = source_bounds(model, call.get("input_ids"), call.get("attention_mask"))
    if fertility is not None:
        check_fertility(fertility)
        if torch.is_tensor(fertility) and "cross" not in model._constrained:
            raise ValueError(
                f"a tensor of fertilities is for cross-attention, which is not constrained in {type(model).__name__}; "
                "give a number"
            )
        arguments["fertility"] = fertility
    mask = call.get("decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask")
    if torch.is_tensor(mask) and mask.dim() == 2:
        arguments["target_mask"] = mask
    return arguments


def prepare_inputs_for_generation(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The model's own inputs for one decoding step, asking ``forward`` for log-probabilities."""
    inputs = self._dense_class.prepare_inputs_for_generation(self, *args, **kwargs)
    return inputs if self._sparse_config.head is None else {**inputs, "log_probs": True}


def _get_logits_processor(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The model's own processors, which leave what has probability zero under a sparse head at zero."""
    processors = self._dense_class._get_logits_processor(self, *args, **kwargs)
    return processors if self._sparse_config.head is None else KeptSupport(processors)


def _maybe_prepare_encoder_kwargs_for_generation(
    self: Any, inputs_tensor: Tensor, model_kwargs: dict[str, Any], model_input_name: str | None, *args: Any
) -> dict[str, Any]:
    """The model's own, with the bounds it works out from its source, once for all steps; beams repeat them."""
    reads_ids = model_input_name == "input_ids" and model_kwargs.get("encoder_outputs") is None
    if reads_ids and model_kwargs.get("fertility") is None:
        bounds = source_bounds(self, inputs_tensor, model_kwargs.get("attention_mask"))
        model_kwargs |= {} if bounds is None else {"fertility": bounds}
    return self._dense_class._maybe_prepare_encoder_kwargs_for_generation(
        self, inputs_tensor, model_kwargs, model_input_name, *args
    )


def _get_candidate_generator(self: Any, *, assistant_model: Any, model_kwargs: dict[str, Any], **kwargs: Any) -> Any:
    """The model's own, for assisted decoding: an assistant without constrained attention is not given fertilities."""
    if not getattr(assistant_model, "_constrained", None):
        model_kwargs = {name: value for name, value in model_kwargs.items() if name != "fertility"}
    return self._dense_class._get_candidate_generator(
        self, assistant_model=assistant_model, model_kwargs=model_kwargs, **kwargs
    )


def init_continuous_batching(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Refused: continuous batching takes paths around attention and head that would decode from softmax."""
    raise NotImplementedError("continuous batching is not supported for sparse models; use model.generate")


@functools.cache
def sparse_class(dense: Any, constrained: frozenset[str] = frozenset()) -> Any:
    """The class of sparse models of class ``dense``, with constrained attention of some kinds: same name.

    The signatures are the same too, but for ``fertility`` where attention is constrained: ``Trainer`` and ``generate``
    drop or refuse what the signature of forward does not name.
    """
    signature = inspect.signature(dense.forward)
    parameters = signature.parameters.values()
    overrides: list[Callable] = [forward]
    if dense.can_generate():
        decoding = (
            prepare_inputs_for_generation,
            _get_logits_processor,
            init_continuous_batching,
            _maybe_prepare_encoder_kwargs_for_generation,
            _get_candidate_generator,
        )
        overrides += [override for override in decoding if hasattr(dense, override.__name__)]
    body: dict[str, Any] = {
        **visible_methods(dense, PreTrainedModel),
        "_dense_class": dense,
        "_takes_any_keyword": any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters),
        "_dense_forward": staticmethod(with_visible_loss(dense.forward)),
        "_constrained": constrained,
        "__module__": dense.__module__,
        "__doc__": dense.__doc__,
    }
    for override in overrides:
        body[override.__name__] = _in_place_of(getattr(dense, override.__name__), override)
    if constrained:
        named = [*parameters, inspect.Parameter("fertility", inspect.Parameter.KEYWORD_ONLY, default=None)]
        body["forward"].__signature__ = signature.replace(parameters=sorted(named, key=lambda p: p.kind))
    return type(dense.__name__, (SparseModel, dense), body)


def _in_place_of(dense: Any, override: Callable) -> Any:
    """``override`` as a method, with the name and signature of ``dense``: Trainer and generate read arguments there.

    Without ``__wrapped__``: Accelerate unwraps forward all the way, to take its own wrapper off.
    """
    method: Any = functools.wraps(dense)(lambda self, *args, **kwargs: override(self, *args, **kwargs))
    method.__signature__ = inspect.signature(dense)
    del method.__wrapped__
    return method


def _empty_sparse_model(dense: Any, constrained: frozenset[str]) -> Any:
    cls = sparse_class(dense, constrained)
    return cls.__new__(cls)
