"""The settings at which sparse attention comes closest to softmax: a temperature for each head, and an alpha."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import MapConfig
from ..config.settings import Fixed
from ._rules import MapsByPath
from ._scores import HeadMeans, SiteScores
from ._temperature import best_temperatures

# Alphas that a head may get besides the one it was asked to have.
ALPHAS = (1.2, 1.33, 1.5, 1.67, 2.0)
# Divisors of the best temperature, for a goal that no alpha reaches there: the colder, the fewer keys.
_COLDER = (1.0, 1.41, 2.0, 2.83, 4.0, 8.0, 16.0, 64.0)


@dataclass(frozen=True)
class Levels:
    """What the heads of one site may get, from most keys to fewest; every level is one alpha and its temperatures.

    Attributes:
        map_config: the map that was asked for.
        asked: the same at the temperatures that suit it best.
        alphas: of each level; None where the map has none to choose.
        temperatures: (levels, heads).
        errors: ``||q - p||^2 / ||p||^2`` of each (levels, heads); infinite where the map overflows.
        supports: keys with weight (levels, heads).
        visible: keys with weight under softmax (heads,).
        per_head: whether heads may differ.
    """

    map_config: MapConfig
    asked: MapConfig
    alphas: tuple[float | None, ...]
    temperatures: Tensor
    errors: Tensor
    supports: Tensor
    visible: Tensor
    per_head: bool

    def chosen(self, level: Tensor) -> MapConfig:
        """The map at one level for each head (heads,)."""
        temperatures = self.temperatures.gather(0, level[None])[0].tolist()
        alphas = [self.alphas[each] for each in level.tolist()]
        one = not self.per_head or len(temperatures) == 1
        map_config = at_temperatures(self.map_config, temperatures, self.per_head)
        if None in alphas or set(alphas) == {alpha_of(self.map_config)}:
            return map_config
        entmax = MapConfig.parse({"name": "entmax"}, "attn")
        alpha = alphas[0] if one or len(set(alphas)) == 1 else tuple(alphas)
        return entmax.with_settings(alpha=alpha, temperature=map_config.value("temperature"))


def at_temperatures(map_config: MapConfig, temperatures: list[float], per_head: bool) -> MapConfig:
    """A map with a temperature for each head; with one for all where heads may not differ, or there is only one."""
    one = not per_head or len(temperatures) == 1
    return map_config.with_settings(temperature=temperatures[0] if one else tuple(temperatures))


def alpha_of(map_config: MapConfig) -> float | None:
    """The alpha of a map of the entmax family, where it is one number that may be changed for another."""
    spelled_out = map_config.spelled_out
    value = dict(spelled_out.settings).get("alpha")
    adjustable = map_config.is_entmax and not map_config.scaled_by_length
    return value.value if adjustable and isinstance(value, Fixed) and isinstance(value.value, float) else None


def fit_temperatures(
    scores: SiteScores, map_config: MapConfig, per_head: bool, middle: Tensor | None = None
) -> tuple[Tensor, HeadMeans]:
    """The temperatures (heads,) at which a map is closest to softmax, ``E||q - p||^2``, and what it does there.

    At that temperature the map gives its likeliest keys neither more nor less than softmax does; a colder one keeps
    fewer keys, but shifts weight to the likeliest in every query alike, and such errors add up through a model.

    Args:
        scores: of one site.
        map_config: its map; the temperature is replaced.
        per_head: a temperature for each head instead of one for all.
        middle: (heads,), where to search nearby; everywhere by default.
    """

    def errors(temperatures: Tensor) -> Tensor:
        error = scores.means(map_config, temperatures).error
        return error if per_head else error.mean().expand_as(error)

    if middle is None:
        found = best_temperatures(errors, torch.full((scores.heads,), 8.0, dtype=torch.float32, device="cpu"))
    else:
        found = best_temperatures(errors, middle, reach=4.0, points=7, rounds=2)
    return found, scores.means(map_config, found)


def levels_of(
    scores: SiteScores, map_config: MapConfig, per_head: bool, alphas: Sequence[float] = (), colder: bool = False
) -> Levels:
    """The levels that a site's heads may get: the map that was asked for, and those of the family at other alphas.

    Args:
        scores: of the site.
        map_config: the map that was asked for.
        per_head: whether heads may differ.
        alphas: others to try, where the map's own alpha may be changed.
        colder: also below the temperatures that suit the maps best.
    """
    own = alpha_of(map_config)
    at_best = fit_temperatures(scores, map_config, per_head)
    tried: list[tuple[float | None, Tensor, HeadMeans]] = [(own, *at_best)]
    for alpha in sorted(set(alphas) - {own}) if own is not None else ():
        entmax = MapConfig.parse({"name": "entmax", "alpha": alpha}, "attn")
        # Temperatures at which two alphas come close to softmax are about as their distances from 1.
        near = at_best[0] * ((alpha - 1) / (own - 1)) ** 0.5 if own and own > 1 else None
        tried.append((alpha, *fit_temperatures(scores, entmax, per_head, near)))
    if colder:
        tried += [
            (alpha, temperatures / divisor, scores.means(_entmax(alpha, map_config), temperatures / divisor))
            for alpha, temperatures, _ in list(tried)
            for divisor in _COLDER[1:]
        ]
    tried.sort(key=lambda each: -float(each[2].support.mean()))
    found, temperatures, means = zip(*tried)
    errors = torch.stack([each.error / each.length for each in means])
    return Levels(
        map_config,
        at_temperatures(map_config, at_best[0].tolist(), per_head),
        found,
        torch.stack(temperatures),
        errors.masked_fill(errors.isnan(), torch.inf),
        torch.stack([each.support for each in means]),
        means[0].dense_support,
        per_head,
    )


def _entmax(alpha: float | None, otherwise: MapConfig) -> MapConfig:
    return otherwise if alpha is None else MapConfig.parse({"name": "entmax", "alpha": alpha}, "attn")


def cheapest(levels: Mapping[str, Levels], edges: float) -> dict[str, MapConfig]:
    """The maps with the smallest sum of relative errors that keep at most a share of the edges, by path.

    Errors are relative, ``||q - p||^2 / ||p||^2``, because a head whose weights are spread over many keys has a small
    ``||p||^2`` and matters as much as others. Measured on a language model at 12 % of its edges, the loss rose by
    1.8 % with relative errors, 3.3 % without.

    For a price of an edge every head takes the level that costs least; the lowest price that meets the goal is found
    by bisection.

    Args:
        levels: of each site by its path.
        edges: largest share of visible keys that keep their weight, over all heads.

    Raises:
        ValueError: no choice keeps as few.
    """

    def choice(price: float) -> list[Tensor]:
        return [_cheapest_level(each, price) for each in levels.values()]

    def share(chosen: list[Tensor]) -> float:
        kept = sum(float(each.supports.gather(0, level[None]).sum()) for each, level in zip(levels.values(), chosen))
        return kept / sum(float(each.visible.sum()) for each in levels.values())

    low, high = -60.0, 60.0  # log of the price
    fewest = share(choice(math.exp(high)))
    if fewest > edges:
        raise ValueError(
            f"edges={edges:g} is out of reach: the sparsest of these maps keep {fewest:.2g} of the edges; ask for more"
        )
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if share(choice(math.exp(middle))) <= edges else (middle, high)
    return {path: each.chosen(level) for (path, each), level in zip(levels.items(), choice(math.exp(high)))}


def _cheapest_level(levels: Levels, price: float) -> Tensor:
    """The level of each head (heads,) at a price for an edge; the same for all heads where they may not differ."""
    costs = levels.errors + price * levels.supports
    return costs.argmin(0) if levels.per_head else costs.sum(1).argmin().expand(costs.shape[1])


def share_of_edges(scores: Mapping[str, SiteScores], maps: MapsByPath) -> float:
    """The share of visible keys that keep their weight under some maps; all do at sites without one."""
    kept = visible = 0.0
    for path, each in scores.items():
        map_config = maps.get(path)
        means = each.means(MapConfig("softmax") if map_config is None else map_config)
        kept, visible = kept + float(means.support.sum()), visible + float(means.dense_support.sum())
    return kept / visible
