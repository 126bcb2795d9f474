"""Losses under the transforms of torch.func: the gradients are those of the losses' own backward."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap
from transformers import LlamaConfig, LlamaForCausalLM

from hf_sparse import sparsify
from hf_sparse.functional import MAPS
from hf_sparse.losses import entmax_loss, fenchel_young_loss, linear_entmax_loss
from hf_sparse.losses.multilabel import (
    softmax_log_loss,
    sparsegen_lin_hinge_loss,
    sparsehourglass_hinge_loss,
    sparsemax_huber_loss,
)
from tests.tiny_models import tiny_model, tokens
from tests.tolerances import GRADIENT

OTHER = {"alpha_relu": {"alpha": 1.5, "tau": 0.3}}
KINDS = [
    *(
        (name, OTHER.get(name, {}))
        for name, known in MAPS.items()
        if known.regularizer is not None and name != "entmax"
    ),
    *(("entmax", {"alpha": alpha}) for alpha in (1.0, 1.3, 2.0, 3.0)),
]


def loss_of(name, settings):
    return lambda z, y: fenchel_young_loss(z, y, name, reduction="sum", **settings)


def rows(length):
    z = 2 * torch.randn(4, length, generator=torch.Generator().manual_seed(length), dtype=torch.float64)
    z[1, 3] = -torch.inf
    soft = torch.zeros(4, length, dtype=torch.float64).scatter_(1, torch.tensor([[0, 1], [1, 2], [4, 5], [0, 6]]), 0.5)
    return z, torch.tensor([0, 1, 2, -100]), soft


def own_gradient(loss, z, y):
    leaf = z.clone().requires_grad_()
    return torch.autograd.grad(loss(leaf, y), leaf)[0]


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("length", [7, 700, 5000])
@pytest.mark.parametrize(("name", "settings"), KINDS)
def test_many_gradients_at_once_by_the_older_vmap(name, settings, length, soft):
    z, classes, distributions = rows(length)
    for dtype in (torch.float64, torch.float32):
        scores, y = z.to(dtype).requires_grad_(), distributions.to(dtype) if soft else classes
        losses = fenchel_young_loss(scores, y, name, reduction="none", **settings)
        each = [torch.autograd.grad(losses, scores, row, retain_graph=True)[0] for row in torch.eye(4, dtype=dtype)]
        (found,) = torch.autograd.grad(losses, scores, torch.eye(4, dtype=dtype), is_grads_batched=True)
        torch.testing.assert_close(found, torch.stack(each), atol=GRADIENT[dtype], rtol=0)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("length", [7, 1500])
@pytest.mark.parametrize(("name", "settings"), KINDS)
def test_gradients_of_all_rows_and_of_each_by_itself(name, settings, length, soft):
    z, classes, distributions = rows(length)
    y, loss = distributions if soft else classes, loss_of(name, settings)
    for dtype in (torch.float64, torch.float32):
        scores, targets = z.to(dtype), y.to(dtype) if soft else y
        wanted = own_gradient(loss, scores, targets)
        found = (grad(loss)(scores, targets), vmap(grad(lambda z, y: loss(z[None], y[None])))(scores, targets))
        for each in found:
            torch.testing.assert_close(each, wanted, atol=GRADIENT[dtype], rtol=0)


@pytest.mark.parametrize(("name", "settings"), KINDS)
def test_second_derivatives(name, settings):
    z, y, _ = rows(7)
    z[1, 3] = -1.0
    loss = loss_of(name, settings)
    wanted = torch.autograd.functional.hessian(lambda z: loss(z, y), z)
    for found in (jacrev(grad(loss)), hessian(loss)):
        torch.testing.assert_close(found(z, y), wanted, atol=GRADIENT[torch.float64], rtol=0)


@pytest.mark.parametrize("length", [7, 1500])
@pytest.mark.parametrize(("name", "settings"), KINDS)
def test_forward_mode_derivatives(name, settings, length):
    z, y, _ = rows(length)
    loss, tangent = loss_of(name, settings), torch.linspace(-1, 1, z.numel(), dtype=z.dtype).view_as(z)
    wanted = (own_gradient(loss, z, y) * tangent).sum()
    _, found = jvp(lambda z: loss(z, y), (z,), (tangent,))
    torch.testing.assert_close(found, wanted, atol=length * GRADIENT[torch.float64], rtol=0)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(loss(forward_ad.make_dual(z.float(), tangent.float()), y)).tangent
    torch.testing.assert_close(found.double(), wanted, atol=length * GRADIENT[torch.float32], rtol=0)


@pytest.mark.parametrize(
    ("name", "settings"), [("entmax", {"alpha": 1.3}), ("alpha_relu", {"alpha": 1.5, "tau": 0.1}), ("softmax", {})]
)
def test_a_compiler_takes_a_loss_twice_with_dynamic_shapes(name, settings):
    z, y = torch.randn(4, 9, requires_grad=True), torch.arange(4)

    def total(z):
        return fenchel_young_loss(z, y, name, **settings) + fenchel_young_loss(2 * z, y, name, **settings)

    torch.compiler.reset()
    compiled = torch.compile(total, fullgraph=True, dynamic=True, backend="eager")
    found, expected = (torch.autograd.grad(each(z), z)[0] for each in (compiled, total))
    torch.testing.assert_close(found, expected)


def test_the_derivative_in_alpha():
    z, y, _ = rows(9)
    alpha = torch.tensor(1.4, dtype=torch.float64)
    leaf = alpha.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(entmax_loss(z, y, leaf), leaf)
    found = grad(lambda alpha: entmax_loss(z, y, alpha))(alpha)
    torch.testing.assert_close(found, wanted, atol=GRADIENT[torch.float64], rtol=0)


def test_targets_out_of_range_are_named_where_they_can_be_read():
    z = torch.zeros(2, 3)
    with pytest.raises(IndexError, match=r"target must be in \[0, 3\)"):
        grad(entmax_loss)(z, torch.tensor([0, 3]))


@pytest.mark.parametrize("attn", [None, "entmax15"])
@pytest.mark.parametrize("head", ["entmax15", {"name": "alpha_relu", "alpha": 1.5, "tau": 0.3}])
def test_gradients_of_a_model_for_each_row(attn, head):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    model = sparsify(LlamaForCausalLM(config), attn=attn, head=head).train()
    ids = torch.randint(3, 50, (3, 9))
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(parameters, row):
        return functional_call(model, parameters, (row[None],), {"labels": row[None]}).loss

    found = vmap(grad(loss), (None, 0))(parameters, ids)
    for index, row in enumerate(ids):
        model.zero_grad()
        model(row[None], labels=row[None]).loss.backward()
        for name, value in model.named_parameters():
            torch.testing.assert_close(found[name][index], value.grad, atol=GRADIENT[torch.float32], rtol=0)


MULTILABEL = (softmax_log_loss, sparsemax_huber_loss, sparsegen_lin_hinge_loss, sparsehourglass_hinge_loss)


@pytest.mark.parametrize("loss", MULTILABEL)
def test_multilabel_losses(loss):
    z, _, _ = rows(7)
    z[1, 3] = 1.0
    labels = torch.tensor([[1, 0, 1, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0], [1] * 7, [0, 0, 1, 1, 0, 1, 0]]).to(z.dtype)
    wanted = own_gradient(loss, z, labels)
    found = (grad(loss)(z, labels), vmap(grad(lambda z, y: loss(z[None], y[None])))(z, labels) / len(z))
    for each in found:
        torch.testing.assert_close(each, wanted, atol=GRADIENT[torch.float64], rtol=0)


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_a_kernel_is_refused_by_name(alpha):
    with pytest.raises(ValueError, match=r'impl="cpp" computes losses that neither torch\.func nor forward mode can'):
        grad(lambda z: entmax_loss(z, torch.tensor([0]), alpha, impl="cpp"))(torch.zeros(1, 2000))


def test_a_fused_loss_is_refused_by_name():
    hidden, weight = torch.eye(2), torch.eye(2)
    with pytest.raises(RuntimeError, match=r"fused linear losses cannot be transformed by torch\.func"):
        grad(linear_entmax_loss)(hidden, weight, torch.tensor([0, 1]))


class FusedLoss(torch.nn.Module):
    """A fused loss as a module, which ``torch.export`` takes."""

    def forward(self, hidden, weight, target):
        return linear_entmax_loss(hidden, weight, target)


@pytest.mark.parametrize("record", [torch.jit.trace, torch.export.export])
def test_a_fused_loss_is_not_recorded(record):
    example = (torch.eye(2), torch.eye(2), torch.tensor([0, 1]))
    with pytest.raises(RuntimeError, match=r"fused linear losses choose their steps by the values of their inputs"):
        record(FusedLoss(), example)


def test_a_model_with_a_fused_loss_is_refused_by_name_and_has_its_logits_transformed():
    model = sparsify(tiny_model("llama"), head="entmax15", fused_loss=True).train()
    ids = tokens()
    weights = {"lm_head.weight": model.lm_head.weight.detach()}

    def output(weights, **labels):
        return functional_call(model, weights, (ids,), labels)

    with pytest.raises(RuntimeError, match="or a model without fused_loss=True"):
        grad(lambda weights: output(weights, labels=ids).loss)(weights)
    with pytest.raises(RuntimeError, match="or a model without fused_loss=True"):
        vmap(lambda weight: output({"lm_head.weight": weight}, labels=ids).loss)(torch.stack([*weights.values()] * 2))
    found = grad(lambda weights: output(weights).logits.exp()[..., 3].sum())(weights)
    model(ids).logits.exp()[..., 3].sum().backward()
    torch.testing.assert_close(
        found["lm_head.weight"], model.lm_head.weight.grad, atol=GRADIENT[torch.float32], rtol=0
    )
