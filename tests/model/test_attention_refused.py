"""Attention that cannot be made sparse, or not as it is, is refused and never left dense beside sparse attention."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from hf_sparse import is_sparse, sparsify, unsparsify
from tests.sweep.architectures import build
from tests.tiny_models import tiny_model, tokens


@torch.no_grad()
def test_a_softmax_the_audit_finds_undoes_everything():
    model = tiny_model("bart")
    attention = model.model.decoder.layers[1].encoder_attn
    own_forward = type(attention).forward

    class MixedAttention(type(attention)):
        def forward(self, *args, **kwargs):
            torch.softmax(torch.zeros(1, 2), dim=-1)
            hidden = args[0] if args else kwargs["hidden_states"]
            return torch.zeros_like(hidden), None

    attention.__class__ = MixedAttention
    reference = model(tokens()).logits
    with pytest.raises(ValueError, match=r"MixedAttention at 'model.decoder.layers.1.encoder_attn' computes its own"):
        sparsify(model, attn="entmax15")
    assert not is_sparse(model)
    assert torch.equal(model(tokens()).logits, reference)
    assert type(attention).__mro__[1].forward is own_forward


class Core(nn.Module):
    """Weights of attention, in a module whose name does not say so."""

    def forward(self, query):
        return torch.softmax(query @ query.transpose(-1, -2), dim=-1) @ query


class Divided(nn.Module):
    def __init__(self):
        super().__init__()
        self.core = Core()

    def forward(self, hidden_states, *_, **__):
        query = hidden_states.unflatten(-1, (4, -1)).transpose(1, 2)
        return self.core(query).transpose(1, 2).flatten(2), None


@torch.no_grad()
def test_attention_whose_softmax_is_in_a_part_of_it_is_not_left_dense_beside_sparse_attention():
    model = tiny_model("bart")
    model.model.decoder.layers[1].self_attn = Divided()
    reference = model(tokens()).logits
    with pytest.raises(ValueError, match=r"Divided at 'model.decoder.layers.1.self_attn' computes its own softmax"):
        sparsify(model, attn="entmax15")
    assert not is_sparse(model)
    assert torch.equal(model(tokens()).logits, reference)


def by_hand(scores):
    exp = (scores - scores.amax(-1, keepdim=True)).exp()
    return exp / exp.sum(-1, keepdim=True)


def scripted(scores):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(_scripted)(scores)


def _scripted(scores: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-1)


class WeightedBy(nn.Module):
    """Attention whose weights ``function`` computes from its scores; ``core`` names the module that does."""

    def __init__(self, function, product):
        super().__init__()
        self.core = Weigher(function, product)

    def forward(self, hidden_states, *_, **__):
        return self.core(hidden_states.unflatten(-1, (4, -1)).transpose(1, 2)).transpose(1, 2).flatten(2), None


class Weigher(nn.Module):
    def __init__(self, function, product):
        super().__init__()
        self.function, self.product = function, product

    def forward(self, query):
        return self.product(self.function(query @ query.transpose(-1, -2)), query)


def einsum(weights, values):
    return torch.einsum("bhqk,bhkd->bhqd", weights, values)


@pytest.mark.parametrize("product", [torch.matmul, einsum])
@pytest.mark.parametrize("function", [by_hand, scripted, lambda scores: scores.log_softmax(-1).exp()])
@torch.no_grad()
def test_attention_that_computes_a_softmax_nobody_sees_is_not_left_dense_beside_sparse_attention(function, product):
    model = tiny_model("bart")
    model.model.decoder.layers[1].self_attn = WeightedBy(function, product)
    reference = model(tokens()).logits
    with pytest.raises(ValueError, match=r"WeightedBy at 'model.decoder.layers.1.self_attn' computes its own softmax"):
        sparsify(model, attn="entmax15")
    assert not is_sparse(model)
    assert torch.equal(model(tokens()).logits, reference)


def hardmax(scores):
    return one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)


@pytest.mark.parametrize("function", [nn.Identity(), torch.relu, hardmax])
def test_attention_without_softmax_is_left_as_it_is_beside_sparse_attention(function):
    model = tiny_model("bart")
    model.model.decoder.layers[1].self_attn = WeightedBy(function, torch.matmul)
    assert is_sparse(sparsify(model, attn="entmax15"))


def weights(query):
    return torch.softmax(query @ query.transpose(-1, -2), dim=-1)


class AttentionByFunction(nn.Module):
    def forward(self, hidden_states, *_, **__):
        return weights(hidden_states) @ hidden_states, None


def test_attention_that_leaves_its_softmax_to_a_function_is_not_said_to_have_none():
    model = tiny_model("llama")
    for layer in model.model.layers:
        layer.self_attn = AttentionByFunction()
    with pytest.raises(ValueError, match=r"where AttentionByFunction at 'model.layers.0.self_attn' .* into a method"):
        sparsify(model, attn="entmax15")

    class AttentionOfItsOwn(AttentionByFunction):
        weights = staticmethod(lambda query: torch.softmax(query @ query.transpose(-1, -2), dim=-1))

        def forward(self, hidden_states, *_, **__):
            return self.weights(hidden_states) @ hidden_states, None

    for layer in model.model.layers:
        layer.self_attn = AttentionOfItsOwn()
    assert is_sparse(sparsify(model, attn="entmax15"))  # as the message says


class Gated(nn.Module):
    def forward(self, hidden_states, *_, **__):
        return torch.softmax(hidden_states @ hidden_states.transpose(-1, -2), dim=-1) @ hidden_states, None


class GatedAttn(Gated): ...


class Flattened(nn.Module):
    """The letters "att" are not enough."""

    def forward(self, hidden_states, *_, **__):
        return hidden_states, None


def test_attention_whose_class_has_another_name_is_told_to_take_one_that_says_so():
    model = tiny_model("llama")
    model.model.layers[0].self_attn, model.model.layers[1].self_attn = Flattened(), Gated()
    refused = "has no attention that is computed with softmax; pass attn=None"
    with pytest.raises(ValueError, match=rf"{refused}, or, where Gated at 'model.layers.1.self_attn' is attention, "):
        sparsify(model, attn="entmax15")
    model.model.layers[1].self_attn = GatedAttn()
    assert is_sparse(sparsify(model, attn="entmax15"))  # as the message says
    model = tiny_model("llama")
    for layer in model.model.layers:
        layer.self_attn = Flattened()
    with pytest.raises(ValueError, match=rf"{refused}$"):
        sparsify(model, attn="entmax15")


def test_a_model_with_neither_attention_nor_a_head_is_not_told_to_leave_attention_out():
    refused = r"has no attention that is computed with softmax, and no LM head: it has nothing to make sparse$"
    with pytest.raises(ValueError, match=rf"^ReformerForSequenceClassification {refused}"):
        sparsify(build("reformer", "ReformerForSequenceClassification"), attn="entmax15")
    model = build("reformer", "ReformerModelWithLMHead")
    with pytest.raises(ValueError, match=r"computed with softmax; pass attn=None$"):
        sparsify(model, attn="entmax15", head="entmax15")
    assert is_sparse(sparsify(model, attn=None, head="entmax15"))  # as the message says


def with_bias(module, query, key, value, attention_mask, **options):
    bias = torch.arange(key.shape[2], dtype=query.dtype).expand(query.shape[0], 1, query.shape[2], -1)
    return sdpa_attention_forward(module, query, key, value, bias, **options)


def last_two(*args, **options):
    mask = eager_mask(*args, **options)
    return mask if mask is None else mask.index_fill(-1, torch.arange(mask.shape[-1] - 2), -1e4)


@pytest.mark.parametrize(("function", "masks"), [(with_bias, eager_mask), (sdpa_attention_forward, last_two)])
@torch.no_grad()
def test_attention_by_a_registered_function_of_somebody_is_not_quietly_replaced(function, masks, monkeypatch):
    monkeypatch.setitem(AttentionInterface._global_mapping, "own", function)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "own", masks)
    model = tiny_model("llama", attn_implementation="own")
    before = model(tokens()).logits
    with pytest.raises(ValueError, match=r"LlamaAttention at 'model.layers.0.self_attn' attends by 'own', .*eager"):
        sparsify(model, attn="softmax")
    assert torch.equal(model(tokens()).logits, before)
    assert is_sparse(sparsify(model, head="entmax15"))
    unsparsify(model).set_attn_implementation("eager")
    assert not torch.allclose(sparsify(model, attn="softmax")(tokens()).logits, before)


def test_attention_of_transformers_by_another_name_is_replaced(monkeypatch):
    monkeypatch.setitem(AttentionInterface._global_mapping, "own", sdpa_attention_forward)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "own", sdpa_mask)
    assert is_sparse(sparsify(tiny_model("llama", attn_implementation="own"), attn="entmax15"))


def test_the_name_of_sparse_attention_makes_no_dense_model_sparse(tmp_path):
    tiny_model("llama").save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="hf_sparse")
    with pytest.raises(RuntimeError, match=r"was never given a map.* load the model without that name"):
        model(tokens())
    for maps in ({"attn": "entmax15"}, {"head": "entmax15"}):
        with pytest.raises(ValueError, match=r"dense and has attn_implementation='hf_sparse'.*load it without"):
            sparsify(model, **maps)
    model.set_attn_implementation("sdpa")
    assert is_sparse(sparsify(model, attn="entmax15"))
