"""Scores of given strings and the empty string, against products of single steps."""

import copy
import math
from contextlib import nullcontext

import pytest
import torch

from hf_sparse import (
    Ensemble,
    compare_with_empty,
    is_sparse,
    raw_scores,
    score_sequences,
    sparse_config,
    sparsify,
    step_supports,
)
from hf_sparse.functional import alpha_relu
from tests.tiny_models import EOS, PAD, SEQ2SEQS, tiny_model

VOCAB = 7
HEADS = ["entmax15", {"name": "alpha_relu", "alpha": 1.5, "tau": 0.3}]


def model_and_inputs(name, head, seed=3):
    model = tiny_model(name, vocab_size=VOCAB, seed=seed)
    model.generation_config.forced_eos_token_id = None
    if head is not None:
        sparsify(model, head=head)
    ids = torch.tensor([[3, 5, 4, 6], [6, 3, 3, 5]])
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def step_weights(model, inputs, row, string):
    """The head's own weights of the next token, in float64, by one forward pass over an unpadded prefix."""
    ids = inputs["input_ids"][row : row + 1]
    if "attention_mask" in inputs:
        ids = ids[:, inputs["attention_mask"][row].bool()]
    if model.config.is_encoder_decoder:
        start = model.generation_config.decoder_start_token_id
        whole = {"input_ids": ids, "decoder_input_ids": torch.tensor([[start, *string]])}
    else:
        whole = {"input_ids": torch.cat([ids, torch.tensor([string], dtype=torch.long)], dim=1)}
    with raw_scores(model) if is_sparse(model) else nullcontext():
        z = model(**whole).logits[0, -1].double()
    head = sparse_config(model).head if is_sparse(model) else None
    if head is None:
        return z.softmax(-1)
    if head.name == "alpha_relu":
        return alpha_relu(z, alpha=1.5, tau=0.3)
    # entmax15 by bisection on its threshold
    low, high = z.max() / 2 - 1, z.max() / 2
    for _ in range(100):
        tau = (low + high) / 2
        low, high = (tau, high) if (z / 2 - tau).clamp(min=0).square().sum() > 1 else (low, tau)
    return (z / 2 - tau).clamp(min=0).square()


@pytest.mark.parametrize("head", [*HEADS, None], ids=str)
@pytest.mark.parametrize("name", ["llama", "gpt2", "bart"])
@torch.no_grad()
def test_scores_are_sums_over_single_steps(name, head):
    model, inputs = model_and_inputs(name, head)
    if not model.config.is_encoder_decoder:  # a shorter prompt, padded on the left
        inputs["input_ids"][1, 0], inputs["attention_mask"][1, 0] = PAD, 0
    sequences = model.generate(**inputs, max_new_tokens=4, num_beams=3, num_return_sequences=2, do_sample=False)
    scores = score_sequences(model, inputs, sequences)
    begin = 1 if model.config.is_encoder_decoder else 4
    for row, sequence in enumerate(sequences[:, begin:].tolist()):
        string = sequence[: sequence.index(EOS) + 1] if EOS in sequence else sequence
        normalized = unnormalized = 0.0
        for position, token in enumerate(string):
            weights = step_weights(model, inputs, row // 2, string[:position])
            total = float(weights.sum())
            assert float(scores.sums[row, position]) == pytest.approx(total, rel=1e-4)
            weight = float(weights[token])
            unnormalized += math.log(weight) if weight else -math.inf
            normalized += math.log(weight / total) if weight else -math.inf
        assert int(scores.lengths[row]) == len(string)
        assert scores.sums[row, len(string) :].isnan().all()
        assert float(scores.normalized[row]) == pytest.approx(normalized, abs=1e-4)
        assert float(scores.unnormalized[row]) == pytest.approx(unnormalized, abs=1e-4)


@torch.no_grad()
def test_only_unnormalized_heads_have_two_different_scores():
    for head in HEADS:
        model, inputs = model_and_inputs("bart", head)
        sequences = model.generate(**inputs, max_new_tokens=4, num_beams=3, do_sample=False)
        scores = score_sequences(model, inputs, sequences)
        difference = scores.unnormalized - scores.normalized
        torch.testing.assert_close(difference, scores.sums.log().nansum(-1), atol=1e-6, rtol=1e-6)
        assert bool((difference.abs() < 1e-6).all()) == (head == "entmax15")


@torch.no_grad()
def test_generate_reports_the_normalized_score():
    model, inputs = model_and_inputs("bart", HEADS[1])
    output = model.generate(
        **inputs, max_new_tokens=4, num_beams=4, length_penalty=0.0, do_sample=False,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    scores = score_sequences(model, inputs, output.sequences)
    torch.testing.assert_close(scores.normalized.float(), output.sequences_scores, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_string_outside_the_support_scores_minus_infinity():
    model, inputs = model_and_inputs("llama", "entmax15")
    weights = step_weights(model, inputs, 0, ())
    token = int((weights == 0).nonzero()[0])
    one = {name: value[:1] for name, value in inputs.items()}
    scores = score_sequences(model, one, torch.cat([one["input_ids"], torch.tensor([[token]])], dim=1))
    assert scores.normalized.tolist() == scores.unnormalized.tolist() == [-math.inf]


@torch.no_grad()
def test_a_share_mixes_the_uniform_distribution_into_every_step():
    model, inputs = model_and_inputs("bart", "entmax15")
    sequences = torch.tensor([[1, 4, 5, EOS], [1, 6, EOS, PAD]])
    sequences[:, 0] = model.generation_config.decoder_start_token_id
    scores = score_sequences(model, inputs, sequences, uniform_share=0.1)
    for row, string in enumerate([(4, 5, EOS), (6, EOS)]):
        expected = sum(
            math.log(0.9 * float(step_weights(model, inputs, row, string[:position])[token]) + 0.1 / VOCAB)
            for position, token in enumerate(string)
        )
        assert float(scores.normalized[row]) == pytest.approx(expected, abs=1e-5)
    assert torch.equal(scores.unnormalized, score_sequences(model, inputs, sequences).unnormalized)
    uniform = score_sequences(model, inputs, sequences, uniform_share=1.0)
    torch.testing.assert_close(uniform.normalized, -math.log(VOCAB) * torch.tensor([3.0, 2.0], dtype=torch.float64))
    for share in (-0.1, 1.5, math.nan, "small"):
        with pytest.raises((ValueError, TypeError), match=r"uniform_share must be in \[0, 1\]"):
            score_sequences(model, inputs, sequences, uniform_share=share)


@torch.no_grad()
def test_a_prompt_of_the_decoder_is_read_and_not_scored():
    model, inputs = model_and_inputs("bart", None)
    ids, start = inputs["input_ids"][:1], model.generation_config.decoder_start_token_id
    whole = torch.tensor([[start, 5, 6, 4, EOS]])
    log_p = model(input_ids=ids, decoder_input_ids=whole).logits[0].double().log_softmax(-1)
    scores = score_sequences(model, {"input_ids": ids, "decoder_input_ids": whole[:, :3]}, whole)
    assert float(scores.normalized) == pytest.approx(float(log_p[2, 4] + log_p[3, EOS]), abs=1e-5)
    assert scores.lengths.tolist() == [2]


@pytest.mark.parametrize("head", ["entmax15", None], ids=str)
@pytest.mark.parametrize("name", SEQ2SEQS)
@torch.no_grad()
def test_padding_in_a_prompt_of_the_decoder_is_hidden_as_generate_hides_it(name, head):
    model, inputs = model_and_inputs(name, head)
    start = model.generation_config.decoder_start_token_id
    inputs["decoder_input_ids"] = torch.tensor([[start, 5, 6], [6, start, 5]])
    inputs["decoder_attention_mask"] = torch.tensor([[1, 1, 1], [0, 1, 1]])
    output = model.generate(
        **inputs, max_new_tokens=4, min_new_tokens=4, do_sample=False, return_dict_in_generate=True, output_logits=True
    )
    sequences, log_p = output.sequences, torch.stack(output.logits, dim=1).log_softmax(-1)
    expected = log_p.gather(-1, sequences[:, 3:, None]).sum((1, 2))
    scores = score_sequences(model, inputs, sequences).normalized.float()
    torch.testing.assert_close(scores, expected, atol=1e-4, rtol=1e-4)
    visible = {**inputs, "decoder_attention_mask": torch.ones(2, 3, dtype=torch.long)}
    assert score_sequences(model, visible, sequences).normalized[1] != pytest.approx(float(expected[1]), abs=1e-4)
    if head is not None:
        one = {name: value[1:] for name, value in inputs.items()}
        steps = step_supports(model, one, sequences[1, 3:].tolist())
        assert [step.probabilities[0] for step in steps] == pytest.approx(log_p[1].exp().amax(-1).tolist(), abs=1e-4)


def test_sequences_must_be_those_of_generate():
    model, inputs = model_and_inputs("llama", "entmax15")
    with pytest.raises(ValueError, match="must be a multiple of the 2 inputs, were 3"):
        score_sequences(model, inputs, torch.ones(3, 6, dtype=torch.long))
    with pytest.raises(ValueError, match="must be a multiple of the 2 inputs, were 0"):
        score_sequences(model, inputs, torch.ones(0, 6, dtype=torch.long))
    with pytest.raises(ValueError, match="sequences must be the prompt and at least one more token"):
        score_sequences(model, inputs, torch.ones(2, 6, dtype=torch.long))
    with pytest.raises(ValueError, match="sequences must be the prompt and at least one more token"):
        score_sequences(model, inputs, inputs["input_ids"])
    good = torch.cat([inputs["input_ids"], torch.full((2, 2), EOS)], dim=1)
    with pytest.raises(ValueError, match=r"sequences must be \(rows, length\), as generate returns them, was \(6,\)"):
        score_sequences(model, inputs, good[0])
    with pytest.raises(TypeError, match=r"sequences must be whole numbers, the ids of strings, was torch\.float32"):
        score_sequences(model, inputs, good.float())
    for outside in (VOCAB, -1):
        good[1, -1] = outside
        with pytest.raises(ValueError, match=rf"sequences must be ids in \[0, {VOCAB}\), was {outside}"):
            score_sequences(model, inputs, good)
    bart, inputs = model_and_inputs("bart", "entmax15")
    with pytest.raises(ValueError, match=rf"sequences must be ids in \[0, {VOCAB}\), was 99"):
        score_sequences(bart, inputs, torch.tensor([[EOS, 3], [EOS, 99]]))
    with pytest.raises(ValueError, match="sequences must be the decoder's start token and at least one more"):
        score_sequences(bart, inputs, torch.ones(2, 6, dtype=torch.long))
    bart.lm_head.weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="the model's logits are NaN"):
        score_sequences(bart, inputs, torch.full((2, 2), EOS))
    with pytest.raises(ValueError, match="the model's logits are NaN"):
        compare_with_empty(bart, inputs, max_new_tokens=3)
    bart.generation_config.decoder_start_token_id = bart.generation_config.bos_token_id = None
    with pytest.raises(ValueError, match="set it to the token the decoder starts with"):
        score_sequences(bart, inputs, torch.full((2, 2), EOS))


@pytest.mark.parametrize("head", [*HEADS, None], ids=str)
@pytest.mark.parametrize("name", ["llama", "bart"])
@torch.no_grad()
def test_the_empty_string_has_the_probability_of_ending_at_once(name, head):
    model, inputs = model_and_inputs(name, head)
    compared = compare_with_empty(model, inputs, num_beams=3, max_new_tokens=4)
    for row in range(2):
        weights = step_weights(model, inputs, row, ())
        p = float(weights[EOS] / weights.sum())
        assert float(compared.empty_scores.normalized[row].exp()) == pytest.approx(p, abs=1e-5)
        assert float(compared.empty_scores.unnormalized[row].exp()) == pytest.approx(float(weights[EOS]), abs=1e-5)
    scores = score_sequences(model, inputs, compared.hypotheses)
    assert torch.equal(compared.hypothesis_scores.normalized, scores.normalized)
    empty = compared.hypotheses[:, 1 if name == "bart" else 4] == EOS
    assert torch.equal(compared.found_empty, empty)
    assert torch.equal(compared.preferred, ~empty & (compared.empty_scores.normalized > scores.normalized))


@torch.no_grad()
def test_the_empty_string_is_preferred_where_it_is_likelier_and_several_tokens_may_end_it():
    model, inputs = model_and_inputs("bart", None)
    # Twenty tokens that are all drawn from softmax with less than certainty, against ending at once.
    options = {"num_beams": 2, "min_new_tokens": 20, "max_new_tokens": 20}
    compared = compare_with_empty(model, inputs, **options)
    assert compared.preferred.all()
    assert compared.preferred_unnormalized.all()
    assert not compared.found_empty.any()
    model.generation_config.eos_token_id = [EOS, 6]
    several = compare_with_empty(model, inputs, **options)
    for row in range(2):
        p = step_weights(model, inputs, row, ())[[EOS, 6]].sum()
        assert float(several.empty_scores.normalized[row].exp()) == pytest.approx(float(p), rel=1e-5)


@torch.no_grad()
def test_end_tokens_may_come_in_a_generation_config():
    model, inputs = model_and_inputs("bart", None)
    config = copy.deepcopy(model.generation_config)
    config.eos_token_id, config.max_new_tokens = [EOS, 6], 4
    compared = compare_with_empty(model, inputs, 2, generation_config=config)
    expected = compare_with_empty(model, inputs, 2, eos_token_id=[EOS, 6], max_new_tokens=4)
    assert torch.equal(compared.empty_scores.normalized, expected.empty_scores.normalized)
    assert torch.equal(compared.hypothesis_scores.normalized, expected.hypothesis_scores.normalized)


@pytest.mark.parametrize("head", [*HEADS, None], ids=str)
@torch.no_grad()
def test_a_first_token_that_is_forced_belongs_to_the_beginning_of_the_empty_string(head):
    language, options = 6, {"num_beams": 3, "max_new_tokens": 5}
    model, inputs = model_and_inputs("bart", head)
    model.generation_config.forced_bos_token_id = language
    compared = compare_with_empty(model, inputs, **options)
    assert compared.hypotheses[:, 1].tolist() == [language] * 2
    assert torch.equal(compared.found_empty, compared.hypotheses[:, 2] == EOS)
    for row, sequence in enumerate(compared.hypotheses[:, 1:].tolist()):
        string = sequence[: sequence.index(EOS) + 1] if EOS in sequence else sequence
        steps = [step_weights(model, inputs, row, string[:position]) for position in range(1, len(string))]
        expected = sum(float((p[token] / p.sum()).log()) for p, token in zip(steps, string[1:]))
        assert float(compared.hypothesis_scores.normalized[row]) == pytest.approx(expected, abs=1e-4)
        p = float(steps[0][EOS] / steps[0].sum())
        assert float(compared.empty_scores.normalized[row].exp()) == pytest.approx(p, abs=1e-5)
        assert int(compared.hypothesis_scores.lengths[row]) == len(string) - 1
    config = copy.deepcopy(model.generation_config)
    model.generation_config.forced_bos_token_id = 5
    start = torch.full((2, 1), model.generation_config.decoder_start_token_id)
    begun = {**inputs, "decoder_input_ids": start, "decoder_attention_mask": torch.ones_like(start)}
    for same in (
        compare_with_empty(model, inputs, **options, forced_bos_token_id=language),
        compare_with_empty(model, inputs, 3, max_new_tokens=5, generation_config=config),
        compare_with_empty(model, begun, **options, forced_bos_token_id=language),
    ):
        assert torch.equal(same.hypothesis_scores.normalized, compared.hypothesis_scores.normalized)
        assert torch.equal(same.empty_scores.normalized, compared.empty_scores.normalized)
    free = compare_with_empty(model, inputs, **options, forced_bos_token_id=None)
    model.generation_config.forced_bos_token_id = None
    assert torch.equal(
        free.empty_scores.normalized, compare_with_empty(model, inputs, **options).empty_scores.normalized
    )
    ended = compare_with_empty(model, inputs, 3, max_new_tokens=1, forced_bos_token_id=6, forced_eos_token_id=EOS)
    assert ended.found_empty.all()


@torch.no_grad()
def test_nothing_is_preferred_to_an_empty_hypothesis():
    model, inputs = model_and_inputs("bart", "entmax15")
    compared = compare_with_empty(model, inputs, num_beams=2, max_new_tokens=1, forced_eos_token_id=EOS)
    assert compared.found_empty.all()
    assert not compared.preferred.any()
    assert not compared.preferred_unnormalized.any()


@torch.no_grad()
def test_an_ensemble_is_scored_as_one_model():
    members = [model_and_inputs("bart", head, seed=3 + i)[0] for i, head in enumerate(HEADS)]
    ensemble, inputs = Ensemble(members), model_and_inputs("bart", None)[1]
    compared = compare_with_empty(ensemble, inputs, num_beams=3, max_new_tokens=4)
    for row in range(2):
        steps = [step_weights(model, inputs, row, ()) for model in members]
        p = sum(float(weights[EOS] / weights.sum()) for weights in steps) / 2
        assert float(compared.empty_scores.normalized[row].exp()) == pytest.approx(p, abs=1e-5)


def test_a_model_that_never_ends_has_no_empty_string():
    model, inputs = model_and_inputs("llama", "entmax15")
    model.generation_config.eos_token_id = None
    with pytest.raises(ValueError, match="no string ever ends"):
        compare_with_empty(model, inputs)


def test_hypotheses_that_are_sampled_are_others_the_next_time():
    model, inputs = model_and_inputs("bart", {"name": "entmax15", "temperature": 3.0})
    torch.manual_seed(0)
    options = {"num_beams": 1, "do_sample": True, "max_new_tokens": 6}
    found = [compare_with_empty(model, inputs, **options).hypotheses.tolist() for _ in range(5)]
    assert any(other != found[0] for other in found)
