"""What a user asks of a model that Trainer left in training mode is answered without dropout."""

import pytest
import torch
from torch import nn

from hf_sparse import (
    Lexicon,
    calibrate,
    compare_with_empty,
    condition,
    enumerate_support,
    exact_search,
    html_report,
    score_sequences,
    sparsify,
    step_supports,
    suggest,
)
from tests.generation.spaced_tokenizer import spaced_tokenizer
from tests.tiny_models import tiny_model

TOKENIZER = spaced_tokenizer()
SHORT = {"max_new_tokens": 3}


def batches(inputs):
    return [{"input_ids": inputs["input_ids"], "labels": inputs["input_ids"]}]


ASKED = {
    "calibrate": lambda model, inputs, text: calibrate(model, batches(inputs), progress=False).head,
    "compare_with_empty": lambda model, inputs, text: compare_with_empty(model, inputs, num_beams=2, **SHORT),
    "condition": lambda model, inputs, text: condition(
        model, inputs, Lexicon(["the cats", "cats"], TOKENIZER), **SHORT
    ),
    "enumerate_support": lambda model, inputs, text: enumerate_support(model, inputs, **SHORT),
    "exact_search": lambda model, inputs, text: exact_search(model, inputs, **SHORT),
    "html_report": lambda model, inputs, text: html_report(model, TOKENIZER, text, max_hypotheses=3, **SHORT),
    "score_sequences": lambda model, inputs, text: score_sequences(
        model, inputs, torch.cat([inputs["input_ids"], inputs["input_ids"]], dim=1), uniform_share=0.1
    ),
    "step_supports": lambda model, inputs, text: step_supports(model, inputs, [3, 4, 5]),
    "suggest": lambda model, inputs, text: suggest(model, text, TOKENIZER, max_tokens=3),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_model_in_training_mode_answers_as_in_evaluation_mode_and_stays_in_its_mode(name):
    text = " the cats"
    inputs = dict(TOKENIZER(text, return_tensors="pt"))
    answers = []
    for training in (False, True):
        model = sparsify(
            tiny_model("gpt2", vocab_size=len(TOKENIZER)),
            attn="entmax15",
            head={"name": "entmax15", "temperature": 2.0},
        )
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.5
        model.train(training)
        answers.append(str(ASKED[name](model, inputs, text)))
        assert all(module.training == training for module in model.modules())
    assert answers[0] == answers[1]
