"""An attention site: one module whose softmax is replaced, and what replaces it there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..config import MapConfig
from ..functional import softmax
from ..settings import CoverageVectors

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
        map_config: the map there; None keeps softmax.
        coverage: the vectors by which keys that received attention before change their scores, or None.
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
    map_config: MapConfig | None
    layer: int = 0
    inline: bool = False
    coverage: CoverageVectors | None = None
    heeded: frozenset[str] = field(default=frozenset(), repr=False)
    counts: SupportCount | None = field(default=None, repr=False)
    hook: RemovableHandle | None = field(default=None, repr=False)
    watch: Callable[[nn.Module, Tensor], None] | None = field(default=None, repr=False)
    impl: str = "auto"

    @property
    def is_constrained(self) -> bool:
        """Whether the keys there have a credit that attention spends."""
        return self.map_config is not None and self.map_config.is_constrained

    @property
    def has_coverage(self) -> bool:
        """Whether what the keys there have received goes into their scores."""
        return self.map_config is not None and self.coverage is not None

    @property
    def is_sequential(self) -> bool:
        """Whether the weights of a query depend on what the queries before it gave their keys."""
        return self.is_constrained or self.has_coverage

    @property
    def learned_names(self) -> list[str]:
        """Settings that the module learns, a number or a vector per head."""
        learned = [] if self.map_config is None else list(self.map_config.learned)
        return [*learned, *(["coverage"] if self.has_coverage else [])]


def weigh(module: nn.Module, scores: Tensor) -> Tensor:
    """The weights of ``scores`` (..., keys) under the map of the site that ``module`` carries.

    Raises:
        ValueError: see ``weights_under``.
    """
    site: AttentionSite = module.__dict__[SITE]
    if site.watch is not None:
        site.watch(module, scores)
    return weights_under(site.map_config, module, scores)


def weights_under(map_config: MapConfig | None, module: nn.Module, scores: Tensor) -> Tensor:
    """The weights of ``scores`` (..., keys) under a map, or under softmax for None, in ``module``.

    Settings that differ by head need scores (batch, heads, queries, keys).

    Raises:
        ValueError: settings for another number of heads, or scores whose heads cannot be told.
    """
    if map_config is None:
        return softmax(scores)
    by_head: Any = {
        name: values.view(-1, 1, 1) for name, values in settings_by_head(map_config, module, scores).items()
    }
    return map_config(scores, **by_head)


def settings_by_head(map_config: MapConfig, module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Those settings of a map in ``module`` that differ by head, as tensors (heads,) on the device of ``x``.

    Args:
        map_config: the map.
        module: it holds the parameters of settings that are learned.
        x: scores or queries (batch, heads, queries, ...).

    Raises:
        ValueError: settings for another number of heads, or a tensor whose heads cannot be told.
    """
    by_head: dict[str, Tensor] = {}
    for name, value in map_config.settings:
        values = value.per_head(map_config.setting(name), getattr(module, learned_name(name), None), x)
        if values is not None:
            by_head[name] = values
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
    weight = next(module.parameters(), torch.empty(0))
    for name in site.learned_names:
        if not hasattr(module, learned_name(name)):
            module.register_module(learned_name(name), LearnedSetting(_start(site, name, weight)))


def _start(site: AttentionSite, name: str, weight: Tensor) -> Tensor:
    """Where a learned setting starts; coverage at zero, where it changes nothing and has a gradient."""
    if name == "coverage":
        coverage = cast(CoverageVectors, site.coverage)
        return weight.new_zeros(coverage.heads, coverage.head_dim)
    map_config = cast(MapConfig, site.map_config)
    initial = torch.tensor(map_config.learned[name].initial, dtype=weight.dtype, device=weight.device)
    return cast(Any, map_config.setting(name).to_real)(initial)


def remove_learned(module: nn.Module, site: AttentionSite) -> None:
    """Undo ``add_learned``."""
    for name in site.learned_names:
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
    own = [site.map_config for site in sites]
    for site in sites:
        site.map_config = choices.get(site.path, site.map_config)
        site.watch = None if watch is None else partial(watch, site)
    try:
        yield
    finally:
        for site, map_config in zip(sites, own):
            site.map_config, site.watch = map_config, None
