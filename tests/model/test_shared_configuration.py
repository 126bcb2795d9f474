"""Models that are built from one configuration keep their own maps."""

import pytest
import torch
from transformers import LlamaForCausalLM

from hf_sparse import is_sparse, sparse_config, sparsify, unsparsify
from hf_sparse.config import SparseConfig
from hf_sparse.model.attach import change_settings
from tests.tiny_models import tiny_model, tokens


def two_of_one_configuration():
    config = tiny_model("llama").config
    return LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()


def check_comes_back(model, folder):
    model.save_pretrained(folder)
    again = LlamaForCausalLM.from_pretrained(folder)
    assert is_sparse(again) == is_sparse(model)
    assert torch.equal(again(tokens()).logits, model(tokens()).logits)
    assert torch.equal(again(tokens(), labels=tokens()).loss, model(tokens(), labels=tokens()).loss)


def test_two_sparse_models_of_one_configuration_keep_their_own_settings(tmp_path):
    a, b = two_of_one_configuration()
    sparsify(a, attn="entmax15", head="entmax15")
    sparsify(b, attn="sparsemax")
    check_comes_back(a, tmp_path / "a")
    check_comes_back(b, tmp_path / "b")


def test_a_dense_model_of_the_configuration_of_a_sparse_one_stays_dense(tmp_path):
    a, b = two_of_one_configuration()
    sparsify(a, head="entmax15")
    check_comes_back(b, tmp_path / "b")
    sparsify(b, head="sparsemax")
    unsparsify(b)
    check_comes_back(a, tmp_path / "a")


@pytest.mark.parametrize("change", ["unsparsify", "change_settings", "anew"])
def test_two_models_built_from_one_sparse_configuration_do_not_change_each_other(change, tmp_path):
    config = sparsify(tiny_model("llama"), attn="entmax15", head="entmax15").config
    a, b = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
    settings = sparse_config(b)
    if change == "change_settings":
        change_settings(a, SparseConfig.parse(attn="sparsemax", head="sparsemax"))
    else:
        unsparsify(a)
    if change == "anew":
        sparsify(a, attn="sparsemax")
    assert sparse_config(b) == settings
    check_comes_back(b, tmp_path / "b")
    check_comes_back(a, tmp_path / "a")
    check_comes_back(LlamaForCausalLM(config).eval(), tmp_path / "c")
