"""``generate(cache_implementation="screened")`` gives tokens and probabilities of the usual cache in every mode."""

import shutil

import pytest
import torch
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    Lfm2Config,
    Lfm2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    T5GemmaConfig,
    T5GemmaForConditionalGeneration,
)

from hf_sparse import ScreenedCache, is_sparse, sparsify
from hf_sparse.attention import set_impl
from hf_sparse.attention.backends import _screened
from hf_sparse.cache_name import CACHE
from hf_sparse.model.screened_generation import asked_for_screened, screen_cache, screened_caches
from tests.tiny_inline_models import tiny_inline_model
from tests.tiny_models import PAD, tiny_model, tokens
from tests.tiny_whisper import FRAMES, tiny_whisper

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")), reason="no C++ compiler is installed"
)
MODES = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampling": {"do_sample": True, "num_return_sequences": 3},
    "sampled beams": {"do_sample": True, "num_beams": 2},
}
MAPS = {
    "entmax15": "entmax15",
    "sparsemax": "sparsemax",
    "alpha and temperature a head": {
        "name": "entmax",
        "alpha": [1.2, 1.5, 1.7, 2.0],
        "temperature": [0.5, 1.0, 2.0, 3.0],
    },
    "scaled by the number of keys": {"name": "entmax15", "delta": 0.5, "beta": [0.5, 0.1, 1.0, 2.0]},
}


def generated(model, inputs, implementation=None, steps=12, **options):
    torch.manual_seed(3)
    options = {"max_new_tokens": steps, "min_new_tokens": steps, "do_sample": False, "pad_token_id": PAD} | options
    return model.generate(
        **inputs, **options, cache_implementation=implementation, return_dict_in_generate=True, output_logits=True
    )


def check_same(model, inputs, **options):
    """The same tokens and probabilities; returns the screened cache."""
    usual, screened = (generated(model, inputs, cached, **options) for cached in (None, "screened"))
    assert torch.equal(usual.sequences, screened.sequences)
    for own, other in zip(screened.logits, usual.logits):
        torch.testing.assert_close(own.exp(), other.exp(), atol=1e-5, rtol=1e-3)
    return screened[CACHE]


def padded(rows=2, length=30):
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, :9] = 0
    return {"input_ids": tokens(rows, length), "attention_mask": mask}


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "gemma2", "bart", "marian", "t5"])
def test_no_token_differs(name, options):
    model = sparsify(tiny_model(name), attn="entmax15", head="entmax15")
    cache = check_same(model, padded(), **options)
    parts = [cache]
    if isinstance(cache, EncoderDecoderCache):
        parts = [cache.self_attention_cache, cache.cross_attention_cache]
    for part in parts:
        assert type(part) is ScreenedCache
        assert part.reads
        assert all(step.proved == step.calls for step in part.reads)


@pytest.mark.parametrize("map_name", MAPS.values(), ids=MAPS)
def test_no_token_differs_with_other_maps(map_name):
    cache = check_same(sparsify(tiny_model("llama"), attn=map_name), padded())
    assert all(step.proved == step.calls for step in cache.reads)


def test_several_tokens_at_a_time():
    model = sparsify(tiny_model("llama"), attn="entmax15", head="entmax15")
    inputs = {"input_ids": tokens(1, 4).repeat(1, 6), "attention_mask": torch.ones(1, 24, dtype=torch.long)}
    assistant = sparsify(tiny_model("llama", seed=1), attn="entmax15", head="entmax15")
    for options in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": assistant}):
        cache = check_same(model, inputs, **options)
        assert all(step.proved == step.calls for step in cache.reads)


def test_windows_stay_as_they_are():
    model = sparsify(tiny_model("gemma2"), attn="entmax15")
    cache = check_same(model, padded())
    names = [type(layer).__name__ for layer in cache.layers]
    assert names == ["DynamicSlidingWindowLayer", "ScreenedLayer"]


def test_a_model_with_windows_alone_is_refused():
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = sparsify(
        MistralForCausalLM(MistralConfig(vocab_size=23, sliding_window=5, num_key_value_heads=2, **sizes)),
        attn="entmax15",
    )
    with pytest.raises(ValueError, match=r"MistralForCausalLM has no layer .* without a sliding window"):
        generated(model, padded(), "screened")


def test_whisper(monkeypatch):
    model, inputs = tiny_whisper(attn="entmax15")
    usual = model.generate(**inputs, max_new_tokens=6)
    attend, shapes = _screened.attend_to_coded, []

    def watched(q, k, *others):
        shapes.append(k.shape[2])
        return attend(q, k, *others)

    monkeypatch.setattr(_screened, "attend_to_coded", watched)
    assert torch.equal(model.generate(**inputs, max_new_tokens=6, cache_implementation="screened"), usual)
    assert shapes.count(FRAMES // 2) == len(shapes) / 2  # half of the calls are cross-attention


def test_a_cache_of_the_user_goes_on_where_it_was():
    model = sparsify(tiny_model("llama"), attn="entmax15")
    ids, cache = tokens(1, 20), ScreenedCache(config=model.config)
    first = model.generate(ids, **{CACHE: cache}, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    second = model.generate(first, **{CACHE: cache}, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    at_once = model.generate(ids, max_new_tokens=10, min_new_tokens=10, do_sample=False)
    assert torch.equal(second, at_once)
    assert cache.get_seq_length() == 29


def test_it_does_not_depend_on_what_computes_other_attention():
    model = sparsify(tiny_model("llama"), attn="entmax15")
    set_impl(model, "torch")
    cache = check_same(model, padded())
    assert all(step.proved == step.calls for step in cache.reads)


def test_the_next_call_has_the_usual_cache_again():
    model = sparsify(tiny_model("llama"), attn="entmax15")
    generated(model, padded(), "screened")
    assert type(generated(model, padded())[CACHE]) is DynamicCache


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        ({"head": "entmax15"}, "this model has no sparse attention"),
        ({"attn": "sparsegen_lin"}, "'model.layers.0.self_attn' has sparsegen_lin"),
        ({"attn": {"name": "entmax", "alpha": 3.0}}, "'model.layers.0.self_attn' has an alpha of 3;"),
        ({"attn": {"name": "entmax", "alpha": [1.0, 1.5, 1.5, 1.0]}}, "self_attn' has an alpha of 1 and 1.5;"),
    ],
    ids=str,
)
def test_models_for_which_everything_would_be_read_are_refused(maps, message):
    model = sparsify(tiny_model("llama"), **maps)
    with pytest.raises(ValueError, match=message):
        generated(model, padded(), "screened")
    assert is_sparse(model)


@pytest.mark.parametrize("options", [{"use_cache": False}, {CACHE: DynamicCache()}], ids=str)
def test_two_caches_are_refused(options):
    model = sparsify(tiny_model("llama"), attn="entmax15")
    with pytest.raises(ValueError, match="makes a cache of its own"):
        generated(model, padded(), "screened", **options)


def test_a_model_that_prepares_its_cache_in_its_own_way_does_so_and_is_refused():
    model = tiny_model("llama")

    class Own(type(model)):  # as DiffusionGemma
        def _prepare_cache_for_generation(self, generation_config, batch_size, max_length):
            return generation_config, batch_size, max_length

    model.__class__ = Own
    sparsify(model, attn="entmax15")
    prepared = model._prepare_cache_for_generation(
        generation_config=model.generation_config, batch_size=2, max_length=4
    )
    assert prepared == (model.generation_config, 2, 4)
    with pytest.raises(ValueError, match="Own prepares the cache of its generate in its own way"):
        generated(model, padded(), "screened")


@pytest.mark.parametrize("own", ["sliding_attention", "full_attention"])
def test_sources_longer_than_the_window_of_the_decoder_are_read_whole(own):
    """T5Gemma's decoder has sliding windows, in all layers perhaps, and its cross-attention none."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 8,
    }
    part = {**sizes, "head_dim": 8, "num_key_value_heads": 2, "sliding_window": 4, "vocab_size": 23}
    part["layer_types"] = ["sliding_attention", own]
    config = T5GemmaConfig(encoder=part, decoder=part, vocab_size=23, pad_token_id=0, eos_token_id=2, bos_token_id=1)
    model = sparsify(T5GemmaForConditionalGeneration(config).eval(), attn="entmax15")
    model.generation_config.decoder_start_token_id = 1
    options = {"inputs": tokens(2, 9), "max_new_tokens": 8, "min_new_tokens": 8, "num_beams": 2}
    expected = model.generate(**options)
    found = model.generate(**options, cache_implementation="screened", return_dict_in_generate=True)
    assert torch.equal(found.sequences, expected)
    crossed = found[CACHE].cross_attention_cache
    assert [step.keys for step in crossed.reads] == [9]


@pytest.mark.parametrize(
    ("name", "maps", "message"),
    [
        ("bart", {"encoder": "entmax15"}, "self_attn' has softmax"),
        ("bart", {"cross": {"name": "entmax15", "coverage": "vector"}}, "self_attn' has softmax"),
        ("bloom", "entmax15", "self_attention' computes its scores itself"),
    ],
    ids=["in the encoder alone", "sequential", "inline"],
)
def test_attention_that_does_not_read_the_cache_by_the_kernel_is_refused(name, maps, message):
    model = sparsify(tiny_inline_model(name) if name == "bloom" else tiny_model(name), attn=maps)
    with pytest.raises(ValueError, match=message):
        generated(model, padded(), "screened")


def test_a_model_on_another_device_is_refused():
    model = sparsify(tiny_model("llama"), attn="entmax15").to("meta")
    with pytest.raises(ValueError, match="this model is on meta"):
        generated(model, padded(), "screened")


def test_one_layer_that_the_kernel_computes_is_enough():
    model = sparsify(tiny_model("llama"), attn={"decoder": [None, "entmax15"]})
    assert check_same(model, padded()).reads


def test_a_learned_alpha_may_start_where_the_kernel_does_not_go():
    model = sparsify(tiny_model("llama"), attn={"name": "entmax", "alpha": {"learned": 1.01}})
    check_same(model, padded())


def test_a_cache_that_is_offloaded_or_of_a_models_own_is_refused():
    class Own(DynamicCache):
        pass

    offloaded = DynamicCache()
    offloaded.offloading = True  # as made on a GPU
    model = sparsify(tiny_model("llama"), attn="entmax15")
    for cache in (offloaded, Own()):
        with pytest.raises(ValueError, match="takes the place of a DynamicCache, and LlamaForCausalLM has"):
            screen_cache(model, model.generation_config, {CACHE: cache})


def test_a_call_that_is_over_asks_for_no_screened_cache():
    with screened_caches(True):
        with screened_caches(False):
            assert not asked_for_screened()
        assert asked_for_screened()
    assert not asked_for_screened()


def test_layers_that_are_no_attention_keep_their_own_cache():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Lfm2Config(vocab_size=23, num_key_value_heads=2, layer_types=["conv", "full_attention"], **sizes)
    cache = check_same(sparsify(Lfm2ForCausalLM(config).eval(), attn="entmax15"), padded())
    assert [type(layer).__name__ for layer in cache.layers][1:] == ["ScreenedLayer"]


def test_a_cache_for_an_assistant_keeps_what_it_may_have_to_go_back_to():
    model = sparsify(tiny_model("gemma2"), attn="entmax15")
    assert generated(model, padded(), "screened", is_assistant=True, output_scores=True)[CACHE].is_recording_past(0)
