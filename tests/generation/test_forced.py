"""Forced decoding: the supports at every step of a given string, against single steps."""

import pytest
import torch

from hf_sparse import sparsify, step_supports
from tests.enumeration import model_and_inputs, next_distribution
from tests.tiny_models import tiny_model


@pytest.mark.parametrize("head", ["entmax15", {"name": "alpha_relu", "tau": "auto"}], ids=str)
@pytest.mark.parametrize("name", ["llama", "bart"])
@torch.no_grad()
def test_step_supports_are_the_nonzero_tokens_at_every_step(name, head):
    model, inputs = model_and_inputs(name, head)
    string = [5, 3, 6, 2]
    steps = step_supports(model, inputs, string)
    assert [step.chosen for step in steps] == string
    for position, step in enumerate(steps):
        p = next_distribution(model, inputs, string[:position])
        found = torch.zeros_like(p).index_put((torch.tensor(step.tokens),), torch.tensor(step.probabilities).double())
        torch.testing.assert_close(found, p, rtol=1e-4, atol=1e-7)
        assert min(step.probabilities) > 0
        assert step.probabilities == sorted(step.probabilities, reverse=True)
        assert step.forced == (step.tokens == [step.chosen])


def test_step_supports_refuse_what_has_none():
    model, inputs = model_and_inputs("llama", "entmax15")
    with pytest.raises(ValueError, match=r"^tokens must hold at least one more token"):
        step_supports(model, inputs, [])
    for no_ids in ([3.5], ["a"], 3):
        with pytest.raises(TypeError, match="tokens must be whole numbers, the ids of a string, was "):
            step_supports(model, inputs, no_ids)
    with pytest.raises(TypeError, match=r"a list of ids, was a tensor of shape \(3,\);.* as row\[length:\].tolist"):
        step_supports(model, inputs, torch.tensor([3, 4, 5]))
    with pytest.raises(ValueError, match="inputs must be for one sentence, were for 2"):
        step_supports(model, {"input_ids": torch.ones(2, 3, dtype=torch.long)}, [3])
    with pytest.raises(ValueError, match="head is dense"):
        step_supports(sparsify(tiny_model("llama"), attn="entmax15"), inputs, [3])
