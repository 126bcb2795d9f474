"""enumerate_support against enumeration one by one."""

import pytest
import torch

from hf_sparse import enumerate_support, sparsify
from tests.enumeration import all_strings, ended, model_and_inputs
from tests.tiny_models import EOS, tiny_model

HEADS = ["entmax15", "sparsemax", {"name": "entmax", "alpha": 1.25}, {"name": "alpha_relu", "tau": "auto"}]


@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize("name", ["llama", "bart", "t5"])
@torch.no_grad()
def test_enumerate_support_finds_every_string(name, head):
    model, inputs = model_and_inputs(name, head)
    model.double()  # so that what rounding does next to the threshold does not blur the comparison
    strings = all_strings(model, inputs, steps=4)
    table = {string: p for string, p in strings.items() if string[-1] == EOS}
    support = enumerate_support(model, inputs, max_hypotheses=5000, max_new_tokens=4)
    found = {tuple(ids): p for ids, p in zip(support.sequences, support.probabilities)}
    assert set(found) == set(table)
    for string, p in table.items():
        assert found[string] == pytest.approx(p, rel=1e-9)
    assert support.mass == pytest.approx(sum(table.values()), rel=1e-9)
    assert support.mass + support.left_mass == pytest.approx(1, abs=1e-9)
    assert support.probabilities == sorted(support.probabilities, reverse=True)
    assert support.complete == (table == strings)


@torch.no_grad()
def test_enumerate_support_says_when_it_is_complete_and_when_the_budget_ended_it():
    model, inputs = model_and_inputs("bart", "entmax15")
    support = enumerate_support(model, inputs, max_hypotheses=60, max_new_tokens=12)
    assert support.complete
    assert support.mass == pytest.approx(1, abs=1e-5)
    assert len(support.sequences) > 2
    cut = enumerate_support(model, inputs, max_hypotheses=2, max_new_tokens=12)
    assert not cut.complete
    assert len(cut.sequences) == 2
    assert cut.probabilities == pytest.approx(support.probabilities[:2])


def test_enumerate_support_refuses_what_it_cannot_answer():
    model, inputs = model_and_inputs("llama", "sparsemax")
    with pytest.raises(ValueError, match="inputs must be for one sentence, were for 2"):
        enumerate_support(model, {"input_ids": torch.ones(2, 3, dtype=torch.long)})
    with pytest.raises(ValueError, match="max_hypotheses must be at least 1, was 0"):
        enumerate_support(model, inputs, max_hypotheses=0)
    model.generation_config.eos_token_id = None
    with pytest.raises(ValueError, match="no string ever ends"):
        enumerate_support(model, inputs)
    with pytest.raises(ValueError, match="head is dense"):
        enumerate_support(sparsify(tiny_model("llama"), attn="entmax15"), inputs)


def test_complete_says_whether_there_are_more_strings_than_asked_for():
    model, inputs = model_and_inputs("bart", "entmax15")
    model.double()
    everything = all_strings(model, inputs, 14)
    table = ended(everything)
    assert len(table) == len(everything)  # every string ends
    for count in range(1, len(table) + 2):
        support = enumerate_support(model, inputs, max_hypotheses=count, max_new_tokens=14)
        assert support.complete == (count >= len(table))
        assert support.probabilities == pytest.approx([p for p, _ in table[:count]], rel=1e-9)
        assert (support.left_mass == 0) == support.complete
        assert support.mass + support.left_mass == pytest.approx(1, abs=1e-12)
    longest = max(len(string) for _, string in table)
    for length in (longest - 1, longest):
        support = enumerate_support(model, inputs, max_new_tokens=length)
        assert support.complete == (length == longest)


def test_strings_below_a_least_probability_do_not_count():
    model, inputs = model_and_inputs("t5", "entmax15")
    model.double()
    table = [(p, string) for p, string in ended(all_strings(model, inputs, 5)) if p >= 1e-3]
    support = enumerate_support(model, inputs, min_probability=1e-3, max_new_tokens=5)
    assert support.probabilities == pytest.approx([p for p, _ in table], rel=1e-9)
    assert support.mass + support.left_mass == pytest.approx(1, abs=1e-9)
    assert not enumerate_support(model, inputs, min_probability=1e-3, max_hypotheses=5).complete
    model, inputs = model_and_inputs("gpt2", "entmax15", seed=1)
    tight = enumerate_support(model, inputs, min_probability=0.05, max_new_tokens=30)
    assert tight.complete
    assert 0 < tight.left_mass < 1
    dense, inputs = model_and_inputs("gpt2", None, seed=1)
    assert enumerate_support(dense, inputs, min_probability=0.05, max_new_tokens=30).complete


def test_what_the_generation_config_forbids_or_forces_does_not_count():
    model, inputs = model_and_inputs("bart", "entmax15")
    free = enumerate_support(model, inputs, max_new_tokens=3)
    model.generation_config.forced_eos_token_id = EOS
    model.generation_config.suppress_tokens = [3]
    assert enumerate_support(model, inputs, max_new_tokens=3) == free
