"""The proofs of beam search, against enumeration."""

import copy
import math

import pytest
import torch

from hf_sparse import CoveragePenalty, beam_certificate
from tests.enumeration import all_strings, ended, model_and_inputs
from tests.tiny_models import EOS, PAD
from tests.tiny_whisper import tiny_whisper

SETTINGS = {"do_sample": False, "return_dict_in_generate": True, "output_scores": True}


def search(model, inputs, num_beams, **options):
    output = model.generate(**inputs, num_beams=num_beams, **SETTINGS | {"length_penalty": 0.0} | options)
    return output, beam_certificate(model, output, num_beams)


@pytest.mark.parametrize("head", ["entmax15", "sparsemax", {"name": "alpha_relu", "tau": "auto"}, None], ids=str)
@pytest.mark.parametrize("name", ["llama", "gpt2", "bart", "t5"])
def test_what_is_claimed_is_true_by_enumeration(name, head):
    for seed in (1, 2, 3):
        model, inputs = model_and_inputs(name, head, seed=seed)
        model.double()
        table = ended(all_strings(model, inputs, 4))
        for num_beams in (2, 4):
            _, (result,) = search(model, inputs, num_beams, max_new_tokens=4, early_stopping="never")
            seen = {tuple(h.tokens): h.probability for h in result.hypotheses}
            missed = [p for p, string in table if string not in seen]
            assert seen == {s: pytest.approx(p, rel=1e-5) for p, s in table if s in seen}
            assert max(missed, default=0) <= math.exp(result.log_bound) * (1 + 1e-5)
            assert sum(missed) <= result.left_mass + 1e-6
            assert result.finished_mass + result.left_mass == pytest.approx(1, abs=1e-5)
            if result.exhausted:
                assert not missed
            if result.certificate and table:
                assert result.best.probability == pytest.approx(table[0][0], rel=1e-5)


def test_the_beam_that_covers_every_string_is_exhaustive_and_a_smaller_one_is_not():
    model, inputs = model_and_inputs("bart", "entmax15")
    model.double()
    everything = all_strings(model, inputs, 14)
    table = ended(everything)
    assert len(table) == len(everything) > 3  # every string ends, and none was cut
    # With fewer beams than strings generate stops when as many have ended and no other can be likelier.
    _, (wide,) = search(model, inputs, len(table) + 1, max_new_tokens=14, early_stopping="never")
    assert wide.certificate == "exhaustion"
    assert {tuple(h.tokens) for h in wide.hypotheses} == {string for _, string in table}
    assert wide.left_mass == 0
    assert wide.ended_by is None
    model, inputs = model_and_inputs("t5", "entmax15")
    _, (narrow,) = search(model, inputs, 2, max_new_tokens=30, early_stopping="never")
    assert not narrow.exhausted
    assert narrow.ended_by == "num_beams"
    assert narrow.gap > 0
    model, inputs = model_and_inputs("t5", "entmax15", seed=7)  # all that is open is less likely than the best string
    _, (ended_early,) = search(model, inputs, 2, max_new_tokens=12, early_stopping="never")
    assert ended_early.ended_by == "num_beams"
    assert ended_early.log_bound > ended_early.best.log_probability


def test_open_beams_at_the_end_are_left():
    model, inputs = model_and_inputs("llama", "sparsemax", seed=0)  # ends nothing within four tokens
    _, (result,) = search(model, inputs, 40, max_new_tokens=3)
    assert result.ended_by == "max_new_tokens"
    assert result.best is None
    assert result.left_mass == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("head", ["entmax15", None], ids=str)
def test_prefixes_less_likely_than_the_least_float_are_left(head):
    """One unlikely token is allowed, so that no prefix is dropped; the one that is open is no proof that it is not."""
    model, inputs = model_and_inputs("gpt2", head)
    output = model.get_output_embeddings()
    output.weight.data.zero_()
    output.bias = torch.nn.Parameter(torch.tensor([0.0, 0, 0, 1 if head else 90, 0, 0, 0]))
    options = {"max_new_tokens": 600 if head else 12, "suppress_tokens": [0, 1, 2, 3, 5, 6]}
    _, (result,) = search(model, inputs, 2, **options)
    assert result.log_bound < -800
    assert not result.exhausted
    assert result.certificate is None
    assert result.ended_by == "max_new_tokens"
    assert result.num_expanded == options["max_new_tokens"]


def test_each_sentence_of_a_batch_has_its_own():
    model, _ = model_and_inputs("gpt2", "entmax15")
    ids = torch.tensor([[3, 5, 4, 6], [PAD, PAD, 4, 4], [PAD, PAD, PAD, 6]])
    output, together = search(model, {"input_ids": ids, "attention_mask": (ids != PAD).long()}, 3, max_new_tokens=6)
    assert len(together) == 3
    for i, row in enumerate(ids):
        alone = {"input_ids": row[row != PAD][None]}
        alone["attention_mask"] = torch.ones_like(alone["input_ids"])
        (expected,) = search(model, alone, 3, max_new_tokens=6)[1]
        assert together[i].best.tokens == expected.best.tokens
        assert together[i].best.probability == pytest.approx(expected.best.probability, rel=1e-3)
        if EOS in output.sequences[i]:
            score = float(output.sequences_scores[i])
            assert together[i].best.log_probability == pytest.approx(score, abs=1e-4)
    assert (output.sequences == EOS).any()


def test_several_sequences_and_a_length_penalty_are_read():
    model, inputs = model_and_inputs("gpt2", "entmax15")
    output, (result,) = search(model, inputs, 4, max_new_tokens=5, num_return_sequences=3, length_penalty=-1.0)
    strings = [row[4:].tolist() for row in output.sequences if EOS in row]
    returned = [tuple(string[: string.index(EOS) + 1]) for string in strings]
    assert returned
    assert set(returned) <= {tuple(h.tokens) for h in result.hypotheses}
    assert [h.log_probability for h in result.hypotheses] == sorted(
        (h.log_probability for h in result.hypotheses), reverse=True
    )


@pytest.mark.parametrize("num_beams", [2, 3])
def test_a_likely_string_that_the_search_skipped_is_no_hypothesis(num_beams):
    """One that ends beyond the first ``num_beams`` continuations of its step."""
    model, inputs = model_and_inputs("gpt2", "entmax15", seed=10)
    options = {"num_return_sequences": num_beams, "max_new_tokens": 12, "early_stopping": "never"}
    output, (result,) = search(model, inputs, num_beams, **options)
    rows = [row[4:].tolist() for row in output.sequences]
    returned = [row[: row.index(EOS) + 1] if EOS in row else row for row in rows]
    least = float(output.sequences_scores.min())
    assert result.hypotheses
    assert all(h.tokens in returned or h.log_probability < least + 1e-5 for h in result.hypotheses)


def test_refuses_what_is_not_a_beam_search():
    model, inputs = model_and_inputs("t5", "entmax15")
    greedy = model.generate(**inputs, max_new_tokens=3, **SETTINGS)
    with pytest.raises(ValueError, match="output has no beam scores"):
        beam_certificate(model, greedy, 1)
    output = model.generate(**inputs, max_new_tokens=3, num_beams=4, **SETTINGS)
    with pytest.raises(ValueError, match="num_beams was 3, and the search had 4 beams per sentence"):
        beam_certificate(model, output, 3)
    torch.manual_seed(0)
    sampled = model.generate(
        **inputs, max_new_tokens=6, num_beams=2, temperature=4.0, top_k=0, **SETTINGS | {"do_sample": True}
    )
    with pytest.raises(ValueError, match="the beams were sampled"):
        beam_certificate(model, sampled, 2)
    stopped = model.generate(**inputs, max_new_tokens=6, num_beams=2, max_time=60.0, **SETTINGS)
    with pytest.raises(ValueError, match="the beams were stopped by MaxTimeCriteria"):
        beam_certificate(model, stopped, 2)
    for part in (model, model.decoder):
        part.train()
        unsure = model.generate(**inputs, max_new_tokens=3, num_beams=2, **SETTINGS)
        with pytest.raises(ValueError, match=r"the model was in training mode.*call model\.eval\(\) before generate"):
            beam_certificate(model.eval(), unsure, 2)
    other = type(output)(**output)
    with pytest.raises(ValueError, match="does not come from T5ForConditionalGeneration's beam search as it was"):
        beam_certificate(model, other, 4)
    cut = copy.copy(output)
    cut.scores = tuple(scores[:3] for scores in output.scores)
    with pytest.raises(ValueError, match="the scores are for 3 beams in all: that is not num_beams=4 per sentence"):
        beam_certificate(model, cut, 4)
    output.scores[1][0, 0] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        beam_certificate(model, output, 4)
    output.scores[1][0, 0] = 1.0
    with pytest.raises(ValueError, match="a logits processor raised probabilities, so that those of a step sum to"):
        beam_certificate(model, output, 4)
    raised = model.generate(**inputs, max_new_tokens=3, num_beams=4, encoder_repetition_penalty=1.5, **SETTINGS)
    with pytest.raises(ValueError, match="a logits processor raised probabilities, so that those of a step sum to"):
        beam_certificate(model, raised, 4)
    model.generation_config.eos_token_id = None
    endless = model.generate(**inputs, max_new_tokens=3, num_beams=4, **SETTINGS)
    with pytest.raises(ValueError, match="no string ever ends; set it to the end token"):
        beam_certificate(model, endless, 4)


@pytest.mark.parametrize("head", ["entmax15", None])
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_end_tokens_given_in_the_call_end_strings_in_the_proof(name, head):
    """By enumeration, with ends that the generation config does not name."""
    ends = [EOS, 3]
    for seed in range(6):
        model, inputs = model_and_inputs(name, head, seed=seed)
        model.double()
        everything = all_strings(model, inputs, 4)
        table = {}
        for string, p in everything.items():
            length = next((k for k, token in enumerate(string) if token in ends), len(string) - 1) + 1
            table[string[:length]] = table.get(string[:length], 0.0) + p
        _, (result,) = search(model, inputs, 3, max_new_tokens=4, early_stopping="never", eos_token_id=ends)
        seen = {tuple(h.tokens): h.probability for h in result.hypotheses}
        assert seen == {string: pytest.approx(table[string], rel=1e-5) for string in seen}
        missed = [p for string, p in table.items() if string not in seen and string[-1] in ends]
        assert max(missed, default=0) <= math.exp(result.log_bound) * (1 + 1e-5)


@pytest.mark.parametrize("head", ["entmax15", None])
def test_tied_tokens_are_replayed(head):
    for seed in range(4):
        model, inputs = model_and_inputs("llama", head, seed=seed)
        with torch.no_grad():
            for weight in (model.lm_head.weight, model.model.embed_tokens.weight):
                weight[4] = weight[5]
        for num_beams in (2, 3):  # cut at the longest length, where any of the tied strings is returned
            search(model, inputs, num_beams, max_new_tokens=3, num_return_sequences=num_beams)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.4, 0.15, 0.15, 0.15, 0.1, 0.05], "two continuations had exactly the same score"),
        ([0.4, 0.2, 0.15, 0.1, 0.09, 0.06], "are not those of a beam search over these scores"),
    ],
)
def test_a_string_that_the_replay_does_not_keep_is_refused_and_a_tie_named(weights, message):
    model, inputs = model_and_inputs("llama", "entmax15")
    output = model.generate(**inputs, **SETTINGS, num_beams=2, max_new_tokens=1)
    output.scores = (torch.tensor([weights, weights]).log(),)
    output.sequences = torch.tensor([[3, 5, 4, 6, 4]])
    with pytest.raises(ValueError, match=message):
        beam_certificate(model, output, 2)


def test_scores_of_several_searches_of_whispers_generate_or_that_a_penalty_changes_are_refused():
    model, inputs = tiny_whisper(head="entmax15")
    again = {"temperature": (0.0, 0.0), "logprob_threshold": 1.0}
    output = model.generate(**inputs, max_new_tokens=4, num_beams=3, **SETTINGS, **again)
    with pytest.raises(ValueError, match="Whisper's generate searches more than once with fallback temperatures"):
        beam_certificate(model, output, 3)
    model, inputs = model_and_inputs("bart", "entmax15")
    output = model.generate(
        **inputs, max_new_tokens=4, num_beams=3, custom_generate=CoveragePenalty(alpha=0.5), **SETTINGS
    )
    with pytest.raises(ValueError, match="CoveragePenalty changes scores"):
        beam_certificate(model, output, 3)
