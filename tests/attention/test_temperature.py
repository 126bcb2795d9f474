"""The temperature, which every map takes: scores are divided by it, in attention, loss and decoding alike."""

import copy
import math

import pytest
import torch
from torch import nn

import hf_sparse.functional as F
from hf_sparse import from_pretrained, probabilities, sparse_config, sparsify
from hf_sparse.attention.site import settings_by_head, weights_under
from hf_sparse.config import MapConfig
from hf_sparse.functional import estimate_tau_from_head
from tests.model.test_fused_loss import loss_and_gradients
from tests.model.test_head import scored
from tests.tiny_models import ARCHITECTURES, attentions, labelled, tiny_model, tokens

HEADS = ["softmax", "entmax15", "sparsemax", {"name": "entmax", "alpha": 1.3}, {"name": "alpha_relu", "tau": 0.4}]


def warm(head, temperature=0.7):
    return {**({"name": head} if isinstance(head, str) else head), "temperature": temperature}


def scores(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2


@pytest.mark.parametrize("name", sorted(name for name, known in F.MAPS.items() if known.bounds is None))
def test_every_map_divides_its_scores(name):
    z = scores(4, 6).abs()  # some maps take positive scores only
    settings = {"tau": 0.3} if name == "alpha_relu" else {}
    plain, cool = (MapConfig.parse({"name": name, **settings, **extra}, "head") for extra in ({}, {"temperature": 2}))
    assert torch.equal(cool(z), plain(z / 2))
    assert cool(z.bfloat16()).dtype == torch.bfloat16


@torch.no_grad()
def test_constrained_attention_divides_its_scores():
    cool, dense = {"temperature": 0.5}, tiny_model("bart").double()
    plain = sparsify(copy.deepcopy(dense), attn={"cross": {"name": "sparsemax", **cool}})
    credit = {"name": "csparsemax", "fertility": 1e6, "sink": False, **cool}
    constrained = sparsify(copy.deepcopy(dense), attn={"cross": credit})
    inputs = labelled(plain)
    torch.testing.assert_close(constrained(**inputs).logits, plain(**inputs).logits)
    warm = sparsify(dense, attn={"cross": credit | {"temperature": 1.0}})
    assert not torch.allclose(warm(**inputs).logits, plain(**inputs).logits)


def test_closed_forms():
    z = torch.tensor([1.0, 0.0], dtype=torch.float64)
    softmax = MapConfig.parse({"name": "softmax", "temperature": 0.5}, "head")
    assert softmax(z).tolist() == pytest.approx([1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2))])
    sparsemax = MapConfig.parse({"name": "sparsemax", "temperature": 4}, "head")
    assert sparsemax(z).tolist() == pytest.approx([0.625, 0.375])  # (1 + 1/4) / 2


@pytest.mark.parametrize("name", sorted(F.MAPS))
def test_temperature_one_is_the_map_itself(name):
    assert MapConfig.parse({"name": name, "temperature": 1}, "head") == MapConfig.parse(name, "head")
    assert "temperature" not in MapConfig.parse({"name": name, "temperature": 1.0}, "head").to_dict()
    z = scores(3, 5)
    assert MapConfig("entmax15").scores(z) is z


@pytest.mark.parametrize("head", HEADS, ids=str)
def test_the_loss_is_that_of_the_divided_scores_and_its_gradient_p_minus_y_over_it(head):
    choice = MapConfig.parse(warm(head), "head")
    z, y = scores(5, 7).requires_grad_(), torch.tensor([0, 3, 6, 2, 2])
    loss = choice.loss()(z, y, reduction="sum")
    expected = MapConfig.parse(head, "head").loss()(z.detach() / 0.7, y, reduction="sum")
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, z)
    torch.testing.assert_close(gradient, (choice(z) - nn.functional.one_hot(y, 7)) / 0.7)


@pytest.mark.parametrize("name", ["llama", "bart", "t5", "gemma2"])
@torch.no_grad()
def test_loss_and_decoding_of_a_softmax_head_honour_it(name):
    model = sparsify(tiny_model(name), head=warm("softmax", 1.7))
    inputs = labelled(model)
    output = model(**inputs)
    z, y = scored(name, output.logits, inputs["labels"])
    torch.testing.assert_close(output.loss, 1.7 * nn.functional.cross_entropy(z.flatten(0, 1) / 1.7, y.flatten()))
    p = (output.logits / 1.7).softmax(-1)
    torch.testing.assert_close(probabilities(model, output.logits), p)
    torch.testing.assert_close(model(**inputs, log_probs=True).logits, p.log(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head", HEADS[1:], ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma2", "t5", "bert"])
def test_the_fused_loss_honours_it(name, head):
    one, other = (sparsify(tiny_model(name), head=warm(head), fused_loss=fused) for fused in (True, False))
    fused, gradients = loss_and_gradients(one, labelled(one))
    unfused, expected = loss_and_gradients(other, labelled(other))
    assert not fused.logits.computed
    torch.testing.assert_close(fused.loss, unfused.loss, atol=1e-5, rtol=1e-5)
    scale = max(float(gradient.abs().max()) for gradient in expected.values())
    for key, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[key], atol=1e-5 * scale, rtol=1e-4)
    cold = loss_and_gradients(sparsify(tiny_model(name), head=head), labelled(one))[0]
    assert abs(float(cold.loss.detach() - fused.loss.detach())) > 1e-3


@torch.no_grad()
def test_attention_divides_the_scores_the_model_made():
    model = sparsify(tiny_model("llama"), attn=warm("entmax15", 2.0))
    expected = sparsify(tiny_model("llama"), attn="entmax15")
    for layer in expected.model.layers:
        layer.self_attn.scaling /= 2.0
    torch.testing.assert_close(model(tokens()).logits, expected(tokens()).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_layers_and_heads_take_their_own_and_keep_them(name, tmp_path):
    kind = "encoder" if name in ("bart", "marian", "t5", "bert", "modernbert") else "decoder"
    model = tiny_model(name)
    heads = [0.5, 1.0, 2.0, 4.0]
    count = 3 if name == "modernbert" else 2
    sparsify(model, attn={kind: [warm("entmax15", heads), *[warm("sparsemax", 3.0)] * (count - 1)]})
    weights = attentions(model, **labelled(model))[0]
    for head, temperature in enumerate(heads):
        alone = sparsify(tiny_model(name), attn={kind: [warm("entmax15", temperature), *[None] * (count - 1)]})
        expected = attentions(alone, **labelled(model))[0]
        torch.testing.assert_close(weights[:, head], expected[:, head], atol=1e-5, rtol=1e-4)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path)
    assert sparse_config(loaded) == sparse_config(model)
    assert torch.equal(loaded(**labelled(model)).logits, model(**labelled(model)).logits)


def test_it_can_be_learned_and_masked_scores_do_not_spoil_its_gradient():
    model = sparsify(tiny_model("gpt2").double(), attn={"name": "entmax15", "temperature": {"learned": 0.8}})
    fixed = sparsify(tiny_model("gpt2").double(), attn=warm("entmax15", 0.8))
    torch.testing.assert_close(model(tokens()).logits, fixed(tokens()).logits)
    parameter = model.transformer.h[0].attn.sparse_temperature.value
    model(tokens()).logits.square().mean().backward()
    with torch.no_grad():
        values = []
        for step in (1e-6, -2e-6):
            parameter[1] += step
            values.append(float(model(tokens()).logits.square().mean()))
    assert float(parameter.grad[1]) == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4)


def test_tau_is_estimated_for_the_divided_logits():
    head = nn.Linear(64, 1000)
    divided = nn.Linear(64, 1000)
    with torch.no_grad():
        divided.weight.copy_(head.weight / 1.6)
        divided.bias.copy_(head.bias / 1.6)
    assert estimate_tau_from_head(head, 1.5, temperature=1.6) == pytest.approx(estimate_tau_from_head(divided, 1.5))
    model = sparsify(tiny_model("gpt2"), head={"name": "alpha_relu", "temperature": 1.6})
    plain = sparsify(tiny_model("gpt2"), head="alpha_relu")
    tau = [sparse_config(each).head.map_settings["tau"] for each in (model, plain)]
    assert tau[0] < tau[1]


@pytest.mark.parametrize(
    ("role", "others"), [("attn", ', a list with one for each head or "auto" or "learned"'), ("head", ' or "auto"')]
)
@pytest.mark.parametrize(
    ("temperature", "error"),
    [(0, ValueError), (-1.0, ValueError), (math.inf, ValueError), (math.nan, ValueError), ("hot", TypeError)],
)
def test_a_temperature_must_be_positive(role, others, temperature, error):
    with pytest.raises(error, match=f"{role}: temperature must be a number from 0.0001 to 1000000{others}, was "):
        MapConfig.parse({"name": "entmax15", "temperature": temperature}, role)


def test_a_head_has_one_temperature():
    with pytest.raises(
        TypeError, match=r'head: temperature must be a number from 0.0001 to 1000000 or "auto", was \[0.5, 1.0\]'
    ):
        MapConfig.parse({"name": "entmax15", "temperature": [0.5, 1.0]}, "head")
    with pytest.raises(ValueError, match="temperature is given for 3 heads, but scores are of shape"):
        sparsify(tiny_model("llama"), attn=warm("entmax15", [1.0, 2.0, 3.0]))


def test_settings_by_head_need_scores_that_show_their_heads():
    config = MapConfig.parse({"name": "entmax", "alpha": [1.2, 1.5]}, "attn")
    with pytest.raises(ValueError, match=r"alpha is given for 2 heads, but scores are of shape \(6, 2, 5\)"):
        settings_by_head(config, nn.Module(), torch.zeros(6, 2, 5))


def test_far_scores_count_where_a_temperature_brings_them_near():
    far = torch.tensor([[[[0.0, 6000.0]]]])
    weights = weights_under(MapConfig.parse({"name": "entmax15", "temperature": 1e4}, "attn"), nn.Module(), far)
    torch.testing.assert_close(weights, F.entmax15(far / 1e4))
    assert bool((weights > 0).all())
