"""Bounds and coverage with a cache: cached is uncached, however the cache is filled, cropped and selected."""

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache

from hf_sparse.attention.sequential import SpentLayer
from hf_sparse.cache_name import CACHE
from tests.attention.sequential.models import (
    BOUNDED,
    COVERED,
    SOURCE,
    TARGET,
    bounded,
    covered,
    every_case,
    forced,
    inputs_of,
    sequential,
    step_by_step,
)
from tests.tiny_models import PAD, tiny_model, tokens


@pytest.mark.parametrize(("name", "kind"), every_case("llama", "gpt2"))
@torch.no_grad()
def test_cached_is_uncached(name, kind):
    model = sequential(name, kind)
    expected = forced(model, SOURCE, TARGET)
    for sizes in ([1] * 9, [4, 1, 3, 1]):
        logits, cache = step_by_step(model, SOURCE, TARGET, sizes)
        torch.testing.assert_close(logits, expected, atol=1e-9, rtol=0)
    held_in = cache.cross_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    assert all(isinstance(layer, SpentLayer) for layer in held_in.layers)


def padded_target(model):
    """The target with three tokens of padding before it, and the arguments that say so."""
    padded = torch.cat([torch.full((2, 3), PAD), TARGET], 1)
    mask = (padded != PAD).long()
    if model.config.is_encoder_decoder:
        return padded, {"decoder_attention_mask": mask}
    return padded, {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}


@pytest.mark.parametrize("make", [lambda: bounded("t5"), lambda: bounded("llama"), lambda: covered("t5")])
@torch.no_grad()
def test_padding_before_the_target_gives_nothing_to_the_keys(make):
    model = make()
    padded, arguments = padded_target(model)
    expected = forced(model, SOURCE, TARGET)
    logits = forced(model, SOURCE, padded, **arguments)[:, 3:]
    torch.testing.assert_close(logits, expected, atol=1e-9, rtol=0)
    cache, parts = None, []
    for start, end in ((0, 5), (5, 12)):
        # Masks cover all tokens so far, positions those of the call.
        given = {key: x[:, start if key == "position_ids" else 0 : end] for key, x in arguments.items()}
        inputs = inputs_of(model, SOURCE, padded[:, start:end])
        output = model(**inputs, **given, **{CACHE: cache}, use_cache=True)
        cache = output[CACHE]
        parts.append(output.logits)
    torch.testing.assert_close(torch.cat(parts, 1)[:, 3:], expected, atol=1e-9, rtol=0)


@torch.no_grad()
def test_padding_before_the_target_would_cover_without_its_mask():
    model = covered("t5")
    padded, _ = padded_target(model)
    expected = forced(model, SOURCE, TARGET)
    assert float((forced(model, SOURCE, padded)[:, 3:] - expected).abs().max()) > 1e-3


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, kind) for name in ("bart", "gpt2") for kind in BOUNDED), ("bart", "softmax")]
)
@torch.no_grad()
def test_a_cropped_cache_takes_back_what_its_keys_received(name, kind):
    model = sequential(name, kind)
    _, cache = step_by_step(model, SOURCE, TARGET, [2, 1, 1, 1, 1, 3])
    cache.crop(-5)
    other = torch.cat([TARGET[:, :4], TARGET.flip(1)[:, :4]], 1)
    logits = model(**inputs_of(model, SOURCE, other[:, 4:]), **{CACHE: cache}, use_cache=True).logits
    torch.testing.assert_close(logits, forced(model, SOURCE, other)[:, 4:], atol=1e-9, rtol=0)


@pytest.mark.parametrize(("name", "kind"), [("bart", "csparsemax"), ("gpt2", "csparsemax"), ("bart", "softmax")])
@torch.no_grad()
def test_rows_of_the_cache_are_selected_and_repeated_with_what_their_keys_received(name, kind):
    model = sequential(name, kind)
    _, cache = step_by_step(model, SOURCE, TARGET[:, :5], [5])
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([3, 0, 1]))
    rows = [1, 0, 0]
    inputs = inputs_of(model, SOURCE[rows], TARGET[rows][:, 5:])
    logits = model(**inputs, **{CACHE: cache}, use_cache=True).logits
    torch.testing.assert_close(logits, forced(model, SOURCE, TARGET)[rows][:, 5:], atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", ["bart", "gpt2"])
@torch.no_grad()
def test_a_cache_that_was_reset_is_an_empty_one(name):
    model = bounded(name)
    _, cache = step_by_step(model, SOURCE, TARGET[:, :5], [5])
    cache.reset()
    held_in = cache.cross_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    assert all(layer.num_steps == 0 and layer.spent_before(0, 6) is None for layer in held_in.layers)
    again, _ = step_by_step(model, SOURCE, TARGET, [9])
    torch.testing.assert_close(again, forced(model, SOURCE, TARGET), atol=1e-9, rtol=0)


@torch.no_grad()
def test_a_plain_cache_of_the_callers_own_is_followed_too():
    model = bounded("gpt2")
    cache = DynamicCache()
    model(TARGET[:, :5], **{CACHE: cache}, use_cache=True)
    logits = model(TARGET[:, 5:], **{CACHE: cache}, use_cache=True).logits
    torch.testing.assert_close(logits, forced(model, None, TARGET)[:, 5:], atol=1e-9, rtol=0)


@torch.no_grad()
def test_a_cache_that_cannot_be_followed_is_refused():
    model, dense = bounded("bart"), tiny_model("bart").double()
    _, cache = step_by_step(dense, SOURCE, TARGET, [9])
    with pytest.raises(ValueError, match="the cache holds 9 target positions that this attention has not seen"):
        model(input_ids=SOURCE, decoder_input_ids=TARGET[:, :1], **{CACHE: cache}, use_cache=True)
    long = tokens(1, 70)
    _, cache = step_by_step(model, SOURCE[:1], long, [70])
    cache.crop(-66)
    with pytest.raises(ValueError, match=r"cropped by 66 target positions, .* only kept apart for the latest 64"):
        model(input_ids=SOURCE[:1], decoder_input_ids=long[:, :1], **{CACHE: cache}, use_cache=True)
    for other in (model, bounded("llama"), covered("bart")):
        with pytest.raises(ValueError, match=r"follows a dynamic cache, and .* was given one of StaticLayer"):
            other.generate(SOURCE, max_new_tokens=3, cache_implementation="static")


@pytest.mark.parametrize("kind", COVERED)
@torch.no_grad()
def test_coverage_is_no_small_change(kind):
    covering, plain = covered("bart", kind), covered("bart", kind, size=0.0)
    assert float((forced(covering, SOURCE, TARGET) - forced(plain, SOURCE, TARGET)).abs().max()) > 1e-3
