"""Edges of attention, counted exactly and with a gradient."""

import pytest
import torch

from hf_sparse import sparsify
from hf_sparse.attention.soft_edges import SoftEdges, _edges, soft_count, soft_edges
from hf_sparse.functional import entmax
from tests.tiny_inline_models import inputs_of, tiny_inline_model
from tests.tiny_models import attentions, labelled, tiny_model
from tests.tolerances import WEIGHT


def scores(rows=5, keys=7, masked=2):
    torch.manual_seed(0)
    z = 2 * torch.randn(rows, keys, dtype=torch.float64)
    return z.index_fill(1, torch.arange(keys - masked, keys), -torch.inf)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
def test_a_count_is_the_distance_from_the_threshold(alpha):
    z, n = scores(), 5
    p = entmax(z, alpha=alpha)
    tau = ((alpha - 1) * z - p ** (alpha - 1)).masked_fill(p == 0, -torch.inf).amax(-1, keepdim=True)
    u = ((alpha - 1) * z - tau).clamp(min=0) * n ** (alpha - 1)
    found = soft_count(p, torch.full((5, 1), n), alpha - 1)
    torch.testing.assert_close(found, u / (1 + u), atol=1e-10, rtol=0)
    assert bool((p == 0).any())
    assert bool((found == 0).eq(p == 0).all())


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
def test_its_gradient_reaches_the_scores(alpha):
    def soft(z):
        masked = torch.cat([z, z.new_full((len(z), 2), -torch.inf)], -1)
        return soft_count(entmax(masked, alpha=alpha), torch.full((len(z), 1), 5), alpha - 1)

    assert torch.autograd.gradcheck(soft, scores()[:, :5].clone().requires_grad_())


def test_colder_attention_has_fewer():
    z = scores()
    softly = [float(soft_count(entmax(z / t, alpha=1.5), torch.full((5, 1), 5), 0.5).sum()) for t in (4.0, 1.0, 0.25)]
    assert softly == sorted(softly, reverse=True)


def test_a_row_without_keys_counts_nothing():
    p = entmax(torch.full((2, 3), -torch.inf), alpha=1.5)
    assert bool((soft_count(p, torch.zeros(2, 1), 0.5) == 0).all())


def test_half_precision_is_counted_in_float32():
    p = entmax(scores(), alpha=1.5).bfloat16()
    found = soft_count(p, torch.full((5, 1), 5), 0.5)
    assert torch.equal(found, soft_count(p.float(), torch.full((5, 1), 5), 0.5))


@pytest.mark.parametrize("alpha", [1.5, [1.2, 1.5, 1.8, 2.0], "learned"], ids=["one", "per_head", "learned"])
@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
def test_the_edges_of_a_model_are_its_nonzero_weights(name, alpha):
    model = sparsify(tiny_model(name), attn={"name": "entmax", "alpha": alpha})
    inputs = labelled(model)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"]).index_fill(1, torch.tensor([0, 1]), 0)
    with soft_edges(model) as edges:
        found = attentions(model, **inputs)
    assert edges.kept == sum(int((p > 0).sum()) for p in found)
    dense = sparsify(tiny_model(name), attn="softmax")
    with torch.no_grad():
        assert edges.visible == sum(int((p > 0).sum()) for p in attentions(dense, **inputs))
    assert 0 < edges.kept < edges.visible
    edges.soft_share.backward()
    assert any(weight.grad is not None and bool((weight.grad != 0).any()) for weight in model.parameters())


def test_attention_inside_a_module_counts_too():
    model = sparsify(tiny_inline_model("gptj"), attn="entmax15")
    with soft_edges(model) as edges:
        found = attentions(model, **inputs_of(model))
    assert edges.kept == sum(int((p > 0).sum()) for p in found) > 0


def test_a_map_without_alpha_counts_by_its_weights():
    model = sparsify(tiny_model("llama"), attn={"name": "sparsegen_lin", "lam": 0.3})
    with soft_edges(model) as edges:
        found = attentions(model, **labelled(model))
    lengths = torch.arange(1, found[0].shape[-1] + 1)[:, None]
    expected = sum(float((p.detach() * lengths / (1 + p.detach() * lengths)).sum()) for p in found) / edges.visible
    assert float(edges.soft_share) == pytest.approx(expected, abs=WEIGHT[torch.float32])


def test_nothing_is_counted_outside_the_block():
    model = sparsify(tiny_model("llama"), attn="entmax15")
    with soft_edges(model) as edges:
        pass
    model(**labelled(model))
    assert edges.kept == edges.visible == 0
    with pytest.raises(ValueError, match="no attention call was counted"):
        SoftEdges().soft_share  # noqa: B018


@pytest.mark.parametrize("per_head", [True, False])
def test_edges_alone_have_the_counts_and_gradients_of_all_keys(per_head):
    z = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    visible = torch.arange(30).view(2, 3, 5, 1) % 8 + 1
    power = torch.tensor([0.3, 0.5, 0.9]).view(-1, 1, 1) if per_head else 0.5
    gradients = []
    for among in (lambda *given: given, _edges):
        p = entmax(z, alpha=1.5)
        count = soft_count(*among(p, visible, power)).sum()
        gradients.append((count.detach(), *torch.autograd.grad(count, z)))
    assert int((p > 0).sum()) < p.numel()
    torch.testing.assert_close(*gradients)
