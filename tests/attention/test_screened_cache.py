"""A screened cache holds what the usual one holds, whatever is done to it, and its bytes are those of its keys."""

import copy
import gc
import pickle
import shutil
import weakref
from collections import Counter

import pytest
import torch
from transformers import DynamicCache

from hf_sparse import ScreenedCache, sparsify
from hf_sparse.attention import observe
from hf_sparse.attention.screened_cache import CacheReads, ScreenedLayer, layer_of
from hf_sparse.cache_name import CACHE
from hf_sparse.kernels import CodedKeys, RowsRead
from tests.tiny_models import tiny_model, tokens
from tests.tolerances import WEIGHT

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")), reason="no C++ compiler is installed"
)


def states(rows=2, length=5, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, 3, length, 20, generator=generator).to(dtype) for _ in range(2))


def both(*steps):
    """A screened and a usual cache of one layer after the same updates."""
    caches = ScreenedCache(), DynamicCache()
    for seed, length in enumerate(steps):
        for cache in caches:
            cache.update(*states(length=length, seed=seed), layer_idx=0)
    return caches


def check(screened, usual):
    """The same keys and values, and bytes that are those of the keys."""
    own, other = screened.layers[0], usual.layers[0]
    assert type(own) is ScreenedLayer
    assert screened.get_seq_length() == usual.get_seq_length()
    assert torch.equal(own.keys, other.keys)
    assert torch.equal(own.values, other.values)
    coded = own.coded_keys(own.values)
    fresh = ScreenedLayer()
    fresh.update(own.keys, own.values)
    lines, rest = divmod(own.keys.shape[2], 16)
    for made, expected in zip(coded, fresh.coded_keys(fresh.values)):
        assert torch.equal(made[:, :, :lines], expected[:, :, :lines])
    ours, theirs = (x.groups[:, :, lines, :, :rest] if rest else x.groups[:, :, :0] for x in (coded, fresh._room[2]))
    assert torch.equal(ours, theirs)


CHANGES = {
    "grow": lambda cache: cache.update(*states(length=1, seed=9), layer_idx=0),
    "grow beyond the room": lambda cache: cache.update(*states(length=700, seed=9), layer_idx=0),
    "crop": lambda cache: cache.crop(-7),
    "crop nothing": lambda cache: cache.crop(0),
    "reorder": lambda cache: cache.reorder_cache(torch.tensor([1, 1])),
    "the same order": lambda cache: cache.reorder_cache(torch.tensor([0, 1])),
    "select": lambda cache: cache.batch_select_indices(torch.tensor([1])),
    "repeat": lambda cache: cache.batch_repeat_interleave(3),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("steps", [(20,), (300, 1, 1), (16, 17, 3)], ids=str)
def test_every_operation_leaves_what_the_usual_cache_holds(steps, change):
    screened, usual = both(*steps)
    for cache in (screened, usual):
        change(cache)
    check(screened, usual)
    for cache in (screened, usual):
        cache.update(*states(rows=len(usual.layers[0].keys), length=2, seed=10), layer_idx=0)
    check(screened, usual)


def test_a_reset_cache_starts_anew():
    screened, usual = both(20)
    screened.layers[0].record("because")
    for cache in (screened, usual):
        cache.reset()
        cache.update(*states(seed=3), layer_idx=0)
    check(screened, usual)
    assert screened.reads == []


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))], ids=["copy", "pickle"]
)
def test_a_copy_is_a_cache_of_its_own(copied):
    screened, usual = both(20)
    twin = copied(screened)
    check(twin, usual)
    assert layer_of(twin.layers[0].keys) is twin.layers[0]
    screened.update(*states(length=1, seed=8), layer_idx=0)
    twin.update(*states(length=1, seed=9), layer_idx=0)
    usual.update(*states(length=1, seed=9), layer_idx=0)
    check(twin, usual)


def test_a_copy_of_changed_keys_has_them():
    screened, usual = both(20)
    for cache in (screened, usual):
        cache.layers[0].keys[:, :, 3] = 7.0
    twin = pickle.loads(pickle.dumps(screened))
    for cache in (twin, usual):
        cache.update(*states(length=1, seed=9), layer_idx=0)
    check(twin, usual)


def test_a_cache_that_nobody_holds_is_gone_at_once():
    screened, _ = both(20)
    held = weakref.ref(screened.layers[0].keys)
    gc.disable()
    try:
        del screened
        assert held() is None
    finally:
        gc.enable()


def test_keys_that_were_changed_outside_are_read_whole_and_coded_again():
    screened, usual = both(20)
    for cache in (screened, usual):
        cache.layers[0].keys[:, :, 3] = 7.0
    assert (
        screened.layers[0].coded_keys(screened.layers[0].values) == "keys or values were changed outside of the cache"
    )
    for cache in (screened, usual):
        cache.update(*states(length=1, seed=9), layer_idx=0)
    check(screened, usual)
    for cache in (screened, usual):
        cache.layers[0].keys = 2 * cache.layers[0].keys
        cache.update(*states(length=1, seed=9), layer_idx=0)
    check(screened, usual)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_operation_keeps_what_was_changed_outside(change):
    screened, usual = both(20)
    for cache in (screened, usual):
        cache.layers[0].keys[:, :, 3] = 7.0
        change(cache)
    for cache in (screened, usual):
        cache.update(*states(rows=len(usual.layers[0].keys), length=1, seed=10), layer_idx=0)
    check(screened, usual)


def test_keys_that_are_finite_again_are_read_by_their_bytes():
    screened, _ = both(20)
    screened.layers[0].keys[0, 0, 0, 0] = torch.nan
    screened.update(*states(length=1), layer_idx=0)
    screened.layers[0].keys[0, 0, 0, 0] = 1.0
    screened.update(*states(length=1), layer_idx=0)
    assert isinstance(screened.layers[0].coded_keys(screened.layers[0].values), CodedKeys)


def test_values_of_another_call_are_noticed():
    screened, _ = both(20)
    assert isinstance(screened.layers[0].coded_keys(screened.layers[0].values.clone()), str)


def test_keys_that_are_not_finite_are_read_whole():
    screened, _ = both(20)
    keys, values = states(length=1)
    keys[0, 0, 0, 0] = torch.nan
    screened.update(keys, values, layer_idx=0)
    screened.update(*states(length=1), layer_idx=0)
    assert screened.layers[0].coded_keys(screened.layers[0].values) == "a key is not finite, or huge"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_bytes_are_counted_in_the_dtype_of_the_cache(dtype):
    cache = ScreenedCache()
    keys, values = states(rows=2, length=10, dtype=dtype)
    cache.update(keys, values[..., :12], layer_idx=0)
    size, layer = dtype.itemsize, cache.layers[0]
    layer.record(RowsRead(coded=60, keys=5, values=3))
    (found,) = layer.reads.values()
    assert isinstance(layer.coded_keys(layer.values), CodedKeys)
    assert found == CacheReads(
        10, 1, half_bytes=2 * 3 * 10 * 32 * 2, coded_bytes=60 * 24, exact_bytes=(5 * 20 + 3 * 12) * size
    )
    for _ in range(2):
        layer.record("because")
    assert (found.calls, found.proved, found.whole) == (3, 1, {"because": 2})
    assert found.exact_bytes == (5 * 20 + 3 * 12) * size + 2 * (2 * 3 * 10 * 32 * size)
    assert found.share == (60 * 24 + found.exact_bytes) / found.half_bytes


def test_what_cannot_be_screened_is_refused():
    cache = ScreenedCache()
    with pytest.raises(ValueError, match=r"ScreenedCache takes plain tensors on the CPU .* torch.float64"):
        cache.update(*states(dtype=torch.float64), layer_idx=0)
    keys, values = states()
    for given in ((keys.clone().requires_grad_(), values), (keys, values.clone().requires_grad_())):
        with pytest.raises(RuntimeError, match=r"for decoding, and a gradient is wanted"):
            cache.update(*given, layer_idx=0)


def test_reads_are_those_of_all_layers_since_the_last_reset():
    cache = ScreenedCache()
    for i in (0, 1):
        cache.update(*states(), layer_idx=i)
        cache.layers[i].coded_keys(cache.layers[i].values)
        cache.layers[i].record("because")
    (found,) = cache.reads
    numbers = 2 * 3 * 5 * 40
    assert found == CacheReads(5, 2, Counter(because=2), exact_bytes=2 * 4 * numbers, half_bytes=2 * 2 * numbers)
    cache.reset()
    cache.update(*states(), layer_idx=0)
    with pytest.raises(RuntimeError, match="does not hand its keys from the cache"):
        _ = cache.reads


# ---- In a model --------------------------------------------------------------------------------------------------


@torch.no_grad()
def stepped(model, cache, **options):
    """The last hidden state of seven tokens, the last two of them one at a time."""
    ids = tokens(2, 7)
    model.model(input_ids=ids[:, :5], **{CACHE: cache})
    for i in (5, 6):
        output = model.model(input_ids=ids[:, i : i + 1], **{CACHE: cache}, **options)
    return output.last_hidden_state


def test_calls_that_the_kernel_cannot_serve_read_everything_and_say_why():
    model = sparsify(tiny_model("llama"), attn="entmax15")
    expected = stepped(model, DynamicCache())
    reasons = {}
    for name, options in (("weights", {"output_attentions": True}), ("none", {})):
        cache = ScreenedCache()
        torch.testing.assert_close(stepped(model, cache, **options), expected, atol=20 * WEIGHT[torch.float32], rtol=0)
        reasons[name] = cache.reads[-1].whole
    (reason,) = reasons["weights"]
    assert reason.startswith("the kernel does not return weights, which were asked for")
    assert reasons["none"] == {}


def test_supports_are_counted_beside_what_is_read():
    model = sparsify(tiny_model("llama"), attn="entmax15")
    found = []
    for cache in (ScreenedCache(), DynamicCache()):
        with observe(model) as counts:
            stepped(model, cache)
        found.append({path: (count.calls, count.nonzero, count.rows) for path, count in counts.items()})
        if isinstance(cache, ScreenedCache):
            assert cache.reads[-1].whole == {}
    assert found[0] == found[1]


def test_maps_of_other_families_read_everything():
    model = sparsify(tiny_model("llama"), attn="sparsegen_lin")
    cache = ScreenedCache()
    assert torch.equal(stepped(model, cache), stepped(model, DynamicCache()))
    assert list(cache.reads[-1].whole) == ["the kernel computes maps of the entmax family, not sparsegen_lin"]


def test_a_dense_model_leaves_no_account_and_says_so():
    cache = ScreenedCache()
    stepped(tiny_model("llama"), cache)
    with pytest.raises(RuntimeError, match=r"does not hand its keys from the cache to sparse attention as they are"):
        _ = cache.reads


def test_half_precision_is_that_of_the_model():
    model = sparsify(tiny_model("llama"), attn="entmax15").to(torch.bfloat16)
    cache = ScreenedCache()
    found, expected = stepped(model, cache), stepped(model, DynamicCache())
    torch.testing.assert_close(found, expected, atol=0.1, rtol=0.1)
    assert cache.reads[-1].proved == cache.reads[-1].calls
