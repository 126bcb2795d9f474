"""Exported graphs of sparse models: torch.export, with a static cache too, and ONNX run by onnxruntime."""

import onnxruntime
import pytest
import torch
from torch import nn
from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM

import hf_sparse
from tests.tiny_models import tiny_model, tokens


class Logits(nn.Module):
    """A model as a function from tokens to logits."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, use_cache=False).logits


@pytest.fixture
def model():
    return hf_sparse.sparsify(tiny_model("llama", num_hidden_layers=1), attn="entmax15", head="entmax15")


def check(found, model, ids):
    """Exponentials of what a graph returns are the distribution that the model decodes from, with its exact zeros."""
    with torch.no_grad(), hf_sparse.raw_scores(model):
        p = hf_sparse.probabilities(model, model(ids).logits)
    assert 0.5 < float((p == 0).float().mean()) < 1
    assert torch.equal(found.exp() == 0, p == 0)
    torch.testing.assert_close(found.exp(), p, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_graphs_of_any_batch_and_length_keep_exact_zeros_in_onnxruntime(model, tmp_path):
    shapes = ({0: torch.export.Dim("rows"), 1: torch.export.Dim("length")},)
    exported = torch.export.export(Logits(model), (tokens(),), dynamic_shapes=shapes)
    torch.onnx.export(exported, dynamo=True, verbose=False).save(str(tmp_path / "model.onnx"))
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    (name,) = (each.name for each in session.get_inputs())
    for ids in (tokens(), tokens(3, 5, seed=4)):
        check(exported.module()(ids), model, ids)
        check(torch.from_numpy(session.run(None, {name: ids.numpy()})[0]), model, ids)


@torch.no_grad()
def test_a_graph_with_a_static_cache_keeps_exact_zeros_step_by_step(model):
    model.generation_config.update(use_cache=True, cache_implementation="static")
    wrapped = TorchExportableModuleForDecoderOnlyLM(model, batch_size=1, max_cache_len=16)
    exported = wrapped.export(input_ids=torch.tensor([[5]]), cache_position=torch.tensor([0])).module()
    ids = tokens(1, 6)
    steps = [exported(input_ids=ids[:, i : i + 1], cache_position=torch.tensor([i])) for i in range(ids.shape[1])]
    check(torch.cat(steps, dim=1), model, ids)
