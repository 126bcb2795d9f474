"""Predictions of an inflection model: forms, candidates per step, and all forms of nonzero probability."""

from __future__ import annotations

from typing import Any, NamedTuple

import datasets
import evaluate
import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import hf_sparse

from ..lib.batches import by_length
from .model import source_text


class Predictions(NamedTuple):
    """Result of greedy decoding."""

    forms: list[str]
    supports: list[int]  # classes of nonzero probability at every step of every row, the end token's included

    @property
    def support_size(self) -> float:
        """Mean number of classes of nonzero probability per step."""
        return sum(self.supports) / len(self.supports)

    @property
    def one_candidate_rate(self) -> float:
        """Share of steps at which one class has probability 1."""
        return self.supports.count(1) / len(self.supports)


class ExactMatch(evaluate.Metric):
    """Share of predictions equal to their reference, character by character."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=self.__doc__,
            citation="",
            inputs_description="",
            features=datasets.Features({"predictions": text, "references": text}),
        )

    def _compute(self, predictions: list[str], references: list[str]) -> dict[str, float]:
        equal = [prediction == reference for prediction, reference in zip(predictions, references)]
        return {"exact_match": sum(equal) / len(equal)}


@torch.no_grad()
def predict(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, rows: Dataset, batch_size: int = 256
) -> Predictions:
    """Decode ``rows`` greedily and count the candidates at every step."""
    model.eval()
    texts = [source_text(row["lemma"], row["tags"]) for row in rows]
    forms, supports = [""] * len(texts), []
    for batch in by_length(texts, batch_size):
        inputs = tokenizer([texts[index] for index in batch], padding=True, return_tensors="pt").to(model.device)
        output = model.generate(**inputs, do_sample=False, return_dict_in_generate=True, output_logits=True)
        generated = output.sequences[:, 1:]
        for index, form in zip(batch, tokenizer.batch_decode(generated, skip_special_tokens=True)):
            forms[index] = form
        supports += count_candidates(torch.stack(output.logits, dim=1), generated, tokenizer.eos_token_id)
    return Predictions(forms, supports)


def count_candidates(logits: torch.Tensor, generated: torch.Tensor, end: int) -> list[int]:
    """Number of classes of nonzero probability at each step, up to and including each row's end token.

    Args:
        logits: (rows, steps, classes) as ``generate`` returns them; log-probabilities if the model is sparse, so that
            softmax gives back its distribution, zeros included.
        generated: token ids (rows, steps).
        end: the end token.
    """
    ended_before = (generated == end).cumsum(-1) - (generated == end).long() > 0
    support = (logits.float().softmax(-1) > 0).sum(-1)
    return support[~ended_before].tolist()


def hypotheses(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, row: dict[str, str], limit: int
) -> dict[str, Any]:
    """Every form to which a sparse model gives nonzero probability, likeliest first.

    Args:
        model: with a sparse head.
        tokenizer: of the model.
        row: lemma, form and tags.
        limit: largest number of forms.

    Returns:
        The row; ``source``, the model's input; ``greedy``, the form of greedy decoding; ``complete``, whether these
        are all forms, which holds unless there are more than ``limit``; ``mass``, the sum of their probabilities;
        ``forms``, probabilities by form.
    """
    source = source_text(row["lemma"], row["tags"])
    inputs = tokenizer(source, return_tensors="pt").to(model.device)
    found = hf_sparse.enumerate_support(model, inputs, limit, model.generation_config.max_new_tokens)
    forms = tokenizer.batch_decode([ids[:-1] for ids in found.sequences])  # without the end token
    return {
        **row,
        "source": source,
        "greedy": tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True),
        "complete": found.complete,
        "mass": found.mass,
        "forms": dict(zip(forms, found.probabilities)),
    }
