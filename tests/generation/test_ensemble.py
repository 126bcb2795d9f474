"""An ensemble decodes from the mean of its members' distributions: checked against enumeration of all strings."""

import copy
import math
import pickle
import re

import pytest
import torch
from peft import PromptTuningConfig, get_peft_model
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.modeling_outputs import BaseModelOutput

from hf_sparse import Ensemble, enumerate_support, is_sparse, probabilities, sparsify, unsparsify
from hf_sparse.cache_name import CACHE
from hf_sparse.generation._ensemble_parts import JoinedEncoders
from tests.model.test_generate import strings_of
from tests.tiny_models import EOS, PAD, tiny_model

VOCAB = 7
STEPS = 3
ALPHA_RELU = {"name": "alpha_relu", "alpha": 1.5, "tau": "auto"}
# Architectures and heads of the members: alike, mixed, with an unnormalized head, with a dense member.
MEMBERS = {
    "llama+gpt2": [("llama", "entmax15"), ("gpt2", ALPHA_RELU)],
    "gemma2+qwen3+llama": [
        ("gemma2", "sparsemax"),
        ("qwen3", ALPHA_RELU),
        ("llama", {"name": "entmax", "alpha": 1.3}),
    ],
    "llama+dense": [("llama", "sparsemax"), ("llama", None)],
    "bart+bart": [("bart", "entmax15"), ("bart", ALPHA_RELU)],
    "t5+marian": [("t5", "entmax15"), ("marian", ALPHA_RELU)],
}


def member(name, head, seed):
    model = tiny_model(name, vocab_size=VOCAB, seed=seed)
    model.generation_config.forced_eos_token_id = None
    return model if head is None else sparsify(model, attn="entmax15", head=head)


def make(names):
    members = [member(name, head, seed=3 + i) for i, (name, head) in enumerate(MEMBERS[names])]
    source = torch.tensor([[3, 5, 4, 6]])
    return members, Ensemble(members), {"input_ids": source, "attention_mask": torch.ones_like(source)}


def mean_distribution(members, inputs, string):
    """The mean of the members' next-token distributions, each by a forward pass of its own over the whole prefix."""
    total = 0
    for model in members:
        if model.config.is_encoder_decoder:
            start = model.generation_config.decoder_start_token_id
            logits = model(**inputs, decoder_input_ids=torch.tensor([[start, *string]])).logits[0, -1]
        else:
            ids = torch.cat([inputs["input_ids"], torch.tensor([string], dtype=torch.long)], dim=1)
            logits = model(ids).logits[0, -1]
        total += probabilities(model, logits).double() if is_sparse(model) else logits.double().softmax(-1)
    return total / len(members)


@torch.no_grad()
def all_strings(members, inputs, steps=STEPS):
    """Every string of at most ``steps`` tokens with its probability: ended, or cut at the end."""
    table, open_strings = {}, {(): 1.0}
    for length in range(1, steps + 1):
        longer = {}
        for string, mass in open_strings.items():
            for token, p in enumerate(mean_distribution(members, inputs, string).tolist()):
                if p > 0:
                    (table if token == EOS or length == steps else longer)[(*string, token)] = mass * p
        open_strings = longer
    return table


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("names", MEMBERS)
@torch.no_grad()
def test_beam_search_finds_the_best_strings_with_the_exact_mean_probabilities(names, use_cache):
    members, ensemble, inputs = make(names)
    table = all_strings(members, inputs)
    assert sum(table.values()) == pytest.approx(1, abs=1e-5)
    beams = 60
    output = ensemble.generate(
        **inputs,
        max_new_tokens=STEPS,
        num_beams=beams,
        num_return_sequences=beams,
        length_penalty=0.0,
        return_dict_in_generate=True,
        output_scores=True,
        do_sample=False,
        use_cache=use_cache,
    )
    found = dict(zip(strings_of(ensemble, inputs, output.sequences), output.sequences_scores.exp().tolist()))
    for string, p in sorted(table.items(), key=lambda entry: -entry[1])[: beams // 4]:
        assert found[string] == pytest.approx(p, rel=1e-4)
    for string, score in found.items():
        assert score == pytest.approx(table.get(string, 0.0), abs=1e-5)


@pytest.mark.parametrize("names", MEMBERS)
@torch.no_grad()
def test_greedy_takes_the_likeliest_token_of_the_mean_and_scores_have_its_zeros(names):
    members, ensemble, inputs = make(names)
    output = ensemble.generate(
        **inputs, max_new_tokens=STEPS, do_sample=False, return_dict_in_generate=True, output_scores=True
    )
    (string,) = strings_of(ensemble, inputs, output.sequences)
    for position, token in enumerate(string):
        p = mean_distribution(members, inputs, string[:position])
        assert token == int(p.argmax())
        scores = output.scores[position][0]
        torch.testing.assert_close(scores.double().exp(), p, atol=1e-6, rtol=1e-4)
        assert torch.equal(scores.exp() == 0, p == 0)


@pytest.mark.parametrize("names", ["llama+gpt2", "bart+bart"])
@torch.no_grad()
def test_sampling_draws_strings_with_their_mean_probabilities(names):
    members, ensemble, inputs = make(names)
    table = all_strings(members, inputs)
    torch.manual_seed(0)
    draws = 3000
    sequences = ensemble.generate(
        **inputs, max_new_tokens=STEPS, do_sample=True, top_k=0, num_return_sequences=draws, temperature=1.0
    )
    strings = strings_of(ensemble, inputs, sequences)
    assert set(strings) <= set(table)
    for string, p in table.items():
        assert abs(strings.count(string) - draws * p) < 5 * (math.sqrt(draws * p * (1 - p)) + 1)


@pytest.mark.parametrize("names", ["llama+gpt2", "gemma2+qwen3+llama", "bart+bart", "t5+marian"])
@torch.no_grad()
def test_enumerate_support_finds_every_string_of_the_union(names):
    members, ensemble, inputs = make(names)
    table = {string: p for string, p in all_strings(members, inputs, steps=4).items() if string[-1] == EOS}
    support = enumerate_support(ensemble, inputs, max_hypotheses=5000, max_new_tokens=4)
    found = {tuple(ids): p for ids, p in zip(support.sequences, support.probabilities)}
    # Whether a string at the threshold is possible is up to rounding, which differs between batches.
    for string in found.keys() | table.keys():
        assert found.get(string, 0.0) == pytest.approx(table.get(string, 0.0), rel=1e-4, abs=1e-7)
    assert len(table) > 1
    assert not support.complete or sum(table.values()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("names", ["llama+gpt2", "bart+bart"])
@torch.no_grad()
def test_static_cache_prompt_lookup_and_an_assistant_agree_with_greedy(names):
    members, ensemble, inputs = make(names)
    ensemble.generation_config.eos_token_id = None  # long strings
    settings = {**inputs, "max_new_tokens": 8, "do_sample": False}
    greedy = ensemble.generate(**settings)
    assert greedy.shape[1] >= 9
    assert torch.equal(ensemble.generate(**settings, cache_implementation="static"), greedy)
    assert torch.equal(ensemble.generate(**settings, prompt_lookup_num_tokens=2), greedy)
    members[1].generation_config.eos_token_id = None
    assert torch.equal(ensemble.generate(**settings, assistant_model=members[1]), greedy)


@torch.no_grad()
def test_left_padding_does_not_change_what_is_decoded_even_with_absolute_positions():
    _, ensemble, inputs = make("llama+gpt2")
    settings = {"max_new_tokens": 4, "num_beams": 4, "do_sample": False}
    settings |= {"return_dict_in_generate": True, "output_scores": True}
    alone = ensemble.generate(**inputs, **settings)
    ids = torch.cat([torch.full((1, 2), PAD), inputs["input_ids"]], dim=1)
    padded = ensemble.generate(input_ids=ids, attention_mask=(ids != PAD).long(), **settings)
    assert torch.equal(padded.sequences[:, 2:], alone.sequences)
    torch.testing.assert_close(padded.sequences_scores, alone.sequences_scores, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_batch_is_decoded_as_its_rows_are():
    ensemble = make("bart+bart")[1]
    ids = torch.tensor([[3, 5, 4, 6], [6, 4, 3, PAD]])
    settings = {"max_new_tokens": 4, "num_beams": 3, "do_sample": False}
    both = ensemble.generate(input_ids=ids, attention_mask=(ids != PAD).long(), **settings)
    for row, length in ((0, 4), (1, 3)):
        alone = ensemble.generate(input_ids=ids[row : row + 1, :length], **settings)
        width = min(alone.shape[1], both.shape[1])
        assert torch.equal(both[row, :width], alone[0, :width])


@torch.no_grad()
def test_forward_with_its_own_cache_continues_the_text():
    members, ensemble, inputs = make("llama+gpt2")
    first = ensemble(inputs["input_ids"], use_cache=True)
    second = ensemble(torch.tensor([[4]]), **{CACHE: first[CACHE]}, use_cache=True)
    expected = mean_distribution(members, inputs, (4,))
    torch.testing.assert_close(probabilities(ensemble, second.logits[0, -1]).double(), expected, atol=1e-6, rtol=1e-5)
    with pytest.raises(TypeError, match="a cache that the ensemble itself returned, was a DynamicCache"):
        ensemble(torch.tensor([[4]]), **{CACHE: members[0](inputs["input_ids"])[CACHE]})


@torch.no_grad()
def test_one_member_alone_is_that_member():
    members, _, inputs = make("bart+bart")
    settings = {**inputs, "max_new_tokens": 5, "num_beams": 4, "return_dict_in_generate": True, "output_scores": True}
    alone, ensemble = members[1].generate(**settings), Ensemble(members[1:]).generate(**settings)
    assert torch.equal(alone.sequences, ensemble.sequences)
    torch.testing.assert_close(alone.sequences_scores, ensemble.sequences_scores, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_copies_decode_alike_and_members_keep_their_own_settings():
    members, ensemble, inputs = make("llama+gpt2")
    logits = ensemble(**inputs).logits
    for other in (copy.deepcopy(ensemble), pickle.loads(pickle.dumps(ensemble))):
        assert torch.equal(other(**inputs).logits, logits)
    ensemble.generation_config.eos_token_id = 5
    assert members[0].generation_config.eos_token_id == EOS
    assert "log_probs" not in members[0](**inputs)


def tokenizer_of(words):
    vocabulary = {word: index for index, word in enumerate(words)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token=words[0])))


def test_members_that_do_not_fit_are_refused_by_name():
    llama = tiny_model("llama", vocab_size=VOCAB)
    with pytest.raises(ValueError, match="members must hold at least one model, were"):
        Ensemble([])
    with pytest.raises(
        ValueError,
        match=r"the size of the vocabulary is 7 for member 0 \(LlamaForCausalLM\) and 9 for member 1 \(GPT2",
    ):
        Ensemble([llama, tiny_model("gpt2", vocab_size=9)])
    with pytest.raises(ValueError, match="is_encoder_decoder is False for member 0"):
        Ensemble([llama, tiny_model("bart", vocab_size=VOCAB)])
    with pytest.raises(ValueError, match=r"the decoder's start token is 2 for member 0 .* and 0 for member 1"):
        Ensemble([tiny_model("bart", vocab_size=VOCAB), tiny_model("t5", vocab_size=VOCAB)])
    other_end = tiny_model("llama", vocab_size=VOCAB)
    other_end.generation_config.eos_token_id = [EOS]
    Ensemble([llama, other_end])  # [2] says what 2 says
    other_end.generation_config.eos_token_id = 6
    with pytest.raises(ValueError, match=r"the end token is 2 for member 0 .* and 6 for member 1"):
        Ensemble([llama, other_end])
    with pytest.raises(TypeError, match=r"member 1 of the ensemble \(BertForMaskedLM\) is not a model that generates"):
        Ensemble([llama, tiny_model("bert", vocab_size=VOCAB)])
    with pytest.raises(TypeError, match=r"a Transformers model .* is needed, was Linear"):
        Ensemble([torch.nn.Linear(2, 2)])


def test_tokenizers_are_compared_token_by_token():
    models_ = [tiny_model("llama", vocab_size=VOCAB, seed=seed) for seed in range(2)]
    words = ["a", "b", "c", "d", "e", "f", "g"]
    Ensemble(models_, tokenizers=[tokenizer_of(words), tokenizer_of(words)])
    swapped = tokenizer_of(["a", "c", "b", "d", "e", "f", "h"])
    with pytest.raises(
        ValueError,
        match=r"members 0 and 1 differ in 4 of 7 and 7 tokens: 'b' is 1 and 2; 'c' is 2 and 1; 'g' is 6 and None",
    ):
        Ensemble(models_, tokenizers=[tokenizer_of(words), swapped])
    with pytest.raises(ValueError, match="one tokenizer for each of the 2 members is needed, were 1"):
        Ensemble(models_, tokenizers=[swapped])


def test_what_an_ensemble_does_not_have_is_refused(tmp_path):
    _, ensemble, inputs = make("llama+gpt2")
    for option in ("output_attentions", "output_hidden_states"):
        with pytest.raises(ValueError, match=f"has no {option} of its own"):
            ensemble(**inputs, **{option: True})
        with pytest.raises(ValueError, match=f"has no {option} of its own"):
            ensemble.generate(**inputs, max_new_tokens=2, return_dict_in_generate=True, **{option: True})
    with pytest.raises(ValueError, match="has no labels of its own"):
        ensemble(**inputs, labels=inputs["input_ids"])
    with pytest.raises(NotImplementedError, match=re.escape("save each of ensemble.members")):
        ensemble.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="in an ensemble on each of its members"):
        sparsify(ensemble, attn="entmax15")
    with pytest.raises(ValueError, match="there is nothing to undo"):
        unsparsify(ensemble)
    with pytest.raises(NotImplementedError, match="continuous batching"):
        ensemble.init_continuous_batching()
    with pytest.raises(ValueError, match="an ensemble keeps a cache of each member; leave it out"):
        ensemble.generate(**inputs, max_new_tokens=2, cache_implementation="screened")


def test_an_ensemble_with_a_dense_member_has_no_finite_support():
    _, ensemble, inputs = make("llama+dense")
    with pytest.raises(ValueError, match="head is dense"):
        enumerate_support(ensemble, inputs)


@torch.no_grad()
def test_nan_names_the_member():
    members, ensemble, inputs = make("llama+gpt2")
    members[1].lm_head.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"member 1 of the ensemble \(GPT2LMHeadModel\) has NaN in its logits"):
        ensemble.generate(**inputs, max_new_tokens=2)


def test_a_member_that_keeps_its_cache_elsewhere_is_refused_unless_no_cache_is_used(monkeypatch):
    members, ensemble, inputs = make("llama+gpt2")
    expected = ensemble.generate(**inputs, max_new_tokens=2)
    monkeypatch.setattr(members[1], "_prepare_cache_for_generation", lambda *args: None)
    with pytest.raises(ValueError, match=r"GPT2LMHeadModel keeps its cache elsewhere .* pass use_cache=False"):
        ensemble.generate(**inputs, max_new_tokens=2)
    assert torch.equal(ensemble.generate(**inputs, max_new_tokens=2, use_cache=False), expected)


def test_encoders_that_disagree_on_the_length_are_refused():
    class Encoder(torch.nn.Module):
        def __init__(self, length):
            super().__init__()
            self.length = length

        def forward(self):
            return BaseModelOutput(last_hidden_state=torch.zeros(1, self.length, 2))

    assert JoinedEncoders([Encoder(3), Encoder(3)])().last_hidden_state.shape == (1, 3, 4)
    with pytest.raises(ValueError, match=r"turn one input into different lengths: \[3, 5\]"):
        JoinedEncoders([Encoder(3), Encoder(5)])()


def test_a_member_with_a_prompt_is_refused():
    prompt = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    member = get_peft_model(sparsify(tiny_model("llama", vocab_size=VOCAB), head="entmax15"), prompt)
    with pytest.raises(ValueError, match=r"puts a prompt before every input.* since the LlamaForCausalLM inside"):
        Ensemble([member])
