"""The cache of a call, by the name that Transformers had for it before 5.24 and the one it has since."""

import pytest
import torch
from peft import PrefixTuningConfig, get_peft_model
from transformers import DynamicCache

from hf_sparse import cache_name, sparsify
from hf_sparse.cache_name import CACHE, OLD_NAME, cache_in
from tests.peft_version import FITS
from tests.tiny_models import tiny_model, tokens


@pytest.mark.parametrize("own", ["cache", "past_key_values"])
def test_the_cache_of_a_call_is_found_by_either_name(own, monkeypatch):
    monkeypatch.setattr(cache_name, "CACHE", own)
    cache = DynamicCache()
    assert cache_in({own: cache}) is cache
    assert cache_in({"past_key_values": cache}) is cache
    assert cache_in({own: cache, "past_key_values": cache}) is cache
    assert cache_in({own: None, "past_key_values": cache}) is cache
    assert cache_in({"input_ids": None}) is None


def test_two_caches_are_refused(monkeypatch):
    monkeypatch.setattr(cache_name, "CACHE", "cache")
    with pytest.raises(ValueError, match="both cache and past_key_values, of which only cache would be read"):
        cache_in({"cache": DynamicCache(), "past_key_values": DynamicCache()})


@pytest.mark.skipif(CACHE == OLD_NAME, reason="this transformers has one name")
def test_a_sparse_model_refuses_two_caches():
    model = sparsify(tiny_model("llama"), head="entmax15")
    with pytest.raises(ValueError, match="of which only cache would be read"):
        model(tokens(), cache=DynamicCache(), past_key_values=DynamicCache())


@pytest.mark.skipif(FITS, reason="this PEFT knows what Transformers calls the cache")
def test_a_prefix_of_peft_that_generate_would_lose_is_refused():
    model = sparsify(tiny_model("llama"), head="entmax15")
    model = get_peft_model(model, PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).eval()
    with pytest.raises(ValueError, match="puts the prefix of PrefixTuningConfig into past_key_values"):
        model.generate(input_ids=tokens(), max_new_tokens=2)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated")
def test_bounded_attention_and_the_output_follow_the_old_name():
    model = sparsify(tiny_model("llama"), attn={"name": "csparsemax", "fertility": 2.0})
    cache = DynamicCache(config=model.config)
    steps = [model(step, past_key_values=cache, use_cache=True).logits for step in tokens().split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), model(tokens()).logits, atol=1e-5, rtol=1e-4)
