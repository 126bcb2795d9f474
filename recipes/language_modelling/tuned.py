"""Softmax and sparse heads of the language model over several seeds: table and learning curves of docs/training.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev

from matplotlib.figure import Figure

from ..lib.blocks import block, read
from ..lib.environment import origin
from ..lib.records import Record

RESULT = "recipes/language_modelling/results/wikitext2_tuned.json"
# 97.5 % points of Student's t with n - 1 degrees of freedom, by n: half of a 95 % interval in standard errors.
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}
COLOURS = {"softmax": "black", "entmax13": "tab:green", "entmax15": "tab:blue", "sparsemax": "tab:red"}


def by_head(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each run, one per seed."""
    heads: dict[str, list[Record]] = {}
    for record in records:
        heads.setdefault(record["run"], []).append(record)
    return heads


def with_interval(values: Sequence[float], form: str) -> str:
    """The mean with its 95 % interval; a single value alone.

    >>> with_interval([0.18, 0.19, 0.17], ".1%")
    '18.0% ± 2.5%'
    """
    mean = format(fmean(values), form)
    if len(values) not in STUDENT:
        return mean
    return f"{mean} ± {format(STUDENT[len(values)] * stdev(values) / len(values) ** 0.5, form)}"


@block
def training_from_scratch() -> str:
    """Held-out figures of every head, mean of its seeds, and of the development rows it was chosen by."""
    columns: dict[str, tuple[Callable[[Record], float], str]] = {
        "accuracy": (lambda run: run["figures"]["decodings"]["sampling"]["accuracy"], ".1%"),
        "eps-perplexity": (lambda run: run["figures"]["decodings"]["sampling"]["eps_perplexity"], ".1f"),
        "sparsemax score": (lambda run: run["figures"]["decodings"]["sampling"]["sparsemax_score"], ".4f"),
        "targets missed": (lambda run: run["figures"]["decodings"]["sampling"]["missed"], ".1%"),
        "tokens possible": (lambda run: run["figures"]["decodings"]["sampling"]["support"], ".0f"),
        "accuracy, dev": (lambda run: run["figures"]["dev"]["accuracy"], ".1%"),
        "eps-perplexity, dev": (lambda run: run["figures"]["dev"]["eps_perplexity"], ".1f"),
    }
    lines = [f"| head | temperature | seeds | {' | '.join(columns)} |", "|---" * (3 + len(columns)) + "|"]
    for head, runs in by_head(read(RESULT)["runs"]).items():
        maps = runs[0]["figures"]["maps"]
        temperature = f"{maps['head'].get('temperature', 1.0):.3g}" if maps else "1"
        cells = [with_interval([value(run) for run in runs], form) for value, form in columns.values()]
        lines.append(f"| {head} | {temperature} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


@block
def training_origin() -> str:
    """Data, training and origin of these figures."""
    runs = read(RESULT)["runs"]
    settings, figures = runs[0]["settings"], runs[0]["figures"]
    return (
        f"{figures['data']}, {figures['train_rows']:,} rows of {settings['context']} tokens to train on, "
        f"{settings['test_rows']} held out to report and {settings['dev_rows']} more to choose by; "
        f"{figures['vocabulary']:,} tokens, {figures['parameters']:,} parameters; {settings['steps']} steps of "
        f"{settings['batch_size']} rows, learning rate {settings['lr']:g}; ± is the 95% interval of the mean. "
        f"{origin(runs)}"
    )


def draw_curves(records: Sequence[Record], path: Path) -> None:
    """Draw accuracy and eps-perplexity on development rows over the steps, a line per seed."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for head, runs in by_head(records).items():
        for number, run in enumerate(runs):
            curve = run["figures"]["curve"]
            steps = [point["step"] for point in curve]
            label = head if number == 0 else None
            for axes, key, factor in ((left, "dev_accuracy", 100), (right, "dev_eps_perplexity", 1)):
                values = [factor * point[key] for point in curve]
                axes.plot(steps, values, color=COLOURS.get(head, "tab:orange"), linewidth=1, label=label)
    left.set(xlabel="step", ylabel="accuracy on development rows, percent")
    right.set(xlabel="step", ylabel="eps-perplexity on development rows", yscale="log")
    if right.lines:
        right.legend(fontsize="small")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw_curves(read(RESULT)["runs"], Path("docs/pictures/training_curves.png"))
