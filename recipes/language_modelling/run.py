"""Language modelling: sampling straight from a sparse distribution, against softmax cut to its likeliest tokens.

A small GPT-2-like model is trained from scratch with each head, with softmax and with entmax15 in attention. Text is
sampled from it, by greedy, top-k and nucleus sampling too if the head is softmax, and the distributions that are drawn
from are measured on held-out articles: eps-perplexity, sparsemax score, Jensen-Shannon divergence, and repetition.
Further runs make a trained softmax model sparse and train it further: all weights, a LoRA adapter, or not at all.

Measures and rivals are those of Martins, Marinho and Martins 2020, "Sparse Text Generation".

    python -m recipes.language_modelling.run
    python -m recipes.language_modelling.run --data wikitext2/valid.txt --out out/wikitext
    python -m recipes.language_modelling.run --only 'entmax15-*' softmax-on
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import set_seed

import hf_sparse
from hf_sparse.attention import observe

from ..lib.models import config_of, probabilities
from ..lib.records import Figures
from ..lib.study import Study, main
from .curve import fit_to, points
from .measures import COUNTS, DENSE, SPARSE, Decoding, by_count, distinct, fit, repetitions
from .model import DENSE_RUN, ENTMAX, HEADS, Corpus, LanguageSettings, attention_of
from .report import card, condensed, report
from .trials import TRIALS

ERRORS = (0.2, 0.4)  # standard deviations of what is added to scores
# A temperature is chosen after training among these, of softmax, and those that have these coverages, of dev tokens by
# the support of an entmax head.
TEMPERATURES = (0.9, 0.95, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3)
COVERAGES = (0.94, 0.95, 0.96, 0.97, 0.98, 0.99)


def decodings_of(settings: LanguageSettings) -> dict[str, Decoding]:
    """Ways to decode: a sparse head is not truncated."""
    return DENSE if HEADS[settings.head] is None else SPARSE


@torch.no_grad()
def measure(model: Any, corpus: Corpus) -> Figures:
    """Figures on the held-out rows, for every way to decode and for human text.

    Returns:
        ``decodings``: by name, the means of the sums of ``fit``, with ``eps_perplexity`` and ``perplexity`` (None if a
        token was missed), ``rep`` and ``wrep``. ``keys``: mean number of keys of nonzero weight, None for softmax
        attention. ``human``: ``rep`` of the reference. ``tokens``: their number. ``by_count``: by how often they
        are in the training text, from each of ``COUNTS``: their share ``tokens``, the share ``missed`` of these, and
        their part ``eps_loss`` of the log of the eps-perplexity (nats), all under sampling.
    """
    settings = corpus.settings
    decodings = decodings_of(settings)
    sums: dict[str, dict[str, float]] = {name: {} for name in decodings}
    human, count, charged = 0, 0, torch.zeros(len(COUNTS), 3, dtype=torch.float64)
    random = torch.Generator().manual_seed(settings.seed)
    model.eval()
    with observe(model) as counts:
        for rows in DataLoader(corpus.test_rows, 10):
            p = probabilities(model, model(input_ids=rows.to(model.device)).logits[:, :-1]).cpu()
            text = rows[:, 1:]
            count += text.numel()
            human += repetitions(text, text, settings.span)[0]
            charged += by_count(p.flatten(0, 1), text.flatten(), settings.uniform, corpus.counts)
            for name, decoding in decodings.items():
                drawn_from = decoding.of(p).flatten(0, 1)
                figures = fit(drawn_from, text.flatten(), settings.uniform)
                drawn = torch.multinomial(drawn_from, 1, generator=random).view_as(text)
                figures["rep"], figures["wrep"] = repetitions(drawn, text, settings.span)
                for key, value in figures.items():
                    sums[name][key] = sums[name].get(key, 0.0) + value
    means: dict[str, Figures] = {
        name: {key: value / count for key, value in total.items()} for name, total in sums.items()
    }
    for figures in means.values():
        loss = figures.pop("loss")
        figures["eps_perplexity"] = math.exp(figures.pop("eps_loss"))
        figures["perplexity"] = math.exp(loss) if math.isfinite(loss) else None
    nonzero, queries = (sum(getattr(each, name) for each in counts.values()) for name in ("nonzero", "rows"))
    keys = nonzero / queries if queries else None
    bins = [
        {"tokens": tokens / count, "eps_loss": loss / count, "missed": missed / max(tokens, 1)}
        for tokens, loss, missed in charged.tolist()
    ]
    return {"decodings": means, "keys": keys, "human": {"rep": human / count}, "tokens": count, "by_count": bins}


@torch.no_grad()
def with_errors(model: Any, corpus: Corpus) -> dict[str, float]:
    """eps-perplexity on the held-out rows with a normal error added to every score, by its standard deviation."""
    random, losses, count = torch.Generator().manual_seed(corpus.settings.seed), dict.fromkeys(ERRORS, 0.0), 0
    model.eval()
    for rows in corpus.test_rows.split(10):
        ids, text = rows.to(model.device), rows[:, 1:].flatten()
        scores = model(input_ids=ids, labels=ids).logits[:, :-1].flatten(0, 1)  # raw, as beside any labels
        noise = torch.randn(scores.shape, generator=random).to(scores)
        for error in ERRORS:
            p = probabilities(model, scores + error * noise).cpu()
            losses[error] += fit(p, text, corpus.settings.uniform)["eps_loss"]
        count += len(text)
    return {str(error): math.exp(loss / count) for error, loss in losses.items()}


def calibrated(model: Any, corpus: Corpus) -> Figures:
    """The fit of a head at a temperature chosen after training, that which is best for the dev rows.

    Softmax has a few to choose from; an entmax head has those of a few coverages.

    Returns:
        ``temperature``, of an entmax head ``coverage``, and what ``measure`` gives for sampling. Nothing for other
        heads, conversions, and fewer dev tokens than the highest coverage takes, and where none does better than the
        temperature of training, as near to alpha 1. The model does not keep its temperature.
    """
    settings, dev, is_softmax = corpus.settings, corpus.dev_rows, corpus.settings.head == "softmax"
    too_few = dev[:, 1:].numel() < 1 / (1 - COVERAGES[-1])
    if settings.conversion or too_few or not (is_softmax or settings.head in ENTMAX):
        return {}
    batches = [{"input_ids": rows, "labels": rows} for rows in dev.to(model.device).split(10)]

    def eps_perplexity(choice: float) -> float:
        if is_softmax:
            if hf_sparse.is_sparse(model):
                hf_sparse.unsparsify(model)
            head = {"name": "softmax", "temperature": choice}
            hf_sparse.sparsify(model, attn=attention_of(settings), head=head)
        else:
            hf_sparse.calibrate(model, batches, coverage=choice, fit_attention=False, fit_alpha=False, progress=False)
        return fit_to(model, dev, settings.uniform)["eps_perplexity"]

    trained = fit_to(model, dev, settings.uniform)["eps_perplexity"]
    best = min(TEMPERATURES if is_softmax else COVERAGES, key=eps_perplexity)
    if eps_perplexity(best) >= trained:  # the model was left at the last choice
        return {}
    return {
        **({} if is_softmax else {"coverage": best}),
        "temperature": hf_sparse.sparse_config(model).head.temperature,
        **measure(model, corpus)["decodings"]["sampling"],
    }


@torch.no_grad()
def continuations(model: Any, corpus: Corpus) -> Figures:
    """Continuations of the beginnings of held-out rows, by every way to decode and by humans.

    Returns:
        By decoding, and under ``human``: ``distinct``, shares of distinct n-grams by n, and ``examples``, three
        continuations. ``beginnings`` has the beginnings of these three.
    """
    settings, tokenizer = corpus.settings, corpus.tokenizer
    rows = corpus.test_rows[:: max(len(corpus.test_rows) // settings.prompts, 1)][: settings.prompts]
    beginnings, length = rows[:, : settings.prompt], settings.context - settings.prompt
    texts = {"human": rows[:, settings.prompt :]}
    for name, decoding in decodings_of(settings).items():
        set_seed(settings.seed)
        written = model.generate(
            input_ids=beginnings.to(model.device),
            attention_mask=torch.ones_like(beginnings).to(model.device),
            max_new_tokens=length,
            min_new_tokens=length,
            **decoding.arguments(),
        )
        texts[name] = written[:, settings.prompt :].cpu()
    told = {
        name: {
            "distinct": {str(n): distinct(written.tolist(), n) for n in (1, 2, 3)},
            "examples": tokenizer.batch_decode(written[:3]),
        }
        for name, written in texts.items()
    }
    return told | {"beginnings": tokenizer.batch_decode(beginnings[:3])}


def perform(settings: LanguageSettings, folder: Path) -> Figures:
    """Train or convert one model, measure it and sample from it."""
    corpus = Corpus(settings)
    model = corpus.model(folder)
    if not settings.offsets:  # which GPT-2's classes do not load
        # An adapter keeps the maps of its base.
        save = hf_sparse.save_pretrained if hf_sparse.is_sparse(model) else type(model).save_pretrained
        save(model, folder / "model")
    corpus.tokenizer.save_pretrained(folder / "model")
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return {
        "data": corpus.what,
        "train_rows": len(corpus.train_rows),
        "vocabulary": len(corpus.tokenizer),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "maps": config_of(model),
        "trained": 0 if settings.conversion == "none" else trained,
        "curve": points(corpus.log),
        "dev": fit_to(model, corpus.dev_rows, settings.uniform) if len(corpus.dev_rows) else {},
        **measure(model, corpus),
        "with_errors": with_errors(model, corpus),
        "written": continuations(model, corpus),
        "calibrated": calibrated(model, corpus),  # the last: it changes the model
    }


RUNS = {
    f"{head}{'' if attention == 'softmax' else '-attention'}": LanguageSettings(head=head, attention=attention)
    for attention in ("softmax", "entmax15")
    for head in HEADS
} | {
    "softmax-on": LanguageSettings(conversion="full"),
    **{
        f"entmax15-{way}": LanguageSettings(head="entmax15", attention="entmax15", conversion=way)
        for way in ("none", "lora", "full")
    },
    "to-entmax13": LanguageSettings(head="entmax13", start_alpha=1.01),
    "to-entmax15": LanguageSettings(head="entmax15", start_alpha=1.3),
    "to-likelihood-entmax13": LanguageSettings(head="entmax13", likelihood=1.0),
    "to-likelihood-entmax15": LanguageSettings(head="entmax15", likelihood=1.0),
    **{
        f"trial-{trial}-{head}": LanguageSettings(head=head, embedding_lr=20, **changed)
        for trial, (_, changed) in TRIALS.items()
        for head in ("softmax", "entmax13", "entmax15")
    },
}
QUICK = {
    "steps": 4,
    "conversion_steps": 3,
    "width": 16,
    "layers": 1,
    "vocabulary": 300,
    "context": 24,
    "prompt": 8,
    "test_rows": 6,
    "dev_rows": 6,
    "prompts": 3,
}

STUDY = Study(
    name="language_modelling",
    description=__doc__,
    runs=RUNS,
    perform=perform,
    report=report,
    card=card,
    quick=QUICK,
    usual=("[!t]*",),
    needs=lambda settings: [DENSE_RUN] if settings.conversion else [],
    check=Corpus,
    condensed=condensed,
)

if __name__ == "__main__":
    main(STUDY)
