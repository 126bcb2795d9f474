"""One forward call of a model under observation: where softmax is computed, by how many heads, what the head gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from ..attention import SupportCount, observe
from ..attention.inline import attention_call, is_softmax
from ..attention.site import SITE
from ..functional.rows import is_readable
from .find import check_named_outputs, prompt_adapter, transformers_model
from .partitioned import whole

_PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)
_WEIGHTED_SUMS = (*_PRODUCTS, torch.bmm, Tensor.bmm, torch.einsum)
_Running = list[tuple[str, nn.Module]]


@dataclass
class DryRun:
    """The record of one forward call.

    Attributes:
        model: the model that ran.
        inputs: keyword arguments of the call; empty where the block of ``watch`` made it.
        output: its output.
        ran: the paths of all modules whose forward ran.
        softmaxes: the modules that computed a softmax over a last axis, by path; the innermost whose forward was
            running. A softmax that a sparse map replaces is not among them. Modules that multiply by rows of weights
            are, however they computed them: by ``exp`` and a sum, or in a scripted function, which hides it.
        heads: by path of such a module, or of one that called torch's fused attention, the number of its heads and the
            length of their queries; 0 for one that did not show.
        counts: by path of each sparse attention, the supports of its weights.
        hidden_rms: the root mean square of the last input of the output embeddings; None without a call of them.
    """

    model: PreTrainedModel
    inputs: Mapping[str, object] = field(default_factory=dict)
    output: Any = None
    ran: set[str] = field(default_factory=set)
    softmaxes: dict[str, nn.Module] = field(default_factory=dict)
    heads: dict[str, tuple[int, int]] = field(default_factory=dict)
    counts: dict[str, SupportCount] = field(default_factory=dict)
    hidden_rms: float | None = None


def dry_run(model: PreTrainedModel, inputs: Mapping[str, object], *, training: bool = False) -> DryRun:
    """Run a model once in evaluation mode, without gradients, and record what happens. The model is left as it was.

    Args:
        model: dense or sparse.
        inputs: keyword arguments for one forward call.
        training: set the model's own flag, as a fused loss reads it; its modules, dropout among them, stay in
            evaluation mode.
    """
    with watch(model) as record:
        model.training = training
        record.inputs, record.output = inputs, model(**inputs)
    return record


@contextmanager
def watch(model: PreTrainedModel) -> Iterator[DryRun]:
    """Run the block in evaluation mode, without gradients, and record what the calls of a model in it show."""
    record = DryRun(model)
    with (
        _running_modules(model, record.ran) as running,
        _hidden_states(model.get_output_embeddings(), record),
        quiet_evaluation(model),
        observe(model) as record.counts,
        _AttentionWatch(running, record),
    ):
        yield record


@contextmanager
def quiet_evaluation(model: nn.Module) -> Iterator[None]:
    """Run the block in evaluation mode without gradients; leave the model and random state as they were."""
    with quiet_pass(model, training=False):
        yield


@contextmanager
def eager_evaluation(model: nn.Module) -> Iterator[None]:
    """``quiet_evaluation`` in which nothing compiled runs: what is watched, or changes at every call, must be seen."""
    with torch.compiler.set_stance("force_eager"), quiet_evaluation(model):
        yield


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Run the block in one mode of ``model``; every module has its own again afterwards."""
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


@contextmanager
def _as_before(model: nn.Module) -> Iterator[None]:
    """Have modules forget what they keep of a call in the block: Qwen2-VL keeps the positions that a cache went to.

    BigBird with block-sparse attention even has other modules after a short input.
    """
    before = [(module, _kept(module), _contents(module)) for module in model.modules()]
    try:
        yield
    finally:
        for module, kept, contents in before:
            _put_back(vars(module), kept, _kept(module).keys() - kept.keys())
            for now, values in contents:
                _put_back(now, values, now.keys() - values.keys())


def _contents(module: nn.Module) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each dictionary in which a module keeps things, LeViT the biases for evaluation, and what is in it now."""
    found: list[Any] = [module._buffers, module._modules, *_kept(module).values()]
    return [(value, dict(value)) for value in found if isinstance(value, dict)]


def _put_back(now: dict[str, Any], before: dict[str, Any], added: Set[str]) -> None:
    for name in added:
        del now[name]
    # What did not change is not written: another thread may run the model.
    now.update({name: value for name, value in before.items() if now.get(name) is not value})


def _kept(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module that its own code may write in a call.

    ``forward`` is not: the generation of another thread may have put off the head by one.
    """
    others = ("forward", "training")
    return {name: value for name, value in vars(module).items() if not name.startswith("_") and name not in others}


@contextmanager
def _weights_as_before(model: nn.Module) -> Iterator[None]:
    """Have RWKV undo what a call in the block did to its weights: it divides them by powers of two for evaluation."""
    rwkv: list[Any] = [module for module in model.modules() if hasattr(module, "_rescale_layers")]
    before = [(module, module.layers_are_rescaled) for module in rwkv]
    try:
        yield
    finally:
        for module, is_rescaled in before:
            with in_mode(module, training=not is_rescaled):
                module._rescale_layers()


def _count_in_copies(model: nn.Module) -> None:
    """Give batch normalization in training mode copies of its statistics to write; ``_as_before`` takes them away.

    The statistics themselves may be in the graph of another pass, which one that copies values back would break.
    """
    for module in model.modules():
        if isinstance(module, _NormBase) and module.training:
            module._buffers.update({name: buffer.clone() for name, buffer in module.named_buffers()})


@contextmanager
def quiet_pass(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Run the block in one mode of ``model`` without gradients; leave the model and random state as they were.

    Parameters that ZeRO-3 divides are whole in it.
    """
    device = next(iter(model.parameters()), torch.empty(0, dtype=torch.float32, device="cpu")).device
    forked = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with (
        _as_before(model),
        in_mode(model, training=training),
        whole(model.parameters()),
        _weights_as_before(model),
        torch.no_grad(),
        forked,
    ):
        _count_in_copies(model)
        yield


def input_device(model: PreTrainedModel) -> torch.device:
    """The device of input for ``model``; Accelerate's hooks, which keep its weights on disk, take it from any.

    Without them it is meta where any weight is: wav2vec 2.0 has one, its first, that is never built there.
    """
    is_missing = any(parameter.is_meta for parameter in model.parameters())
    if not is_missing:
        return model.device
    is_offloaded = any(hasattr(part, "_hf_hook") for part in model.modules())
    if not is_offloaded:
        return torch.device("meta")
    return torch.device("cpu") if model.device.type == "meta" else model.device


def check_weights(model: PreTrainedModel) -> None:
    """Refuse to run a model whose weights are not there.

    Raises:
        ValueError: they are on the device ``meta``, and no hook of Accelerate's brings them.
    """
    if input_device(model).type == "meta":
        raise ValueError(f"this {type(model).__name__} has no weights, its device is meta; load them first")


class _AttentionWatch(TorchFunctionMode):
    """Records softmaxes and torch's fused attention by the module they are computed in."""

    def __init__(self, running: _Running, record: DryRun) -> None:
        super().__init__()
        self.running = running
        self.record = record
        self.product: tuple[torch.Size, int] = torch.Size(), 0  # shape of the last product, length of what it summed

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        call = attention_call(func, args, kwargs or {})
        if call is not None:
            self._look(**call)
        if func in _WEIGHTED_SUMS:
            self._look_at_factor(next(filter(torch.is_tensor, (*args, *(kwargs or {}).values())), None))
        output = func(*args, **(kwargs or {}))
        if func in _PRODUCTS and torch.is_tensor(output):
            first = args[0] if args else (kwargs or {})["input"]
            self.product = output.shape, first.shape[-1]
        return output

    def _look(
        self, query: Tensor | None = None, input: Tensor | None = None, num_heads: int | None = None, **_: Any
    ) -> None:
        """Record a call of torch's attention, fused (``query``) or with ``num_heads``, or of softmax (``input``)."""
        entry = self._innermost()
        if entry is None:
            return
        path, module = entry
        self.record.softmaxes[path] = module
        if query is not None and num_heads is not None:
            self.record.heads[path] = num_heads, query.shape[-1] // num_heads
        elif query is not None and query.dim() == 4:
            self.record.heads[path] = query.shape[1], query.shape[-1]
        elif input is not None and input.dim() == 4:
            shape, summed = self.product
            self.record.heads[path] = input.shape[1], summed if shape[:3] == input.shape[:3] else 0

    def _look_at_factor(self, factor: Tensor | None) -> None:
        """Record a product with weights that no softmax outside of sparse attention was seen to compute."""
        entry = self._innermost()
        if entry is None or factor is None or any(SITE in vars(module) for _, module in self.running):
            return
        if entry[0] not in self.record.softmaxes and _are_weights(factor):
            self._look(input=factor)

    def _innermost(self) -> tuple[str, nn.Module] | None:
        return next((entry for entry in reversed(self.running) if not is_softmax(entry[1])), None)


def _are_weights(rows: Tensor) -> bool:
    """Whether rows sum to one and spread over several entries, as those of softmax do and one-hot rows do not."""
    if rows.dim() < 3 or not rows.is_floating_point() or not rows.numel() or not is_readable(rows):
        return False
    if not bool((rows >= 0).all()):
        return False
    sums, several = rows.sum(-1, dtype=torch.float32), (rows > 0).sum(-1) > 1
    return bool((sums - 1).abs().max() < 0.01) and bool(several.any())


@contextmanager
def _running_modules(model: nn.Module, ran: set[str]) -> Iterator[_Running]:
    """The stack of modules whose forward this thread runs, innermost last, in the block; all end up in ``ran``."""
    running: _Running = []
    thread, handles = get_ident(), []

    def enter(module: nn.Module, _: object, path: str) -> None:
        if get_ident() == thread:
            running.append((path, module))
            ran.add(path)

    def leave(module: nn.Module, *_: object) -> None:
        # Another hook that raises before ``enter`` leaves a module that was not entered.
        if get_ident() == thread and running and running[-1][1] is module:
            running.pop()

    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(partial(enter, path=path)))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield running
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _hidden_states(head: nn.Module | None, record: DryRun) -> Iterator[None]:
    """Record the size of what enters the output embeddings while the block runs."""
    if head is None:
        yield
        return

    thread = get_ident()

    def look(_: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor] = MappingProxyType({})) -> None:
        # Torch calls a hook that ``remove`` overtakes in another thread without its keyword arguments.
        if get_ident() == thread:
            hidden = next(iter((*args, *kwargs.values())))
            record.hidden_rms = float(hidden.detach().double().pow(2).mean().sqrt())

    handle = head.register_forward_pre_hook(look, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def as_it_runs(model: nn.Module) -> PreTrainedModel:
    """The Transformers model inside a PEFT model, which is run on its own, or ``model`` itself.

    Raises:
        ValueError: an adapter that is a prompt, of which the model inside knows nothing; a model without weights, or
            whose configuration asks for tuples.
        TypeError: not a Transformers model.
    """
    inner = transformers_model(model)
    adapter = prompt_adapter(model)
    if adapter is not None:
        raise ValueError(
            f"{adapter} puts a prompt before every input, which would not be there, since the {type(inner).__name__} "
            "inside runs by itself; give the model before get_peft_model"
        )
    check_weights(inner)
    check_named_outputs(inner)
    return inner
