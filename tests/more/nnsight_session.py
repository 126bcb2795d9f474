"""What ``test_inspection`` runs in a process of its own: nnsight around a sparse model, and before ``sparsify``."""

import pytest
import torch

import hf_sparse
from tests.tiny_models import tiny_model
from tests.word_tokenizer import word_tokenizer

TEXT = "w5 w6 w7 w8 w9"


def traced(model):
    import nnsight  # here, since tests import this file when they look for examples

    return nnsight.TransformersModel(model, tokenizer=word_tokenizer(), task="text-generation")


def read_and_change():
    model = hf_sparse.sparsify(tiny_model("llama"), attn="entmax15", head="entmax15")
    around = traced(model)
    expected = model(**word_tokenizer()(TEXT, return_tensors="pt"), output_attentions=True)
    with around.trace(TEXT):
        weights = around.model.layers[0].self_attn.source.attention_interface_1.output[1].save()
        logits = around.output.logits.save()
    torch.testing.assert_close(logits, expected.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(weights, expected.attentions[0], atol=1e-6, rtol=1e-4)
    with around.trace(TEXT):
        around.model.layers[0].mlp.output[:] = 0
        changed = around.output.logits.save()
    assert not torch.allclose(changed, logits)
    assert bool((changed.softmax(-1) == 0).any())


def refused_before_sparsify():
    model = tiny_model("llama")
    traced(model)
    with pytest.raises(ValueError, match="has an instance attribute forward"):
        hf_sparse.sparsify(model, attn="entmax15")


if __name__ == "__main__":
    read_and_change()
    refused_before_sparsify()
