"""Attention that is put into a sparse model after it was made sparse is refused, however it computes its softmax."""

import copy
import pickle

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from hf_sparse import from_pretrained, sparsify
from hf_sparse.model.find import sparse_state
from tests.tiny_inline_models import tiny_inline_model
from tests.tiny_models import tiny_model, tokens

MODELS = {
    "gptj": (tiny_inline_model, "transformer.h", "attn", "GPTJAttention"),
    "bloom": (tiny_inline_model, "transformer.h", "self_attention", "BloomAttention"),
    "llama": (tiny_model, "model.layers", "self_attn", "LlamaAttention"),
}


@pytest.fixture(params=MODELS)
def pair(request):
    """A sparse model and a dense one, their layers, the name of the attention in a layer and that of its class."""
    build, layers, name, kind = MODELS[request.param]
    sparse, dense = sparsify(build(request.param), attn="sparsemax"), build(request.param, seed=1)
    return sparse, sparse.get_submodule(layers), dense.get_submodule(layers), name, kind


def refused(model, path, kind):
    message = rf"{kind} at '.*{path}' was put into this .* and was never given a map.* call unsparsify\(model\), put"
    for call in (
        model,
        model.get_submodule(model.base_model_prefix),
        lambda ids: model.generate(ids, max_new_tokens=1),
    ):
        with pytest.raises(RuntimeError, match=message):
            call(tokens())


@torch.no_grad()
def test_a_module_in_the_place_of_another(pair):
    model, layers, dense, name, kind = pair
    own = layers[1].get_submodule(name)
    expected = model(tokens()).logits
    setattr(layers[1], name, dense[1].get_submodule(name))
    refused(model, rf"1\.{name}", kind)
    setattr(layers[1], name, own)
    assert torch.equal(model(tokens()).logits, expected)


@torch.no_grad()
def test_a_layer_in_the_place_of_another_or_after_the_last(pair):
    model, layers, dense, name, kind = pair
    layers.append(dense[0])
    refused(model, rf"2\.{name}", kind)
    del layers[2]
    model(tokens())
    layers[0] = dense[0]
    refused(model, rf"0\.{name}", kind)


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_of_a_sparse_model_in_a_dense_one_is_not_saved_as_dense(name, tmp_path):
    build, layers, *_ = MODELS[name]
    dense, sparse = build(name), sparsify(build(name), attn="sparsemax")
    before = dense.get_submodule(layers)[0]
    dense.get_submodule(layers)[0] = copy.deepcopy(sparse.get_submodule(layers)[0])
    with pytest.raises(ValueError, match=r"'.*\.0\..*' in this dense .* is attention of a sparse model"):
        dense.save_pretrained(tmp_path)
    dense.get_submodule(layers)[0] = before
    dense.save_pretrained(tmp_path)
    sparse.get_submodule(layers)[0] = copy.deepcopy(sparse.get_submodule(layers)[1])
    sparse.save_pretrained(tmp_path)


@torch.no_grad()
def test_copies_look_at_their_own_modules(pair):
    model, _, dense, name, kind = pair
    path = next(path for path, module in model.named_modules() if path.endswith(f"1.{name}")).rpartition(".")[0]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(tokens()).logits, model(tokens()).logits)
        setattr(other.get_submodule(path), name, dense[1].get_submodule(name))
        refused(other, rf"1\.{name}", kind)
    model(tokens())


@torch.no_grad()
def test_layers_may_be_taken_out_and_other_modules_put_in(pair):
    model, layers, _, _, _ = pair
    expected = model(tokens()).logits
    layers[0].something = nn.Identity()
    assert torch.equal(model(tokens()).logits, expected)
    del layers[1]
    assert not torch.equal(model(tokens(), use_cache=False).logits, expected)
    known = sparse_state(model).children
    model(tokens(), use_cache=False)
    assert sparse_state(model).children is known


@torch.no_grad()
def test_adapters_are_no_attention():
    model = sparsify(tiny_model("llama"), attn="sparsemax")
    expected = model(tokens()).logits
    assert torch.equal(get_peft_model(model, LoraConfig(target_modules="all-linear"))(tokens()).logits, expected)


@torch.no_grad()
def test_a_compiled_model_sees_them(pair):
    model, layers, dense, name, kind = pair
    compiled = torch.compile(model, backend="eager")
    expected, own = compiled(tokens()).logits, layers[1].get_submodule(name)
    setattr(layers[1], name, dense[1].get_submodule(name))
    with pytest.raises(RuntimeError, match=rf"{kind} at '.*1\.{name}' was put into this"):
        compiled(tokens())
    setattr(layers[1], name, own)
    assert torch.equal(compiled(tokens()).logits, expected)
    layers.append(dense[0])
    with pytest.raises(RuntimeError, match=rf"{kind} at '.*2\.{name}' was put into this"):
        compiled(tokens())


@torch.no_grad()
def test_a_loaded_model_compiles_in_one_graph_and_is_refused_there_too(tmp_path):
    sparsify(tiny_inline_model("gptj"), attn="sparsemax").save_pretrained(tmp_path)
    model, other = from_pretrained(tmp_path), tiny_inline_model("gptj")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens()).logits, model(tokens()).logits)
    model.transformer.h[1].attn = other.transformer.h[1].attn
    with pytest.raises(RuntimeError, match="was put into this"):
        compiled(tokens())
