"""An attention site: one module whose softmax is replaced, and what replaces it there."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from types import CodeType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from ..config import CoverageVectors, Learned, MapConfig, SparseConfig
from ..functional import softmax

SITE = "_sparse_attention"


@dataclass
class SupportCount:
    """Counts nonzero attention weights while ``observe`` is on. Fully masked rows do not count.

    ``brought`` holds the names of what calls brought besides scores, of what ``add`` is told. Sums stay tensors until
    they are asked for: nothing waits for a GPU, and a graph that is compiled does not break.
    """

    calls: int = 0
    heads: int = 0
    head_dim: int = 0
    brought: set[str] = field(default_factory=set)
    _nonzero: float | Tensor = 0.0
    _rows: float | Tensor = 0.0
    _keys: float | Tensor = 0.0

    def add(self, weights: Tensor, head_dim: int = 0, **brought: Any) -> None:
        """Count the rows of ``weights`` (batch, heads, queries, keys), and what else was given (None: was not).

        ``head_dim`` is the length of a query where that can be seen.
        """
        self.brought |= {name for name, value in brought.items() if value is not None}
        support = (weights > 0).sum(-1)
        visible = (support > 0).sum()
        self.calls += 1
        self.heads, self.head_dim = weights.shape[1] if weights.dim() == 4 else 0, head_dim
        self._nonzero = self._nonzero + support.sum()
        self._rows = self._rows + visible
        self._keys = self._keys + visible * weights.shape[-1]

    @property
    def nonzero(self) -> float:
        """How many weights were not zero."""
        return float(self._nonzero)

    @property
    def rows(self) -> float:
        """How many rows were counted."""
        return float(self._rows)

    @property
    def keys(self) -> float:
        """How many weights those rows have, masked keys included."""
        return float(self._keys)

    @property
    def support_size(self) -> float:
        """Mean number of keys with nonzero weight, in keys a query."""
        return self.nonzero / self.rows if self.rows else float("nan")

    @property
    def zero_rate(self) -> float:
        """Share of attention weights that are exactly zero, masked keys included."""
        return 1 - self.nonzero / self.keys if self.keys else float("nan")


@dataclass
class AttentionSite:
    """What ``sparsify`` leaves on an attention module.

    Attributes:
        path: the module's path inside the model.
        kind: ``"encoder"``, ``"decoder"`` or ``"cross"``.
        choice: the map there; None keeps softmax.
        layer: which of its kind it is, counted from 0.
        inline: whether the module computes its own softmax, rather than asking the attention interface.
        heeded: arguments of the interface that the model's own attention would heed.
        counts: where to count supports, only while ``observe`` is on.
        hook: what hands the cache on, where queries depend on those before them.
        watch: what looks at the module and the scores of every call, only while ``trial`` is on.
        impl: what computes the attention, see ``set_impl``.
    """

    path: str
    kind: str
    choice: MapConfig | None
    layer: int = 0
    inline: bool = False
    heeded: frozenset[str] = field(default=frozenset(), repr=False)
    counts: SupportCount | None = field(default=None, repr=False)
    hook: RemovableHandle | None = field(default=None, repr=False)
    watch: Callable[[nn.Module, Tensor], None] | None = field(default=None, repr=False)
    impl: str = "auto"

    @property
    def is_constrained(self) -> bool:
        """Whether the keys there have a credit that attention spends."""
        return self.choice is not None and self.choice.is_constrained

    @property
    def has_coverage(self) -> bool:
        """Whether what the keys there have received goes into their scores."""
        return self.choice is not None and self.choice.has_coverage


def weigh(module: nn.Module, scores: Tensor) -> Tensor:
    """The weights of ``scores`` (..., keys) under the map of the site that ``module`` carries.

    Raises:
        ValueError: see ``weights_under``.
    """
    site: AttentionSite = module.__dict__[SITE]
    if site.watch is not None:
        site.watch(module, scores)
    return weights_under(site.choice, module, scores)


def weights_under(choice: MapConfig | None, module: nn.Module, scores: Tensor) -> Tensor:
    """The weights of ``scores`` (..., keys) under a map, or under softmax for None, in ``module``.

    Settings that differ by head need scores (batch, heads, queries, keys).

    Raises:
        ValueError: settings for another number of heads, or scores whose heads cannot be told.
    """
    if choice is None:
        return softmax(scores)
    by_head: Any = {name: values.view(-1, 1, 1) for name, values in settings_by_head(choice, module, scores).items()}
    return choice(scores, **by_head)


def settings_by_head(choice: MapConfig, module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Those settings of a map in ``module`` that differ by head, as tensors (heads,) on the device of ``x``.

    Args:
        choice: the map.
        module: it holds the parameters of settings that are learned.
        x: scores or queries (batch, heads, queries, ...).

    Raises:
        ValueError: settings for another number of heads, or a tensor whose heads cannot be told.
    """
    by_head = {}
    precision = torch.float64 if x.dtype == torch.float64 else torch.float32
    for name, value in choice.settings:
        if isinstance(value, Learned):
            from_real = cast(Any, choice.setting(name).from_real)
            by_head[name] = from_real(getattr(module, learned_name(name))(x).to(precision))
        elif isinstance(value, tuple):
            by_head[name] = torch.tensor(value, dtype=precision, device=x.device)
    for name, values in by_head.items():
        if x.dim() != 4 or x.shape[1] != len(values):
            shape = tuple(x.shape)
            raise ValueError(
                f"{type(module).__name__}: {name} is given for {len(values)} heads, but scores are of shape {shape}, "
                "not (batch, heads, queries, keys) with as many heads"
            )
    return by_head


class LearnedSetting(nn.Module):
    """A setting that is learned, for each head. A module, for PEFT trains and saves modules by name.

    Attributes:
        value: (heads,) real numbers before they are brought into the setting's range; (heads, head_dim) for coverage.
    """

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(value)

    def forward(self, scores: Tensor) -> Tensor:
        """The numbers, whatever the scores they are for."""
        return self.value


def learned_name(setting: str) -> str:
    """The name of the module that learns a setting, on the attention module."""
    return f"sparse_{setting}"


def add_learned(module: nn.Module, site: AttentionSite) -> None:
    """Give ``module`` a ``LearnedSetting`` for every setting of its site that is learned."""
    if site.choice is None:
        return
    weight = next(module.parameters())
    for name in site.choice.learned_names:
        if not hasattr(module, learned_name(name)):
            module.register_module(learned_name(name), LearnedSetting(_start(site.choice, name, weight)))


def _start(choice: MapConfig, name: str, weight: Tensor) -> Tensor:
    """Where a learned setting starts; coverage at zero, where it changes nothing and has a gradient."""
    value = dict(choice.settings)[name]
    if isinstance(value, CoverageVectors):
        return weight.new_zeros(value.heads, value.head_dim)
    initial = torch.tensor(value.initial, dtype=weight.dtype, device=weight.device)
    return cast(Any, choice.setting(name).to_real)(initial)


def remove_learned(module: nn.Module, site: AttentionSite) -> None:
    """Undo ``add_learned``."""
    for name in site.choice.learned_names if site.choice else ():
        delattr(module, learned_name(name))


def attention_sites(model: nn.Module) -> list[tuple[nn.Module, AttentionSite]]:
    """All modules of ``model`` that carry a site, in the model's order."""
    return [(module, module.__dict__[SITE]) for module in model.modules() if SITE in module.__dict__]


@contextmanager
def observe(model: nn.Module) -> Iterator[dict[str, SupportCount]]:
    """Count, by path, the supports of every attention call made inside the block.

    Yields:
        A dictionary from the path of each site to its ``SupportCount``.
    """
    sites = [site for _, site in attention_sites(model)]
    counts = {site.path: SupportCount() for site in sites}
    for site in sites:
        site.counts = counts[site.path]
    try:
        yield counts
    finally:
        for site in sites:
            site.counts = None


@contextmanager
def trial(
    model: nn.Module,
    choices: Mapping[str, MapConfig | None],
    watch: Callable[[AttentionSite, nn.Module, Tensor], None] | None = None,
) -> Iterator[None]:
    """Run the block with other maps at the sites of a sparse model, and perhaps look at their scores.

    Args:
        model: a sparse model; its sites are as they were afterwards.
        choices: the map of each site by its path, None for softmax; sites left out keep theirs.
        watch: called with each site, its module and the scores (..., keys) of every call, before they are weighed.
    """
    sites = [site for _, site in attention_sites(model)]
    own = [site.choice for site in sites]
    for site in sites:
        site.choice = choices.get(site.path, site.choice)
        site.watch = None if watch is None else partial(watch, site)
    try:
        yield
    finally:
        for site, choice in zip(sites, own):
            site.choice, site.watch = choice, None


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
            sites.append(AttentionSite(path, kind, config.attention(kind, layer), layer, inline, heeded))
    return sites
