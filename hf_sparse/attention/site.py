"""Attention sites: modules whose softmax is replaced, each with its map."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import initialization

from ..config import MapConfig
from ..config.settings import CoverageVectors
from ..functional import softmax
from ..functional.arguments import check_type
from ..functional.head_weight import is_coded
from ..per_thread import PerThread
from .observer import AttentionObserver
from .support_count import SupportCount

SITE = "_sparse_attention"
# The kind of attention by the name that Transformers has for its weights in an output.
KIND_OF_OUTPUT = {
    "attentions": "decoder",
    "decoder_attentions": "decoder",
    "cross_attentions": "cross",
    "encoder_attentions": "encoder",
}


@dataclass
class AttentionSite:
    """The record that ``sparsify`` puts on an attention module.

    Attributes:
        path: the module's path inside the model.
        kind: ``"encoder"``, ``"decoder"`` or ``"cross"``.
        map_config: its map; None keeps softmax.
        coverage: the vectors by which attention that keys received changes their scores, or None.
        layer: its number among the sites of its kind, from 0.
        inline: whether the module computes its own softmax instead of calling the attention interface.
        named_arguments: arguments of the interface that the model's own eager attention names.
        observers: who sees the calls; see ``observing``.
        hook: the hook that passes the cache on, for sequential attention.
        watches: called with the module and the scores of a call, the innermost alone; see ``trial``.
        impl: what computes the attention; see ``set_impl``.
        impls: what computes it in the place of ``impl``, the innermost alone; see ``computed_by``.
    """

    path: str
    kind: str
    map_config: MapConfig | None
    layer: int = 0
    inline: bool = False
    coverage: CoverageVectors | None = None
    named_arguments: frozenset[str] = field(default=frozenset(), repr=False)
    observers: PerThread[AttentionObserver] = field(default_factory=PerThread, repr=False)
    hook: RemovableHandle | None = field(default=None, repr=False)
    watches: PerThread[Callable[[nn.Module, Tensor], None] | None] = field(default_factory=PerThread, repr=False)
    impl: str = "auto"
    impls: PerThread[str] = field(default_factory=PerThread, repr=False)

    @property
    def is_constrained(self) -> bool:
        """Whether the keys have a credit that attention spends."""
        return self.map_config is not None and self.map_config.is_constrained

    @property
    def has_coverage(self) -> bool:
        """Whether the attention that a key received goes into its score."""
        return self.map_config is not None and self.coverage is not None

    @property
    def learned_names(self) -> list[str]:
        """Settings that the module learns, a number or a vector per head."""
        learned = [] if self.map_config is None else list(self.map_config.learned)
        return [*learned, *(["coverage"] if self.has_coverage else [])]

    @property
    def is_sequential(self) -> bool:
        """Whether the weights of a query depend on what earlier queries gave the keys."""
        return self.is_constrained or self.has_coverage


def weigh(module: nn.Module, scores: Tensor) -> Tensor:
    """The weights of ``scores`` (..., keys) under the map of the site that ``module`` carries.

    Raises:
        ValueError: see ``weights_under``.
    """
    site: AttentionSite = module.__dict__[SITE]
    watch = site.watches.innermost(module)
    if watch is not None:
        watch(module, scores)
    return weights_under(site.map_config, module, scores)


def weights_under(map_config: MapConfig | None, module: nn.Module, scores: Tensor) -> Tensor:
    """The weights of ``scores`` (..., keys) under a map, or under softmax for None, in ``module``.

    Settings that differ by head need scores (batch, heads, queries, keys).

    Raises:
        ValueError: settings for another number of heads, or scores whose heads are unknown.
    """
    if map_config is None:
        return softmax(scores)
    if map_config.counts_keys:
        scores = hidden_far_below(scores)
    by_head = {name: values.view(-1, 1, 1) for name, values in settings_by_head(map_config, module, scores).items()}
    return map_config(scores, -1, **by_head)


# Models that mask by adding a number add -10,000 at least. Further below the largest score than this no key is seen.
_FAR_BELOW = 5000.0


def hidden_far_below(scores: Tensor) -> Tensor:
    """``scores`` with -inf where a model has masked by a large negative number of its own, which softmax forgives."""
    return scores.masked_fill(scores < scores.amax(-1, keepdim=True) - _FAR_BELOW, -torch.inf)


def settings_by_head(map_config: MapConfig, module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The settings of a map in ``module`` that differ by head, as tensors (heads,) on the device of ``x``.

    Args:
        map_config: the map.
        module: it holds the parameters of settings that are learned.
        x: scores or queries (batch, heads, queries, ...).

    Raises:
        ValueError: settings for another number of heads, or a tensor whose heads are unknown.
    """
    by_head: dict[str, Tensor] = {}
    for name, value in map_config.settings:
        values = value.per_head(map_config.setting(name), getattr(module, learned_name(name), None), x)
        if values is not None:
            by_head[name] = values
    for name, values in by_head.items():
        own = _of_this_process(values, module, x)
        if x.dim() != 4 or x.shape[1] != len(own):
            shape = tuple(x.shape)
            raise ValueError(
                f"{type(module).__name__}: {name} is given for {len(values)} heads, but scores are of shape {shape}, "
                f"not (batch, {len(values)} heads, queries, keys): give one number"
                + (f", or a list of {x.shape[1]}" if x.dim() == 4 else "")
            )
        by_head[name] = own
    return by_head


def _of_this_process(values: Tensor, module: nn.Module, x: Tensor) -> Tensor:
    """The values of the heads that ``x`` (batch, heads, ...) has where tensor parallelism has divided them.

    Each process has as many neighbours, by its rank. In the backward pass it is given the gradients of all heads.
    """
    if x.shape[1] == len(values):
        return values
    mesh: Any = next((each.device_mesh for each in module.parameters() if hasattr(each, "device_mesh")), None)
    if mesh is None or mesh.ndim > 1 or x.shape[1] * mesh.size() != len(values):
        return values
    from torch.distributed.tensor import DTensor, Replicate, Shard  # of an optional module

    return DTensor.from_local(values, mesh, [Replicate()]).redistribute(mesh, [Shard(0)]).to_local()


class LearnedSetting(nn.Module):
    """A setting learned per head. It is a module because PEFT trains and saves modules by name.

    Attributes:
        value: (heads,) real numbers, mapped into the setting's range when used; (heads, head_dim) for coverage.
    """

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        with torch.inference_mode(False):  # else it could never be trained, and nothing would say so
            self.value = nn.Parameter(value.clone())

    def forward(self, scores: Tensor) -> Tensor:
        """The parameter itself, whatever the scores."""
        return self.value


def learned_name(setting: str) -> str:
    """Name on the attention module of the module that learns a setting."""
    return f"sparse_{setting}"


def learned_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of learned settings that are trained."""
    modules = (module for module in model.modules() if isinstance(module, LearnedSetting))
    return [module.value for module in modules if module.value.requires_grad]


def add_learned(module: nn.Module, site: AttentionSite) -> None:
    """Register a ``LearnedSetting`` on ``module`` for every learned setting of its site."""
    weight = next(module.parameters(), torch.empty(0, dtype=torch.float32, device=torch.get_default_device()))
    if is_coded(weight):  # of a quantized layer: numbers of ours do not fit its dtype
        weight = torch.empty(0, dtype=torch.float32, device=weight.device)
    for name in site.learned_names:
        if not hasattr(module, learned_name(name)):
            learned = LearnedSetting(_start(site, name, weight)).train(module.training)
            module.register_module(learned_name(name), learned)


def _start(site: AttentionSite, name: str, weight: Tensor) -> Tensor:
    """Initial parameter of a learned setting; coverage starts at zero, where it has a gradient but no effect."""
    if name == "coverage":
        coverage = cast(CoverageVectors, site.coverage)
        return weight.new_zeros(coverage.heads, coverage.head_dim)
    map_config = cast(MapConfig, site.map_config)
    # In float32, in which the start was checked. Half precision rounds a start near the end of its range to that end.
    initial = torch.tensor(map_config.learned[name].initial, dtype=torch.float32, device=weight.device)
    to_real = map_config.setting(name).to_real
    assert to_real is not None  # else the setting could not be learned
    return to_real(initial).to(weight.dtype)


def start_again(module: nn.Module) -> None:
    """Give what a module learns its start, but for parameters that Transformers has loaded."""
    site: AttentionSite | None = module.__dict__.get(SITE)
    if site is None:
        return
    for name in site.learned_names:
        parameter = getattr(module, learned_name(name)).value
        initialization.copy_(parameter, _start(site, name, parameter))


def remove_learned(module: nn.Module, site: AttentionSite) -> None:
    """Undo ``add_learned``."""
    for name in site.learned_names:
        module._modules.pop(learned_name(name), None)


def attention_sites(model: nn.Module) -> list[tuple[nn.Module, AttentionSite]]:
    """All modules of ``model`` that carry a site, with it, in the order of the model.

    Raises:
        TypeError: no module.
    """
    check_type("model", model, nn.Module, "sparsify")
    return [(module, module.__dict__[SITE]) for module in model.modules() if SITE in module.__dict__]


@contextmanager
def observing(observers: Iterable[tuple[AttentionSite, AttentionObserver]]) -> Iterator[None]:
    """Show each site's calls by this thread inside the block to its observer, beside those that look already."""
    with ExitStack() as stack:
        for site, observer in observers:
            stack.enter_context(site.observers.set(observer))
        yield


@contextmanager
def observe(model: nn.Module) -> Iterator[dict[str, SupportCount]]:
    """Count the supports of every attention call by this thread inside the block.

    Yields:
        The ``SupportCount`` of each site by its path.
    """
    sites = [site for _, site in attention_sites(model)]
    counts = {site.path: SupportCount() for site in sites}
    with observing((site, counts[site.path]) for site in sites):
        yield counts


@contextmanager
def trial(
    model: nn.Module,
    maps: Mapping[str, MapConfig | None],
    watch: Callable[[AttentionSite, nn.Module, Tensor], None] | None = None,
) -> Iterator[None]:
    """Run the block with other maps at the sites of a sparse model, and optionally watch their scores.

    Args:
        model: a sparse model; its sites are restored afterwards.
        maps: the map of each site by its path, None for softmax; sites left out keep theirs. Changed for all threads.
        watch: called with each site, its module and the scores (..., keys) of every call by this thread, before the
            map. An inner trial is watched by its own alone.
    """
    sites = [site for _, site in attention_sites(model)]
    own = [site.map_config for site in sites]
    with ExitStack() as stack:
        for site in sites:
            stack.enter_context(site.watches.set(None if watch is None else partial(watch, site)))
        try:
            for site in sites:
                site.map_config = maps.get(site.path, site.map_config)
            yield
        finally:
            for site, before in zip(sites, own):
                site.map_config = before
