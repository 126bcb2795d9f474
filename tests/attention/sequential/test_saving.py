"""Models with bounds or coverage are saved, loaded, copied, pickled and made dense again."""

import copy
import inspect
import pickle

import torch

from hf_sparse import from_pretrained, save_pretrained, sparse_config, sparsify, unsparsify
from tests.attention.sequential.models import SOURCE, TARGET, VECTOR, forced, step_by_step, vectors_of
from tests.tiny_models import tiny_model


def twins(model, path):
    """The model loaded, copied and pickled."""
    save_pretrained(model, path / "model")
    return from_pretrained(path / "model"), copy.deepcopy(model), pickle.loads(pickle.dumps(model))


def check_dense(model):
    """It is the tiny model of the tests again."""
    plain = tiny_model("marian")
    assert list(model.state_dict()) == list(plain.state_dict())
    assert torch.equal(forced(model, SOURCE, TARGET), forced(plain, SOURCE, TARGET))
    assert not any(module._forward_pre_hooks for module in model.modules())


@torch.no_grad()
def test_bounds_are_saved_loaded_copied_pickled_and_undone(tmp_path):
    given = {"name": "csparsemax", "fertility": 1.2, "exhaustion": 0.1, "sink_score": -0.3, "detach": True}
    model = sparsify(tiny_model("marian"), attn={"cross": [given, {**given, "shared": True, "fertility": "given"}]})
    fertility = torch.full((2, 6), 1.1)
    expected = forced(model, SOURCE, TARGET, fertility=fertility)
    for twin in twins(model, tmp_path):
        assert torch.equal(forced(twin, SOURCE, TARGET, fertility=fertility), expected)
        assert "fertility" in inspect.signature(twin.forward).parameters
        logits, _ = step_by_step(twin, SOURCE, TARGET, [1] * 9, fertility=fertility)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
        unsparsify(twin)
        check_dense(twin)
        assert "fertility" not in inspect.signature(twin.forward).parameters


@torch.no_grad()
def test_vectors_are_saved_loaded_copied_pickled_and_undone(tmp_path):
    model = tiny_model("marian")
    dense = forced(model, SOURCE, TARGET)
    sparsify(model, attn={"cross": [{"name": "softmax", **VECTOR}, None]})
    (vectors,) = vectors_of(model)
    vectors.normal_(generator=torch.Generator().manual_seed(0))
    assert sparse_config(model).to_dict()["attn"]["cross"][0] == {"name": "softmax", "coverage": {"vector": [4, 8]}}
    expected = forced(model, SOURCE, TARGET)
    assert not torch.allclose(expected, dense, atol=1e-3)
    for twin in twins(model, tmp_path):
        assert torch.equal(forced(twin, SOURCE, TARGET), expected)
        cached, _ = step_by_step(twin, SOURCE, TARGET, [1] * 9)
        torch.testing.assert_close(cached, expected, atol=1e-4, rtol=0)
        unsparsify(twin)
        check_dense(twin)
