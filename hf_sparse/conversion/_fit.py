"""The settings at which sparse maps come closest to softmax on the user's data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..attention.site import AttentionSite, trial, weights_under
from ..config import MapConfig
from ..functional import entmax_threshold, softmax
from ..functional.rows import upcast
from ._batches import Batch, scored
from ._measure import squared_distance
from ._rules import MapsByPath, all_softmax
from ._temperature import ROUNDS, TemperatureSearch

# Logits of the head that are kept to fit it: 128 MiB in float32, and as much for the dense distribution.
_KEPT_LOGITS = 2**25


def fit_attention(
    model: PreTrainedModel,
    batches: list[Batch],
    choices: MapsByPath,
    per_head: bool,
    advance: Callable[[], object],
) -> dict[str, MapConfig | None]:
    """The same maps of attention, each at the temperature where it is closest to softmax.

    Scores are those of the dense model. Closest is the smallest mean of ``||q - p||^2`` over all queries; fully
    masked ones add nothing, those of padding count as others do.

    Args:
        model: a sparse model, in evaluation mode.
        batches: keyword arguments for forward calls.
        choices: the map of each site by its path; None and softmax stay as they are.
        per_head: a temperature for each head instead of one for each layer.
        advance: called after every forward call.

    Cost: three forward passes over the data, with thirteen evaluations of the map in each.
    """
    searches: dict[str, TemperatureSearch] = {}

    def watch(site: AttentionSite, module: nn.Module, scores: Tensor) -> None:
        map_config = choices.get(site.path)
        if map_config is None or map_config.name == "softmax":
            return
        heads = scores.shape[1] if per_head and scores.dim() == 4 else 1
        search = searches.setdefault(site.path, TemperatureSearch(heads))
        z = upcast(scores)
        p = softmax(z)
        for point, temperature in enumerate(search.candidates.tolist()):
            q = weights_under(_at(map_config, temperature), module, z)
            errors = squared_distance(q, p)
            search.add(point, errors.sum((0, 2)) if heads > 1 else errors.sum()[None])

    for _ in range(ROUNDS):
        with trial(model, all_softmax(model), watch):
            for batch in batches:
                scored(model, batch)
                advance()
        for search in searches.values():
            search.zoom()
    return {**choices} | {path: _at(choices[path], search.best) for path, search in searches.items()}


def _at(map_config: Any, temperatures: list[float]) -> MapConfig:
    return map_config.with_settings(temperature=tuple(temperatures) if len(temperatures) > 1 else temperatures[0])


def head_data(
    model: PreTrainedModel, batches: list[Batch], choices: MapsByPath, advance: Callable[[], object]
) -> tuple[Tensor, Tensor]:
    """Logits under sparse attention and the dense distributions they should give: (N, V) each.

    As many positions of every batch as there is room for, evenly spaced.

    Args:
        model: a sparse model, in evaluation mode.
        batches: keyword arguments for forward calls.
        choices: the maps of attention by path.
        advance: called after every forward call.
    """
    kept: list[tuple[Tensor, Tensor]] = []
    for batch in batches:
        with trial(model, all_softmax(model)):
            dense, _ = scored(model, batch)
            advance()
        with trial(model, choices):
            logits, _ = scored(model, batch)
            advance()
        room = max(1, _KEPT_LOGITS // (len(batches) * logits.shape[-1]))
        spaced = torch.linspace(0, len(logits) - 1, min(room, len(logits)), device=logits.device).long()
        kept.append((logits[spaced], dense[spaced].softmax(-1)))
    logits, p = (torch.cat(parts) for parts in zip(*kept))
    return logits, p


def fit_head(map_config: MapConfig, logits: Tensor, p: Tensor) -> MapConfig:
    """A head's map at the temperature where its own loss against the dense distributions p is smallest.

    For a map q and its loss L, ``L(z / T, p)`` is convex in ``1 / T`` and zero only for ``q = p``; at its minimum
    q and p agree on the mean score, ``E_q[z] = E_p[z]``. A threshold that is held fixed is, at every temperature, the
    mean of those entmax would find. A map that is not blind to a constant in its scores is fitted centered and not,
    and the better of the two is taken.

    Args:
        map_config: the head's map.
        logits: raw scores (N, V).
        p: dense distributions (N, V).

    Source: Blondel et al. 2020, Proposition 2 (properties of Fenchel-Young losses).
    """
    if map_config.name == "softmax":
        return map_config
    ways = (
        [map_config]
        if map_config.map.shift_invariant
        else [map_config.with_settings(centered=way) for way in (True, False)]
    )
    fitted = [_at_best_temperature(way, logits, p) for way in ways]
    return min(fitted, key=lambda each: float(each.loss()(logits, p)))


def _at_best_temperature(map_config: MapConfig, logits: Tensor, p: Tensor) -> MapConfig:
    search = TemperatureSearch()
    for _ in range(ROUNDS):
        for point, temperature in enumerate(search.candidates.tolist()):
            candidate = _with_mean_threshold(_at(map_config, temperature), logits)
            search.add(point, candidate.loss()(logits, p)[None])
        search.zoom()
    return _with_mean_threshold(_at(map_config, search.best), logits)


def _with_mean_threshold(map_config: MapConfig, logits: Tensor) -> MapConfig:
    if "tau" not in map_config.map_settings:
        return map_config
    return map_config.with_settings(tau=float(thresholds(map_config, logits).mean()))


def thresholds(map_config: MapConfig, logits: Tensor) -> Tensor:
    """The thresholds (...) entmax finds for the scores that an alpha-ReLU head makes of its logits (..., V)."""
    return entmax_threshold(map_config.scores(logits), map_config.map_settings["alpha"]).squeeze(-1)
