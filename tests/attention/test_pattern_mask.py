"""Masks known by their pattern: the mask Transformers asked for, materialized only when read."""

import itertools
from unittest import mock

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, StaticCache
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_bidirectional_sliding_window_mask,
    create_causal_mask,
    create_chunked_causal_mask,
    create_sliding_window_causal_mask,
)

from hf_sparse import sparsify
from hf_sparse.attention import mask as mask_module
from hf_sparse.attention import set_impl
from hf_sparse.attention._call import AttentionCall
from hf_sparse.attention.interface import NAME
from hf_sparse.attention.mask import PatternMask
from hf_sparse.cache_name import CACHE
from tests.kernels.devices import DEVICE, needs_triton
from tests.sweep.architectures import build
from tests.tiny_models import labelled, tiny_model

HIDDEN = 8
CAUSAL, BIDIRECTIONAL = create_causal_mask, create_bidirectional_mask
SLIDING, CHUNKED = create_sliding_window_causal_mask, create_chunked_causal_mask
BOTH_WAYS = create_bidirectional_sliding_window_mask


def config(kind=NAME, **windows):
    made = LlamaConfig(hidden_size=HIDDEN, num_attention_heads=2, num_hidden_layers=1, **windows)
    made._attn_implementation = kind
    return made


def asked_for(create, kind=NAME, *, queries=7, padding=None, cache=None, **others):
    """The mask that a model would get under an attention implementation."""
    embeddings = torch.zeros(2, queries, HIDDEN)
    return create(
        config(kind, sliding_window=3, attention_chunk_size=3), embeddings, padding, **{CACHE: cache}, **others
    )


def filled_cache(length, sliding=False):
    cache = DynamicCache(config=config(sliding_window=3)) if sliding else DynamicCache()
    cache.update(torch.zeros(2, 2, length, 4), torch.zeros(2, 2, length, 4), 0)
    return cache


def padded(left, right, length):
    mask = torch.ones(2, length, dtype=torch.long)
    mask[0, :left], mask[1, length - right :] = 0, 0
    return mask


def of_pattern(mask):
    """What the attributes say is visible, (batch, queries, keys), an entry at a time."""
    batch, _, queries, keys = mask.shape
    visible = torch.zeros(batch, queries, keys, dtype=torch.bool)
    for b, i, j in itertools.product(range(batch), range(queries), range(keys)):
        ahead = i + keys - queries
        visible[b, i, j] = (
            (not mask.causal or j <= ahead)
            and (mask.window is None or ahead - mask.window < j)
            and (mask.padding is None or bool(mask.padding[min(b, len(mask.padding) - 1), 0, 0, j]))
        )
    return visible


@pytest.mark.parametrize("ends", [None, (0, 0), (2, 0), (0, 3), (2, 3)], ids=str)
@pytest.mark.parametrize(
    ("create", "seen"), [(CAUSAL, 0), (CAUSAL, 4), (SLIDING, 0), (SLIDING, 4), (BIDIRECTIONAL, 0)]
)
def test_the_pattern_is_the_mask(create, seen, ends):
    padding = None if ends is None else padded(*ends, seen + 7)
    caches = [filled_cache(seen) if seen else None for _ in range(2)]
    mask = asked_for(create, padding=padding, cache=caches[0])
    expected = asked_for(create, "eager", padding=padding, cache=caches[1])
    if expected is None:
        assert mask is None
        return
    assert isinstance(mask, PatternMask)
    assert not mask.is_materialized
    assert mask.padding is None if ends in (None, (0, 0)) else mask.padding is not None
    assert mask.window == (3 if create is SLIDING else None)
    assert (mask.shape, mask.dtype, mask.device) == (expected.shape, expected.dtype, expected.device)
    assert torch.equal(of_pattern(mask), expected[:, 0] == 0)
    assert not mask.is_materialized
    assert torch.equal(mask.materialized(), expected)


@pytest.mark.parametrize("ends", [None, (0, 0), (2, 0), (0, 3)], ids=str)
@pytest.mark.parametrize("create", [CAUSAL, SLIDING, BIDIRECTIONAL])
@pytest.mark.parametrize(("queries", "seen"), [(1, 0), (1, 1), (1, 2), (1, 4), (2, 0), (4, 3)])
def test_a_mask_is_left_out_where_it_hides_nothing(create, ends, queries, seen):
    length = seen + queries
    padding = None if ends is None else padded(*(min(end, length) for end in ends), length)
    caches = [filled_cache(seen) if seen else None for _ in range(2)]
    mask = asked_for(create, queries=queries, padding=padding, cache=caches[0])
    expected = asked_for(create, "eager", queries=queries, padding=padding, cache=caches[1])
    query, key = torch.zeros(2, 2, queries, 4), torch.zeros(2, 2, length, 4)
    call = AttentionCall(query, key, key, mask, 1.0).with_matrix()
    if expected is None or bool((expected == 0).all()):
        assert call.mask is None
    else:
        assert torch.equal(call.mask, expected)


def test_a_mask_of_other_keys_is_not_left_out():
    mask = asked_for(CAUSAL, queries=1, cache=filled_cache(4))
    assert isinstance(mask, PatternMask)
    query, key = torch.zeros(2, 2, 1, 4), torch.zeros(2, 2, 6, 4)
    assert AttentionCall(query, key, key, mask, 1.0).with_matrix().mask is mask.materialized()


def test_a_cache_that_forgets_has_a_pattern_too():
    mask = asked_for(SLIDING, cache=filled_cache(5, sliding=True), queries=4)
    expected = asked_for(SLIDING, "eager", cache=filled_cache(5, sliding=True), queries=4)
    assert isinstance(mask, PatternMask)
    assert mask.shape[-1] < 9
    assert torch.equal(of_pattern(mask), expected[:, 0] == 0)


def static_cache():
    cache = StaticCache(config(), max_cache_len=12)
    cache.update(torch.zeros(2, 2, 2, 4), torch.zeros(2, 2, 2, 4), 0)
    return cache


# The blocks of two see each other both ways; positions that begin anew are sequences packed into one row.
@pytest.mark.parametrize(
    ("create", "others"),
    [
        (CHUNKED, dict),
        (CHUNKED, lambda: {"padding": padded(2, 0, 7)}),
        (CAUSAL, lambda: {"cache": static_cache()}),
        (CAUSAL, lambda: {"block_sequence_ids": torch.tensor([[0, 0, 1, 1, -1, -1, -1]] * 2)}),
        (SLIDING, lambda: {"block_sequence_ids": torch.tensor([[0, 0, 1, 1, -1, -1, -1]] * 2)}),
        (CAUSAL, lambda: {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3]] * 2)}),
        (SLIDING, lambda: {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3]] * 2)}),
        (CAUSAL, lambda: {"or_mask_function": lambda b, h, q, k: k == 6}),
        (SLIDING, lambda: {"and_mask_function": lambda b, h, q, k: k != 1}),
        (BOTH_WAYS, dict),
        (BOTH_WAYS, lambda: {"padding": padded(2, 0, 7)}),
        (BIDIRECTIONAL, lambda: {"and_mask_function": lambda b, h, q, k: k != 1}),
    ],
)
def test_what_has_no_such_pattern_is_materialized_down(create, others):
    mask, expected = asked_for(create, **others()), asked_for(create, "eager", **others())
    assert type(mask) is torch.Tensor
    assert torch.equal(mask, expected)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("left", range(6))
def test_chunks_are_not_taken_for_a_window(size, left):
    from transformers.masking_utils import chunked_causal_mask_function, sliding_window_causal_mask_function

    window = sliding_window_causal_mask_function(size)
    chunks = chunked_causal_mask_function(size, torch.tensor([left]))
    assert mask_module._slides(window, size, "cpu")
    assert mask_module._slides(chunks, size, "cpu") == (size == 1)  # where they are the same


def causal_mask():
    return asked_for(CAUSAL, padding=padded(2, 0, 7))


def test_any_operation_works_on_the_mask_itself():
    expected = asked_for(CAUSAL, "eager", padding=padded(2, 0, 7))
    scores = torch.randn(2, 4, 7, 7, requires_grad=True)
    assert torch.equal(scores + causal_mask(), scores + expected)
    assert torch.equal(causal_mask()[:, :, 2:, :3], expected[:, :, 2:, :3])
    assert torch.equal(causal_mask() == 0, expected == 0)
    assert torch.equal(torch.cat([causal_mask(), expected], -1), torch.cat([expected, expected], -1))
    assert torch.equal(causal_mask().clone(), expected)
    weights = (scores + causal_mask()).softmax(-1)
    (slope,) = torch.autograd.grad(weights.square().sum(), scores)
    (known,) = torch.autograd.grad((scores + expected).softmax(-1).square().sum(), scores)
    assert torch.equal(slope, known)


def test_a_mask_that_somebody_changed_is_no_longer_known_by_its_pattern():
    for change in (lambda x: x.mul_(2), lambda x: x[0, 0, 0].zero_(), lambda x: x.__setitem__((0, 0, 0, 0), 5.0)):
        mask, expected = causal_mask(), asked_for(CAUSAL, "eager", padding=padded(2, 0, 7))
        query = key = torch.zeros(2, 4, 7, 8)
        assert mask.is_known_for(query, key)
        change(mask)
        change(expected)
        assert not mask.is_known_for(query, key)
        assert torch.equal(mask + 0, expected)


def test_it_is_not_known_for_other_lengths():
    mask = causal_mask()
    assert not mask.is_known_for(torch.zeros(2, 4, 7, 8), torch.zeros(2, 4, 8, 8))
    assert not mask.is_known_for(torch.zeros(2, 4, 6, 8), torch.zeros(2, 4, 7, 8))


def test_a_copy_elsewhere_or_of_another_dtype_is_still_known_by_its_pattern():
    mask = causal_mask()
    half, expected = mask.to(torch.float16), asked_for(CAUSAL, "eager", padding=padded(2, 0, 7)).to(torch.float16)
    assert mask.to(torch.float32) is mask
    assert isinstance(half, PatternMask)
    assert not half.is_materialized
    assert not mask.is_materialized
    assert half.dtype == torch.float16
    assert torch.equal(of_pattern(half), expected[:, 0] == 0)
    assert torch.equal(half.materialized(), expected)
    assert isinstance(causal_mask().to("meta"), PatternMask)
    copied = causal_mask()
    double = copied.to(torch.float64)
    copied.mul_(2)
    assert torch.equal(double + 0, asked_for(CAUSAL, "eager", padding=padded(2, 0, 7)).double())
    assert repr(half) == "PatternMask((2, 1, 7, 7), causal=True, window=None)"


def test_showing_a_mask_does_not_materialize_it():
    mask = causal_mask()
    repr(mask)
    assert not mask.is_materialized


# Padding on one side, a window, and an encoder with cross-attention; gradients too.
@needs_triton
@pytest.mark.parametrize("name", ["llama", "gemma2", "bart"])
def test_kernels_materialize_no_mask(name):
    model = sparsify(tiny_model(name).to(DEVICE), attn="entmax15")
    inputs = {key: value.to(DEVICE) for key, value in labelled(model).items()}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][0, :2] = 0
    expected = model(**inputs).loss
    with mock.patch.object(mask_module, "eager_mask", side_effect=AssertionError("materialized")):
        set_impl(model, "triton")
        loss = model(**inputs).loss
        loss.backward()
        set_impl(model, "flex")
        with torch.no_grad():  # there are no gradients on the CPU
            loss_of_flex = model(**inputs).loss
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loss_of_flex, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("impl", ["torch", "triton"])
def test_layers_compiled_one_by_one_take_it(impl):
    model = sparsify(tiny_model("llama").to(DEVICE), attn="entmax15").eval()
    set_impl(model, impl)
    inputs = {"input_ids": labelled(model)["input_ids"].to(DEVICE)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][0, :2] = 0
    expected = model(**inputs).logits
    for layer in model.model.layers:
        layer.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(model(**inputs).logits, expected, atol=1e-5, rtol=1e-5)


def test_gradients_of_every_sequence_by_vmap():
    model = sparsify(tiny_model("llama"), attn="entmax15").eval()
    parameters = {name: x.detach() for name, x in model.named_parameters()}
    ids, mask = labelled(model)["input_ids"], padded(2, 3, 7)

    def loss(parameters, ids, mask):
        inputs = {"input_ids": ids[None], "attention_mask": mask[None], "use_cache": False}
        return torch.func.functional_call(model, parameters, (), inputs).logits.square().mean()

    slopes = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, ids, mask)
    for row in range(2):
        model.zero_grad()
        model(input_ids=ids[row : row + 1], attention_mask=mask[row : row + 1]).logits.square().mean().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(slopes[name][row], parameter.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("left", [6, 8])
def test_a_cache_that_forgets_hides_the_padding_that_is_left(left):
    masks = [
        asked_for(SLIDING, kind, cache=filled_cache(5, sliding=True), queries=4, padding=padded(left, 0, 9))
        for kind in (NAME, "eager")
    ]
    assert isinstance(masks[0], PatternMask)
    assert masks[0].shape[-1] < 9
    assert torch.equal(of_pattern(masks[0]), masks[1][:, 0] == 0)
    assert masks[0].padding is not None


@pytest.mark.parametrize("create", [CAUSAL, BIDIRECTIONAL, SLIDING])
def test_a_mask_for_tokens_in_the_place_of_embeddings_is_boolean(create):
    """DiffusionGemma's ``generate`` asks for one; ``eager_mask`` has no lowest number of integers."""
    ids, padding = torch.zeros(2, 7, 1, dtype=torch.long), padded(2, 1, 7)
    mask, expected = (create(config(kind, sliding_window=3), ids, padding, **{CACHE: None}) for kind in (NAME, "sdpa"))
    assert isinstance(mask, PatternMask)
    assert mask.dtype == torch.bool
    assert torch.equal(mask.expand(2, 1, 7, 7), expected.expand(2, 1, 7, 7))
    assert torch.equal(
        of_pattern(create(config(sliding_window=3), ids, padding, **{CACHE: None})), expected[:, 0].expand(2, 7, 7)
    )


@torch.no_grad()
def test_a_model_that_negates_its_mask_sees_what_the_mask_shows():
    """Under eager attention such a model of Transformers attends to what its mask hides, and to nothing else."""
    model = build("nemotron_asr_streaming", "NemotronAsrStreamingForRNNT")
    heard, padding = torch.randn(2, 400, 16), torch.ones(2, 400, dtype=torch.long)
    padding[0, 240:] = 0

    def encoded(mask):
        return model.encoder(heard, attention_mask=mask, num_lookahead_tokens=1).last_hidden_state[:, :30]

    model.set_attn_implementation("sdpa")
    dense = encoded(None), encoded(padding)
    sparsify(model, attn="softmax")
    torch.testing.assert_close((encoded(None), encoded(padding)), dense, atol=1e-4, rtol=1e-4)
