"""Every mode of ``generate`` reads exactly the sparse distribution: checked against enumeration of all strings."""

import math

import pytest
import torch

from hf_sparse import enumerate_support, sparsify
from tests.enumeration import VOCAB, all_strings, model_and_inputs, next_distribution
from tests.tiny_models import EOS, PAD, tiny_model

STEPS = 3
HEADS = [
    "entmax15",
    "sparsemax",
    {"name": "entmax", "alpha": 1.25},
    {"name": "alpha_relu", "alpha": 1.5, "tau": "auto"},
]
NAMES = ["llama", "gpt2", "gemma2", "bart", "t5"]


def strings_of(model, inputs, sequences):
    """Generated ids as tuples, prompt or start token and padding taken off."""
    prompt = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    strings = []
    for row in sequences[:, prompt:].tolist():
        end = row.index(EOS) + 1 if EOS in row else len(row)
        strings.append(tuple(row[:end]))
    return strings


@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_beam_search_finds_the_best_strings_with_their_exact_probabilities(name, head):
    model, inputs = model_and_inputs(name, head)
    table = all_strings(model, inputs, STEPS)
    assert sum(table.values()) == pytest.approx(1, abs=1e-5)
    beams = 40
    output = model.generate(
        **inputs,
        max_new_tokens=STEPS,
        num_beams=beams,
        num_return_sequences=beams,
        length_penalty=0.0,
        return_dict_in_generate=True,
        output_scores=True,
        do_sample=False,
    )
    found = dict(zip(strings_of(model, inputs, output.sequences), output.sequences_scores.exp().tolist()))
    best = sorted(table.items(), key=lambda entry: -entry[1])[: beams // 4]
    for string, probability in best:
        assert found[string] == pytest.approx(probability, rel=1e-4)
    for string, score in found.items():
        assert score == pytest.approx(table.get(string, 0.0), abs=1e-5)


@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_greedy_takes_the_likeliest_token_and_reports_its_log_probability(name, head):
    model, inputs = model_and_inputs(name, head)
    output = model.generate(
        **inputs, max_new_tokens=STEPS, do_sample=False, return_dict_in_generate=True, output_scores=True
    )
    (string,) = strings_of(model, inputs, output.sequences)
    for position, token in enumerate(string):
        p = next_distribution(model, inputs, string[:position])
        assert token == int(p.argmax())
        scores = output.scores[position][0].double()
        torch.testing.assert_close(scores.exp(), p, atol=1e-6, rtol=1e-4)
        assert torch.equal(scores.float().exp() == 0, p == 0)


@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize("name", ["llama", "bart"])
@torch.no_grad()
def test_sampling_draws_strings_with_their_probabilities_and_never_one_of_probability_zero(name, head):
    model, inputs = model_and_inputs(name, head)
    table = all_strings(model, inputs, STEPS)
    torch.manual_seed(0)
    draws = 4000
    sequences = model.generate(
        **inputs, max_new_tokens=STEPS, do_sample=True, top_k=0, num_return_sequences=draws, temperature=1.0
    )
    counts: dict = {}
    for string in strings_of(model, inputs, sequences):
        counts[string] = counts.get(string, 0) + 1
    assert set(counts) <= set(table)
    for string, p in table.items():
        spread = math.sqrt(draws * p * (1 - p)) + 1
        assert abs(counts.get(string, 0) - draws * p) < 5 * spread


@torch.no_grad()
def test_a_dense_head_would_have_drawn_other_strings():
    model, inputs = model_and_inputs("llama", "sparsemax")
    assert len(all_strings(model, inputs, STEPS)) < sum((VOCAB - 1) ** k for k in range(1, STEPS + 1)) / 3


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("name", ["llama", "bart"])
@torch.no_grad()
def test_cache_and_left_padding_do_not_change_beams(name, use_cache):
    model, inputs = model_and_inputs(name, {"name": "alpha_relu", "tau": "auto"})
    settings = {"max_new_tokens": 4, "num_beams": 4, "use_cache": use_cache, "do_sample": False}
    settings |= {"return_dict_in_generate": True, "output_scores": True}
    alone = model.generate(**inputs, **settings)
    if not model.config.is_encoder_decoder:
        padding = torch.full((1, 2), PAD)
        ids = torch.cat([padding, inputs["input_ids"]], dim=1)
        inputs = {"input_ids": ids, "attention_mask": (ids != PAD).long()}
        padded = model.generate(**inputs, **settings)
        assert torch.equal(padded.sequences[:, 2:], alone.sequences)
        torch.testing.assert_close(padded.sequences_scores, alone.sequences_scores, atol=1e-4, rtol=1e-4)
    reference = model.generate(**inputs, **{**settings, "use_cache": not use_cache})
    torch.testing.assert_close(reference.sequences_scores, alone.sequences_scores, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_assisted_decoding_and_prompt_lookup_agree_with_greedy():
    model, inputs = model_and_inputs("llama", "entmax15")
    assistant = sparsify(tiny_model("llama", vocab_size=VOCAB, seed=8), head="sparsemax")
    greedy = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    assert torch.equal(model.generate(**inputs, max_new_tokens=8, do_sample=False, assistant_model=assistant), greedy)
    lookup = model.generate(**inputs, max_new_tokens=8, do_sample=False, prompt_lookup_num_tokens=2)
    assert torch.equal(lookup, greedy)


@torch.no_grad()
def test_a_constraint_that_empties_the_support_leaves_the_order_of_scores():
    model, inputs = model_and_inputs("llama", "sparsemax")
    p = next_distribution(model, inputs, ())
    allowed = [token for token in range(VOCAB) if p[token] == 0]
    output = model.generate(
        **inputs, max_new_tokens=1, do_sample=False, suppress_tokens=[t for t in range(VOCAB) if t not in allowed]
    )
    logits = model(inputs["input_ids"]).logits[0, -1]
    assert int(output[0, -1]) == max(allowed, key=lambda token: float(logits[token]))


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
    with pytest.raises(ValueError, match="must be at least 1, were 0 and 64"):
        enumerate_support(model, inputs, max_hypotheses=0)
    model.generation_config.eos_token_id = None
    with pytest.raises(ValueError, match="no string ever ends"):
        enumerate_support(model, inputs)
    with pytest.raises(ValueError, match="head is dense"):
        enumerate_support(sparsify(tiny_model("llama"), attn="entmax15"), inputs)


def test_strings_of_is_read_correctly():
    model, inputs = model_and_inputs("llama", "sparsemax")
    rows = torch.tensor([[3, 5, 4, 6, 5, EOS, PAD], [3, 5, 4, 6, 5, 4, 3]])
    assert strings_of(model, inputs, rows) == [(5, EOS), (5, 4, 3)]
