"""Scores of dense attention, recorded in one pass over the data, and what a map makes of them head by head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..attention import attention_sites
from ..attention.site import AttentionSite, trial, weights_under
from ..config import MapConfig
from ..functional import softmax
from ..functional.rows import upcast
from ..metrics import support_size
from ._batches import Answer, Batch, answer
from ._padding import counted, frame_mask
from ._rules import MapsByPath

# Queries of each head that are kept, and numbers in all: 256 MiB in float32.
_QUERIES = 96
_NUMBERS = 2**26


@dataclass
class SiteScores:
    """A sample of one site's queries: their scores under dense attention.

    Attributes:
        site: the site.
        module: its module, which holds what it learns.
        parts: scores (1, heads, queries, keys) of each call, -inf where masked; one head where a module does not show
            its heads.
    """

    site: AttentionSite
    module: nn.Module
    parts: list[Tensor] = field(default_factory=list)

    @property
    def heads(self) -> int:
        """The number of heads."""
        return self.parts[0].shape[1]

    def means(self, map_config: MapConfig, temperatures: Tensor | None = None) -> HeadMeans:
        """The weights of a map, beside softmax, head by head.

        Args:
            map_config: the map.
            temperatures: (heads,) in place of its own.
        """
        if temperatures is not None:
            map_config = map_config.with_settings(temperature=tuple(temperatures.tolist()))
        sums = torch.zeros(5, self.heads, dtype=torch.float64, device="cpu")
        queries = 0
        for z in self.parts:
            p = softmax(z)
            q = weights_under(map_config, self.module, z)
            each = (
                squared_distance(q, p),
                p.square().sum(-1),
                support_divergence(q, p),
                support_size(q),
                support_size(p),
            )
            sums += torch.stack([value.double().sum((0, 2)) for value in each]).cpu()
            queries += z.shape[2]
        return HeadMeans(*(sums / queries))


@dataclass(frozen=True)
class HeadMeans:
    """Means over the queries of each head (heads,): weights q beside softmax p.

    Attributes:
        error: ``||q - p||^2``.
        length: ``||p||^2``.
        divergence: ``KL(q || p)`` over the support, in nats.
        support: keys with nonzero weight.
        dense_support: keys with nonzero weight under softmax, which is how many are visible.
    """

    error: Tensor
    length: Tensor
    divergence: Tensor
    support: Tensor
    dense_support: Tensor


def record(
    model: PreTrainedModel,
    batches: Iterable[Batch],
    num_batches: int,
    paths: Iterable[str],
    dense: MapsByPath,
    each: Callable[[Batch, Answer], object],
) -> dict[str, SiteScores]:
    """Run the dense model over the data once, and keep the scores of a sample of queries.

    Padding has no queries in the sample, see ``counted``, and neither have rows whose keys are all masked.

    Args:
        model: a sparse model, in evaluation mode.
        batches: keyword arguments for forward calls.
        num_batches: how many there will be at most.
        paths: of the sites to record.
        dense: the maps of attention in that pass.
        each: called with every batch and the dense model's answer.
    """
    wanted = set(paths)
    sites = len(wanted)
    found: dict[str, SiteScores] = {}
    for number, batch in enumerate(batches):

        def watch(site: AttentionSite, module: nn.Module, scores: Tensor, batch=batch, number=number) -> None:
            if site.path not in wanted:
                return
            z = _by_head(scores)
            kept = _sample(model, site, batch, z, _room(z, sites * num_batches, num_batches), number)
            if kept.shape[2]:
                found.setdefault(site.path, SiteScores(site, module)).parts.append(kept)

        with trial(model, dense, watch if wanted else None):
            each(batch, answer(model, batch))
    for recorded in found.values():
        if len({part.shape[1] for part in recorded.parts}) > 1:  # some of its calls do not show their heads
            recorded.parts = [part.reshape(1, 1, -1, part.shape[-1]) for part in recorded.parts]
    order = [site.path for _, site in attention_sites(model)]
    return {path: found[path] for path in order if path in found}


def _by_head(scores: Tensor) -> Tensor:
    """Scores (batch, heads, queries, keys); a module that does not show its heads counts as one."""
    z = upcast(scores)
    return z if z.dim() == 4 else z.reshape(1, 1, -1, z.shape[-1])


def _room(z: Tensor, calls: int, num_batches: int) -> int:
    """Queries of each head to keep of one call."""
    return max(1, min(-(-_QUERIES // num_batches), _NUMBERS // (calls * z.shape[1] * z.shape[3])))


def _sample(
    model: PreTrainedModel, site: AttentionSite, batch: Mapping[str, object], z: Tensor, room: int, seed: int
) -> Tensor:
    """As many queries that count as there is room for, drawn at random: (1, heads, queries, keys)."""
    counts = (z > -torch.inf).any(-1).any(1)
    mask = counted(batch, site.kind, model.config.is_encoder_decoder, tuple(counts.shape), frame_mask(model))
    if mask is not None:
        counts = counts & mask.to(counts.device)
    row, query = counts.nonzero(as_tuple=True)
    if len(row) > room:
        # Not at equal distances, which would meet the same positions of every row where they divide its length.
        drawn = torch.randperm(len(row), generator=torch.Generator().manual_seed(seed), device="cpu")[:room]
        row, query = row[drawn.to(row.device)], query[drawn.to(row.device)]
    return z[row, :, query].transpose(0, 1)[None]


def support_divergence(q: Tensor, p: Tensor) -> Tensor:
    """``KL(q || p) = sum_{q_i > 0} q_i log(q_i / p_i)``, in nats: finite however many zeros q has.

    Args:
        q: sparse weights (..., V).
        p: dense weights (..., V), above zero where q is.

    Returns:
        Divergences (...), float32 (float64 for float64 weights); 0 where q is all zeros.

    >>> support_divergence(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]))  # log 2
    tensor(0.6931)
    """
    smallest = torch.finfo(p.dtype).tiny
    return (torch.xlogy(q, q) - torch.xlogy(q, p.clamp(min=smallest))).sum(-1)


def squared_distance(q: Tensor, p: Tensor) -> Tensor:
    """``||q - p||^2`` over the last axis: the error that weights q in place of p make in what they average.

    Both sum to one, so the mean of the values drops out: for values with independent entries of variance s^2 the
    expected squared error of ``sum_i (q_i - p_i) v_i`` is ``s^2 ||q - p||^2`` an entry.
    """
    return (q - p).square().sum(-1)
