"""The loss of a sparse head, wherever a model computes its cross-entropy."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from ..config import MapConfig
from ..functional.arguments import items_divisor
from ..functional.head_weight import num_classes
from ..losses.linear.divided import is_divided, local_part
from .lazy_logits import LinearLogits
from .partitioned import ask_for_weights, is_partitioned, linear_is_replaced


class HeadLoss(TorchFunctionMode):
    """Inside this block, cross-entropy over the head's classes is the loss of the head's map.

    Many model classes call ``cross_entropy`` themselves and never look at ``model.loss_function``. Standing where
    they all end up keeps each model's own shift of the labels. ``nll_loss`` of a ``log_softmax`` is cross-entropy
    too. It also divides by ``num_items_in_batch`` where the model forgets to, which makes gradient accumulation
    exact; a model that scores each of its ``labels`` several times keeps its mean over these. With ``fused`` the
    head's linear layer is put off until the loss asks for it, and the logits are never made; a head whose classes are
    divided over processes would gather them in its own forward, which is put off whole, as is that of any head where
    DeepSpeed's ZeRO-3 computes linear layers. A head with backward hooks is not put off: torch calls them where a
    module returned a tensor.
    ``factor`` is on the loss; see ``SparseConfig.loss_scale``. What ``others`` compute is left as it is.

    Attributes:
        asked: whether a cross-entropy over the head's classes has come by.
    """

    def __init__(
        self,
        map_config: MapConfig | None,
        head: nn.Module,
        num_items: Any,
        label_smoothing: float,
        fused: bool = False,
        factor: float = 1.0,
        labels: Tensor | None = None,
        others: Sequence[nn.Module] = (),
    ) -> None:
        super().__init__()
        self.map_config = map_config
        self.head = head = getattr(head, "_orig_mod", head)  # Dynamo must not meet a head compiled by itself twice
        self.num_items = num_items
        self.labels = labels
        self.label_smoothing = label_smoothing
        hooked = head._backward_hooks or head._backward_pre_hooks
        self.fused = fused and hasattr(head, "weight") and not hooked
        self.factor = factor
        self.asked = False
        self.others = others
        self._depth_in_others = 0
        self._thread: int | None = None
        self._hooks: list[RemovableHandle] = []
        self._gathering: Any = None
        self.log_softmax: Any = None
        self.logits: Any = None

    def __enter__(self):
        if self.others:  # not in compiled code, which has no others
            self._thread = get_ident()
        for other in self.others:
            self._hooks.append(other.register_forward_pre_hook(self._enter_other))
            self._hooks.append(other.register_forward_hook(self._leave_other, always_call=True))
        if self.fused and is_partitioned(self.head.weight):
            self._hooks.append(self.head.register_forward_hook(ask_for_weights))
        if self.fused and (is_divided(self.head.weight) or (type(self.head) is nn.Linear and linear_is_replaced())):
            self._gathering = vars(self.head).get("forward")
            vars(self.head)["forward"] = self._put_off
        return super().__enter__()

    def __exit__(self, *raised):
        for hook in self._hooks:
            hook.remove()
        if vars(self.head).get("forward") == self._put_off:
            del vars(self.head)["forward"]
            if self._gathering is not None:
                vars(self.head)["forward"] = self._gathering
        return super().__exit__(*raised)

    def _enter_other(self, *_: object) -> None:
        if get_ident() == self._thread:  # the hooks run for other threads, too
            self._depth_in_others += 1

    def _leave_other(self, *_: object) -> None:
        if get_ident() == self._thread:
            self._depth_in_others -= 1

    def _put_off(self, hidden: Tensor) -> LinearLogits:
        head: Any = self.head
        return LinearLogits(local_part(hidden), head.weight, head.bias)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self._depth_in_others:
            return func(*args, **kwargs)
        if func is nn.functional.cross_entropy:
            return self.cross_entropy(*args, **kwargs)
        if self.fused and func is nn.functional.linear:
            layer = _LINEAR.bind(*args, **kwargs)
            if layer.arguments["weight"] is self.head.weight:
                return LinearLogits(*layer.args, **layer.kwargs)
        if self.log_softmax is not None and any(arg is self.log_softmax for arg in args):
            return self._after_log_softmax(func, args, kwargs)
        output = func(*args, **kwargs)
        if func in _LOG_SOFTMAX and output.shape[-1] == num_classes(self.head):
            self.log_softmax, self.logits = output, args[0]
        return output

    def _after_log_softmax(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """``nll_loss`` of the head's log_softmax is cross-entropy; a sparse loss stands in for nothing else of it."""
        if func is nn.functional.nll_loss:
            return self.cross_entropy(self.logits, *args[1:], **kwargs)
        output = func(*args, **kwargs)
        if self.map_config is not None and torch.is_tensor(output):
            raise NotImplementedError(
                f"this model's loss takes more than nll_loss from log_softmax ({func.__name__}), where no sparse loss "
                "can stand in; pass head=None"
            )
        return output

    def cross_entropy(self, input: Any, target: Tensor, *args: object, **kwargs: object) -> Tensor:
        """Stand in for ``torch.nn.functional.cross_entropy`` inside the block."""
        call = CROSS_ENTROPY.bind(input, target, *args, **kwargs)
        call.apply_defaults()
        options = call.arguments
        if input.shape[min(1, input.dim() - 1)] != num_classes(self.head):
            return nn.functional.cross_entropy(*call.args, **call.kwargs)
        self.asked = True
        missing_count = options["reduction"] == "mean" and self.num_items is not None
        reduction = "sum" if missing_count else options["reduction"]
        same = {"ignore_index": options["ignore_index"], "reduction": reduction}
        same["label_smoothing"] = self.label_smoothing or options["label_smoothing"]
        loss = _loss(self.map_config, input, target, options["weight"], **same)
        loss = loss if self.factor == 1 else self.factor * loss
        if self.num_items is None:
            return loss
        if target.is_floating_point():  # a distribution is one target, whatever its number of classes
            counted = target.any(min(1, target.dim() - 1))
        else:
            counted = target != options["ignore_index"]
        divisor = items_divisor(self.num_items, counted)
        if missing_count:
            divisor = divisor * self._times_scored(counted)
        # The model divides the sum itself, by 1 in place of 0; a NaN says that the count is wrong.
        return torch.where(divisor.isnan(), torch.nan, loss / divisor if missing_count else loss).to(loss.dtype)

    def _times_scored(self, counted: Tensor) -> Tensor | int:
        """How often each label is among the targets: ProphetNet repeats them for every n-gram stream."""
        if self.labels is None or counted.numel() <= self.labels.numel() or counted.numel() % self.labels.numel():
            return 1
        times = counted.sum() / (self.labels != -100).sum().to(counted.device)
        return torch.where((times > 1) & (times == times.round()), times, 1)


def with_other_heads(model: PreTrainedModel) -> list[nn.Module]:
    """The parts of a model with losses of their own, on other heads than its own: CSM's depth decoder."""
    head = model.get_output_embeddings()
    return [
        part
        for part in model.modules()
        if isinstance(part, PreTrainedModel)
        and "labels" in inspect.signature(type(part).forward).parameters
        and all(module is not head for module in part.modules())
    ]


def check_asked(loss: HeadLoss, name: str, output: Any, takes_num_items: bool) -> None:
    """Refuse a loss that was computed past ``HeadLoss``: it would be dense, or a mean, without a word.

    With a dense head a model that was handed ``num_items_in_batch`` is trusted with it.
    """
    # A loss comes first in every output, and has no axes. None beside another loss is one that nobody asked for.
    first = output.get("loss") if type(output) is dict else getattr(output, "loss", output[0])
    if loss.asked or not torch.is_tensor(first) or first.dim() > 0:
        return
    unseen = f"{name} computed a loss in which no cross-entropy over the classes of its head was seen, so that"
    in_parts = "where this only happens under torch.compile, compile the parts of the model"
    if loss.map_config is not None or loss.label_smoothing:
        raise NotImplementedError(
            f"{unseen} no sparse loss can stand in; switch off kernels that compute it (for Liger's "
            "fused_linear_cross_entropy=False, cross_entropy=False), compute the loss from output.logits, pass "
            f"head=None or, {in_parts}"
        )
    if loss.num_items is not None and not takes_num_items:
        raise NotImplementedError(
            f"{unseen} it is not divided by num_items_in_batch; compute the loss from output.logits or, {in_parts}"
        )


def _loss(map_config: MapConfig | None, input: Any, target: Tensor, weight: Tensor | None, **options: Any) -> Tensor:
    if map_config is None:
        return nn.functional.cross_entropy(input, target, weight=weight, **options)
    if isinstance(input, LinearLogits):
        if weight is None:
            loss = input.loss(map_config, target, **options)
            if map_config.name == "softmax" and options["label_smoothing"] > 0:
                loss = loss + _entropy(target, input.shape[-1], loss.dtype, **options)
            return loss
        input = input.compute()
    if map_config.name == "softmax":
        return nn.functional.cross_entropy(map_config.scores(input), target, weight=weight, **options)
    if input.dim() > 2:  # classes last
        input, target = input.movedim(1, -1), target.movedim(1, -1) if target.is_floating_point() else target
    return map_config.loss()(input, target, weight=weight, **options)


def _entropy(
    target: Tensor, classes: int, dtype: torch.dtype, reduction: str, label_smoothing: float, ignore_index: int
) -> Tensor:
    """By how much torch's cross-entropy with smoothed targets is above the Fenchel-Young loss of softmax."""
    smoothed = torch.full((classes,), label_smoothing / classes, dtype=dtype, device=target.device)
    smoothed[0] += 1 - label_smoothing
    counted = target != ignore_index
    if reduction == "mean":
        counted = counted.any()
    entropies = torch.where(counted, -torch.xlogy(smoothed, smoothed).sum(), 0.0)
    return entropies.sum() if reduction == "sum" else entropies


CROSS_ENTROPY = inspect.signature(nn.functional.cross_entropy)


def _linear(input: Any, weight: Tensor, bias: Tensor | None = None) -> None:
    """The signature of ``torch.nn.functional.linear``."""


_LINEAR = inspect.signature(_linear)
_LOG_SOFTMAX = (nn.functional.log_softmax, torch.log_softmax, Tensor.log_softmax)
