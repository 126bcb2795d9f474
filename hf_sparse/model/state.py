"""The state of a sparse model: one record on the model, and everything that reads or changes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from threading import local
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from ..attention.inline import divert, restore
from ..attention.site import attention_sites
from ..config import MapConfig, SparseConfig
from ..functional.log_zero import sum_to_one
from ..functional.rows import check_scores, upcast
from ..per_thread import PerThread
from .distribution import distribution
from .late_attention import Children, check_late_attention, refuse_late_attention
from .screening import HeadScreen

_STATE = "_sparse_state"
_RAW_DECODING = (
    "generate inside raw_scores(model) would decode from softmax of this model's scores; call it outside of that block"
)
DENSE_AGAIN = (
    "attn_implementation={!r} would take this model's sparse attention away; call unsparsify(model) first, or "
    "hf_sparse.attention.set_impl for how sparse attention is computed"
)


@dataclass
class PartAttention:
    """The names that one configuration inside a model gives the implementation of its attention.

    Attributes:
        config: read by some modules of the model.
        dense: the name before the model became sparse.
        sparse: the name since.
    """

    config: PreTrainedConfig
    dense: str
    sparse: str

    def name(self, implementation: str) -> None:
        """Write a name into the configuration, without the checks of Transformers' setter."""
        self.config._attn_implementation_internal = implementation


class RunningCalls(local):
    """What one thread is doing with a model; each thread has its own.

    Attributes:
        config: other settings than the model's, for a block (``SparseState.replaced``), or None.
        inside: running calls of the whole: a part that does not generate by itself leaves loss and logits to it.
        decoding: calls of its ``generate`` that are running: a part that generates decodes from its own head then.
        searches: what the searches of the running call of ``generate`` returned, where it cuts that (Whisper).
        reached: whether its own forward ran in the current call; see ``SparseModel.__call__``.
    """

    def __init__(self) -> None:
        self.config: SparseConfig | None = None
        self.inside = 0
        self.decoding = 0
        self.searches: list[ModelOutput] = []
        self.reached = False

    def __reduce__(self) -> tuple[type[RunningCalls], tuple[()]]:
        return RunningCalls, ()


@dataclass
class SparseState:
    """All that a model carries because it is sparse, but for the sites on its attention modules.

    Attributes:
        settings: of the model. In use is ``config``.
        attention: the configurations of its parts.
        dense_tags: the tags it had when it was dense.
        figures: measured sparsity, for the model card.
        parts: the states of the models inside it, which are sparse by themselves too.
        whole: the class of the model that it is a part of, or None.
        owns_configs: whether its configurations are copies that no other model reads.
        calls: what the running thread is doing with it.
        readings: the running blocks of ``raw_scores`` (False) and ``log_probabilities`` (True).
        children: modules that lead to its attention, with their children; see ``check_late_attention``.
        scored_by_loss: whether labels are scored by the loss of the head's map; see ``LabelScores``.
        screen: how ``generate`` computes the logits of its head.
        target: where training moves its settings to; None where they are not on the way.
        with_other_heads: its parts with heads and losses of their own.
    """

    settings: SparseConfig
    attention: list[PartAttention] = field(default_factory=list)
    dense_tags: list[str] | None = None
    figures: dict[str, float] = field(default_factory=dict)
    parts: list[SparseState] = field(default_factory=list)
    whole: str | None = None
    owns_configs: bool = False
    calls: RunningCalls = field(default_factory=RunningCalls, repr=False)
    readings: PerThread[bool] = field(default_factory=PerThread, repr=False)
    children: Children = field(default_factory=list, repr=False)
    scored_by_loss: bool = False
    screen: HeadScreen = field(default_factory=HeadScreen, repr=False)
    target: SparseConfig | None = None
    with_other_heads: list[nn.Module] = field(default_factory=list, repr=False)

    @property
    def config(self) -> SparseConfig:
        """The maps in use."""
        own = self.calls.config
        return self.settings if own is None else own

    @property
    def head(self) -> MapConfig:
        """The map of the head, softmax where it is dense."""
        return self.config.head or MapConfig("softmax")

    @contextmanager
    def replaced(self, **changes: Any) -> Iterator[None]:
        """Have this thread run the block under other settings, in the parts too; ``SparseConfig`` has their names."""
        states = [self, *self.parts]
        before = [state.calls.config for state in states]
        try:
            for state in states:
                state.calls.config = replace(state.config, **changes)
            yield
        finally:
            for state, config in zip(states, before):
                state.calls.config = config

    def check_attention(self, model: nn.Module) -> None:
        """Refuse a model whose configuration was told to use another attention, or that was given dense attention.

        Args:
            model: the model of this state.

        Raises:
            RuntimeError: it would be dense.
        """
        if not self.config.attn:
            return
        for part in self.attention:
            if part.config._attn_implementation != part.sparse:
                raise RuntimeError(DENSE_AGAIN.format(part.config._attn_implementation))
        if torch.compiler.is_compiling():
            refuse_late_attention(model)
        else:
            self.children = check_late_attention(model, self.children)

    def check_decoding(self, model: nn.Module) -> None:
        """Refuse to decode from another distribution than that of the head, or with other attention.

        Args:
            model: the model of this state.

        Raises:
            RuntimeError: inside ``raw_scores``, or sparse attention was taken out by way of the configuration.
        """
        if self.config.head is not None and self.readings.innermost(model) is False:
            raise RuntimeError(_RAW_DECODING)
        self.check_attention(model)

    @contextmanager
    def generating(self, model: nn.Module) -> Iterator[None]:
        """Run the block as a call of ``generate`` of its model; configurations then name the same attention again.

        Raises:
            RuntimeError: see ``check_decoding``.
        """
        self.check_decoding(model)
        names = [(part, part.config._attn_implementation) for part in self.attention]
        self.calls.decoding += 1
        self.calls.searches.clear()
        try:
            with self.running(), self.screen.run():  # encoders are called by themselves
                yield
        finally:
            self.calls.decoding -= 1
            self.calls.searches.clear()
            if state_of(model) is self:  # it may have been made dense meanwhile, by a streamer say
                for part, name in names:
                    part.name(name)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the block as a call of the whole: parts leave loss and logits to it."""
        for part in self.parts:
            part.calls.inside += 1
        try:
            yield
        finally:
            for part in self.parts:
                part.calls.inside -= 1


def transformers_model(model: nn.Module) -> PreTrainedModel:
    """The Transformers model inside a PEFT model, or ``model`` itself.

    Raises:
        TypeError: neither of the two.
    """
    inner = inside_peft(model)
    if not isinstance(inner, PreTrainedModel):
        parts = inner.named_modules() if isinstance(inner, nn.Module) else ()
        path, inside = next(((path, part) for path, part in parts if isinstance(part, PreTrainedModel)), ("", None))
        advice = [] if inside is None else [f"give the one inside it, at {path!r}"]
        if inside is None or state_of(inside) is None:
            advice.append("make the model sparse before wrapping or compiling it")
        raise TypeError(
            f"a Transformers model (PreTrainedModel) is needed, was {type(model).__name__}; {', and '.join(advice)}"
        )
    return inner


def inside_peft(model: Any) -> Any:
    """The model inside a PEFT model, or ``model`` itself, of whatever class."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def prompt_adapter(model: object) -> str | None:
    """The class of the adapter of a PEFT model that puts a prompt before every input; None without one."""
    adapter = getattr(model, "active_peft_config", None)
    return type(adapter).__name__ if getattr(adapter, "is_prompt_learning", False) else None


def state_of(model: object) -> SparseState | None:
    """The state of a sparse model, or of the one inside a PEFT model; None for anything else."""
    return getattr(inside_peft(model), "__dict__", {}).get(_STATE)


def sparse_models(model: nn.Module | None) -> list[PreTrainedModel]:
    """The sparse models in a module, outermost ones alone: itself, the one that it wraps, or its parts'."""
    if model is None:  # a trainer has none between two trials of a search for hyperparameters
        return []
    if state_of(model) is not None:
        return [transformers_model(model)]
    return [found for child in model.children() for found in sparse_models(child)]


def described(state: SparseState | None) -> str:
    """What a model is, for messages: "is dense", or "has ..." with its settings."""
    return "is dense" if state is None else f"has {state.config.to_dict()}"


def set_state(model: nn.Module, state: SparseState | None) -> None:
    """Give a model its state; None takes it away."""
    vars(model).pop(_STATE, None)
    if state is not None:
        vars(model)[_STATE] = state


def sparse_state(model: nn.Module) -> SparseState:
    """The state of a sparse model, or of the one inside a PEFT model.

    Raises:
        ValueError: the model is dense, or sparse in a part alone.
        TypeError: not a Transformers model.
    """
    inner = transformers_model(model)
    state = state_of(inner)
    if state is None:
        check_parts(inner)
        raise ValueError(f"this {type(inner).__name__} is not sparse; call sparsify(model, ...) first")
    return state


def needs_forward(model: object) -> bool:
    """Whether the forward of a sparse model cannot be another: it reads the head, or gives attention its bounds."""
    state = state_of(model)
    return state is None or state.config.head is not None or state.config.is_sequential


def is_sparse(model: nn.Module) -> bool:
    """Whether ``sparsify`` was applied to ``model`` or to a part of it (or to the model inside a PEFT model).

    A model that is sparse in a part alone has no settings: ``sparse_config`` names the part, and so does all that
    would train, save or decode the model as a dense one. An ``Ensemble`` counts as sparse too: it has settings of its
    own.

    Raises:
        TypeError: not a Transformers model.
    """
    inner = transformers_model(model)
    return state_of(inner) is not None or _lone_part(inner) is not None


def _lone_part(model: PreTrainedModel) -> str | None:
    """The path of a model inside ``model`` that was made sparse by itself, so that the whole knows nothing of it."""
    state = state_of(model)
    if state is not None and state.whole is not None:  # a part itself, with parts that its whole knows
        return None
    known = [] if state is None else [id(part) for part in state.parts]
    for path, part in model.named_modules():
        own = vars(part).get(_STATE)
        if part is not model and own is not None and id(own) not in known:
            return path
    return None


def check_parts(model: PreTrainedModel) -> None:
    """Refuse a model with a part that was made sparse by itself: its settings would not be saved.

    Raises:
        ValueError: there is such a part.
    """
    path = _lone_part(model)
    if path is not None:
        raise ValueError(
            f"{path!r} in this {type(model).__name__} is sparse by itself, and the whole would be trained and "
            f"saved as a dense model: keep sparse_config(model.{path}).to_dict(), unsparsify(model.{path}), then "
            f"sparsify the whole model with these maps{_for_kinds(model.get_submodule(path))}"
        )


def _for_kinds(part: nn.Module) -> str:
    """How the whole takes the maps of a part, whose kinds of attention it may have others besides."""
    kinds = sorted({site.kind for _, site in attention_sites(part)})
    named = ", ".join(f"{kind!r}: ..." for kind in kinds)
    return f", for the kinds of attention that the part has: attn={{{named}}}" if kinds else ""


def check_named_outputs(model: PreTrainedModel) -> None:
    """Refuse a model whose configuration asks for tuples.

    Raises:
        ValueError: it does.
    """
    if not getattr(model.config, "return_dict", True):
        raise ValueError(
            f"config.return_dict=False makes this {type(model).__name__} return tuples, in which loss and logits have "
            "no names; set model.config.return_dict = True, and pass return_dict=False in the calls that want a tuple"
        )


def check_whole(model: nn.Module) -> None:
    """Refuse a part of a sparse model: the whole keeps the settings, and would not know of a change.

    Raises:
        ValueError: the model is such a part.
    """
    state = state_of(model)
    if state is not None and state.whole is not None:
        name = type(transformers_model(model)).__name__
        raise ValueError(
            f"this {name} is a part of a sparse {state.whole}, which keeps and saves the settings: give the whole; or "
            f"unsparsify the whole, sparsify this {name} alone, and in the end sparsify the whole with the maps that "
            f"sparse_config(part).to_dict() has then{_for_kinds(transformers_model(model))}"
        )


def sparse_config(model: nn.Module) -> SparseConfig:
    """The settings of a sparse model.

    Raises:
        ValueError: the model is not sparse.
        TypeError: not a Transformers model.
    """
    return sparse_state(model).config


def probabilities(model: nn.Module, logits: Tensor) -> Tensor:
    """The next-token distribution that ``generate`` reads, from a sparse model's logits.

    Args:
        model: a sparse model.
        logits: ``output.logits`` (..., V), log-probabilities or raw scores. Rows whose exponentials sum to one are
            taken for log-probabilities.

    Returns:
        Probabilities (..., V) that sum to one, float32 (float64 for float64 logits): softmax where the head is dense,
        alpha-ReLU weights divided by their sum.

    Raises:
        ValueError: the model is not sparse.
        TypeError: not a Transformers model, or logits that are no floating-point tensor.
    """
    state = sparse_state(model)
    check_scores(logits, -1)
    if bool(sum_to_one(logits).all()):
        return upcast(logits).softmax(-1)
    return distribution(state.head, logits)


@contextmanager
def raw_scores(model: nn.Module) -> Iterator[None]:
    """Run the block with raw scores in ``output.logits`` of a sparse head, also in calls without labels.

    For losses and measures that take scores: softmax of them is not the distribution of the model. With a dense head
    nothing changes. ``generate`` is refused inside. Other threads that call the model meanwhile are not affected.

    Args:
        model: a sparse model, perhaps wrapped by PEFT.

    Raises:
        ValueError: the model is not sparse.
        TypeError: not a Transformers model.

    >>> import torch
    >>> from hf_sparse import sparsify
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    >>> model = sparsify(LlamaForCausalLM(LlamaConfig(vocab_size=20, **sizes)), head="sparsemax")
    >>> ids = torch.tensor([[1, 2, 3]])
    >>> with raw_scores(model):
    ...     scores = model(ids).logits
    >>> bool(torch.allclose(probabilities(model, scores), model(ids).logits.exp(), atol=1e-6))
    True
    """
    with _read_as(model, log_probs=False):
        yield


@contextmanager
def log_probabilities(model: nn.Module) -> Iterator[None]:
    """Run the block with log-probabilities in ``output.logits`` of a sparse head, also in calls with labels.

    For code that passes labels and reads the logits beside the loss. With a dense head nothing changes. As in
    ``raw_scores`` other threads are not affected.

    Args:
        model: a sparse model, perhaps wrapped by PEFT.

    Raises:
        ValueError: the model is not sparse.
        TypeError: not a Transformers model.

    >>> import torch
    >>> from hf_sparse import sparsify
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    >>> model = sparsify(LlamaForCausalLM(LlamaConfig(vocab_size=20, **sizes)), head="sparsemax")
    >>> ids = torch.tensor([[1, 2, 3]])
    >>> with log_probabilities(model):
    ...     logits = model(ids, labels=ids).logits
    >>> bool(torch.equal(logits, model(ids).logits))
    True
    """
    with _read_as(model, log_probs=True):
        yield


@contextmanager
def _read_as(model: nn.Module, *, log_probs: bool) -> Iterator[None]:
    state = sparse_state(model)
    with ExitStack() as readings:
        for each in (state, *state.parts):
            readings.enter_context(each.readings.set(log_probs))
        yield


@contextmanager
def dense_attention(model: nn.Module) -> Iterator[None]:
    """Run the block with the softmax attention a sparse model had before, on the same weights and modules.

    Hidden states and raw scores inside are bit-equal to those of ``unsparsify(model)``. The head's map stays; see
    ``dense_head`` for it. The modules are changed for all threads.

    Args:
        model: a sparse model. It is sparse again afterwards.

    Raises:
        ValueError: the model is not sparse.
    """
    state, inner = sparse_state(model), transformers_model(model)
    restore(inner)
    try:
        for part in state.attention:
            part.name(part.dense)
        with state.replaced(attn=()):
            yield
    finally:
        for part in state.attention:
            part.name(part.sparse)
        divert(inner)


@contextmanager
def dense_head(model: nn.Module) -> Iterator[None]:
    """Run the block with softmax at the head of a model, in its loss as well; a dense head stays as it is."""
    state = state_of(transformers_model(model))
    if state is None:
        yield
        return
    with state.replaced(head=None):
        yield
