"""Search, scores and word times on Whisper, whose own ``generate`` writes prompts and cuts what decoding returns."""

import math

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutput

from hf_sparse import (
    Lexicon,
    beam_certificate,
    compare_with_empty,
    condition,
    enumerate_support,
    exact_decoding,
    exact_search,
    probabilities,
    score_sequences,
    sparse_config,
    step_supports,
    suggest,
    unsparsify,
)
from hf_sparse.generation.forced import beginning
from hf_sparse.model.word_times import _from_neighbours
from tests.tiny_whisper import END, ENGLISH, FRAMES, FRENCH, NO_TIMES, START, SUPPRESSED, TRANSCRIBE, tiny_whisper
from tests.word_tokenizer import word_tokenizer

FRENCH_PROMPT = [START, FRENCH, TRANSCRIBE, NO_TIMES]
STEPS = 3
WIDE = {"name": "entmax15", "temperature": 4.0}


def in_double(model, inputs):
    """In float64, where batches of different sizes agree to more digits than are compared, on every machine."""
    return model.double(), {name: value.double() for name, value in inputs.items()}


@torch.no_grad()
def all_strings(model, inputs, prompt, suppressed=(), first=()):
    """Every string of at most ``STEPS`` tokens that ends, with its probability: one forward pass each."""
    table, stack = {}, [((), 1.0)]
    while stack:
        string, mass = stack.pop()
        ids = torch.tensor([[*prompt, *string]])
        p = probabilities(model, model(**inputs, decoder_input_ids=ids).logits[0, -1]).double()
        for token in range(len(p)):
            if p[token] > 0 and token not in suppressed and (string or token not in first):
                longer = ((*string, token), mass * float(p[token]))
                if token == END:
                    table[longer[0]] = longer[1]
                elif len(string) + 1 < STEPS:
                    stack.append(longer)
    return sorted(((p, string) for string, p in table.items()), reverse=True)


@pytest.mark.parametrize("attn", [None, "entmax15"])
def test_exact_search_keeps_whispers_prompt_and_suppressed_tokens(attn):
    model, inputs = tiny_whisper(seed=3, attn=attn, head=WIDE)
    suppressed = set(model.generation_config.suppress_tokens)
    table = all_strings(model, inputs, FRENCH_PROMPT, suppressed, {END})
    (result,) = exact_search(model, inputs, 5, max_new_tokens=STEPS, language="fr", task="transcribe")
    assert len(table) >= 5
    assert [h.probability for h in result.hypotheses] == pytest.approx([p for p, _ in table[:5]], rel=1e-4)
    (english,) = exact_search(model, inputs, 5, max_new_tokens=STEPS, language="en", task="transcribe")
    assert [h.probability for h in english.hypotheses] != [h.probability for h in result.hypotheses]
    detected = exact_search(model, inputs, 5, max_new_tokens=STEPS)
    assert detected[0].best is not None


def test_sentences_of_a_batch_are_searched_as_alone():
    model, inputs = tiny_whisper(seed=3, sentences=3, head=WIDE)
    together = exact_search(model, inputs, 3, max_new_tokens=4, language="en")
    for i, result in enumerate(together):
        (alone,) = exact_search(
            model, {"input_features": inputs["input_features"][i : i + 1]}, 3, max_new_tokens=4, language="en"
        )
        assert [h.tokens for h in result.hypotheses] == [h.tokens for h in alone.hypotheses]


def test_the_support_is_enumerated_with_the_options_of_generate_and_constraints_on_request():
    model, inputs = tiny_whisper(seed=3, head=WIDE)
    prompt = {"language": "fr", "task": "transcribe"}
    free = enumerate_support(model, inputs, max_new_tokens=STEPS, **prompt)
    table = all_strings(model, inputs, FRENCH_PROMPT)
    assert {tuple(s): pytest.approx(p, rel=1e-4) for s, p in zip(free.sequences, free.probabilities)} == {
        string: p for p, string in table
    }
    assert any(SUPPRESSED in string for string in free.sequences)
    held = enumerate_support(model, inputs, max_new_tokens=STEPS, constrained=True, **prompt)
    assert held.sequences
    assert not any(SUPPRESSED in string for string in held.sequences)
    with pytest.raises(ValueError, match=r"bad_words_ids, suppress_tokens: .* pass constrained=True"):
        enumerate_support(model, inputs, suppress_tokens=[3], bad_words_ids=[[4]])
    fewer = enumerate_support(
        model, inputs, max_new_tokens=STEPS, constrained=True, begin_suppress_tokens=[END, *range(3)], **prompt
    )
    assert not any(string[0] in range(3) for string in fewer.sequences)


def test_what_generate_returns_is_scored_and_its_steps_are_listed():
    model, inputs = tiny_whisper(seed=3, sentences=2, head=WIDE)
    output = model.generate(**inputs, max_new_tokens=STEPS, return_dict_in_generate=True)
    scores = score_sequences(model, inputs, output.sequences)
    assert output.sequences.shape[1] > 4
    for row, (features, score) in enumerate(zip(inputs["input_features"], scores.normalized)):
        string = output.sequences[row, 3:].tolist()
        ids, expected = output.sequences[row : row + 1], 0.0
        prompt = 3  # start, language, no timestamps: no task was named
        with torch.no_grad():
            p = probabilities(model, model(features[None], decoder_input_ids=ids).logits[0]).double()
        for position in range(prompt, ids.shape[1]):
            expected += float(p[position - 1, ids[0, position]].log())
            if ids[0, position] == END:
                break
        assert float(score) == pytest.approx(expected, abs=1e-5)
        one = {"input_features": features[None]}
        steps = step_supports(model, one, string)
        assert [step.chosen for step in steps] == string
        assert steps[0].probabilities[0] == pytest.approx(float(p[prompt - 1].max()), rel=1e-5)
    cut = model.generate(**inputs, max_new_tokens=STEPS)
    with pytest.raises(ValueError, match=r"must be the decoder's prompt \[8, .* return_dict_in_generate=True"):
        score_sequences(model, inputs, cut)


def test_a_prompt_in_the_inputs_and_outputs_of_the_encoder_are_read():
    model, inputs = in_double(*tiny_whisper(seed=3, head=WIDE))
    prompt = torch.tensor([FRENCH_PROMPT])
    hidden = model.get_encoder()(inputs["input_features"]).last_hidden_state
    encoded = {"encoder_outputs": BaseModelOutput(last_hidden_state=hidden), "decoder_input_ids": prompt}
    given = {**inputs, "decoder_input_ids": prompt}
    assert step_supports(model, encoded, [1, 2]) == step_supports(model, given, [1, 2])
    options = {"max_new_tokens": STEPS, "language": "fr", "task": "transcribe", "return_dict_in_generate": True}
    sequences = model.generate(**inputs, **options).sequences
    twice = sequences.repeat_interleave(2, 0)
    scores = score_sequences(model, given, twice).normalized
    torch.testing.assert_close(scores, score_sequences(model, encoded, twice).normalized)
    (result,) = exact_search(model, given, 2, max_new_tokens=STEPS)
    (expected,) = exact_search(model, inputs, 2, max_new_tokens=STEPS, language="fr", task="transcribe")
    assert [h.tokens for h in result.hypotheses] == [h.tokens for h in expected.hypotheses]
    assert compare_with_empty(model, inputs, 2, max_new_tokens=STEPS).hypothesis_scores.normalized.isfinite().all()


def test_sequences_are_scored_under_the_prompt_that_they_begin_with():
    model, inputs = in_double(*tiny_whisper(seed=3, sentences=2, head=WIDE))
    options = {"max_new_tokens": STEPS, "task": "transcribe", "return_dict_in_generate": True}
    found = {language: model.generate(**inputs, **options, language=language).sequences for language in ("en", "fr")}
    for sequences in found.values():
        given = {**inputs, "decoder_input_ids": sequences[:, : len(FRENCH_PROMPT)]}
        expected = score_sequences(model, given, sequences).normalized
        assert torch.equal(score_sequences(model, inputs, sequences).normalized, expected)
    mixed = torch.cat([each[:1] for each in found.values()])  # sentence 0 twice, in two languages
    one = {"input_features": inputs["input_features"][:1]}
    first, second = (score_sequences(model, one, row[None]).normalized for row in mixed)
    torch.testing.assert_close(score_sequences(model, one, mixed).normalized, torch.cat([first, second]))
    beams = compare_with_empty(model, inputs, 2, max_new_tokens=STEPS, language="fr", task="transcribe")
    given = {**inputs, "decoder_input_ids": torch.tensor([FRENCH_PROMPT] * 2)}
    ended = torch.tensor([[*FRENCH_PROMPT, END]] * 2)
    torch.testing.assert_close(beams.empty_scores.normalized, score_sequences(model, given, ended).normalized)


def test_what_a_prompt_is_ends_with_its_tokens():
    """A special token that was forced into the text is scored with it."""
    model, inputs = in_double(*tiny_whisper(seed=3))
    string = torch.tensor([[*FRENCH_PROMPT, 1, NO_TIMES, 2, END]])
    given = {**inputs, "decoder_input_ids": torch.tensor([FRENCH_PROMPT])}
    found, expected = (score_sequences(model, source, string).normalized for source in (inputs, given))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("strings", [
    [[*FRENCH_PROMPT, 1, 2, END], [START, FRENCH, NO_TIMES, 1, 2, END, END]],  # one names no task
    [[END, *FRENCH_PROMPT[1:], 1, END]],
    [[START, 1, 2, END]],
])  # fmt: skip
def test_strings_that_do_not_all_begin_with_one_length_of_prompt_are_refused(strings):
    model, inputs = tiny_whisper(seed=3, head=WIDE)
    with pytest.raises(ValueError, match=r"must be the decoder's prompt \[8, "):
        score_sequences(model, inputs, torch.tensor(strings))


def test_suggestions_follow_speech_and_its_prompt():
    model, inputs = tiny_whisper(seed=3, head=WIDE)
    for prompt, source in (
        (FRENCH_PROMPT, {**inputs, "decoder_input_ids": torch.tensor([FRENCH_PROMPT])}),
        (beginning(model, inputs, 1)[0].tolist(), inputs),
    ):
        with torch.no_grad():
            logits = model(**inputs, decoder_input_ids=torch.tensor([prompt])).logits[0, -1]
        p = probabilities(model, logits)
        found = suggest(model, "", word_tokenizer(), source=source, max_tokens=1, max_candidates=15)
        expected = {(token,): pytest.approx(float(p[token]), rel=1e-5) for token in p.nonzero()[:, 0].tolist()}
        assert {candidate.tokens: candidate.probability for candidate in found.candidates} == expected
        assert found.complete


@pytest.mark.parametrize("sentences", [1, 3])
@pytest.mark.parametrize("num_beams", [2, 6, 40])
def test_beams_prove_what_they_find_from_the_scores_before_they_are_cut(num_beams, sentences):
    model, inputs = tiny_whisper(seed=3, sentences=sentences, head=WIDE)
    options = {"language": "fr", "task": "transcribe", "max_new_tokens": STEPS, "num_beams": num_beams}
    output = model.generate(
        **inputs, **options, return_dict_in_generate=True, output_scores=True, num_return_sequences=1
    )
    results = beam_certificate(model, output, num_beams)
    assert len(results) == sentences
    suppressed = set(model.generation_config.suppress_tokens)
    for features, result in zip(inputs["input_features"], results):
        table = all_strings(model, {"input_features": features[None]}, FRENCH_PROMPT, suppressed, {END})
        found = {tuple(h.tokens): pytest.approx(h.probability, rel=1e-4) for h in result.hypotheses}
        assert {string: p for p, string in table if string in found} == found
        missed = max((p for p, string in table if string not in found), default=0)
        assert math.exp(result.log_bound) >= missed * (1 - 1e-4)
        if result.ended_by is None and table:
            assert result.best.probability == pytest.approx(table[0][0], rel=1e-4)
    assert num_beams < 40 or any(result.best and result.ended_by is None for result in results)


def test_more_than_one_segment_and_the_mode_of_generate_are_refused():
    model, inputs = tiny_whisper(head="entmax15")
    long = {"input_features": torch.randn(1, 4, FRAMES + 2)}
    for call in (exact_search, enumerate_support):
        with pytest.raises(ValueError, match=f"reads {FRAMES} frames of speech at once, was given {FRAMES + 2}"):
            call(model, long)
    with pytest.raises(ValueError, match=f"reads {FRAMES} frames of speech at once"):
        score_sequences(model, long, torch.tensor([[*FRENCH_PROMPT, 1, END]]))
    with pytest.raises(ValueError, match=r"call exact_search\(model, inputs, ...\), which returns them"):
        model.generate(**inputs, custom_generate=exact_decoding, max_new_tokens=3)


# --- times of words ---

MAPS = {
    "cross": {"attn": {"cross": "entmax15"}},
    "encoder": {"attn": {"encoder": "sparsemax"}},
    "decoder": {"attn": {"decoder": "entmax15"}},
    "all": {"attn": "entmax15", "head": "entmax15"},
    "head": {"head": "entmax15"},
}


@pytest.mark.parametrize("num_beams", [1, 2])
@pytest.mark.parametrize("maps", MAPS.values(), ids=MAPS)
def test_times_of_words_come_from_sparse_attention_and_leave_the_model_as_it_was(maps, num_beams):
    model, inputs = tiny_whisper(seed=1, sentences=2, **maps)
    config, name = sparse_config(model), model.config._attn_implementation
    options = {"max_new_tokens": 6, "language": "en", "num_beams": num_beams}
    plain = model.generate(**inputs, **options)
    mask = torch.ones(2, FRAMES, dtype=torch.long)
    mask[1, FRAMES // 2 :] = 0
    for attention_mask in (None, mask):
        timed = model.generate(**inputs, **options, return_token_timestamps=True, attention_mask=attention_mask)
        times = timed["token_timestamps"]
        assert times.isfinite().all()
        assert (times >= 0).all()
        assert (times.diff(dim=-1) >= 0).all()
        assert (times <= FRAMES * 0.01).all()
        assert torch.equal(timed["sequences"], plain)
        assert (sparse_config(model), model.config._attn_implementation) == (config, name)
    assert torch.equal(model.generate(**inputs, **options), plain)


def test_times_of_words_are_those_of_dense_attention_where_the_map_is_softmax():
    dense, inputs = tiny_whisper(seed=1)
    expected = dense.generate(**inputs, max_new_tokens=6, return_token_timestamps=True)
    model, _ = tiny_whisper(seed=1, attn="softmax")
    found = model.generate(**inputs, max_new_tokens=6, return_token_timestamps=True)
    assert torch.equal(found["token_timestamps"], expected["token_timestamps"])
    near, _ = tiny_whisper(seed=1, attn={"cross": {"name": "entmax", "alpha": 1.01}})
    found = near.generate(**inputs, max_new_tokens=6, return_token_timestamps=True)
    assert (found["token_timestamps"] - expected["token_timestamps"]).abs().mean() < 0.03


@pytest.mark.parametrize("maps", MAPS.values(), ids=MAPS)
def test_a_segment_after_the_end_of_speech_has_the_times_of_the_dense_model(maps):
    mask = torch.zeros(1, FRAMES, dtype=torch.long)  # no frame is speech, as where Whisper goes on after its last word
    options = {"max_new_tokens": 6, "language": "en", "return_token_timestamps": True, "attention_mask": mask}
    dense, inputs = tiny_whisper(seed=1)
    expected = dense.generate(**inputs, **options)["token_timestamps"]
    model, _ = tiny_whisper(seed=1, **maps)
    found = model.generate(**inputs, **options)["token_timestamps"]
    assert found.unique().tolist() == expected.unique().tolist()  # a time for all tokens


def test_a_call_that_fails_leaves_the_model_sparse(monkeypatch):
    model, inputs = tiny_whisper(attn="entmax15")
    expected = model.generate(**inputs, max_new_tokens=4)

    def fail(*args, **kwargs):
        raise OSError("no")

    with monkeypatch.context() as patched:
        patched.setattr(type(model), "_retrieve_logit_processors", fail)
        with pytest.raises(OSError, match="no"):
            model.generate(**inputs, max_new_tokens=4, return_token_timestamps=True)
    assert model.config._attn_implementation == "hf_sparse"
    assert torch.equal(model.generate(**inputs, max_new_tokens=4), expected)
    unsparsify(model)
    assert model.config._attn_implementation == "sdpa"


def test_an_attention_that_was_put_into_the_configuration_is_still_refused():
    model, inputs = tiny_whisper(attn="entmax15")
    model.config._attn_implementation = "eager"
    with pytest.raises(RuntimeError, match="would take this model's sparse attention away"):
        model.generate(**inputs, max_new_tokens=3, return_token_timestamps=True)


def test_frames_without_weight_take_those_of_the_nearest_frame():
    weights = torch.tensor([[9.0, 1.0, 9.0, 9.0, 2.0, 9.0], [9.0, -1.0, 9.0, 9.0, -2.0, 9.0]])
    present = torch.tensor([False, True, False, False, True, False])
    expected = torch.tensor([1.0, 1.0, 1.0, 2.0, 2.0, 2.0])
    assert torch.equal(_from_neighbours(weights, present), torch.stack([expected, -expected]))
    assert torch.equal(_from_neighbours(weights, present[:1].expand(6)), torch.zeros(2, 6))


@pytest.mark.parametrize(("language", "code"), [("fr", FRENCH), ("en", ENGLISH)])
def test_transcripts_in_a_lexicon_keep_whispers_prompt(language, code):
    model, inputs = tiny_whisper(seed=3, head=WIDE)
    table = {string: p for p, string in all_strings(model, inputs, [START, code, TRANSCRIBE, NO_TIMES])}
    chosen = sorted(table, key=table.get)[-4:] + sorted(table)[:3]
    total = sum(table[string] for string in set(chosen))
    lexicon = Lexicon([string[:-1] for string in chosen])
    (found,) = condition(model, inputs, lexicon, max_new_tokens=STEPS, language=language, task="transcribe")
    assert found.complete
    assert found.probability.low == pytest.approx(total, rel=1e-4)
    assert {tuple(member.tokens) for member in found.members} == set(chosen)
    for member in found.members:
        assert found.conditional(member.tokens).low == pytest.approx(table[tuple(member.tokens)] / total, rel=1e-4)


def test_a_mask_counts_for_a_prompt_that_was_given_alone_as_in_generate():
    model, inputs = in_double(*tiny_whisper(seed=3, head=WIDE))
    prompt, mask = torch.tensor([FRENCH_PROMPT]), torch.tensor([[1, 0, 1, 1]])
    seen = []
    model.model.decoder.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs.get("attention_mask")), with_kwargs=True
    )
    model.generate(**inputs, decoder_attention_mask=mask, language="french", max_new_tokens=1)
    assert seen == [None]
    string = torch.tensor([[*FRENCH_PROMPT, 5, END]])
    plain, dropped, given, masked = (
        float(score_sequences(model, {**inputs, **more}, string).normalized)
        for more in (
            {},
            {"decoder_attention_mask": mask},
            {"decoder_input_ids": prompt},
            {"decoder_input_ids": prompt, "decoder_attention_mask": mask},
        )
    )
    assert plain == dropped == given
    assert abs(masked - plain) > 1e-3
