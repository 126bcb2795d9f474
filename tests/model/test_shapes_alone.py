"""A sparse model runs where tensors have shapes and no values, as counts of operations and of memory have them."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import Wav2Vec2ForCTC

from hf_sparse import sparsify
from hf_sparse.attention.site import attention_sites
from tests.sweep.architectures import build
from tests.tiny_models import labelled, tiny_model

MAPS = [
    *({"head": head} for head in ("entmax15", {"name": "entmax", "alpha": 1.3}, {"name": "alpha_relu", "tau": 0.5})),
    *({"attn": attn} for attn in ("sparsemax", "sparsehourglass", "softpick")),
    *({"attn": {"name": "entmax", "alpha": alpha}} for alpha in ([1.2, 1.3, 1.4, 1.5], "learned")),
]


@pytest.mark.parametrize("maps", MAPS, ids=str)
def test_a_sparse_model_trains_and_predicts_on_the_meta_device(maps):
    model = sparsify(tiny_model("llama"), **maps)
    inputs = {name: value.to("meta") for name, value in labelled(model).items()}
    shape = tiny_model("llama")(**labelled(model)).logits.shape
    model.to("meta").train()(**inputs).loss.backward()
    assert all(weight.grad.shape == weight.shape for weight in model.parameters())
    assert model.eval()(**inputs).logits.shape == shape


@pytest.mark.parametrize("maps", MAPS, ids=str)
def test_a_sparse_model_trains_on_fake_tensors(maps):
    model = sparsify(tiny_model("llama"), **maps).train()
    inputs = labelled(model)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        loss = model(**{name: mode.from_tensor(value) for name, value in inputs.items()}).loss
        loss.backward()
    assert loss.shape == ()


def test_a_model_of_which_one_weight_is_there_is_made_sparse_without_a_run():
    """wav2vec 2.0 builds the embedding of masked frames, its first weight, on the CPU wherever the others are."""
    config = build("wav2vec2", "Wav2Vec2ForCTC").config
    with torch.device("meta"):
        model = Wav2Vec2ForCTC(config)
    assert not model.wav2vec2.masked_spec_embed.is_meta
    sparsify(model, attn="entmax15")
    assert all(site.map_config.name == "entmax15" for _, site in attention_sites(model))
