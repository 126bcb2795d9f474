"""Accuracy by language, and proofs of beam search that its form is the likeliest."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import hf_sparse

from ..inflection.model import source_text
from ..inflection.predictions import ExactMatch, predict
from ..lib.batches import by_length
from ..lib.records import Figures
from .data import Task


@torch.no_grad()
def search(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, rows: Dataset, beams: int) -> dict[str, Any]:
    """Beam search for the likeliest form of every row, with its certificates.

    Returns:
        Lists over rows: ``forms``; ``exhausted``, whether the beam saw every form of nonzero probability; ``counts``,
        the number of forms it saw; ``certified``, whether any certificate proves its form the likeliest.
    """
    model.eval()
    texts = [source_text(row["lemma"], row["tags"]) for row in rows]
    found: list[Any] = [None] * len(texts)
    for batch in by_length(texts, 100):
        inputs = tokenizer([texts[index] for index in batch], padding=True, return_tensors="pt").to(model.device)
        output = model.generate(
            **inputs,
            num_beams=beams,
            do_sample=False,
            length_penalty=0.0,
            early_stopping="never",
            return_dict_in_generate=True,
            output_scores=True,
        )
        forms = tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
        proofs = hf_sparse.beam_certificate(model, output, beams)
        for index, form, proof in zip(batch, forms, proofs):
            found[index] = (form, proof.exhausted, len(proof.hypotheses), proof.bounded)
    return dict(zip(("forms", "exhausted", "counts", "certified"), map(list, zip(*found))))


def measured(model: PreTrainedModel, task: Task, beams: int) -> Figures:
    """Accuracy over all languages and by language, support sizes, and shares of words with a certificate."""
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
