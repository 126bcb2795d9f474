"""The state of a sparse model: one record, and where the model keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import local
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.utils import ModelOutput

from ..config import MapConfig, SparseConfig
from ..per_thread import PerThread
from .late_attention import Children, check_late_attention, refuse_late_attention
from .screening import HeadScreen

_STATE = "_sparse_state"
_RAW_DECODING = (
    "generate inside raw_scores(model) would decode from softmax of this model's scores; call it outside of that block"
)
DENSE_AGAIN = (
    "attn_implementation={!r} would take this model's sparse attention away; call unsparsify(model) first, or "
    "model.set_attn_implementation('hf_sparse') to keep it where a configuration names another by now, or "
    "hf_sparse.attention.set_impl for how sparse attention is computed; for attention weights "
    "call model(..., output_attentions=True)"
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
        configs: other settings than the model's, of the running blocks of ``SparseState.replaced``.
        inside: running calls of the whole: a part that does not generate by itself leaves loss and logits to it.
        decoding: calls of its ``generate`` that are running: a part that generates decodes from its own head then.
        searches: what the searches of the running call of ``generate`` returned, where it cuts that (Whisper).
        reached: whether its own forward ran in the current call, as the only entry of a list: a compiled forward
            changes the list, while torch would lose an attribute of a ``local``. See ``SparseModel.__call__``.
    """

    def __init__(self) -> None:
        self.configs: list[SparseConfig] = []
        self.inside = 0
        self.decoding = 0
        self.searches: list[ModelOutput] = []
        self.reached = [False]

    def __reduce__(self) -> tuple[type[RunningCalls], tuple[()]]:
        return RunningCalls, ()


@dataclass
class SparseState:
    """All that a model carries because it is sparse, but for the sites on its attention modules.

    Attributes:
        settings: of the model. In use is ``config``.
        attention: the configurations of its parts.
        dense_tags: the tags it had when it was dense.
        metrics: measured sparsity, for the model card.
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
    metrics: dict[str, float] = field(default_factory=dict)
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
        return self.calls.configs[-1] if self.calls.configs else self.settings

    @property
    def head(self) -> MapConfig:
        """The map of the head, softmax where it is dense."""
        return self.config.head or MapConfig("softmax")

    @contextmanager
    def replaced(self, **changes: Any) -> Iterator[None]:
        """Have this thread run the block under other settings, in the parts too; ``SparseConfig`` has their names."""
        running = [(state.calls.configs, replace(state.config, **changes)) for state in (self, *self.parts)]
        for configs, config in running:
            configs.append(config)
        try:
            yield
        finally:
            for configs, config in running:
                configs[:] = [other for other in configs if other is not config]

    def gives_log_probs(self, model: nn.Module, has_labels: bool) -> bool:
        """Whether the logits of a call of its model are log-probabilities, where the call itself does not say."""
        if self.config.head is None:
            return False
        asked = self.readings.innermost(model)
        return not has_labels if asked is None else asked

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


def inside_peft(model: Any) -> Any:
    """The model inside a PEFT model, or ``model`` itself, of whatever class."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def state_of(model: object) -> SparseState | None:
    """The state of a sparse model, or of the one inside a PEFT model; None for anything else."""
    return getattr(inside_peft(model), "__dict__", {}).get(_STATE)


def set_state(model: nn.Module, state: SparseState | None) -> None:
    """Give a model its state; None takes it away."""
    vars(model).pop(_STATE, None)
    if state is not None:
        vars(model)[_STATE] = state
