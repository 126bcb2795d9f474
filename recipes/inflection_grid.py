"""Multilingual morphological inflection over a grid of alpha at the output and in attention.

    <german><V><...>: one model for all languages, told by a token which one a word is of

The grid is that of Peters, Niculae and Martins 2019, Table 1: alpha 1 (softmax), 1.5 and 2 (sparsemax) at the output
and in attention; alpha-ReLU at the output is added to it. Each model is trained from scratch. Reported are accuracy by
language, the share of words with a single form of nonzero probability, the share for which beam search saw every form
there is, supports, and ensembles of several seeds that average probabilities at every step.

    python recipes/inflection_grid.py --list
    python recipes/inflection_grid.py --quick                                  # embedded English verbs
    python recipes/inflection_grid.py --data sigmorphon2018                    # LANG-train-medium and LANG-dev there
    python recipes/inflection_grid.py --data sigmorphon2018 --only 'output-1.5*' --seeds 3
    python recipes/inflection_grid.py --data sigmorphon2018 --set size=high languages=german,turkish
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from inflection_data import Words, read_table, read_words
from inflection_grid_report import report
from inflection_model import build_model, build_tokenizer, encode, source_text
from inflection_predictions import ExactMatch, predict
from study import Settings, main, setting
from training import train
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerFast
from translation_training import Collator

import hf_sparse

LANGUAGES = "english,german,turkish"  # one each with little, mixed and agglutinating morphology
ALPHAS = {"1": None, "1.5": "entmax15", "2": "sparsemax"}


@dataclasses.dataclass(frozen=True)
class Grid(Settings):
    """One run: data, maps, and training; or the ensemble of earlier runs."""

    data: str = setting("", "SIGMORPHON 2018 task 1", "4.1")
    languages: str = setting(LANGUAGES, "86 (high), 102 (medium)", "4.1")
    size: str = setting("medium", "high and medium", "Table 1")
    dev_rows: int = setting(150, "all", "4.1")  # of each language
    head: str = setting("", "softmax, 1.5-entmax, sparsemax", "Table 1")
    attention: str = setting("", "softmax, 1.5-entmax, sparsemax", "Table 1")
    members: str = setting("", "ensembles of three runs", "4.1")
    member_seeds: int = setting(3, "3", "Table 1")
    steps: int = setting(1600)
    batch_size: int = setting(64, "64", "4")
    lr: float = setting(2e-3, "0.001, halved on plateaus", "4")
    beams: int = setting(5, "5", "4")
    report_to: str = setting("none")


def runs() -> dict[str, Grid]:
    """All runs, those first that most rests on; ensembles after their members."""
    grid = {
        f"output-{output}-attention-{attention}": Grid(head=head or "", attention=within or "")
        for output, head in ALPHAS.items()
        for attention, within in ALPHAS.items()
    }
    first = [f"output-{alpha}-attention-{alpha}" for alpha in ALPHAS]
    made = {name: grid[name] for name in first}
    made["output-alpha_relu-attention-1.5"] = Grid(head="alpha_relu", attention="entmax15")
    made |= grid
    return made | {f"ensemble-{name}": Grid(members=name) for name in made}


QUICK = {"steps": 4, "batch_size": 16, "dev_rows": 6, "beams": 2, "member_seeds": 1}


class Task(NamedTuple):
    """What all runs share; the language is the first tag of every row."""

    train: Dataset
    dev: Dataset
    tokenizer: PreTrainedTokenizerFast


@functools.lru_cache(maxsize=1)
def prepared(data: str, languages: str, size: str, dev_rows: int) -> Task:
    """Rows of all languages together.

    Args:
        data: a folder with ``LANG-train-SIZE`` and ``LANG-dev``, or empty for English verbs of the repository.
        languages: names joined by commas.
        size: ``low``, ``medium`` or ``high``.
        dev_rows: evaluate on the first so many rows of each language.

    Raises:
        ValueError: a file that is not such a table; see ``read_table``.
        FileNotFoundError: a language has no file of that size.
    """
    parts: dict[str, list[dict[str, str]]] = {"train": [], "dev": []}
    for language in languages.split(",") if data else ["english"]:
        if data:
            words = Words(*(read_table(Path(data, f"{language}-{part}")) for part in (f"train-{size}", "dev")))
        else:
            words = read_words()
        for (part, rows), table in zip(parts.items(), words):
            chosen = table.select(range(min(dev_rows, len(table)))) if part == "dev" else table
            rows += [{**row, "tags": f"{language};{row['tags']}"} for row in chosen]
    train_rows, dev = (Dataset.from_list(rows) for rows in parts.values())
    return Task(train_rows, dev, build_tokenizer(train_rows))


@torch.no_grad()
def search(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, rows: Dataset, beams: int) -> dict[str, Any]:
    """Beam search for the likeliest form of every row, and what it proves.

    Returns:
        ``forms``; by row, whether the beam saw every form of nonzero probability (``exhausted``), how many it saw
        (``counts``), and whether its best is proved to be the likeliest of all by any certificate (``certified``).
    """
    model.eval()
    texts = [source_text(row["lemma"], row["tags"]) for row in rows]
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))  # little padding
    found: list[Any] = [None] * len(texts)
    for start in range(0, len(order), 100):
        batch = order[start : start + 100]
        inputs = tokenizer([texts[index] for index in batch], padding=True, return_tensors="pt").to(model.device)
        output = model.generate(
            **inputs, num_beams=beams, do_sample=False, length_penalty=0.0, early_stopping="never",
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        forms = tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
        proofs = hf_sparse.beam_certificate(model, output, beams)
        for index, form, proof in zip(batch, forms, proofs):
            found[index] = (form, proof.exhausted, len(proof.hypotheses), proof.bounded)
    return dict(zip(("forms", "exhausted", "counts", "certified"), map(list, zip(*found))))


def measured(model: PreTrainedModel, task: Task, beams: int) -> dict[str, Any]:
    """Accuracy, by language too, and how sparse and how certain the predictions are."""
    searched, greedy = search(model, task.tokenizer, task.dev, beams), predict(model, task.tokenizer, task.dev)
    languages = [tags.split(";")[0] for tags in task.dev["tags"]]

    def accuracy(forms: Sequence[str], language: str) -> float:
        chosen = [index for index, name in enumerate(languages) if name == language]
        references = task.dev["form"]
        pairs = {"predictions": [forms[i] for i in chosen], "references": [references[i] for i in chosen]}
        return ExactMatch().compute(**pairs)["exact_match"]

    by_language = {language: accuracy(searched["forms"], language) for language in dict.fromkeys(languages)}
    alone = [done and count == 1 for done, count in zip(searched["exhausted"], searched["counts"])]
    return {
        "accuracy": fmean(by_language.values()),
        "accuracy_by_language": by_language,
        "greedy_accuracy": fmean(accuracy(greedy.forms, language) for language in by_language),
        "one_form": fmean(alone),
        "all_forms_seen": fmean(searched["exhausted"]),
        "certified": fmean(searched["certified"]),
        "head_support": greedy.support_size,
        "one_candidate_rate": greedy.one_candidate_rate,
        "rows": {"train": len(task.train), "dev": len(task.dev), "vocabulary": len(task.tokenizer)},
    }


def ensemble(settings: Grid, folder: Path) -> hf_sparse.Ensemble:
    """The runs of one name with seeds from 0, as one model.

    Raises:
        FileNotFoundError: one of them has not been done.
    """
    members = []
    for seed in range(settings.member_seeds):
        path = folder.parent / f"{settings.members}-{seed}" / "model"
        if not path.is_dir():
            raise FileNotFoundError(
                f"{path}: an ensemble needs its members; do --only {settings.members} --seeds {settings.member_seeds}"
            )
        members.append(AutoModelForSeq2SeqLM.from_pretrained(path))
    return hf_sparse.Ensemble(members)


def perform(settings: Grid, folder: Path) -> dict[str, Any]:
    """Train one model, or put earlier ones together, and measure it; a trained model stays in ``folder``."""
    task = prepared(settings.data, settings.languages, settings.size, settings.dev_rows)
    if settings.members:
        return measured(ensemble(settings, folder), task, settings.beams)
    model = build_model(task.tokenizer, max(map(len, task.train["form"])), settings.seed)
    if settings.head or settings.attention:
        model = hf_sparse.sparsify(model, attn=settings.attention or None, head=settings.head or None)
    log = train(
        model, task.tokenizer, encode(task.train, task.tokenizer), folder / "checkpoints",
        collator=Collator(task.tokenizer, model), steps=settings.steps, lr=settings.lr,
        batch_size=settings.batch_size, seed=settings.seed, report_to=settings.report_to,
    )  # fmt: skip
    model.save_pretrained(folder / "model")
    task.tokenizer.save_pretrained(folder / "model")
    return {
        **measured(model, task, settings.beams),
        "config": hf_sparse.sparse_config(model).to_dict() if hf_sparse.is_sparse(model) else None,
        "parameters": model.num_parameters(),
        "loss": [{"step": entry["step"], "loss": entry["loss"]} for entry in log if "loss" in entry],
    }


if __name__ == "__main__":
    main("inflection_grid", __doc__, runs(), perform, report, QUICK)
