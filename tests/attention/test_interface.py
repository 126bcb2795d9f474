"""The attention function by itself: every argument changes the result, or the call is refused."""

import inspect
import math
import sys
import types

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import hf_sparse.functional as F
from hf_sparse import sparsify
from hf_sparse.attention._scores import attention_scores, grouped_product
from hf_sparse.attention.find import is_attention, named_arguments
from hf_sparse.attention.interface import sparse_attention
from hf_sparse.attention.site import SITE, AttentionSite
from hf_sparse.config import MapConfig
from tests.tiny_models import tiny_model, tokens
from tests.tolerances import GRADIENT, WEIGHT

B, H, T, D = 2, 4, 5, 8


def module(name="entmax15"):
    site = nn.Module()
    site.__dict__[SITE] = AttentionSite("attn", "decoder", MapConfig.parse(name, "attn"))
    return site.eval()


def qkv(key_value_heads=H, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = [(B, heads, T, D) for heads in (H, key_value_heads, key_value_heads)]
    return [2 * torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def test_output_is_weights_times_values_in_transformers_layout():
    q, k, v = qkv()
    output, weights = sparse_attention(module(), q, k, v)
    expected = F.entmax15(q @ k.mT / math.sqrt(D))
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(output, (expected @ v).transpose(1, 2))
    assert output.is_contiguous()


def test_shapes_are_worked_out_on_the_device_meta():
    output, weights = sparse_attention(module(), *(x.to("meta") for x in qkv()))
    assert (output.shape, weights.shape) == ((B, T, H, D), (B, H, T, T))


def test_dropout_comes_sixth_as_in_transformers_own_attention_by_sdpa():
    assert (
        list(inspect.signature(sparse_attention).parameters)[:6]
        == list(inspect.signature(sdpa_attention_forward).parameters)[:6]
    )
    site, (q, k, v) = module(), qkv()
    kept, dropped = (sparse_attention(site.train(), q, k, v, None, rate)[1] for rate in (0.0, 1.0))
    assert kept.any()
    assert not dropped.any()


def test_grouped_heads_share_keys_and_values():
    q, k, v = qkv(key_value_heads=2, dtype=torch.float64)
    output, _ = sparse_attention(module(), q, k, v)
    full, _ = sparse_attention(module(), q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))
    torch.testing.assert_close(output, full, atol=WEIGHT[torch.float64], rtol=0)


@pytest.mark.parametrize("lead", [(), (2,), (3, 2)])
@pytest.mark.parametrize(("heads", "key_value_heads"), [(6, 1), (6, 2), (6, 3), (6, 6)])
@pytest.mark.parametrize("queries", [0, 1, 5])
def test_a_product_of_groups_is_that_of_repeated_heads(lead, heads, key_value_heads, queries):
    x = torch.randn(*lead, heads, 4, queries, dtype=torch.float64).mT.requires_grad_()
    shared = torch.randn(*lead, key_value_heads, 4, 7, dtype=torch.float64, requires_grad=True)
    found, expected = grouped_product(x, shared), x @ shared.repeat_interleave(heads // key_value_heads, -3)
    torch.testing.assert_close(found, expected)
    up = torch.randn_like(expected)
    gradients = (torch.autograd.grad(y, (x, shared), up) for y in (found, expected))
    torch.testing.assert_close(*gradients)


class _Product(nn.Module):
    def forward(self, x, shared):
        return grouped_product(x.transpose(1, 2), shared.transpose(1, 2).mT)


def test_a_product_of_groups_puts_no_condition_on_the_lengths_of_an_exported_graph():
    x, shared = torch.randn(2, 5, 6, 4), torch.randn(2, 5, 2, 4)
    length = torch.export.Dim("length")
    graph = torch.export.export(_Product(), (x, shared), dynamic_shapes=({1: length}, {1: length})).module()
    x, shared = torch.randn(2, 9, 6, 4), torch.randn(2, 9, 2, 4)
    torch.testing.assert_close(graph(x, shared), _Product()(x, shared))


def test_a_product_of_groups_refuses_heads_that_do_not_divide():
    with pytest.raises(RuntimeError):
        grouped_product(torch.randn(1, 6, 2, 4), torch.randn(1, 4, 4, 7))


def test_heads_that_share_keys_are_not_given_copies_of_them():
    q, k, v = torch.randn(1, 8, 1, 16), torch.randn(1, 2, 4096, 16), torch.randn(1, 2, 4096, 16)
    with _Sizes() as sizes:
        sparse_attention(module(), q, k, v)
    assert max(sizes.made) < k.numel()


class _Sizes(TorchDispatchMode):
    """How many numbers each tensor has that was made in memory of its own."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in given:
            self.made.append(result.numel())
        return result


def test_boolean_and_additive_masks_agree_and_masked_positions_get_exactly_zero():
    q, k, v = qkv()
    visible = torch.ones(T, T, dtype=torch.bool).tril()[None, None]
    additive = torch.where(visible, 0.0, torch.finfo(torch.float32).min)
    one, weights = sparse_attention(module(), q, k, v, visible)
    other, _ = sparse_attention(module(), q, k, v, additive)
    assert torch.equal(one, other)
    assert (weights.masked_select(~visible.expand_as(weights)) == 0).all()


@pytest.mark.parametrize("name", ["softmax", "entmax15", "sparsemax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fully_masked_rows_give_zeros_and_zero_gradients(name, dtype):
    q, k, v = (x.requires_grad_() for x in qkv(dtype=dtype))
    additive = torch.zeros(B, 1, T, T, dtype=dtype)
    additive[0, :, 2] = torch.finfo(dtype).min
    output, weights = sparse_attention(module(name), q, k, v, additive)
    assert (weights[0, :, 2] == 0).all()
    assert (output[0, 2] == 0).all()
    output.float().sum().backward()
    assert (q.grad[0, :, 2] == 0).all()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize(
    "argument", ["scaling", "softcap", "position_bias", "s_aux", "sinks", "indices", "attention_mask", "is_causal"]
)
def test_every_argument_changes_the_result(argument):
    value = {
        "scaling": 1.0,
        "softcap": 1.0,
        "position_bias": torch.randn(1, H, T, T),
        "s_aux": torch.full((H,), 3.0),
        "sinks": torch.full((B, H, T, 1), 3.0),
        "indices": torch.tensor([0, 2], dtype=torch.int32).expand(B, T, 2),
        "attention_mask": torch.randn(B, 1, T, T),
        "is_causal": True,
    }[argument]
    q, k, v = qkv()
    plain, _ = sparse_attention(module(), q, k, v)
    changed, weights = sparse_attention(module(), q, k, v, **{argument: value})
    assert not torch.allclose(plain, changed)
    assert weights.shape == (B, H, T, T)


def test_scores_follow_the_order_of_the_models():
    q, k, _ = qkv()
    bias, mask = torch.randn(1, H, T, T), torch.randn(B, 1, T, T)
    expected = 2 * torch.tanh(q @ k.mT * 0.5 / 2) + bias + mask
    torch.testing.assert_close(attention_scores(q, k, mask, 0.5, softcap=2.0, position_bias=bias), expected)


def test_a_sink_takes_weight_and_gives_nothing():
    q, k, v = qkv()
    _, weights = sparse_attention(module(), q, k, v, s_aux=torch.full((H,), 2.0))
    scores = torch.cat([q @ k.mT / math.sqrt(D), torch.full((B, H, T, 1), 2.0)], -1)
    torch.testing.assert_close(weights, F.entmax15(scores)[..., :-1])
    assert (weights.sum(-1) < 1).any()


def test_sinks_take_the_precision_of_the_scores():
    q, k, v = qkv(dtype=torch.bfloat16)
    for name, sinks in (("s_aux", torch.full((H,), 2.0)), ("sinks", torch.full((B, H, T, 1), 2.0))):
        output, weights = sparse_attention(module(), q, k, v, **{name: sinks})
        assert (output.dtype, weights.dtype) == (torch.bfloat16, torch.bfloat16)


def test_only_the_keys_an_indexer_selected_get_weight():
    q, k, v = qkv()
    chosen = torch.stack([torch.randperm(T)[:2] for _ in range(B * T)]).view(B, T, 2)
    _, weights = sparse_attention(module("softmax"), q, k, v, indices=chosen)
    visible = torch.zeros(B, 1, T, T, dtype=torch.bool).scatter(-1, chosen[:, None], True)
    assert torch.equal(weights > 0, visible.expand_as(weights))


def test_causality_is_only_added_where_there_is_no_mask():
    q, k, v = qkv()
    _, causal = sparse_attention(module(), q, k, v, is_causal=True)
    assert (causal.triu(1) == 0).all()
    everything = torch.ones(1, 1, T, T, dtype=torch.bool)
    _, masked = sparse_attention(module(), q, k, v, everything, is_causal=True)
    assert (masked.triu(1) > 0).any()
    for num_last in (1, 2):
        _, steps = sparse_attention(module(), q[:, :, -num_last:], k, v, is_causal=True, output_attentions=True)
        torch.testing.assert_close(steps, causal[:, :, -num_last:])


def test_dropout_acts_in_training_only():
    q, k, v = qkv()
    site = module()
    plain, _ = sparse_attention(site, q, k, v)
    assert torch.equal(sparse_attention(site, q, k, v, dropout=0.5)[0], plain)
    assert not torch.allclose(sparse_attention(site.train(), q, k, v, dropout=0.5)[0], plain)


def test_what_is_not_honoured_is_refused_by_name():
    q, k, v = qkv()
    attention = module()
    attention.__dict__[SITE].named_arguments = frozenset({"temperature"})
    with pytest.raises(NotImplementedError, match="Module passes 'temperature'"):
        sparse_attention(attention, q, k, v, temperature=0.5)
    sparse_attention(attention, q, k, v, temperature=None, labels=torch.zeros(1))
    with pytest.raises(RuntimeError, match="never given a map"):
        sparse_attention(nn.Module(), q, k, v)


def test_named_arguments_are_those_of_the_models_own_eager_attention(monkeypatch):
    own = types.ModuleType("tests.own_attention")
    own.eager_attention_forward = (
        lambda module, query, key, value, mask, temperature=1.0, sliding_window=None, **kwargs: None
    )
    monkeypatch.setitem(sys.modules, "tests.own_attention", own)
    named = named_arguments(type("Attention", (nn.Module,), {"__module__": "tests.own_attention"}))
    assert {"temperature", "block_indices"} <= named
    assert not {"labels", "sliding_window"} & named


def test_models_may_pass_everything_by_keyword():
    q, k, v = qkv()
    by_name, _ = sparse_attention(module=module(), query=q, key=k, value=v, attention_mask=None)
    assert torch.equal(by_name, sparse_attention(module(), q, k, v)[0])


class BlockAttentionResidual(nn.Module):  # as Inkling 2: it attends to outputs of earlier layers
    config, num_key_value_groups, is_causal = None, 1, False

    def forward(self, states, **options):
        interface = ALL_ATTENTION_FUNCTIONS.get_interface("hf_sparse", eager_attention_forward)
        return interface(self, states, states, states, None, scaling=0.5, **options)


def eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0, softcap=None, **others):
    scores = scaling * query @ key.mT
    weights = nn.functional.dropout(
        scores if softcap is None else softcap * (scores / softcap).tanh(), p=dropout
    ).softmax(-1)
    return (weights @ value).transpose(1, 2), weights


def test_a_mixture_of_layers_is_no_attention_and_keeps_the_softmax_of_its_file():
    states = qkv()[0]
    output, weights = BlockAttentionResidual()(states)
    torch.testing.assert_close(weights, (0.5 * states @ states.mT).softmax(-1))
    torch.testing.assert_close(output, (weights @ states).transpose(1, 2))
    capped = (2.0 * (0.25 * states @ states.mT).tanh()).softmax(-1)
    torch.testing.assert_close(BlockAttentionResidual()(states, softcap=2.0)[1], capped)
    assert not is_attention(BlockAttentionResidual)
    assert is_attention(type("BlockAttention", (BlockAttentionResidual,), {}))


def test_a_checkpoint_around_a_layer_is_told_to_leave_the_cache_out():
    model = sparsify(tiny_model("llama"), attn="entmax15").train()
    model(tokens(), labels=tokens()).loss.backward()
    wanted = model.model.layers[0].self_attn.q_proj.weight.grad.clone()
    model.zero_grad()
    for index, layer in enumerate(model.model.layers):
        model.model.layers[index] = checkpoint_wrapper(layer, CheckpointImpl.NO_REENTRANT)
    with pytest.raises(ValueError, match=r"LlamaAttention has 14 keys and a mask for 7: .*config.use_cache = False"):
        model(tokens(), labels=tokens(), use_cache=True).loss.backward()
    model.config.use_cache = False
    model.zero_grad()
    model(tokens(), labels=tokens()).loss.backward()
    found = model.model.layers[0].self_attn.q_proj.weight.grad
    torch.testing.assert_close(found, wanted, atol=GRADIENT[torch.float32], rtol=0)
