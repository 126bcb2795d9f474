"""Bounds and coverage that cannot be honoured are refused by name, and the model stays dense."""

import pytest
import torch
from torch import nn
from transformers import BartForConditionalGeneration, DynamicCache, LongT5Config, LongT5ForConditionalGeneration

from hf_sparse import sparsify
from hf_sparse.attention import AttentionSite, attention_sites
from hf_sparse.attention.interface import sparse_attention
from hf_sparse.attention.site import SITE
from hf_sparse.cache_name import CACHE
from hf_sparse.config import MapConfig, SparseConfig
from hf_sparse.config.settings import CoverageVectors
from tests.attention.sequential.models import BOUNDED, SOURCE, TARGET, VECTOR, bounded, covered, forced
from tests.tiny_inline_models import tiny_inline_model
from tests.tiny_models import PAD, tiny_model, tokens

CSPARSEMAX = BOUNDED["csparsemax"]
COVERAGE = {"name": "softmax", **VECTOR}


def csoftmax(**settings):
    return {"attn": {"cross": {"name": "csoftmax", **settings}}}


def coverage(value):
    return {"attn": {"cross": {"name": "softmax", "coverage": value}}}


REFUSED = [
    ("bert", {"attn": CSPARSEMAX}, ValueError, "csparsemax bounds what a decoder spends word by word"),
    ("bart", {"attn": CSPARSEMAX}, ValueError, 'is an encoder\'s; give a kind, "cross"'),
    ("llama", {"attn": {"cross": CSPARSEMAX}}, ValueError, "LlamaForCausalLM has no cross attention"),
    ("llama", {"attn": {**CSPARSEMAX, "fertility": "given"}}, ValueError, 'fertility="given" is for cross-attention'),
    ("gemma2", {"attn": CSPARSEMAX}, ValueError, "Gemma2Attention was given one of DynamicSlidingWindowLayer"),
    ("bart", {"head": "csparsemax"}, ValueError, "'csparsemax' needs bounds on its weights, so it has no Fench"),
    ("bart", csoftmax(fertility=-1), ValueError, 'from 0 to 1000000, a list with one for each head or "given" or'),
    ("bart", csoftmax(fertility=float("nan")), ValueError, "was nan"),
    ("bart", csoftmax(fertility="guessed"), TypeError, "was 'guessed'"),
    ("bart", csoftmax(fertility=[1, "given"]), TypeError, "was 'given'"),
    ("bart", csoftmax(sink=1), TypeError, "sink must be True or False, was 1"),
    ("bart", csoftmax(exhaustion=True), TypeError, "exhaustion must be a number from 0"),
    ("bart", csoftmax(fertility=[1, 2, 1, 2], shared=True), ValueError, "by head and shared=True contradict each"),
    ("bart", {"attn": COVERAGE}, ValueError, 'is self-attention; give a kind, "cross"'),
    ("bart", {"attn": {"decoder": COVERAGE}}, ValueError, "coverage is what words of a source received"),
    ("llama", {"attn": {"name": "entmax15", **VECTOR}}, ValueError, "LlamaAttention at .* is self-attention"),
    ("llama", {"attn": {"cross": COVERAGE}}, ValueError, "LlamaForCausalLM has no cross attention"),
    ("bart", {"attn": {"cross": {"name": "csparsemax", **VECTOR}}}, ValueError, "csparsemax follows .* by its bounds"),
    ("bart", coverage(True), ValueError, '"none" or "vector" .*, was True'),
    ("bart", coverage(2), ValueError, '"none" or "vector" .*, was 2'),
    ("bart", coverage("vectors"), ValueError, "was 'vectors'"),
    ("bart", coverage("learned"), ValueError, "coverage must be .*, was 'learned'"),
    ("bart", coverage({"vector": [4]}), ValueError, r"coverage must be .*\[4\]"),
    ("bart", coverage({"vector": [4, 0]}), ValueError, r"was .*\[4, 0\]"),
    ("bart", {"head": {"name": "entmax15", **VECTOR}}, ValueError, "head: coverage follows what attention gave its"),
]


@pytest.mark.parametrize(("name", "settings", "error", "message"), REFUSED, ids=[f"{c[0]} {c[1]}" for c in REFUSED])
def test_what_cannot_be_honoured_is_refused_and_the_model_stays_dense(name, settings, error, message):
    model = tiny_model(name)
    keys = list(model.state_dict())
    with pytest.raises(error, match=message):
        sparsify(model, **settings)
    assert type(model) is type(tiny_model(name))
    assert list(model.state_dict()) == keys
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("attn", "argument"), [(CSPARSEMAX, "fertility"), (COVERAGE, "target_mask")], ids=["bounds", "coverage"]
)
def test_models_that_do_not_hand_their_arguments_on_are_refused(attn, argument):
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 4, "vocab_size": 23}
    model = LongT5ForConditionalGeneration(LongT5Config(**sizes, decoder_start_token_id=PAD)).eval()
    message = f"LongT5ForConditionalGeneration does not hand {argument} on to LongT5Attention .* bounds and coverage"
    with pytest.raises(ValueError, match=message):
        sparsify(model, attn={"cross": attn})


def test_models_that_take_no_further_arguments_are_refused():
    class Narrow(BartForConditionalGeneration):
        def forward(self, input_ids=None, decoder_input_ids=None, use_cache=None):
            return super().forward(input_ids, decoder_input_ids=decoder_input_ids, use_cache=use_cache)

    with pytest.raises(ValueError, match="Narrow takes no arguments but its own, and so no fertility"):
        sparsify(Narrow(tiny_model("bart").config), attn={"cross": CSPARSEMAX})


@torch.no_grad()
def test_models_that_do_not_hand_their_cache_on_are_refused(monkeypatch):
    hand_on = "hf_sparse.attention.sequential._steps.pass_cache_on"
    monkeypatch.setattr(hand_on, lambda module, args, kwargs: (args, kwargs))
    with pytest.raises(ValueError, match=f"BartForConditionalGeneration does not hand {CACHE} on to BartAtt"):
        bounded("bart")


def test_modules_that_do_not_say_where_their_keys_are_are_refused():
    module, x = nn.Module(), torch.zeros(1, 2, 4, 3)
    module.__dict__[SITE] = AttentionSite("there", "decoder", MapConfig.parse("csparsemax", "attn"))
    with pytest.raises(ValueError, match="Module does not say where in the cache its keys are; pass use_cache=False"):
        sparse_attention(module, x, x, x, key_cache=DynamicCache())


def test_attention_computed_inline_is_refused():
    with pytest.raises(ValueError, match="does not go through Transformers' attention interface"):
        sparsify(tiny_inline_model("bloom"), attn=CSPARSEMAX)
    with pytest.raises(ValueError, match="self-attention"):
        sparsify(tiny_inline_model("bloom"), attn=COVERAGE)


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
        forced(bounded(name), SOURCE, TARGET, **arguments)


def test_a_missing_fertility_is_refused():
    with pytest.raises(ValueError, match='was made with fertility="given": pass fertility'):
        forced(bounded("bart", fertility="given"), SOURCE, TARGET)


@pytest.mark.parametrize("make", [lambda: covered("t5"), lambda: sparsify(tiny_model("t5"), attn="entmax15")])
def test_a_fertility_that_nobody_reads_is_refused(make):
    with pytest.raises(ValueError, match="fertility is for constrained attention, and T5ForConditionalGeneration has"):
        forced(make(), SOURCE, TARGET, fertility=2.0)


def test_saved_coverage_needs_the_size_of_its_vectors():
    with pytest.raises(ValueError, match='saved attention has coverage="vector" without the size of the vectors'):
        SparseConfig.from_dict({"version": 1, "attn": {"cross": COVERAGE}})


def test_coverage_of_capped_scores_is_refused():
    module, x = nn.Module(), torch.zeros(1, 2, 4, 3)
    module.__dict__[SITE] = AttentionSite(
        "there", "cross", MapConfig.parse("softmax", "attn"), coverage=CoverageVectors(2, 3)
    )
    with pytest.raises(ValueError, match="Module caps its scores, and coverage is not part of what it caps"):
        sparse_attention(module, x, x, x, softcap=5.0)


def test_backends_without_weights_do_not_follow_coverage():
    model = covered("bart", {"name": "entmax15"})
    for _, site in attention_sites(model):
        site.impl = "flex" if site.has_coverage else "auto"
    with pytest.raises(ValueError, match='impl="flex" does not follow what keys received before'):
        forced(model, SOURCE, TARGET)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize("record", [torch.jit.trace, torch.export.export])
@torch.no_grad()
def test_graphs_that_would_keep_the_steps_of_their_example_are_refused(record):
    model = sparsify(tiny_model("llama"), attn=CSPARSEMAX)

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(ids, use_cache=False).logits

    with pytest.raises(NotImplementedError, match="attention with bounds decides by its weights which steps to take"):
        record(Logits(), (tokens(),))
