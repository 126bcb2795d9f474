"""torch.compile computes what eager mode computes."""

import pytest
import torch

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
