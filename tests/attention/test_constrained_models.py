"""Constrained attention inside models: cached is uncached, in every mode of generate; the rest is refused by name."""

import copy
import inspect
import pickle

import pytest
import torch
from datasets import Dataset
from transformers import (
    BartForConditionalGeneration,
    DynamicCache,
    EncoderDecoderCache,
    LongT5Config,
    LongT5ForConditionalGeneration,
)
from transformers.modeling_outputs import BaseModelOutput

from hf_sparse import (
    SparseTrainer,
    SparseTrainingArguments,
    from_pretrained,
    save_pretrained,
    sparsify,
    unsparsify,
)
from hf_sparse.attention.sequential import SpentLayer
from tests.tiny_inline_models import tiny_inline_model
from tests.tiny_models import EOS, PAD, attentions, labelled, tiny_model, tokens

NAMES = ["bart", "marian", "t5"]
CHOICES = {
    "csparsemax": {"name": "csparsemax", "fertility": 1.0, "exhaustion": 0.2},
    "csoftmax": {"name": "csoftmax", "fertility": 0.8},
    "shared": {"name": "csparsemax", "fertility": 0.4, "shared": True},
}
EVERY_CHOICE = pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
SOURCE, TARGET = tokens(2, 6), tokens(2, 9, seed=5)


def constrained(name, choice="csparsemax", **settings):
    """A tiny model in float64 whose cross-attention, or the attention of a decoder alone, is constrained."""
    choice = {**(CHOICES[choice] if isinstance(choice, str) else choice), **settings}
    model = tiny_model(name).double()
    if model.config.is_encoder_decoder:
        model.generation_config.forced_eos_token_id = None
    return sparsify(model, attn={"cross" if model.config.is_encoder_decoder else "decoder": choice})


def forced(model, source, target, **arguments):
    """Logits of one call over the whole target."""
    if model.config.is_encoder_decoder:
        return model(input_ids=source, decoder_input_ids=target, use_cache=False, **arguments).logits
    return model(target, use_cache=False, **arguments).logits


def step_by_step(model, source, target, sizes, **arguments):
    """Logits of calls over ``sizes`` tokens at a time, with a cache."""
    cache, logits = None, []
    for ids in target.split(sizes, dim=1):
        inputs = (
            {"input_ids": source, "decoder_input_ids": ids} if model.config.is_encoder_decoder else {"input_ids": ids}
        )
        output = model(**inputs, past_key_values=cache, use_cache=True, **arguments)
        cache = output.past_key_values
        logits.append(output.logits)
    return torch.cat(logits, 1), cache


@EVERY_CHOICE
@pytest.mark.parametrize("name", [*NAMES, "llama", "gpt2"])
@torch.no_grad()
def test_cached_is_uncached_and_no_word_gets_more_than_its_fertility(name, choice):
    model = constrained(name, choice)
    expected = forced(model, SOURCE, TARGET)
    for sizes in ([1] * 9, [4, 1, 3, 1]):
        logits, cache = step_by_step(model, SOURCE, TARGET, sizes)
        torch.testing.assert_close(logits, expected, atol=1e-9, rtol=0)
    held_in = cache.cross_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    assert all(isinstance(layer, SpentLayer) for layer in held_in.layers)
    inputs = (
        {"input_ids": SOURCE, "decoder_input_ids": TARGET}
        if model.config.is_encoder_decoder
        else {"input_ids": TARGET}
    )
    output = model(**inputs, output_attentions=True)
    received = torch.stack(output.get("cross_attentions") or output.attentions).sum(3)
    most = float((received.mean(2) if choice.get("shared") else received).max())
    assert most == pytest.approx(choice["fertility"], abs=1e-5)  # some bound binds, or the test shows nothing


@EVERY_CHOICE
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_source_padding_on_either_side_changes_nothing(name, side, choice):
    model = constrained(name, choice)
    fertility = torch.rand(2, 6, generator=torch.Generator().manual_seed(0)) + 0.5
    states = model.get_encoder()(SOURCE).last_hidden_state
    by = (3, 0) if side == "left" else (0, 3)
    padded = torch.nn.functional.pad(states, (0, 0, *by), value=0.7)
    mask = torch.nn.functional.pad(torch.ones_like(SOURCE), by)
    for given in ({}, {"fertility": fertility}):
        alone = forced(model, SOURCE, TARGET, **given)
        wide = {key: torch.nn.functional.pad(value, by) for key, value in given.items()}
        inputs = {"encoder_outputs": BaseModelOutput(padded), "attention_mask": mask, "decoder_input_ids": TARGET}
        torch.testing.assert_close(model(**inputs, **wide).logits, alone, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", ["t5", "llama"])
@torch.no_grad()
def test_padding_before_the_target_spends_nothing(name):
    model = constrained(name)
    padded = torch.cat([torch.full((2, 3), PAD), TARGET], 1)
    key = "decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask"
    mask = (padded != PAD).long()
    positions = {} if model.config.is_encoder_decoder else {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    expected = forced(model, SOURCE, TARGET)
    logits = forced(model, SOURCE, padded, **{key: mask}, **positions)[:, 3:]
    torch.testing.assert_close(logits, expected, atol=1e-9, rtol=0)
    cache, parts = None, []
    for start, end in ((0, 5), (5, 12)):
        inputs = {"input_ids": padded[:, start:end], "position_ids": positions.get("position_ids", mask)[:, start:end]}
        if model.config.is_encoder_decoder:
            inputs = {"input_ids": SOURCE, "decoder_input_ids": padded[:, start:end]}
        output = model(**inputs, **{key: mask[:, :end]}, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        parts.append(output.logits)
    torch.testing.assert_close(torch.cat(parts, 1)[:, 3:], expected, atol=1e-9, rtol=0)


def scores_of(model, source, output, beams, **arguments):
    """The log-probability of each generated string, by one call without a cache."""
    strings = output.sequences
    start = 1 if model.config.is_encoder_decoder else source.shape[1]
    source = source.repeat_interleave(beams, 0)
    if "fertility" in arguments and torch.is_tensor(arguments["fertility"]):
        arguments = {"fertility": arguments["fertility"].repeat_interleave(beams, 0)}
    log_p = forced(model, source, strings, **arguments).log_softmax(-1)[:, start - 1 : -1]
    chosen = log_p.gather(-1, strings[:, start:, None])[..., 0]
    ended = (strings[:, start:] == EOS).long()
    return chosen.masked_fill(ended.cumsum(1) - ended > 0, 0.0).sum(1).float()


BEAMS = {
    "max_new_tokens": 7,
    "num_beams": 4,
    "num_return_sequences": 3,
    "length_penalty": 0.0,
    "do_sample": False,
    "return_dict_in_generate": True,
    "output_scores": True,
}


@EVERY_CHOICE
@pytest.mark.parametrize("name", [*NAMES, "llama"])
@torch.no_grad()
def test_beams_score_what_their_strings_score_without_a_cache(name, choice):
    model = constrained(name, choice)
    output = model.generate(SOURCE, **BEAMS)
    torch.testing.assert_close(output.sequences_scores, scores_of(model, SOURCE, output, 3), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["bart", "llama"])
@torch.no_grad()
def test_without_the_reorder_beams_would_score_something_else(name, monkeypatch):
    model = constrained(name)
    monkeypatch.setattr(
        SpentLayer, "_change", lambda self, change: None
    )  # keys follow the beams, what they have received does not
    output = model.generate(SOURCE, **BEAMS)
    assert float((output.sequences_scores - scores_of(model, SOURCE, output, 3)).abs().max()) > 1e-3


@pytest.mark.parametrize("name", [*NAMES, "llama"])
@torch.no_grad()
def test_greedy_and_sampling_read_the_distribution_of_teacher_forcing(name):
    model = constrained(name)
    for settings in ({"do_sample": False}, {"do_sample": True, "num_return_sequences": 3, "top_k": 0}):
        torch.manual_seed(0)
        output = model.generate(SOURCE, max_new_tokens=6, return_dict_in_generate=True, output_logits=True, **settings)
        num = settings.get("num_return_sequences", 1)
        start = 1 if model.config.is_encoder_decoder else SOURCE.shape[1]
        logits = forced(model, SOURCE.repeat_interleave(num, 0), output.sequences)[:, start - 1 : -1]
        torch.testing.assert_close(torch.stack(output.logits, 1).double(), logits, atol=1e-5, rtol=0)
        plain = model.generate(SOURCE, max_new_tokens=6, do_sample=False, use_cache=False)
        if not settings["do_sample"]:
            assert torch.equal(plain, output.sequences)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_fertilities_of_the_call_follow_beams_and_samples(name):
    model = constrained(name, fertility="given")
    fertility = torch.tensor([[0.3, 2.0, 1.0, 0.0, 1.0, 0.5], [1.0, 1.0, 0.2, 3.0, 0.1, 1.0]])
    output = model.generate(SOURCE, **BEAMS, fertility=fertility)
    expected = scores_of(model, SOURCE, output, 3, fertility=fertility)
    torch.testing.assert_close(output.sequences_scores, expected, atol=1e-5, rtol=0)
    assert float((expected - scores_of(model, SOURCE, output, 3, fertility=9.0)).abs().max()) > 1e-3
    drawn = model.generate(SOURCE, do_sample=True, num_return_sequences=2, max_new_tokens=4, fertility=fertility)
    assert drawn.shape[0] == 4
    counts = fertility.round().long()  # counts, as an aligner gives them
    torch.testing.assert_close(
        forced(model, SOURCE, TARGET, fertility=counts), forced(model, SOURCE, TARGET, fertility=counts.double())
    )
    one = forced(model, SOURCE, TARGET, fertility=1.0)
    torch.testing.assert_close(one, forced(model, SOURCE, TARGET, fertility=torch.ones(2, 6)))
    weights = attentions(model, input_ids=SOURCE, decoder_input_ids=TARGET, fertility=fertility)[-1]
    assert bool((weights.sum(2) <= fertility[:, None] + 1e-9).all())


@pytest.mark.filterwarnings("ignore:Passing `generation_config`")
@pytest.mark.parametrize("assistant", ["dense", "constrained", "itself", "prompt lookup"])
@pytest.mark.parametrize("name", ["bart", "t5", "llama"])
@torch.no_grad()
def test_assisted_decoding_is_greedy(name, assistant):
    model = constrained(name)
    source = SOURCE[:1]
    arguments = {"fertility": torch.full((1, 6), 1.3)} if model.config.is_encoder_decoder else {}
    greedy = model.generate(source, max_new_tokens=12, do_sample=False, **arguments)
    helped = {"prompt_lookup_num_tokens": 2}
    if assistant != "prompt lookup":
        helped = {"assistant_model": model}
    if assistant == "dense":
        helped = {"assistant_model": tiny_model(name, seed=3).double()}
    if assistant == "constrained":
        other = tiny_model(name, seed=4).double()
        kind = "cross" if other.config.is_encoder_decoder else "decoder"
        helped = {"assistant_model": sparsify(other, attn={kind: CHOICES["csoftmax"]})}
    assert torch.equal(model.generate(source, max_new_tokens=12, do_sample=False, **helped, **arguments), greedy)


@EVERY_CHOICE
@pytest.mark.parametrize("name", ["bart", "gpt2"])
@torch.no_grad()
def test_a_cropped_cache_gives_the_credit_back(name, choice):
    model = constrained(name, choice)
    _, cache = step_by_step(model, SOURCE, TARGET, [2, 1, 1, 1, 1, 3])
    cache.crop(-5)
    other = torch.cat([TARGET[:, :4], TARGET.flip(1)[:, :4]], 1)
    inputs = {"input_ids": other[:, 4:]}
    if model.config.is_encoder_decoder:
        inputs = {"input_ids": SOURCE, "decoder_input_ids": other[:, 4:]}
    logits = model(**inputs, past_key_values=cache, use_cache=True).logits
    torch.testing.assert_close(logits, forced(model, SOURCE, other)[:, 4:], atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", ["bart", "gpt2"])
@torch.no_grad()
def test_rows_of_the_cache_are_selected_and_repeated_with_their_credit(name):
    model = constrained(name)
    _, cache = step_by_step(model, SOURCE, TARGET[:, :5], [5])
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([3, 0, 1]))
    rows = [1, 0, 0]
    rest = TARGET[rows][:, 5:]
    inputs = {"input_ids": rest}
    if model.config.is_encoder_decoder:
        inputs = {"input_ids": SOURCE[rows], "decoder_input_ids": rest}
    logits = model(**inputs, past_key_values=cache, use_cache=True).logits
    torch.testing.assert_close(logits, forced(model, SOURCE, TARGET)[rows][:, 5:], atol=1e-9, rtol=0)
    cache.reset()
    again, _ = step_by_step(model, SOURCE, TARGET, [9])
    torch.testing.assert_close(again, forced(model, SOURCE, TARGET), atol=1e-9, rtol=0)


@torch.no_grad()
def test_a_cache_that_cannot_be_followed_is_refused():
    model, dense = constrained("bart"), tiny_model("bart").double()
    _, cache = step_by_step(dense, SOURCE, TARGET, [9])
    with pytest.raises(ValueError, match="the cache holds 9 target positions that this attention has not seen"):
        model(input_ids=SOURCE, decoder_input_ids=TARGET[:, :1], past_key_values=cache, use_cache=True)
    long = tokens(1, 70)
    _, cache = step_by_step(model, SOURCE[:1], long, [70])
    cache.crop(-66)
    with pytest.raises(ValueError, match=r"cropped by 66 target positions, .* only kept apart for the latest 64"):
        model(input_ids=SOURCE[:1], decoder_input_ids=long[:, :1], past_key_values=cache, use_cache=True)
    for other in (model, constrained("llama")):
        with pytest.raises(ValueError, match=r"follows a dynamic cache, and .* was given one of StaticLayer"):
            other.generate(SOURCE, max_new_tokens=3, cache_implementation="static")


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["bart", "t5", "llama"])
def test_gradient_checkpointing_changes_no_gradient(name, reentrant):
    gradients = []
    for checkpointing in (False, True):
        model = constrained(name).train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            if isinstance(getattr(module, "dropout", None), float):
                module.dropout = 0.0
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        arguments = {"fertility": torch.full((2, 7), 0.7)} if model.config.is_encoder_decoder else {}
        model(**labelled(model), **arguments).loss.backward()
        gradients.append({key: p.grad for key, p in model.named_parameters() if p.grad is not None})
    plain, checkpointed = gradients
    assert plain.keys() == checkpointed.keys()
    for key, gradient in plain.items():
        torch.testing.assert_close(checkpointed[key], gradient, atol=1e-10, rtol=1e-8, msg=key)


def test_the_gradient_through_the_bounds_reaches_the_weights_of_the_model_and_can_be_left_out():
    gradients = {}
    for detach in (False, True):
        model = constrained("bart", detach=detach)
        forced(model, SOURCE, TARGET).square().mean().backward()
        gradients[detach] = model.model.decoder.layers[0].encoder_attn.q_proj.weight.grad
    assert not torch.allclose(gradients[False], gradients[True], rtol=1e-3)
    model = constrained("bart")
    weight = model.model.decoder.layers[0].encoder_attn.q_proj.weight
    with torch.no_grad():
        values = []
        for step in (1e-6, -2e-6):
            weight[3, 5] += step
            values.append(float(forced(model, SOURCE, TARGET).square().mean()))
    assert float(gradients[False][3, 5]) == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4)


@pytest.mark.parametrize(
    "change",
    [{"fertility": 1.5}, {"fertility": [1, 2, 1, 2]}, {"exhaustion": 0.7}, {"sink_score": 1.0}, {"shared": True}],
    ids=str,
)
@torch.no_grad()
def test_every_setting_changes_the_result(change):
    one, other = constrained("bart"), constrained("bart", **change)
    assert not torch.allclose(forced(one, SOURCE, TARGET), forced(other, SOURCE, TARGET), atol=1e-3)


@torch.no_grad()
def test_the_sink_takes_what_words_may_not_and_without_it_words_take_all():
    sunk, whole = constrained("bart", fertility=3.0), constrained("bart", fertility=3.0, sink=False)
    with_sink, without = (
        attentions(model, input_ids=SOURCE, decoder_input_ids=TARGET)[-1].sum(-1) for model in (sunk, whole)
    )
    assert bool((with_sink <= 1 + 1e-9).all() and (with_sink < 0.99).any())
    torch.testing.assert_close(without, torch.ones_like(without))
    with pytest.raises(ValueError, match=r"nothing left for step 6 of sentence 0 .* short of the 1 that a step takes"):
        forced(whole, SOURCE, TARGET, fertility=1.0)


@torch.no_grad()
def test_layers_have_maps_of_their_own():
    model = sparsify(tiny_model("bart"), attn={"cross": [CHOICES["csparsemax"], None], "encoder": "entmax15"})
    first, second = model(input_ids=SOURCE, decoder_input_ids=TARGET, output_attentions=True).cross_attentions
    assert float(first.sum(2).max()) <= 1 + 1e-5 < float(second.sum(2).max())
    self_and_cross = sparsify(
        tiny_model("t5").double(), attn={"cross": CHOICES["csoftmax"], "decoder": CHOICES["csparsemax"]}
    )
    logits, _ = step_by_step(self_and_cross, SOURCE, TARGET, [3, 1, 5], fertility=torch.full((2, 6), 0.7))
    expected = forced(self_and_cross, SOURCE, TARGET, fertility=torch.full((2, 6), 0.7))
    torch.testing.assert_close(logits, expected, atol=1e-9, rtol=0)


def test_the_score_of_the_sink_can_be_learned():
    model = constrained("bart", sink_score="learned")
    forced(model, SOURCE, TARGET).square().mean().backward()
    score = model.model.decoder.layers[0].encoder_attn.sparse_sink_score.value
    assert score.tolist() == [0.0] * 4
    assert bool((score.grad != 0).any())


@torch.no_grad()
def test_it_is_saved_loaded_copied_pickled_and_undone(tmp_path):
    choice = {"name": "csparsemax", "fertility": 1.2, "exhaustion": 0.1, "sink_score": -0.3, "detach": True}
    model = sparsify(tiny_model("marian"), attn={"cross": [choice, {**choice, "shared": True, "fertility": "given"}]})
    fertility = torch.full((2, 6), 1.1)
    expected = forced(model, SOURCE, TARGET, fertility=fertility)
    save_pretrained(model, tmp_path / "model")
    for twin in (from_pretrained(tmp_path / "model"), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(forced(twin, SOURCE, TARGET, fertility=fertility), expected)
        assert "fertility" in inspect.signature(twin.forward).parameters
        logits, _ = step_by_step(twin, SOURCE, TARGET, [1] * 9, fertility=fertility)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
        unsparsify(twin)
        assert torch.equal(forced(twin, SOURCE, TARGET), forced(tiny_model("marian"), SOURCE, TARGET))
        assert not any(module._forward_pre_hooks for module in twin.modules())
        assert "fertility" not in inspect.signature(twin.forward).parameters


def test_trainer_hands_a_column_of_fertilities_on(tmp_path):
    model = sparsify(
        tiny_model("bart"), attn={"cross": {**CHOICES["csparsemax"], "fertility": "given"}}, head="entmax15"
    )
    columns = {"input_ids": tokens(4).tolist(), "labels": tokens(4, seed=4).tolist(), "fertility": [[1.0] * 7] * 4}
    arguments = SparseTrainingArguments(
        str(tmp_path), max_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True
    )
    result = SparseTrainer(model, arguments, train_dataset=Dataset.from_dict(columns)).train()
    assert result.training_loss > 0


CSPARSEMAX = CHOICES["csparsemax"]
REFUSED = [
    ("bert", {"attn": CSPARSEMAX}, ValueError, "csparsemax bounds what a decoder spends word by word"),
    ("bart", {"attn": CSPARSEMAX}, ValueError, 'is an encoder\'s; give a kind, "cross"'),
    ("llama", {"attn": {"cross": CSPARSEMAX}}, ValueError, "LlamaForCausalLM has no cross attention"),
    ("llama", {"attn": {**CSPARSEMAX, "fertility": "given"}}, ValueError, 'fertility="given" is for cross-attention'),
    ("gemma2", {"attn": CSPARSEMAX}, ValueError, "Gemma2Attention was given one of DynamicSlidingWindowLayer"),
    ("bart", {"head": "csparsemax"}, ValueError, "'csparsemax' needs bounds on its weights, so that it has no Fench"),
    ("bart", {"attn": {"cross": {"name": "csoftmax", "fertility": -1}}}, ValueError, '>= 0 or "given" or'),
    ("bart", {"attn": {"cross": {"name": "csoftmax", "fertility": float("nan")}}}, ValueError, "was nan"),
    ("bart", {"attn": {"cross": {"name": "csoftmax", "fertility": "guessed"}}}, TypeError, "was 'guessed'"),
    ("bart", {"attn": {"cross": {"name": "csoftmax", "fertility": [1, "given"]}}}, TypeError, "was 'given'"),
    ("bart", {"attn": {"cross": {"name": "csoftmax", "sink": 1}}}, TypeError, "sink must be True or False, was 1"),
    ("bart", {"attn": {"cross": {"name": "csoftmax", "exhaustion": True}}}, TypeError, "exhaustion must be a finite"),
    (
        "bart",
        {"attn": {"cross": {"name": "csoftmax", "fertility": [1, 2, 1, 2], "shared": True}}},
        ValueError,
        "by head and shared=True contradict each other",
    ),
]


@pytest.mark.parametrize(("name", "settings", "error", "message"), REFUSED, ids=[f"{c[0]} {c[1]}" for c in REFUSED])
def test_what_cannot_be_honoured_is_refused_and_the_model_stays_dense(name, settings, error, message):
    model = tiny_model(name)
    with pytest.raises(error, match=message):
        sparsify(model, **settings)
    assert type(model) is type(tiny_model(name))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_models_that_do_not_hand_fertility_on_are_refused():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 4, "vocab_size": 23}
    model = LongT5ForConditionalGeneration(LongT5Config(**sizes, decoder_start_token_id=PAD)).eval()
    with pytest.raises(
        ValueError, match="LongT5ForConditionalGeneration does not hand fertility on to LongT5Attention"
    ):
        sparsify(model, attn={"cross": CSPARSEMAX})


def test_models_that_take_no_further_arguments_are_refused():
    class Narrow(BartForConditionalGeneration):
        def forward(self, input_ids=None, decoder_input_ids=None, past_key_values=None, use_cache=None):
            return super().forward(input_ids, decoder_input_ids=decoder_input_ids, past_key_values=past_key_values)

    with pytest.raises(ValueError, match="Narrow takes no arguments but its own, and so no fertility"):
        sparsify(Narrow(tiny_model("bart").config), attn={"cross": CSPARSEMAX})


@torch.no_grad()
def test_models_that_do_not_hand_their_cache_on_are_refused(monkeypatch):
    hand_on = "hf_sparse.attention.sequential._steps.hand_on_cache"
    monkeypatch.setattr(hand_on, lambda module, args, kwargs: (args, kwargs))
    with pytest.raises(ValueError, match="BartForConditionalGeneration does not hand past_key_values on to BartAtt"):
        constrained("bart")


def test_attention_computed_inline_is_refused():
    with pytest.raises(ValueError, match="does not go through Transformers' attention interface"):
        sparsify(tiny_inline_model("gptj"), attn=CSPARSEMAX)


CALLS = [
    ("bart", {"fertility": torch.ones(2, 5)}, ValueError, r"\(2, 6\) here, was of shape \(2, 5\)"),
    ("bart", {"fertility": torch.ones(6)}, ValueError, r"was of shape \(6,\)"),
    ("bart", {"fertility": torch.tensor([[1.0] * 6, [1, 1, -2, 1, 1, 1]])}, ValueError, r"was -2 at \[1, 2\]"),
    ("bart", {"fertility": torch.tensor([[1.0, torch.nan]])}, ValueError, r"was nan at \[0, 1\]"),
    ("bart", {"fertility": -0.5}, ValueError, "fertility must be >= 0, was -0.5"),
    ("bart", {"fertility": [1.0] * 6}, TypeError, "fertility must be a number or a tensor .*, was list"),
    ("bart", {"fertility": torch.ones(2, 6, dtype=torch.bool)}, TypeError, "was of dtype torch.bool"),
    ("llama", {"fertility": torch.ones(2, 9)}, ValueError, "a tensor of fertilities is for cross-attention"),
]


@pytest.mark.parametrize(("name", "arguments", "error", "message"), CALLS, ids=[str(case[3]) for case in CALLS])
def test_bad_fertilities_of_a_call_are_refused(name, arguments, error, message):
    with pytest.raises(error, match=message):
        forced(constrained(name), SOURCE, TARGET, **arguments)


def test_a_missing_fertility_and_one_that_nobody_reads_are_refused():
    with pytest.raises(ValueError, match='was made with fertility="given": pass fertility'):
        forced(constrained("bart", fertility="given"), SOURCE, TARGET)
    with pytest.raises(ValueError, match="fertility is for constrained attention, and T5ForConditionalGeneration has"):
        forced(sparsify(tiny_model("t5"), attn="entmax15"), SOURCE, TARGET, fertility=2.0)


def test_a_plain_cache_of_the_callers_own_is_followed_too():
    model = constrained("gpt2")
    with torch.no_grad():
        cache = DynamicCache()
        model(TARGET[:, :5], past_key_values=cache, use_cache=True)
        logits = model(TARGET[:, 5:], past_key_values=cache, use_cache=True).logits
        torch.testing.assert_close(logits, forced(model, None, TARGET)[:, 5:], atol=1e-9, rtol=0)
