"""Morphological inflection with sparse heads: from a lemma and tags to the inflected form, character by character.

    fly V;V.PTCP;PST  ->  flown

A small BART-like model is trained from scratch with each head: softmax, and sparse ones beside entmax15 attention. A
sparse model lists every form of nonzero probability for one word, and its cross-attention is drawn; it is saved,
loaded back, and checked to predict the same. All heads are compared in the end.

The task and its sparse models are those of Peters, Niculae and Martins 2019, "Sparse Sequence-to-Sequence Models",
Section 4.1; the data format is that of the SIGMORPHON 2018 shared task.

    python -m recipes.inflection.run                                        # softmax, entmax15 and alpha_relu
    python -m recipes.inflection.run --only entmax15 sparsemax --seeds 2
    python -m recipes.inflection.run --data mine.tsv --out out/mine         # lines of lemma TAB form TAB tags
    python -m recipes.inflection.run --data train.tsv --set dev=dev.tsv --out out/mine
"""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

import hf_sparse
from hf_sparse.attention import attention_sites

from ..lib.batches import padding_collator
from ..lib.models import config_of, save
from ..lib.records import Figures
from ..lib.settings import Settings, check_positive, setting
from ..lib.study import Study, main
from ..lib.training import StepSeconds, train
from .data import Words, read_words
from .model import DROPOUT, INIT_STD, LAYERS, NUM_HEADS, WIDTH, build_model, build_tokenizer, encode, source_text
from .predictions import ExactMatch, Predictions, hypotheses, predict
from .report import card, condensed, report

EXAMPLE = ("draw", "V;V.PTCP;PST")


@dataclasses.dataclass(frozen=True)
class Inflection(Settings):
    """Words, maps and training of one run."""

    data: str = setting("", "SIGMORPHON 2018 task 1, all languages at once", "4.1")
    dev: str = setting("")
    train_rows: int = setting(0, "about 10,000 a language (high), 1,000 (medium)", "4.1")  # 0: all
    dev_rows: int = setting(0, "all", "4.1")  # 0: all
    head: str = setting("softmax", "softmax, 1.5-entmax, sparsemax", "Table 1")
    attention: str = setting("entmax15", "softmax, 1.5-entmax, sparsemax", "Table 1")
    temperature: float | str = setting("auto", "1", "3")  # of sparse maps, in both places
    width: int = setting(WIDTH, "300, of LSTMs", "4.1")
    layers: int = setting(LAYERS, "2, of LSTMs", "4")
    dropout: float = setting(DROPOUT, "0.3", "4")
    init_std: float = setting(INIT_STD)
    steps: int = setting(750)
    batch_size: int = setting(128, "64", "4")
    lr: float = setting(2e-3, "0.001, halved on plateaus", "4")
    max_hypotheses: int = setting(1000)
    report_to: str = setting("none")

    def __post_init__(self) -> None:
        check_positive(self, "width", "layers", "init_std", "steps", "batch_size", "lr", "max_hypotheses")
        for name in ("train_rows", "dev_rows"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be above 0, or 0 for all, was {getattr(self, name)}")
        if self.width % NUM_HEADS:
            raise ValueError(f"width must be a multiple of {NUM_HEADS}, the heads of attention, was {self.width}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, was {self.dropout}")
        if self.maps:
            hf_sparse.SparseConfig.parse(**self.maps)

    @property
    def maps(self) -> dict[str, Any]:
        """Arguments of ``sparsify``; softmax is not replaced."""
        maps = {"attn": self.attention, "head": self.head}
        return {
            place: {"name": name, "temperature": self.temperature} for place, name in maps.items() if name != "softmax"
        }


HEADS = {
    "softmax": Inflection(attention="softmax"),
    **{head: Inflection(head=head) for head in ("entmax15", "alpha_relu", "sparsemax")},
}


def rates() -> dict[str, Inflection]:
    """Shorter runs at several peak learning rates and sizes of the initial weights."""
    maps = {head: HEADS[head] for head in ("softmax", "entmax15", "alpha_relu")}
    maps["entmax15-untempered"] = dataclasses.replace(HEADS["entmax15"], temperature=1.0)
    return {
        f"rate-{init_std:g}-{lr:g}-{name}": dataclasses.replace(
            settings, init_std=init_std, lr=lr, dropout=0.1, steps=300, dev_rows=200, max_hypotheses=20
        )
        for init_std in (0.02, INIT_STD)
        for lr in (1e-3, 2e-3, 4e-3)
        for name, settings in maps.items()
    }


RUNS = HEADS | rates()
QUICK = {"steps": 30, "train_rows": 1000, "dev_rows": 60}


def words_of(settings: Inflection) -> Words:
    """The words of a run, limited to ``train_rows`` and ``dev_rows``; raises as ``read_words`` does."""
    words, limits = read_words(settings.data, settings.dev), (settings.train_rows, settings.dev_rows)
    return Words(
        *(
            rows.shuffle(seed=0).select(range(limit)) if 0 < limit < len(rows) else rows
            for rows, limit in zip(words, limits)
        )
    )


@torch.no_grad()
def draw_cross_attention(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, row: dict[str, str], form: str, path: Path
) -> None:
    """Draw the last layer's cross-attention, averaged over heads, while the model writes ``form``."""
    if not attention_sites(model):
        model.set_attn_implementation("eager")  # the others do not return their weights
    inputs = tokenizer(source_text(row["lemma"], row["tags"]), return_tensors="pt").to(model.device)
    labels = tokenizer(form, return_tensors="pt").input_ids.to(model.device)
    weights = model(**inputs, labels=labels, output_attentions=True).cross_attentions[-1][0].mean(0)
    keys, queries = (tokenizer.convert_ids_to_tokens(ids[0]) for ids in (inputs.input_ids, labels))
    hf_sparse.plot_attention(weights, keys, queries, title=f"{row['lemma']} {row['tags']} → {form}", path=path)


def check_reload(folder: Path, rows: Any, expected: Predictions, device: torch.device) -> None:
    """Load a saved sparse model in both ways and compare its predictions.

    Forms alone would not reveal a head that came back dense; the number of candidates per step does.

    Raises:
        RuntimeError: a form or a number of candidates differs.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for load in (hf_sparse.from_pretrained, AutoModelForSeq2SeqLM.from_pretrained):
        if predict(load(folder).to(device), tokenizer, rows) != expected:
            raise RuntimeError(f"{folder} predicts otherwise than the model saved there, loaded by {load}")


def perform(settings: Inflection, folder: Path) -> Figures:
    """Train, save and measure one model; if its head is sparse, list forms, draw attention and check the reload."""
    words = words_of(settings)
    tokenizer, longest = build_tokenizer(words.train), max(map(len, words.train["form"]))
    model = build_model(
        tokenizer,
        longest,
        settings.seed,
        width=settings.width,
        layers=settings.layers,
        dropout=settings.dropout,
        init_std=settings.init_std,
    )
    if settings.maps:
        model = hf_sparse.sparsify(model, **settings.maps)
    clock = StepSeconds()
    log = train(
        model,
        tokenizer,
        encode(words.train, tokenizer),
        folder / "checkpoints",
        collator=padding_collator(tokenizer, model),
        steps=settings.steps,
        lr=settings.lr,
        batch_size=settings.batch_size,
        seed=settings.seed,
        report_to=settings.report_to,
        callbacks=[clock],
    )
    save(model, tokenizer, folder)
    predictions = predict(model, tokenizer, words.dev)
    figures = measured(model, words, predictions) | {
        "step_cpu_seconds": fmean(clock.seconds) if clock.seconds else None,  # resumed after the last step
        "loss": [_kept(entry) for entry in log if "loss" in entry],
    }
    if "head" not in settings.maps:
        return figures
    every = read_words(settings.data, settings.dev).dev
    example = next((row for row in every if (row["lemma"], row["tags"]) == EXAMPLE), every[0])
    found = hypotheses(model, tokenizer, example, settings.max_hypotheses)
    draw_cross_attention(model, tokenizer, example, found["greedy"], folder / "cross_attention.png")
    check_reload(folder / "model", words.dev, predictions, model.device)
    return figures | {"hypotheses": found}


def measured(model: PreTrainedModel, words: Words, predictions: Predictions) -> Figures:
    """Exact match and support sizes, with the sizes of model and data."""
    lemmas, known = set(words.dev["lemma"]), set(words.train["lemma"])
    return {
        **ExactMatch().compute(predictions=predictions.forms, references=words.dev["form"]),
        "head_support": predictions.support_size,
        "one_candidate_rate": predictions.one_candidate_rate,
        "config": config_of(model),
        "architecture": type(model).__name__,
        "parameters": model.num_parameters(),
        "rows": {
            "train": len(words.train),
            "dev": len(words.dev),
            "dev_lemmas": len(lemmas),
            "unseen_dev_lemmas": len(lemmas - known),
            "vocabulary": model.config.vocab_size,
        },
    }


def _kept(entry: dict[str, float]) -> dict[str, float]:
    return {key: entry[key] for key in ("step", "loss", "head_support", "attention_support") if key in entry}


STUDY = Study(
    name="inflection",
    description=__doc__,
    runs=RUNS,
    perform=perform,
    report=report,
    card=card,
    quick=QUICK,
    usual=("softmax", "entmax15", "alpha_relu"),
    check=words_of,
    condensed=condensed,
)

if __name__ == "__main__":
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("the picture needs matplotlib: pip install 'hf_sparse[plots]'")
    main(STUDY)
