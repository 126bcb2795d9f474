"""Length generalisation: attention learned on short sequences, tested on sequences several times as long.

A decoder-only model of two layers learns to copy, to reverse, or to recall values by their keys, and is tested at up
to 64 times the longest training length. Only the map of its attention differs between runs: softmax, scalable
softmax, entmax15, adaptive-scalable entmax.

The first layer sees the token before and the second everything, without positions. One way to all three tasks is to
take up the neighbour in the first and to look for the same symbol in the second: that works at every length, as long
as attention stays on what it looks for.

The maps are those of Vasylenko et al. 2025, "Long-Context Generalization with Sparse Attention", and the factor of
scalable softmax that of Nakanishi 2025. In the paper beta and gamma depend on the query; here each head learns its
own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from datasets import Dataset
from matplotlib.figure import Figure
from sequence_tasks import MARK, PAD, TASKS, collate, rows
from study import Settings, main, setting
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from training import train
from transformers import PreTrainedModel, SmolLM3Config, SmolLM3ForCausalLM, set_seed

import hf_sparse
from hf_sparse.attention import attention_sites, observe

ATTENTION: dict[str, Any] = {
    "softmax": None,
    "scalable softmax": {"name": "softmax", "delta": 0.0, "beta": {"learned": 0.43}},
    "entmax15": "entmax15",
    "adaptive-scalable entmax15": {"name": "entmax15", "beta": {"learned": 0.1}, "gamma": {"learned": 1.0}},
}


@dataclasses.dataclass(frozen=True)
class LengthSettings(Settings):
    """One task with one map."""

    task: str = setting("copy")
    attention: str = setting("softmax")
    longest: int = setting(8)
    shortest: int = setting(2)
    multiples: tuple[int, ...] = setting((1, 2, 4, 8, 16, 32, 64), paper="up to 1000", where="abstract")
    symbols: int = setting(512)
    width: int = setting(64)
    heads: int = setting(2)
    window: int = setting(2)
    steps: int = setting(400)
    batch_size: int = setting(128)
    lr: float = setting(5e-3)
    test_rows: int = setting(40)
    report_to: str = setting("none")


def build(settings: LengthSettings) -> PreTrainedModel:
    """A fresh model with the run's attention; the same seed gives the same weights."""
    set_seed(settings.seed)
    longest = settings.longest * max(settings.multiples)
    config = SmolLM3Config(
        vocab_size=settings.symbols + 2,
        hidden_size=settings.width,
        intermediate_size=2 * settings.width,
        num_hidden_layers=2,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        no_rope_layers=[1, 0],  # 1 is a layer with rotary positions
        layer_types=["sliding_attention", "full_attention"],
        use_sliding_window=True,
        sliding_window=settings.window,
        max_position_embeddings=4 * longest,
        pad_token_id=PAD,
        bos_token_id=MARK,
        eos_token_id=None,
        initializer_range=0.06,
    )
    model = SmolLM3ForCausalLM(config)
    attention = ATTENTION[settings.attention]
    return model if attention is None else hf_sparse.sparsify(model, attn=attention)


@torch.no_grad()
def test(model: PreTrainedModel, settings: LengthSettings, length: int) -> dict[str, Any]:
    """How well ``model`` does at one length.

    Returns:
        ``exact``, the share of rows answered without a mistake (what greedy decoding gets right); ``tokens``, the
        share of right answer tokens after right ones; ``loss``, their mean negative log-likelihood in nats; ``keys``,
        the mean number of keys with nonzero weight in each layer, None where attention is the model's own softmax.
    """
    model.eval()
    lengths, seed = range(length, length + 1), f"test {length}"
    data = list(rows(settings.task, lengths, settings.test_rows, settings.symbols, seed))
    exact, right, asked, loss = 0, 0, 0, 0.0
    with observe(model) as counts:
        for batch in DataLoader(data, batch_size=max(1, 2560 // length), collate_fn=collate):
            labels = batch.pop("labels")[:, 1:]
            batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
            logits = model(**batch).logits[:, :-1].cpu()
            counted = labels != -100
            wrong = counted & (logits.argmax(-1) != labels)
            loss += float(cross_entropy(logits[counted], labels[counted], reduction="sum"))
            exact += int((~wrong.any(-1)).sum())
            right += int((counted & ~wrong).sum())
            asked += int(counted.sum())
    keys = [round(count.support_size, 2) for count in counts.values()]
    means = {"exact": exact / len(data), "tokens": right / asked, "loss": loss / asked}
    return {"length": length, **means, "keys": keys or None}


def learned(model: PreTrainedModel) -> dict[str, list[list[float]]]:
    """The learned settings of attention in their range: layers, then heads."""
    values: dict[str, list[list[float]]] = {}
    for module, site in attention_sites(model):
        for name in site.map_config.learned if site.map_config else ():
            numbers = site.map_config.setting(name).from_real(getattr(module, f"sparse_{name}").value.detach())
            values.setdefault(name, []).append([round(float(number), 3) for number in numbers])
    return values


def perform(settings: LengthSettings, folder: Path) -> dict[str, Any]:
    """Train and test one model."""
    model = build(settings)
    trained = range(settings.shortest, settings.longest + 1)
    count = settings.steps * settings.batch_size
    train(
        model,
        None,
        Dataset.from_list(list(rows(settings.task, trained, count, settings.symbols, f"train {settings.seed}"))),
        folder / "training",
        collator=collate,
        steps=settings.steps,
        lr=settings.lr,
        batch_size=settings.batch_size,
        seed=settings.seed,
        report_to=settings.report_to,
    )
    model.save_pretrained(folder / "model")
    lengths = [settings.longest * multiple for multiple in settings.multiples]
    return {
        "parameters": model.num_parameters(),
        "maps": hf_sparse.sparse_config(model).to_dict() if hf_sparse.is_sparse(model) else None,
        "learned": learned(model),
        "lengths": [test(model, settings, length) for length in lengths],
    }


def by_seed(runs: list[dict[str, Any]], measure: str) -> dict[tuple[str, str], dict[int, list[float]]]:
    """By task and attention, at each length, the measure of every seed."""
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for run in runs:
        settings = run["settings"]
        at = found.setdefault((settings["task"], settings["attention"]), {})
        for entry in run["figures"]["lengths"]:
            at.setdefault(entry["length"], []).append(entry[measure])
    return found


def report(results: dict[str, Any], out: Path) -> None:
    """Print accuracies and draw them."""
    for (task, attention), at in by_seed(results["runs"], "exact").items():
        cells = "  ".join(f"{length}: {fmean(values):6.1%}" for length, values in at.items())
        print(f"{task:<8} {attention:<28} {cells}")
    draw(results["runs"], out / "length_generalisation.png")


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Right answer tokens and loss against length, a column for each task; bars from the worst seed to the best."""
    tasks = list(dict.fromkeys(run["settings"]["task"] for run in runs))
    figure = Figure(figsize=(3.4 * len(tasks) + 2, 5.6), layout="constrained")
    grid = figure.subplots(2, len(tasks), sharex="col", sharey="row", squeeze=False)
    for axes_row, measure in zip(grid, ("tokens", "loss")):
        for (task, attention), at in by_seed(runs, measure).items():
            axes, number = axes_row[tasks.index(task)], list(ATTENTION).index(attention)
            means = [fmean(values) for values in at.values()]
            lower = [mean - min(values) for mean, values in zip(means, at.values())]
            upper = [max(values) - mean for mean, values in zip(means, at.values())]
            x = [length * 1.03**number for length in at]
            axes.errorbar(x, means, [lower, upper], marker="o", markersize=4, label=attention)
            axes.set_xscale("log", base=2)
            axes.set_xticks(list(at), [str(length) for length in at])
    for axes, task in zip(grid[0], tasks):
        axes.set_title(task)
    for axes in grid[1]:
        axes.set_xlabel("length (trained up to the first)")
        axes.set_yscale("log")
    grid[0][0].set_ylabel("answer tokens right")
    grid[1][0].set_ylabel("loss, nats an answer token")
    grid[0][-1].legend(loc="upper left", bbox_to_anchor=(1.02, 1), fontsize="small")
    figure.savefig(path, dpi=110)


# A list of pairs needs twice as many symbols as it is long; and lists of at most 8 teach most maps nothing so soon.
OWN: dict[str, dict[str, Any]] = {
    "recall": {"longest": 16, "multiples": (1, 2, 4, 8, 16), "steps": 1000, "batch_size": 64}
}
RUNS = {
    f"{task}-{attention.replace(' ', '-')}": LengthSettings(task=task, attention=attention, **OWN.get(task, {}))
    for task in TASKS
    for attention in ATTENTION
}
QUICK = {"steps": 4, "longest": 4, "shortest": 2, "multiples": (1, 2), "symbols": 32, "width": 16, "test_rows": 4}


def run(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the recipe from the command line."""
    assert __doc__
    return main("length_generalisation", __doc__, RUNS, perform, report, QUICK, arguments)


if __name__ == "__main__":
    run()
