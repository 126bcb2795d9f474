"""A pretrained language model, sparse in attention or at the head."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

import hf_sparse
from hf_sparse.attention import observe

from ..lib.models import config_of, save
from ..lib.records import Figures
from .data import windows
from .sets import Cumulative, entry_temperature, impossible, loss, nucleus, quantile
from .sources import load


def rows_of(ids: Tensor) -> list[dict[str, Tensor]]:
    """A batch for each window."""
    return [{"input_ids": row[None], "labels": row[None]} for row in ids]


@torch.no_grad()
def token_loss(model: PreTrainedModel, ids: Tensor) -> float:
    """Cross-entropy of a model with a dense head, in nats a token."""
    losses = [float(model(input_ids=row[None], labels=row[None]).loss) for row in ids]
    return sum(losses) / len(losses)


def attention(settings: Any, folder: Path) -> Figures:
    """Swap attention, calibrate it, and measure the loss on the second half of the text."""
    model, tokenizer = load(settings.source, "causal")
    fit, test = windows(tokenizer, Path(settings.data), settings.length, settings.rows)
    dense = token_loss(model, test)
    hf_sparse.sparsify(model, attn=settings.map, example={"input_ids": fit[:1]})
    swapped = token_loss(model, test)
    start = time.process_time()
    report = hf_sparse.calibrate(model, rows_of(fit), edges=settings.edges or None)
    seconds = time.process_time() - start
    with observe(model) as counts:
        calibrated = token_loss(model, test)
    kept = sum(count.nonzero for count in counts.values())
    visible = sum(count.rows for count in counts.values()) * (settings.length + 1) / 2
    save(model, tokenizer, folder)
    return {
        "dense": dense,
        "swapped": swapped,
        "calibrated": calibrated,
        "increase": calibrated / dense - 1,
        "edges": kept / visible,
        "own_report": {"before": report.before.divergence, "after": report.after.divergence},
        "calibration_cpu_seconds": round(seconds, 1),
        "tokens": test.numel() - len(test),
        "config": config_of(model),
    }


@torch.no_grad()
def logits_of(model: PreTrainedModel, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (N, V) of all positions with a next token, and those tokens (N,)."""
    logits = [model(input_ids=row[None]).logits[0, :-1] for row in ids]
    return torch.cat(logits).float(), ids[:, 1:].flatten()


def head(settings: Any, folder: Path) -> Figures:
    """A sparse head beside top-p, at equal mean numbers of classes; and its coverage beside APS and RAPS."""
    model, tokenizer = load(settings.source, "causal")
    fit, test = windows(tokenizer, Path(settings.data), settings.length, settings.rows)
    z, y = logits_of(model, test)
    sizes = {}
    for classes in settings.classes:
        sparse = hf_sparse.sparsify(copy.deepcopy(model), head="entmax15", example={"input_ids": fit[:1]})
        hf_sparse.calibrate(sparse, rows_of(fit), classes=classes)
        found = hf_sparse.sparse_config(sparse).head
        p = hf_sparse.probabilities(sparse, z)
        support = float((p > 0).sum(-1).double().mean())
        q, mass = nucleus(z, support)
        sizes[str(classes)] = {
            "alpha": found.spelled_out.map_settings["alpha"],
            "temperature": found.temperature,
            "support": support,
            "loss": loss(p, y),
            "impossible": impossible(p, y),
            "nucleus": {
                "p": mass,
                "loss": loss(q, y),
                "impossible": impossible(q, y),
            },
        }
        print(classes, sizes[str(classes)], flush=True)
    hf_sparse.sparsify(model, head="entmax15", example={"input_ids": fit[:1]})
    hf_sparse.calibrate(model, rows_of(fit), coverage=settings.coverage[-1])
    save(model, tokenizer, folder)
    return {
        "dense": loss(z.softmax(-1), y),
        "sizes": sizes,
        "coverage": coverage(z, y, settings),
        "tokens": len(y),
        "config": config_of(model),
    }


def coverage(z: Tensor, y: Tensor, settings: Any) -> dict[str, Any]:
    """Coverage and sizes of prediction sets over random splits into halves: one to calibrate on, one to judge on.

    entmax takes, as ``calibrate`` does, the alpha with the smallest sets on the half it is calibrated on.
    """
    entries = {alpha: entry_temperature(z, y, alpha) for alpha in settings.alphas}
    cumulative = Cumulative(z, y, settings.seed)
    penalties = {penalty: cumulative.penalized(penalty) for penalty in (0.0, *settings.penalties)}
    of_targets = {penalty: cumulative.of_targets(scores) for penalty, scores in penalties.items()}
    sizes = {alpha: _Sizes(z, alpha) for alpha in settings.alphas}
    found: dict[str, Any] = {}
    for asked in settings.coverage:
        rows: dict[str, list[tuple[float, float]]] = {"entmax": [], "aps": [], "raps": []}
        for split in range(settings.splits):
            order = torch.randperm(len(y), generator=torch.Generator().manual_seed(split))
            fit, test = order[: len(y) // 2], order[len(y) // 2 :]
            limits = {alpha: quantile(each[fit], asked) * (1 + 1e-5) for alpha, each in entries.items()}
            alpha = min(limits, key=lambda alpha, limits=limits, fit=fit: sizes[alpha].at(limits[alpha], fit))
            rows["entmax"].append(
                (float((entries[alpha][test] < limits[alpha]).double().mean()), sizes[alpha].at(limits[alpha], test))
            )
            by_penalty = {
                penalty: (
                    float(cumulative.sizes(scores[fit], limit).mean()),
                    float((of_targets[penalty][test] <= limit).double().mean()),
                    float(cumulative.sizes(scores[test], limit).mean()),
                )
                for penalty, scores in penalties.items()
                for limit in [quantile(of_targets[penalty][fit], asked)]
            }
            rows["aps"].append(by_penalty[0.0][1:])
            rows["raps"].append(min(by_penalty.values())[1:])
        found[f"{asked:g}"] = {
            name: {
                "coverage": sum(each[0] for each in pairs) / len(pairs),
                "size": sum(each[1] for each in pairs) / len(pairs),
            }
            for name, pairs in rows.items()
        }
        print(asked, found[f"{asked:g}"], flush=True)
    return found


class _Sizes:
    """The number of classes of every row at any temperature, interpolated between those it was counted at.

    Args:
        z: logits (N, V).
        alpha: of entmax.
    """

    def __init__(self, z: Tensor, alpha: float) -> None:
        self.temperatures = torch.logspace(-0.5, 1.6, 22)
        maps = [{"name": "entmax", "alpha": alpha, "temperature": float(t)} for t in self.temperatures]
        configs = [hf_sparse.SparseConfig.parse(head=each).head for each in maps]
        self.counts = torch.stack([(config(z) > 0).sum(-1).double() for config in configs])

    def at(self, temperature: float, rows: Tensor) -> float:
        """The mean number of classes of some rows."""
        t = torch.tensor(min(max(temperature, 0.3163), 39.8))
        upper = int(torch.searchsorted(self.temperatures, t).clamp(1, len(self.temperatures) - 1))
        low, high = self.temperatures[upper - 1], self.temperatures[upper]
        share = float((t / low).log() / (high / low).log())
        below, above = self.counts[upper - 1, rows].log(), self.counts[upper, rows].log()
        return float((below + share * (above - below)).exp().mean())
