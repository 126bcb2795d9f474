"""Claims on inflection: figures of the grid of maps at the output and in attention."""

from __future__ import annotations

from statistics import fmean

from recipes.inflection_grid.report import name_of, start_name

from ._outcome import NotRun, Outcome, runs

GRIDS = {name: f"recipes/inflection_grid/results/{name}.json" for name in ("eight_languages", "eight_languages_high")}
OUTPUTS = {"softmax": "1", "entmax15": "1.5", "sparsemax": "2"}  # alpha by map


def grid_means(key: str, grid: str) -> dict[tuple[str, str], float]:
    """A figure by (output map, attention map), averaged over seeds; ensembles are left out.

    A head that starts elsewhere counts by itself.
    """
    cells: dict[tuple[str, str], list[float]] = {}
    for record in runs(GRIDS[grid]):
        settings = record["settings"]
        if not settings["members"]:
            cell = name_of(settings["head"]) + start_name(settings), name_of(settings["attention"])
            cells.setdefault(cell, []).append(record["figures"][key])
    return {cell: fmean(values) for cell, values in cells.items()}


def accuracies(grid: str) -> dict[str, list[float]]:
    """Accuracy by output map, one value per attention map.

    Raises:
        NotRun: an output map has no run.
    """
    cells = grid_means("accuracy", grid)
    found = {output: [value for (head, _), value in cells.items() if head == output] for output in OUTPUTS}
    for output, values in found.items():
        if not values:
            raise NotRun(f"output-{OUTPUTS[output]}-*")
    return found


def sparse_output_is_more_accurate(grid: str) -> Outcome:
    """Compare mean accuracy at output alpha 1, 1.5 and 2."""
    found = accuracies(grid)
    means = {output: fmean(values) for output, values in found.items()}
    parts = []
    for output, alpha in OUTPUTS.items():
        cells = len(found[output])
        parts.append(f"{alpha}: {means[output]:.1%}" + (f" (mean of {cells})" if cells > 1 else ""))
    return Outcome(", ".join(parts), min(means["entmax15"], means["sparsemax"]) > means["softmax"])


def attention_matters_less(grid: str) -> Outcome:
    """Compare the spread of accuracy over attention maps with that over output maps."""
    found = accuracies(grid)
    spreads = [max(values) - min(values) for values in found.values() if len(values) > 1]
    if not spreads:
        raise NotRun("output-*-attention-*")
    means = [fmean(values) for values in found.values()]
    within, between = fmean(spreads), max(means) - min(means)
    return Outcome(f"attention: {100 * within:.1f} points, output: {100 * between:.1f}", within < between)


def ensembles_help() -> Outcome:
    """Compare the accuracy of each ensemble with the mean of its members."""
    records, pairs = runs(GRIDS["eight_languages"]), {}
    for record in records:
        if members := record["settings"]["members"]:
            single = fmean(other["figures"]["accuracy"] for other in records if other["run"] == members)
            pairs[members] = (single, record["figures"]["accuracy"])
    if not pairs:
        raise NotRun("ensemble-*")
    text = "; ".join(f"{name}: {single:.1%} to {together:.1%}" for name, (single, together) in pairs.items())
    return Outcome(text, all(together > single for single, together in pairs.values()))


def most_words(share: str) -> Outcome:
    """Compare the largest share in the grid of a thousand words a language with one half."""
    return _largest(share, "eight_languages", above=0.5)


def more_words_than_at_medium(share: str) -> Outcome:
    """Compare the largest share with ten thousand words a language with the largest with a thousand."""
    return _largest(share, "eight_languages_high", above=max(grid_means(share, "eight_languages").values()))


def _largest(share: str, grid: str, above: float) -> Outcome:
    (head, attention), value = max(grid_means(share, grid).items(), key=lambda item: item[1])
    return Outcome(f"{value:.0%} ({head} at the output, {attention} in attention)", value > above)
