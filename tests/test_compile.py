"""torch.compile computes what eager mode computes."""

import pytest
import torch
from transformers import CompileConfig

from hf_sparse import sparsify
from tests.tiny_models import labelled, tiny_model

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["llama", "bart", "t5", "bert"])
def test_a_compiled_training_step_has_the_sparse_loss_and_its_gradients(name):
    torch.compiler.reset()
    model = sparsify(tiny_model(name), attn="sparsemax", head="entmax15")
    inputs = labelled(model)
    eager = model(**inputs).loss
    eager.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    compiled = torch.compile(model, backend="aot_eager")(**inputs).loss
    compiled.backward()
    torch.testing.assert_close(compiled, eager, atol=1e-5, rtol=1e-5)
    again = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    for one, other in zip(gradients, again, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_static_cache_generation_agrees_with_the_dynamic_cache():
    model = sparsify(tiny_model("llama"), attn="entmax15", head={"name": "alpha_relu", "tau": "auto"})
    inputs = {"input_ids": labelled(model)["input_ids"], "max_new_tokens": 4, "num_beams": 2, "do_sample": False}
    assert torch.equal(model.generate(**inputs, cache_implementation="static"), model.generate(**inputs))


@torch.no_grad()
def test_a_compiled_decoding_step_with_static_cache_is_one_graph_and_decodes_the_same():
    model = sparsify(tiny_model("llama"), attn="entmax15", head="entmax15")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    settings = {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    ids = labelled(model)["input_ids"]
    compile_config = CompileConfig(backend="eager", mode=None, fullgraph=False)
    compile_config._compile_all_devices = True
    compiled = model.generate(ids, **settings, cache_implementation="static", compile_config=compile_config)
    eager = model.generate(ids, **settings)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert torch.equal(compiled.sequences, eager.sequences)
    for ours, theirs in zip(compiled.scores, eager.scores, strict=True):
        torch.testing.assert_close(ours.exp(), theirs.exp(), atol=1e-5, rtol=1e-4)
