"""The class of sparse models: what logits mean, and a forward whose loss is that of the head's map.

Transformers' contract is that softmax of ``output.logits`` is the model's distribution, and whoever gets logits
without a loss relies on it: ``generate``, evaluators, trainers for preferences, exported graphs. So in a call without
labels the logits of a sparse head are the logarithm of its distribution, a fixed point of log_softmax, in training and
evaluation alike. With labels the loss is the map's, and logits are the raw scores that it was made of.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, SupportsIndex, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from ..attention.interface import NAME
from ..attention.site import start_again
from ..cache_name import check_one_cache
from ..functional.arguments import check_flag, check_items, check_number
from ..functional.head_weight import has_rows
from ..tracing import in_graph
from .attention_arguments import check_packed, sequential_arguments
from .decoding import OVERRIDES
from .distribution import log_distribution
from .find import needs_forward, sparse_state
from .forward_guard import leads_to
from .head_loss import HeadLoss, check_asked
from .label_scores import in_place_of_fused_head
from .lazy_logits import LinearLogits
from .model_card import update_card
from .peft_guard import save_adapter_settings
from .saved_config import check_layers, check_marked
from .state import DENSE_AGAIN, SparseState
from .visible_loss import visible_methods, with_visible_loss

_ANOTHER_FORWARD = (
    "this {} is sparse, and {} in the place of its forward would not read its head or its bounds: for Liger's kernels "
    'pass liger_kernel_config={{"fused_linear_cross_entropy": False, "cross_entropy": False}}; instead of TRL\'s '
    "DistillationTrainer use SparseTrainer with distillation_weight; wrap a forward with functools.wraps; or make "
    "attention alone sparse"
)

_NEVER_CALLED = (
    "the head of this {} is sparse, and {} was put around its forward and answered without it, so that loss and "
    "logits are those of softmax: use SparseTrainer, switch that wrapper off, or make attention alone sparse"
)


class SparseModel:
    """Mixed in before a model's own class by ``sparse_class``; tells sparse models from dense ones."""

    _dense_class: type[PreTrainedModel]
    _takes_any_keyword: bool
    _arguments: tuple[str, ...]
    _dense_forward: Callable[..., Any]
    _constrained: frozenset[str]
    config: Any
    training: bool
    get_output_embeddings: Callable[[], nn.Module | None]

    @property
    def accepts_loss_kwargs(self) -> bool:
        """Read by Trainer: whether the losses of accumulated batches add up, rather than being means of their own.

        With one language-model head they are divided by ``num_items_in_batch``. Without one the dense class may tell,
        and CTC may be a sum.
        """
        own = getattr(super(), "accepts_loss_kwargs", loss_is_sum(self))
        return has_rows(self.get_output_embeddings()) or bool(own)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Refuse a call that a wrapper of ``forward`` answered without the sparse forward."""
        if not isinstance(self, SparseModel):  # torch.compile took this method before unsparsify
            return self(*args, **kwargs)
        if "forward" not in vars(self):
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        state = sparse_state(cast(Any, self))
        state.calls.reached[0] = False
        output = super().__call__(*args, **kwargs)  # type: ignore[misc]
        if not state.calls.reached[0] and state.config.head is not None:
            wrapper = getattr(vars(self)["forward"], "__func__", vars(self)["forward"])
            code = getattr(wrapper, "__code__", None)  # its own name: wraps gave it that of forward
            raise RuntimeError(_NEVER_CALLED.format(type(self).__name__, code.co_name if code else repr(wrapper)))
        return output

    def __setattr__(self, name: str, value: Any) -> None:
        """Allow wrapping ``forward``, TRL's fused head, and where attention alone is sparse any other forward."""
        if name == "forward":
            value = in_place_of_fused_head(self, value)
            if needs_forward(self) and not leads_to(value, type(self).forward):  # type: ignore[attr-defined]
                raise ValueError(_ANOTHER_FORWARD.format(type(self).__name__, getattr(value, "__qualname__", value)))
        super().__setattr__(name, value)

    def set_attn_implementation(self, attn_implementation: object, *args: object, **kwargs: object) -> None:
        """The model's own where attention is dense; where it is sparse, refused unless it asks for what is there.

        That also has it back where configurations name another attention by now.
        """
        state = sparse_state(cast(Any, self))
        if state.config.attn:
            if attn_implementation not in (NAME, {"": NAME}):
                raise ValueError(DENSE_AGAIN.format(attn_implementation))
            for part in state.attention:
                part.name(part.sparse)
            return
        cast(Any, super()).set_attn_implementation(attn_implementation, *args, **kwargs)

    def save_pretrained(self, save_directory: str | PathLike[str], *args: object, **kwargs: object) -> None:
        """The model's own, with a section on sparsity in the model card; adapters with the settings beside them.

        Raises:
            ValueError: see ``check_layers`` and ``check_marked``.
        """
        check_layers(cast(Any, self))
        check_marked(cast(Any, self))
        cast(Any, super()).save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", args[0] if args else True):
            state = sparse_state(cast(Any, self))
            folder, is_adapter = Path(save_directory), getattr(self, "_hf_peft_config_loaded", False)
            update_card(folder, state.config, state.metrics, is_adapter=is_adapter)
            if is_adapter:  # else one that lies there is another model's
                save_adapter_settings(cast(Any, self), folder)

    def _init_weights(self, module: nn.Module) -> None:
        """The model's own; settings that are learned, and that a checkpoint lacks, start where their map says."""
        cast(Any, super())._init_weights(module)
        start_again(module)

    def _upload_modified_files(self, working_dir: Any, repo_id: str, *args: object, **kwargs: object) -> Any:
        """Refresh the model card before every upload."""
        state = sparse_state(cast(Any, self))
        update_card(working_dir, state.config, state.metrics, load_from=repo_id)
        return cast(Any, super())._upload_modified_files(working_dir, repo_id, *args, **kwargs)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        state: Any = super().__reduce_ex__(protocol)[2:]
        return (_empty_sparse_model, (self._dense_class, self._constrained), *state)


def loss_is_sum(model: Any) -> bool:
    """Whether the loss is a sum over the rows of a batch, divided by nothing: that of CTC may be."""
    is_ctc = type(model).__name__.endswith("ForCTC")  # other classes have its configuration, too
    return is_ctc and getattr(model.config, "ctc_loss_reduction", "mean") == "sum"


def forward(self: PreTrainedModel, *args: object, **kwargs: Any) -> Any:
    """``forward`` of a sparse model: ``sparse_forward``, or in a part that its whole runs the dense one.

    Loss and logits are then left to the whole.
    """
    state = sparse_state(self)
    state.calls.reached[0] = True
    state.check_attention(self)
    if state.calls.inside and not state.calls.decoding:
        return self._dense_forward(self, *args, **kwargs)
    with state.running():
        return sparse_forward(self, *args, **kwargs)


def sparse_forward(
    self: PreTrainedModel,
    *args: object,
    label_smoothing: float = 0.0,
    log_probs: bool | None = None,
    fertility: float | Tensor | None = None,
    **kwargs: Any,
) -> Any:
    """The model's own forward, with the loss of the head's map.

    Args:
        self: the sparse model.
        *args: as the model takes them.
        label_smoothing: mixes the targets with the uniform distribution, in [0, 1].
        log_probs: whether ``output.logits`` are log-probabilities of the head's distribution (float32; softmax's
            where the head is dense) or raw scores. None: log-probabilities of a sparse head in calls without labels;
            in a block of ``raw_scores`` or ``log_probabilities`` as that says.
        fertility: for constrained attention, in the place of the fertility it was made with: a number, or for
            cross-attention a tensor (batch, source length), ``inf`` for no bound. In target words per source word.
            Where it was made with ``"predicted"`` or ``"guided"``, None has the model work it out from ``input_ids``.
        **kwargs: as the model takes them; ``num_items_in_batch`` is honoured for every language model with one
            head.

    Returns:
        The model's own output.

    Raises:
        ValueError: ``label_smoothing`` without labels, or for a model without one language-model head;
            ``num_items_in_batch`` for a model with a list of heads, or without labels where the head is sparse;
            fertilities that are negative or NaN, or for a model without constrained attention; packed sequences that
            are told by ``cu_seq_lens`` alone; two caches.
        TypeError: fertilities that are no numbers, or another argument of the wrong type.
        RuntimeError: sparse attention was taken out behind this package's back, by way of the configuration.
        NotImplementedError: log-probabilities of a model whose output has logits under other names.
    """
    state = sparse_state(self)
    check_one_cache(kwargs)
    if kwargs.get("is_causal") is False and _is_whole_mask(kwargs.get("attention_mask")):
        del kwargs["is_causal"]  # Transformers would write it into the configuration, which other threads read
    if log_probs is not None:
        check_flag("log_probs", log_probs)
    check_packed(self, args, kwargs)
    kwargs |= sequential_arguments(self, fertility, args, kwargs)
    labels = _labels(self, args, kwargs)
    has_labels = bool(labels)
    num_items = kwargs.get("num_items_in_batch")
    _check_loss(self, state, label_smoothing, num_items, has_labels)
    _hand_on_num_items(self, kwargs, has_labels)
    head = self.get_output_embeddings()
    if log_probs is None:
        log_probs = state.gives_log_probs(self, has_labels)
    as_tuple = log_probs and _returns_tuple(self, kwargs)
    if as_tuple:
        kwargs["return_dict"] = True  # where the logits are in a tuple differs between models
    if has_labels and head is not None and (state.config.head is not None or has_rows(head)):
        fused = self.training and state.config.fused_loss and not log_probs
        factor = state.config.loss_factor
        others = state.with_other_heads
        loss = HeadLoss(
            state.config.head, head, num_items, label_smoothing, fused, factor, labels.get("labels"), others
        )
        output = _forward_with_loss(self, loss, args, kwargs)
    elif log_probs and state.config.head is not None:
        output = _forward_screened(self, state, head, args, kwargs)
    else:
        output = self._dense_forward(self, *args, **kwargs)
    if log_probs and has_logits(self, output):
        output.logits = log_distribution(state.head, output.logits)
    return output.to_tuple() if as_tuple else output


def _is_whole_mask(mask: object) -> bool:
    """Whether a mask alone says what is visible: it has a row for each query, as have all masks by kind of layer."""
    if isinstance(mask, dict):
        return all(map(_is_whole_mask, mask.values()))
    return isinstance(mask, Tensor) and mask.dim() == 4


def has_logits(model: PreTrainedModel, output: Any) -> bool:
    """Whether an output has logits; an inner model may know the head, and return hidden states alone.

    Raises:
        NotImplementedError: it has them under other names, or without a name, where they would stay scores that are
            read as dense.
    """
    if hasattr(output, "logits"):
        return True
    if not isinstance(output, ModelOutput):
        kind = type(output).__name__
        raise NotImplementedError(
            f"{type(model).__name__} returns a {kind}, which has no attribute logits, so that nobody would read the "
            "distribution of its sparse head; let its forward return an output of Transformers, as CausalLMOutput, or "
            "pass head=None"
        )
    others = [name for name in output if "logits" in name]
    if others:
        raise NotImplementedError(
            f"{type(model).__name__} returns {', '.join(others)} and no logits, so that nobody would read the "
            "distribution of its sparse head; take its class with a language-model head alone, or pass head=None to "
            "sparsify; a call with log_probs=False returns the scores themselves"
        )
    return False


def _hand_on_num_items(model: PreTrainedModel, kwargs: dict[str, Any], has_labels: bool) -> None:
    """Leave the number of items to a model that takes it, and to no other."""
    num_items = kwargs.get("num_items_in_batch")
    if not model._takes_any_keyword:
        kwargs.pop("num_items_in_batch", None)
    elif num_items is not None and has_labels:
        # Models divide by it themselves; where no label counts in any batch, 0 / 0 would be NaN.
        kwargs["num_items_in_batch"] = num_items + (num_items == 0)


def _labels(model: PreTrainedModel, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The labels of any name that came with a call."""
    given = kwargs | dict(zip(model._arguments, args))
    return {name: value for name, value in given.items() if "labels" in name and value is not None}


def _forward_with_loss(model: PreTrainedModel, loss: HeadLoss, args: tuple, kwargs: dict[str, Any]) -> Any:
    run = _forward_beside_others if loss.others else _forward_inside
    output = run(model, loss, args, kwargs)
    check_asked(loss, type(model).__name__, output, model._takes_any_keyword)
    return output


def _forward_inside(model: PreTrainedModel, loss: HeadLoss, args: tuple, kwargs: dict[str, Any]) -> Any:
    with loss:
        return model._dense_forward(model, *args, **kwargs)


# A compiler that breaks its graph in such a model would not see where the other loss begins and ends.
_forward_beside_others = torch.compiler.disable(
    _forward_inside, reason="a part of this model has a head and a loss of its own; compile it without fullgraph=True"
)


def _forward_screened(
    model: PreTrainedModel, state: SparseState, head: nn.Module | None, args: tuple, kwargs: dict[str, Any]
) -> Any:
    """The model's own forward, whose logits may be approximate where they have no weight; see ``screening``."""
    if in_graph():
        return model._dense_forward(model, *args, **kwargs)
    with state.screen.put_off(head, state.head):
        output = model._dense_forward(model, *args, **kwargs)
    if isinstance(getattr(output, "logits", None), LinearLogits):
        output.logits = state.screen.logits(output.logits, state.head)
    return output


def _returns_tuple(model: PreTrainedModel, kwargs: dict[str, Any]) -> bool:
    asked = kwargs.get("return_dict")
    return not (getattr(model.config, "return_dict", True) if asked is None else asked)


def _check_loss(
    model: PreTrainedModel, state: SparseState, label_smoothing: float, num_items: object, has_labels: bool
) -> None:
    check_number("label_smoothing", label_smoothing, "in [0, 1]", lambda share: 0 <= share <= 1)
    if num_items is not None:
        check_items("num_items_in_batch", num_items)
    head = model.get_output_embeddings()
    if num_items is not None and has_labels and state.config.head is None and head is not None and not has_rows(head):
        raise ValueError(
            f"num_items_in_batch is for models with one head over a vocabulary; the head of {type(model).__name__} is "
            f"a {type(head).__name__}, and its loss is its own: leave it out, and take the loss for a mean"
        )
    if label_smoothing and not has_rows(head):
        raise ValueError(
            f"label_smoothing is for language models; {type(model).__name__} has no single head over a vocabulary"
        )
    if label_smoothing and not has_labels:
        raise ValueError(f"label_smoothing={label_smoothing} came without labels, and smooths nothing: pass labels")
    if state.config.head is not None and num_items is not None and not has_labels:
        raise ValueError(
            "num_items_in_batch came without labels, so that the loss would be computed outside the model and be "
            "dense: for Trainer's label_smoothing_factor use SparseTrainer with sparse_label_smoothing; for a "
            "compute_loss_func, override compute_loss"
        )


def sparse_class(dense: Any, constrained: frozenset[str] = frozenset()) -> Any:
    """The class of sparse models of class ``dense``, with constrained attention of some kinds: same name.

    The signatures are the same too, but for ``fertility`` where attention is constrained: ``Trainer`` and ``generate``
    drop or refuse what the signature of forward does not name.
    """
    return _sparse_class(dense, dense.forward, constrained)


@functools.cache
def _sparse_class(dense: Any, dense_forward: Any, constrained: frozenset[str]) -> Any:
    """``sparse_class`` around the forward that ``dense`` has now; another library may replace it later."""
    signature = inspect.signature(dense_forward)
    parameters = signature.parameters.values()
    overrides: list[Callable] = [forward]
    if dense.can_generate():
        overrides += [override for override in OVERRIDES if hasattr(dense, override.__name__)]
    body: dict[str, Any] = {
        **visible_methods(dense, PreTrainedModel),
        "_dense_class": dense,
        "_arguments": tuple(signature.parameters)[1:],
        "_takes_any_keyword": any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters),
        "_dense_forward": staticmethod(with_visible_loss(dense_forward)),
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
