"""The automatic threshold of an alpha-ReLU head warns where the head's weights are plainly trained."""

import warnings

import pytest
import torch

from hf_sparse import sparsify, unsparsify
from tests.tiny_inline_models import INLINE_CAUSAL, tiny_inline_model
from tests.tiny_models import ARCHITECTURES, tiny_model

AUTO = {"name": "alpha_relu"}
CENTERED = {"name": "alpha_relu", "centered": True}
NOT_FOR_IT = r'tau="auto" fits heads that are not trained yet: .* of mean .* hf_sparse\.calibrate\(model, batches\)'


def trained(name, vocab_size, used=40, steps=15):
    """A model that has learned that most of its tokens never occur."""
    model = tiny_model(name, vocab_size=vocab_size).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        ids = torch.randint(3, used, (16, 16), generator=generator).sort(-1).values
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_trained_head_is_noticed_and_calibrate_is_named(name):
    model = trained(name, vocab_size=300)
    with pytest.warns(UserWarning, match=NOT_FOR_IT) as caught:
        sparsify(model, head=AUTO)
    assert caught[0].filename == __file__
    unsparsify(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sparsify(model, head={**AUTO, "tau": 1.0})


def test_a_spread_that_the_weights_do_not_explain_is_noticed_where_the_offset_is_taken_off():
    model = tiny_model("llama", vocab_size=300)
    with torch.no_grad():  # rows that differ where hidden states, which have a common part, never do
        model.model.norm.weight[:16] = 0.05
        model.lm_head.weight[:, :16] *= 5
    with pytest.warns(UserWarning, match=NOT_FOR_IT):
        sparsify(model, head=CENTERED)


@pytest.mark.parametrize("head", [AUTO, CENTERED], ids=["plain", "centered"])
@pytest.mark.parametrize("vocab_size", [23, 400])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_fresh_heads_raise_no_false_alarm(name, vocab_size, head):
    for seed in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            sparsify(tiny_model(name, vocab_size=vocab_size, seed=seed), head=head)


@pytest.mark.parametrize("name", INLINE_CAUSAL)
def test_fresh_heads_of_other_architectures_raise_none(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        sparsify(tiny_inline_model(name), head=AUTO)


def test_tau_is_not_estimated_from_nan():
    model = tiny_model("llama")
    with torch.no_grad():
        next(model.model.layers[0].mlp.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="the input of the head, which is NaN or infinite in this LlamaForCausalLM"):
        sparsify(model, head="alpha_relu")
