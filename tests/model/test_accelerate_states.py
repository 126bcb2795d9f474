"""A run that Accelerate saved goes on under the maps it had, or not at all."""

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch import nn

from hf_sparse import from_pretrained, sparsify, unsparsify
from tests.tiny_models import tiny_model

MAPS = {"attn": "entmax15", "head": "sparsemax"}


def prepared(*models, **options):
    accelerator = Accelerator(cpu=True, **options)
    for model in models:
        accelerator.prepare(model)
    return accelerator


def test_weights_of_a_sparse_run_are_not_loaded_into_a_dense_model_or_one_with_other_maps(tmp_path):
    prepared(sparsify(tiny_model("llama"), **MAPS)).save_state(tmp_path)
    for other, described in ((tiny_model("llama"), "is dense"), (sparsify(tiny_model("llama"), "entmax15"), "has {")):
        nn.init.zeros_(other.lm_head.weight)
        with pytest.raises(ValueError, match=f"was saved from a model with .*sparsemax.*this LlamaFor.* {described}"):
            prepared(other).load_state(tmp_path)
        assert not other.lm_head.weight.any()


def test_under_the_same_maps_they_are(tmp_path):
    model = sparsify(tiny_model("llama"), attn={"name": "entmax", "alpha": "learned"}, head="sparsemax")
    model.model.layers[0].self_attn.sparse_alpha.value.data.fill_(0.3)
    model.save_pretrained(tmp_path / "model")
    again = from_pretrained(tmp_path / "model")
    model.lm_head.weight.data.fill_(0.5)
    assert prepared(model).save_state(tmp_path) == tmp_path
    prepared(again).load_state(tmp_path)
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)
    prepared(sparsify(tiny_model("llama"), **MAPS, fused_loss=True)).save_state(tmp_path / "fused")
    prepared(sparsify(tiny_model("llama"), **MAPS)).load_state(tmp_path / "fused")


def test_numbered_checkpoints_and_models_inside_others_are_compared_too(tmp_path):
    options = {"project_dir": str(tmp_path), "project_config": ProjectConfiguration(automatic_checkpoint_naming=True)}
    first = tiny_model("gpt2")
    prepared(first, nn.Sequential(sparsify(tiny_model("llama"), **MAPS)), **options).save_state()
    prepared(first, nn.Sequential(sparsify(tiny_model("llama"), **MAPS)), **options).load_state()
    with pytest.raises(ValueError, match="this Sequential is dense"):
        prepared(first, nn.Sequential(tiny_model("llama")), **options).load_state()


def test_of_two_models_in_one_both_are_compared_and_those_that_were_dense_are_not(tmp_path):
    def two(first, second):
        return nn.Sequential(sparsify(tiny_model("llama"), first), sparsify(tiny_model("llama"), second))

    prepared(tiny_model("gpt2"), two("entmax15", "sparsemax")).save_state(tmp_path)
    with pytest.raises(ValueError, match=r"was saved from a model with .*sparsemax.*this Sequential has \{"):
        prepared(tiny_model("gpt2"), two("entmax15", "entmax15")).load_state(tmp_path)
    prepared(sparsify(tiny_model("gpt2"), "entmax15"), two("entmax15", "sparsemax")).load_state(tmp_path)


@pytest.mark.parametrize("each_node", [False, True])
def test_of_several_processes_one_writes_the_maps_or_one_on_each_node(tmp_path, monkeypatch, each_node):
    monkeypatch.setattr(Accelerator, "is_main_process", False)
    for is_local_main_process in (False, True):
        monkeypatch.setattr(Accelerator, "is_local_main_process", is_local_main_process)
        model = sparsify(tiny_model("llama"), **MAPS)
        prepared(model, project_config=ProjectConfiguration(save_on_each_node=each_node)).save_state(tmp_path)
        assert (tmp_path / "hf_sparse_maps.json").exists() == (is_local_main_process and each_node)


def test_dense_runs_and_what_is_made_sparse_after_them_load_as_ever(tmp_path):
    model = sparsify(tiny_model("llama"), **MAPS)
    prepared(model).save_state(tmp_path)
    prepared(unsparsify(model)).save_state(tmp_path)  # in the place of the sparse one
    assert not (tmp_path / "hf_sparse_maps.json").exists()
    prepared(tiny_model("llama")).load_state(tmp_path)
    prepared(sparsify(tiny_model("llama"), **MAPS)).load_state(tmp_path)
