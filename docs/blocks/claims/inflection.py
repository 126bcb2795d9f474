"""Claims on inflection: figures of the grid of maps at the output and in attention."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product
from statistics import fmean

from recipes.inflection_grid.report import RESULTS, name_of, start_name
from recipes.lib.seeds import Mean

from ._outcome import NotRun, Outcome, runs

ALPHAS = {"softmax": "1", "entmax15": "1.5", "sparsemax": "2"}  # by map
LONGER = ALPHAS | {"sparsemax from alpha 1.5": "2 from 1.5"}

Grid = dict[tuple[str, str], dict[int, float]]


def grid_of(key: str, grid: str) -> Grid:
    """A figure by (output map, attention map), then seed; ensembles are left out.

    A head that starts elsewhere counts by itself.
    """
    cells: Grid = {}
    for record in runs(RESULTS.format(grid)):
        settings = record["settings"]
        if not settings["members"]:
            cell = name_of(settings["head"]) + start_name(settings), name_of(settings["attention"])
            cells.setdefault(cell, {})[settings["seed"]] = record["figures"][key]
    return cells


def accuracies(grid: str) -> list[dict[str, list[float]]]:
    """Accuracy by output map, one value per attention map, for each seed with which every cell was trained.

    Raises:
        NotRun: a cell has no run, or no seed is common to all.
    """
    cells = grid_of("accuracy", grid)
    for output, attention in product(ALPHAS, ALPHAS):
        if (output, attention) not in cells:
            raise NotRun(f"output-{ALPHAS[output]}-attention-{ALPHAS[attention]}")
    seeds = set.intersection(*(set(cells[cell]) for cell in product(ALPHAS, ALPHAS)))
    if not seeds:
        raise NotRun("output-*-attention-*")
    return [
        {output: [cells[output, attention][seed] for attention in ALPHAS] for output in ALPHAS}
        for seed in sorted(seeds)
    ]


def sparse_output_is_more_accurate(grid: str, longer: str = "") -> Outcome:
    """Compare accuracy at output alpha 1, 1.5 and 2, averaged over the maps in attention.

    In ``longer`` training, where a grid has it, every sparse output under softmax attention must be ahead, too.
    """
    found = accuracies(grid)
    means = {output: Mean([fmean(seed[output]) for seed in found]) for output in ALPHAS}
    text = ", ".join(f"{alpha}: {means[output]:.1%}" for output, alpha in ALPHAS.items()) + counted(found)
    holds = min(means["entmax15"], means["sparsemax"]) > means["softmax"]
    if longer:
        later = sparse_output_is_ahead(longer)
        text, holds = f"{text}; {later.figures}", holds and later.holds
    return Outcome(text, holds)


def sparse_output_is_ahead(grid: str) -> Outcome:
    """Compare accuracy by output map under softmax attention: every sparse one must be ahead of softmax."""
    trained = {output: mean for (output, within), mean in _means("accuracy", grid).items() if within == "softmax"}
    steps = runs(RESULTS.format(grid))[0]["settings"]["steps"]
    reached = ", ".join(f"{LONGER[output]}: {mean:.1%}" for output, mean in trained.items())
    sparse = [mean for output, mean in trained.items() if output != "softmax"]
    return Outcome(f"after {steps:,} steps under softmax attention {reached}", min(sparse) > trained["softmax"])


def attention_matters_less(grid: str) -> Outcome:
    """Compare the spread of accuracy over attention maps with that over output maps."""
    found = accuracies(grid)
    within = Mean([100 * fmean(map(spread, seed.values())) for seed in found])
    between = Mean([100 * spread([fmean(values) for values in seed.values()]) for seed in found])
    return Outcome(f"attention: {within:.1f} points, output: {between:.1f}{counted(found)}", within < between)


def spread(values: Collection[float]) -> float:
    """The largest value less the smallest."""
    return max(values) - min(values)


def counted(seeds: Sequence[object]) -> str:
    """How many seeds and attention maps figures are means of, in brackets."""
    return f" (means of {len(ALPHAS)} maps in attention, {len(seeds)} seed{'s' if len(seeds) > 1 else ''})"


def ensembles_help(grid: str) -> Outcome:
    """Compare the accuracy of each ensemble with the mean of its members."""
    records, pairs = runs(RESULTS.format(grid)), {}
    for record in records:
        if members := record["settings"]["members"]:
            single = Mean([other["figures"]["accuracy"] for other in records if other["run"] == members])
            pairs[members] = (single, record["figures"]["accuracy"])
    if not pairs:
        raise NotRun("ensemble-*")
    text = "; ".join(f"{name}: {single:.1%} to {together:.1%}" for name, (single, together) in pairs.items())
    return Outcome(text, all(together > single for single, together in pairs.values()))


def most_words(share: str) -> Outcome:
    """Compare the largest share with a thousand words a language, after the longest training, with one half."""
    return _largest(share, "eight_languages_longer", above=0.5)


def more_words_than_at_medium(share: str) -> Outcome:
    """Compare the largest share with ten thousand words a language with the largest with a thousand.

    Both after the longest training.
    """
    return _largest(share, "eight_languages_high_longer", above=max(_means(share, "eight_languages_longer").values()))


def _largest(share: str, grid: str, above: float) -> Outcome:
    """The largest share of a grid; a cell of one seed does not count beside others of more."""
    num_seeds = {cell: len(seeds) for cell, seeds in grid_of(share, grid).items()}
    enough = min(2, max(num_seeds.values()))
    means = {cell: mean for cell, mean in _means(share, grid).items() if num_seeds[cell] >= enough}
    head, attention = max(means, key=means.__getitem__)
    value = means[head, attention]
    return Outcome(f"{value:.0%} ({head} at the output, {attention} in attention)", value > above)


def _means(key: str, grid: str) -> dict[tuple[str, str], Mean]:
    return {cell: Mean(list(seeds.values())) for cell, seeds in grid_of(key, grid).items()}
