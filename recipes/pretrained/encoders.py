"""Pretrained encoders with sparse attention: sentence embeddings, and a masked language model of reactions."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel, get_cosine_schedule_with_warmup

import hf_sparse
from hf_sparse.attention import observe

from ..lib.models import config_of, save
from ..lib.records import Figures
from .data import REACTIONS, Batch, batches_of, captions, paragraphs
from .sources import load


def embed(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Means of the last hidden states over what is not padding, of unit length (N, d)."""
    return mean_state(model(**batch).last_hidden_state, batch["attention_mask"])


def mean_state(states: Tensor, mask: Tensor) -> Tensor:
    """Means of states (N, length, d) where the mask (N, length) is 1, of unit length (N, d)."""
    kept = mask[..., None]
    return torch.nn.functional.normalize((states.float() * kept).sum(1) / kept.sum(1), dim=-1)


@torch.no_grad()
def embeddings(model: PreTrainedModel, batches: list[Batch]) -> Tensor:
    """The same of several batches, without a gradient."""
    return torch.cat([embed(model, batch) for batch in batches])


def recall(first: Tensor, second: Tensor) -> float:
    """Share of first halves whose nearest second half is their own."""
    return float(((first @ second.T).argmax(-1) == torch.arange(len(first))).double().mean())


def zeros_of(model: PreTrainedModel, batches: list[Batch]) -> float:
    """Share of visible keys without weight, of queries that are not padding."""
    kept = visible = 0.0
    for batch in batches:
        lengths = batch["attention_mask"].sum(-1).double()
        for i, length in enumerate(lengths.long().tolist()):
            alone = {name: values[i : i + 1, :length] for name, values in batch.items()}
            with torch.no_grad(), observe(model) as counts:
                model(**alone)
            kept += sum(count.nonzero for count in counts.values())
            visible += sum(count.keys for count in counts.values())
    return 1 - kept / visible


PAIRS = {"paragraphs": paragraphs, "captions": captions}


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


def masked_batches(tokenizer: Any, reactions: list[str]) -> list[Batch]:
    """A batch for each reaction, a row for each of its tokens, masked."""
    batches = []
    for reaction in reactions:
        ids = torch.tensor(tokenizer(reaction)["input_ids"])
        places = torch.arange(1, len(ids) - 1)
        rows = ids.repeat(len(places), 1)
        labels = torch.full_like(rows, -100)
        row = torch.arange(len(places))
        labels[row, places] = rows[row, places]
        rows[row, places] = tokenizer.mask_token_id
        batches.append({"input_ids": rows, "attention_mask": torch.ones_like(rows), "labels": labels})
    return batches


@torch.no_grad()
def masked_figures(model: PreTrainedModel, batches: list[Batch]) -> tuple[float, float, int]:
    """Sums over masked tokens: cross-entropy in nats, tokens found; and their number."""
    total, right, count = 0.0, 0, 0
    for batch in batches:
        labels = batch["labels"]
        kept = labels != -100
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[kept]
        total += float(torch.nn.functional.cross_entropy(logits, labels[kept], reduction="sum"))
        right += int((logits.argmax(-1) == labels[kept]).sum())
        count += int(kept.sum())
    return total, right, count


def reactions(settings: Any, folder: Path) -> Figures:
    """Masked tokens of textbook reactions, one at a time: every fold is judged by settings fitted on the others."""
    sums: dict[str, list[float]] = {}
    chosen = REACTIONS[: settings.rows]
    for fold in range(settings.folds):
        model, tokenizer = load(settings.source, "masked")
        test = masked_batches(tokenizer, chosen[fold :: settings.folds])
        rest = [reaction for i, reaction in enumerate(chosen) if i % settings.folds != fold]
        plain = [{"input_ids": torch.tensor([tokenizer(reaction)["input_ids"]])} for reaction in rest]
        _add(sums, "dense", masked_figures(model, test), 0.0)
        hf_sparse.sparsify(model, attn=settings.map, example={"input_ids": test[0]["input_ids"][:1]})
        _add(sums, "swapped", masked_figures(model, test), zeros_of(model, test[:2]))
        hf_sparse.calibrate(model, plain, edges=settings.edges or None, max_batches=None, progress=False)
        _add(sums, "calibrated", masked_figures(model, test), zeros_of(model, test[:2]))
    save(model, tokenizer, folder)
    rows = {
        name: {"loss": total / count, "accuracy": right / count, "zeros": zeros / settings.folds}
        for name, (total, right, count, zeros) in sums.items()
    }
    print(rows, flush=True)
    return {**rows, "reactions": len(chosen), "tokens": int(sums["dense"][2]), "config": config_of(model)}


def _add(sums: dict[str, list[float]], name: str, figures: tuple[float, float, int], zeros: float) -> None:
    sums[name] = [old + new for old, new in zip(sums.get(name, [0.0] * 4), (*figures, zeros))]
