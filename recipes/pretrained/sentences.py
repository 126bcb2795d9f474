"""A pretrained sentence encoder with sparse attention: halves of paragraphs, and captions, find each other."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel, get_cosine_schedule_with_warmup

import hf_sparse

from ..lib.card import Measure
from ..lib.models import config_of, save
from ..lib.records import Figures, Record
from .data import batches_of, captions, paragraphs
from .encoders import embeddings, mean_state, zeros_of
from .part import WAYS, ZEROS, Cells, Description, Part, Verdict, how, no_weight_trained, text_of
from .sources import load

# Settings of ``distil``.
DISTILLING = ("steps", "distil_batch", "learning_rate", "dtype")
PAIRS = {"paragraphs": paragraphs, "captions": captions}


def recall(first: Tensor, second: Tensor) -> float:
    """Share of first halves whose nearest second half is their own."""
    return float(((first @ second.T).argmax(-1) == torch.arange(len(first))).double().mean())


def sentences(settings: Any, folder: Path) -> Figures:
    """Find the second half of a paragraph by the first, or a caption by some of its words.

    Measured are recall, and the order of all similarities. With ``distil`` the calibrated model learns the dense
    one's states of the rest of the file, too.
    """
    model, tokenizer = load(settings.source, "encoder")
    teacher = copy.deepcopy(model)
    pairs = PAIRS[settings.part](Path(settings.data), 2 * settings.rows)
    fit, test = pairs[0::2], pairs[1::2]
    calibration = batches_of(tokenizer, [half for pair in fit for half in pair][: settings.fit_rows], 16)
    halves = [batches_of(tokenizer, list(side), 16) for side in zip(*test)]
    rows: dict[str, Any] = {}
    dense = [embeddings(model, half) for half in halves]
    ways = {"dense": None, "swapped": settings.map, "calibrated": settings.map}
    if settings.distil:
        ways["distilled"] = settings.map
    for name, attn in ways.items():
        if attn and not hf_sparse.is_sparse(model):
            hf_sparse.sparsify(model, attn=attn, example=calibration[0])
        if name == "calibrated":
            report = hf_sparse.calibrate(model, calibration, edges=settings.edges or None, progress=False)
        if name == "distilled":
            start = time.process_time()
            distil(model, teacher, tokenizer, texts_beside(test, settings), settings)
            print(f"distilled in {time.process_time() - start:.0f} CPU seconds", flush=True)
        first, second = [embeddings(model, half) for half in halves]
        rows[name] = {
            "recall": recall(first, second),
            "spearman": float(spearmanr((first @ second.T).flatten(), (dense[0] @ dense[1].T).flatten()).statistic),
            "zeros": zeros_of(model, [*halves[0][:2], *halves[1][:2]]) if attn else 0.0,
        }
        print(name, rows[name], flush=True)
    save(model, tokenizer, folder)
    own = {"before": report.before.divergence, "after": report.after.divergence}
    return {**rows, "own_report": own, "pairs": len(test), "config": config_of(model)}


def texts_beside(test: list[tuple[str, str]], settings: Any) -> list[str]:
    """Both sides of the file's pairs that share no side with those judged on."""
    judged = {side for pair in test for side in pair}
    every = PAIRS[settings.part](Path(settings.data), 10**9)
    return [side for pair in every if not judged.intersection(pair) for side in pair]


def distil(model: PreTrainedModel, teacher: PreTrainedModel, tokenizer: Any, texts: list[str], settings: Any) -> None:
    """Train the layers of a sparse encoder for the states and embeddings that a dense one gives to the same texts.

    Every layer's states are compared: they say where a token of a text went wrong, an embedding only how far the text.
    """
    steps, generator = settings.steps, torch.Generator().manual_seed(settings.seed)
    model.get_input_embeddings().requires_grad_(False)
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=settings.learning_rate, weight_decay=0.0, fused=True)
    schedule = get_cosine_schedule_with_warmup(optimizer, steps // 20, steps)
    for _ in tqdm(range(steps), desc="distil", mininterval=5):
        drawn = torch.randint(len(texts), (settings.distil_batch,), generator=generator).tolist()
        (batch,) = batches_of(tokenizer, [texts[i] for i in drawn], len(drawn))
        with torch.autocast("cpu", torch.bfloat16, enabled=settings.dtype == "bfloat16"):
            with torch.no_grad():
                wanted = teacher(**batch, output_hidden_states=True).hidden_states
            found = model(**batch, output_hidden_states=True).hidden_states
        mask = batch["attention_mask"]
        loss = (mean_state(found[-1], mask) - mean_state(wanted[-1], mask)).square().sum(-1).mean()
        for own, dense in zip(found[1:], wanted[1:]):
            loss = loss + relative_error(own.float(), dense.float(), mask) / (len(wanted) - 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.requires_grad_(True)


def relative_error(states: Tensor, wanted: Tensor, mask: Tensor) -> Tensor:
    """Squared distance of states (N, length, d) as a share of the squared length of those wanted, padding aside."""
    kept = mask[..., None]
    return ((states - wanted).square() * kept).sum() / (wanted.square() * kept).sum()


def _cells(settings: dict[str, Any], figures: Figures) -> Cells:
    best = "distilled" if "distilled" in figures else "calibrated"
    ways = ("dense", "swapped", best)
    texts = [f"recall {figures[way]['recall']:.1%}, Spearman {figures[way]['spearman']:.3f}" for way in ways]
    if best == "distilled":
        texts[-1] += f" after {settings['steps']} steps of distillation"
    return ["attention", how(settings), f"{figures[best]['zeros']:.1%}", *texts]


def _ways(figures: Figures) -> dict[str, dict[str, Any]]:
    return {way: figures[way] for way in (*WAYS, "distilled") if way in figures}


def _fitted(settings: dict[str, Any], figures: Figures) -> str:
    if not settings.get("distil"):  # older runs have none
        return no_weight_trained(settings, figures)
    return (
        "Temperatures and alphas were fitted to the dense model; then all weights but those of tokens were "
        "trained for its states and embeddings of other texts, "
        f"{settings['steps']} steps of {settings['distil_batch']}."
    )


def _data(settings: dict[str, Any], figures: Figures) -> str:
    return f"{text_of(settings)}: {figures['pairs']} {settings['part']} other than those of the calibration"


def _verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    for record in records:
        figures, part = record["figures"], record["settings"]["part"]
        distilled = "distilled" in figures
        own, spearman = figures["distilled" if distilled else "calibrated"], 0.99 if distilled else 0.98
        lost, trained = figures["dense"]["recall"] - own["recall"], ", distilled" if distilled else ""
        yield Verdict(
            f"MiniLM, {part}{trained}: recall within one point, Spearman at least {spearman:.2f}, 80 % zeros",
            f"{-lost:+.1%}, {own['spearman']:.3f}, {own['zeros']:.1%}",
            lost < 0.01 + 1e-9 and own["spearman"] >= spearman and own["zeros"] >= 0.8,
        )


DESCRIPTION = Description(
    "sentence-similarity",
    (
        Measure("recall", "recall", ".1%", "higher"),
        Measure("Spearman with dense similarities", "spearman", ".3f", "higher"),
        ZEROS,
    ),
    _ways,
    fitted=_fitted,
    data=_data,
)
PARTS = [
    Part(
        name=name,
        run=sentences,
        reads=("source", "data", "rows", "fit_rows", "map", "edges", "distil"),
        reads_too=lambda settings: DISTILLING if settings.distil else (),
        text=f"pairs of {name}",
        cells=_cells,
        description=DESCRIPTION,
        verdicts=_verdicts,
    )
    for name in PAIRS
]
