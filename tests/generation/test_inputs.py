"""Inputs in the wrong form are refused with the form that is needed."""

import pytest

from hf_sparse import (
    compare_with_empty,
    enumerate_support,
    exact_search,
    score_sequences,
    sparsify,
    step_supports,
)
from tests.tiny_models import tiny_model, tokens

SEARCHES = [
    enumerate_support,
    exact_search,
    compare_with_empty,
    lambda model, inputs: step_supports(model, inputs, [5]),
    lambda model, inputs: score_sequences(model, inputs, tokens(1)),
]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(
    ("inputs", "was"),
    [
        ("a sentence", "was str"),
        (tokens(1), "was Tensor"),
        ({"input_ids": [[3, 4]]}, "input_ids was a list"),
        ({}, "was dict"),
    ],
)
def test_inputs_must_be_tensors_by_name(search, inputs, was):
    model = sparsify(tiny_model("gpt2"), head="entmax15")
    with pytest.raises(TypeError, match=rf'inputs must be .* as tokenizer\(text, return_tensors="pt"\) gives; {was}$'):
        search(model, inputs)


@pytest.mark.parametrize("search", SEARCHES)
def test_ids_must_have_a_batch_dimension(search):
    model = sparsify(tiny_model("gpt2"), head="entmax15")
    with pytest.raises(
        ValueError, match=r"input_ids must be \(B, length\), were of shape \(7,\); of one sentence, give"
    ):
        search(model, {"input_ids": tokens(1)[0]})


@pytest.mark.parametrize("name", ["gpt2", "bart"])
@pytest.mark.parametrize("search", SEARCHES)
def test_a_batch_has_at_least_one_sentence(search, name):
    model = sparsify(tiny_model(name), head="entmax15")
    with pytest.raises(ValueError, match="the batch is empty: give at least one sentence"):
        search(model, {"input_ids": tokens(1)[:0]})
