"""A centered head: the constant that softmax ignores is taken off the logits, and no weight is touched."""

import pytest
import torch
from torch import nn

import hf_sparse.functional as F
from hf_sparse import from_pretrained, probabilities, sparse_config, sparsify, unsparsify
from hf_sparse.config import MapConfig
from hf_sparse.functional import estimate_tau_from_head
from hf_sparse.functional.score_transforms import centered
from tests.model.test_fused_loss import loss_and_gradients
from tests.model.test_head import scored
from tests.tiny_models import ARCHITECTURES, labelled, tiny_model

HEAD = {"name": "alpha_relu", "tau": 0.4, "centered": True}


def with_offset(model, size=20.0):
    """The same softmax, with a constant on the logits that differs from token to token."""
    generator = torch.Generator().manual_seed(3)
    head = model.get_output_embeddings()
    with torch.no_grad():
        head.weight += size / head.weight.shape[1] * torch.randn(head.weight.shape[1], generator=generator)
    return model


def recentered_head(model):
    """The matrix and bias of the head with their mean rows taken off, in float64."""
    head = model.get_output_embeddings()
    weight = head.weight.detach().double()
    bias = torch.zeros(len(weight)).double() if head.bias is None else head.bias.detach().double()
    return weight - weight.mean(0), bias - bias.mean()


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
@torch.no_grad()
def test_centered_logits_are_those_of_the_head_less_its_mean_row(name):
    model = with_offset(tiny_model(name))
    hidden = []
    handle = model.get_output_embeddings().register_forward_pre_hook(lambda _, args: hidden.append(args[0]))
    logits = model(**labelled(model)).logits
    handle.remove()
    weight, bias = recentered_head(model)
    torch.testing.assert_close(centered(logits).double(), hidden[0].double() @ weight.T + bias, atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(centered(logits).softmax(-1), logits.softmax(-1), atol=2e-6, rtol=1e-4)
    assert float(logits.mean(-1).std()) > 0.3
    assert float(centered(logits).mean(-1).abs().max()) < 1e-5


def test_masked_entries_neither_count_nor_change():
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        z = torch.tensor([[3.0, 1.0, -torch.inf, torch.finfo(dtype).min], [-torch.inf] * 4]).to(dtype)
        assert centered(z)[0, :3].tolist() == [1.0, -1.0, -torch.inf]
        assert float(centered(z)[0, 3]) < -6e4
        assert centered(z)[1].tolist() == [-torch.inf] * 4


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_weights_loss_and_decoding_are_blind_to_the_offset(name):
    plain, offset = (sparsify(model, head=HEAD) for model in (tiny_model(name), tiny_model(name)))
    bias = nn.Parameter(torch.full((23,), 30.0))
    head = offset.get_output_embeddings()
    head.bias = bias if head.bias is None else nn.Parameter(head.bias + bias)
    one, other = plain(**labelled(plain)), offset(**labelled(offset))
    if name != "gemma2":  # what comes before a soft cap is no constant after it
        torch.testing.assert_close(probabilities(plain, one.logits), probabilities(offset, other.logits))
        torch.testing.assert_close(one.loss, other.loss, atol=1e-4, rtol=1e-4)
    z, y = scored(name, other.logits, labelled(offset)["labels"])
    z = z.double() - z.double().mean(-1, keepdim=True)
    u = z / 2 - 0.4
    weights = u.clamp(min=0) ** 2
    kept = y != -100
    expected = ((2 / 3 * u.clamp(min=0) ** 3).sum(-1) - 2 * u.gather(-1, y.clamp(min=0)[..., None])[..., 0] + 4 / 3)[
        kept
    ]
    torch.testing.assert_close(other.loss.double(), expected.mean(), atol=1e-4, rtol=1e-4)
    decoded = offset(**labelled(offset), log_probs=True).logits
    p = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(scored(name, decoded, y)[0].exp().double(), p, atol=1e-5, rtol=1e-4)


def test_without_centering_an_offset_leaves_nothing():
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)) - 50
    assert not F.alpha_relu(logits, 1.5, 0.4).any()
    assert MapConfig.parse(HEAD, "head")(logits).any(-1).all()


@pytest.mark.parametrize("name", ["llama", "t5", "bert", "bart"])
def test_the_fused_loss_centers_too(name):
    head = {**HEAD, "temperature": 0.8}
    one, other = (sparsify(with_offset(tiny_model(name)), head=head, fused_loss=fused) for fused in (True, False))
    fused, gradients = loss_and_gradients(one, labelled(one))
    unfused, expected = loss_and_gradients(other, labelled(other))
    assert not fused.logits.computed
    torch.testing.assert_close(fused.loss, unfused.loss, atol=1e-5, rtol=1e-4)
    scale = max(float(gradient.abs().max()) for gradient in expected.values())
    for key, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[key], atol=2e-5 * scale, rtol=1e-3)


def test_a_fused_loss_of_soft_capped_logits_cannot_center_and_says_so():
    with pytest.raises(ValueError, match="the mean of soft-capped logits needs all of them; pass fused_loss=False"):
        sparsify(tiny_model("gemma2"), head=HEAD, fused_loss=True)


@pytest.mark.parametrize("name", ["gpt2", "bart", "t5"])
@torch.no_grad()
def test_no_weight_moves_and_everything_comes_back(name, tmp_path):
    """Tied or not: GPT-2, BART and T5 share the head's matrix with the input embeddings."""
    model = with_offset(tiny_model(name))
    before, logits = {key: value.clone() for key, value in model.state_dict().items()}, model(**labelled(model)).logits
    sparsify(model, head=HEAD)
    assert torch.equal(model(**labelled(model)).logits, logits)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path)
    assert sparse_config(loaded) == sparse_config(model)
    assert sparse_config(loaded).head.centered
    inputs = {**labelled(model), "log_probs": True}
    assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
    for each in (model, loaded):
        assert torch.equal(unsparsify(each)(**labelled(model)).logits, logits)
        assert all(torch.equal(value, before[key]) for key, value in each.state_dict().items())


def test_tau_is_estimated_for_the_centered_head():
    head, recentered = nn.Linear(64, 1000), nn.Linear(64, 1000)
    with torch.no_grad():
        head.weight += 0.3
        head.bias += 5.0
        recentered.weight.copy_(head.weight - head.weight.mean(0))
        recentered.bias.copy_(head.bias - head.bias.mean())
    expected = estimate_tau_from_head(recentered, 1.5)
    assert estimate_tau_from_head(head, 1.5, centered=True) == pytest.approx(expected, abs=1e-6)
    model, plain = with_offset(tiny_model("gpt2"), 40), with_offset(tiny_model("gpt2"), 40)
    sparsify(model, head={"name": "alpha_relu", "centered": True})
    sparsify(plain, head="alpha_relu")
    assert sparse_config(model).head.map_settings["tau"] < sparse_config(plain).head.map_settings["tau"]


BAD = [
    ({"head": {"name": "entmax15", "centered": True}}, ValueError, "head: entmax15 ignores a constant in its scores"),
    ({"attn": {"name": "entmax15", "centered": True}}, ValueError, "attn: scores of attention are not centered"),
    ({"attn": {"name": "entmax15", "centered": [True]}}, TypeError, "centered must be True or False"),
    ({"attn": {"name": "entmax15", "centered": "learned"}}, ValueError, "attn: centered cannot be learned"),
    ({"head": {"name": "alpha_relu", "centered": 1}}, TypeError, "head: centered must be True or False, was 1"),
]


@pytest.mark.parametrize(("settings", "error", "message"), BAD, ids=str)
def test_what_cannot_be_centered_is_refused(settings, error, message):
    with pytest.raises(error, match=message):
        sparsify(tiny_model("llama"), **settings)
