"""A loss computed without logits is the loss computed from them, in every model and every step between."""

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from hf_sparse import from_pretrained, is_sparse, sparse_config, sparsify
from hf_sparse.config import MapConfig
from hf_sparse.model.lazy_logits import LinearLogits
from tests.tiny_models import ARCHITECTURES, labelled, tiny_model, tokens

HEADS = ["softmax", "entmax15", "sparsemax", {"name": "entmax", "alpha": 1.3}, {"name": "alpha_relu", "tau": 0.4}]


def loss_and_gradients(model, inputs, **options):
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    output = model(**inputs, **options)
    output.loss.backward()
    return output, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_fused_and_unfused_agree(name, head):
    one, other = (sparsify(tiny_model(name), head=head, fused_loss=fused) for fused in (True, False))
    fused, gradients = loss_and_gradients(one, labelled(one))
    unfused, expected = loss_and_gradients(other, labelled(other))
    assert isinstance(fused.logits, LinearLogits)
    assert not fused.logits.computed
    torch.testing.assert_close(fused.loss, unfused.loss, atol=1e-5, rtol=1e-5)
    assert gradients.keys() == expected.keys()
    scale = max(float(gradient.abs().max()) for gradient in expected.values())
    for key, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[key], atol=1e-5 * scale, rtol=1e-4)


@pytest.mark.parametrize("options", [{"num_items_in_batch": 7}, {}], ids=str)
@pytest.mark.parametrize("head", ["entmax15", "softmax"])
def test_options_of_the_loss_reach_the_fused_one(head, options):
    options = {**options, "label_smoothing": 0.1}
    one, other = (sparsify(tiny_model("bart"), head=head, fused_loss=fused) for fused in (True, False))
    fused, _ = loss_and_gradients(one, labelled(one), **options)
    unfused, _ = loss_and_gradients(other, labelled(other), **options)
    torch.testing.assert_close(fused.loss, unfused.loss)


def test_smoothing_adds_nothing_where_no_label_counts():
    model = sparsify(tiny_model("llama"), head="softmax", fused_loss=True).train()
    batch = {"input_ids": tokens(), "labels": torch.full_like(tokens(), -100)}
    assert float(model(**batch, label_smoothing=0.1).loss) == float(model(**batch).loss) == 0


@torch.no_grad()
def test_evaluation_has_its_logits_and_the_setting_is_saved(tmp_path):
    model = sparsify(tiny_model("llama"), head="entmax15", fused_loss=True)
    output = model(**labelled(model))
    assert torch.is_tensor(output.logits)
    model.save_pretrained(tmp_path)
    assert sparse_config(from_pretrained(tmp_path)).fused_loss


def test_what_cannot_be_fused_is_refused_by_name():
    with pytest.raises(ValueError, match=r"needs a head with a fused loss, one of 'alpha_relu', 'entmax'"):
        sparsify(tiny_model("llama"), attn="entmax15", fused_loss=True)
    with pytest.raises(ValueError, match="needs a head with a fused loss"):
        sparsify(tiny_model("llama"), head="sparsegen_lin", fused_loss=True)
    with pytest.raises(TypeError, match="fused_loss must be True or False, was 1"):
        sparsify(tiny_model("llama"), head="entmax15", fused_loss=1)
    model = tiny_model("llama")
    model.lm_head = nn.Sequential(model.lm_head)
    model.lm_head.weight = model.lm_head[0].weight
    with pytest.raises(ValueError, match="the head of LlamaForCausalLM is not one linear layer"):
        sparsify(model, head="entmax15", fused_loss=True)
    model = tiny_model("llama")
    nn.utils.parametrizations.weight_norm(model.lm_head)
    with pytest.raises(ValueError, match="the weight of the head of LlamaForCausalLM is parametrized"):
        sparsify(model, head="entmax15", fused_loss=True)


def test_a_model_that_looks_at_its_logits_is_refused_and_left_dense():
    model = tiny_model("bart")

    class Looking(type(model)):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = output.logits.exp()
            return output

    model.__class__ = Looking
    with pytest.raises(ValueError, match="Looking needs its logits for more than the loss; pass fused_loss=False"):
        sparsify(model, head="entmax15", fused_loss=True)
    assert not is_sparse(model)


STEPS = {
    "view": lambda z: z.view(-1, 5),
    "reshape": lambda z: z.reshape(6, 5),
    "view of the vocabulary": lambda z: z.view(2, 15),
    "size": lambda z: z.view(-1, z.size(-1)),
    "flat": lambda z: z.view(-1),
    "view into the vocabulary": lambda z: z.view(2, -1),
    "view of an axis more": lambda z: z.view((3, -1, 5)),
    "slice": lambda z: z[:, :-1],
    "slice with vocabulary": lambda z: z[..., :-1, :].contiguous(),
    "slice of the vocabulary": lambda z: z[..., :3],
    "mask": lambda z: z[torch.tensor([[True, False, True], [False, True, True]])],
    "mask of the vocabulary": lambda z: z[z > 0],
    "mask of another library": lambda z: z[np.arange(30).reshape(2, 3, 5) % 4 == 0],
    "mask of a row": lambda z: z[torch.tensor([True, False])],
    "axis more": lambda z: z[None, :, -1],
    "as another tensor": lambda z: z.to(torch.ones(1)),
    "precision": lambda z: z.float().to(torch.float32).to(z.device),
    "scale": lambda z: 2 * (z / 4),
    "bias": lambda z: z * 0.5 + torch.arange(5.0)[None],
    "soft cap": lambda z: torch.tanh(z / 3) * 3,
    "bias with an axis more": lambda z: z + torch.arange(5.0).view(1, 1, 1, 5),
    "bias after a soft cap": lambda z: torch.tanh(z) + torch.arange(5.0),
    "another tensor": lambda z: z + torch.ones(2, 3, 5),
    "any function": lambda z: torch.softmax(z, dim=-1),
    "any method": lambda z: z.exp(),
    "twice a soft cap": lambda z: torch.tanh(torch.tanh(z)),
    "difference": lambda z: 1.0 - z - z.amax(-1, keepdim=True),
    "sum": lambda z: torch.ones(2, 3, 5) + (1 + z),
    "sign and power": lambda z: abs(-z) ** 2 + 2**z + 1 / z,
    "remainder": lambda z: z % 2 + z // 2,
    "product": lambda z: z @ torch.ones(5, 2) + (torch.ones(4, 3) @ z).sum(),
    "comparison": lambda z: (z > 0) ^ (z >= 1) ^ (z < 0.5) ^ (z <= 0.2) ^ (z == z.amax(-1, keepdim=True)) ^ (z != z),
    "several": lambda z: torch.cat((z, torch.ones(2, 1, 5)), dim=1),
    "rows": lambda z: torch.stack(list(z)) * len(z),
    "view with as many rows as classes": lambda z: z.view(5, 6),
}


@pytest.mark.parametrize("dim", [4, 5])  # a square head's hidden states have the shape of its logits
@pytest.mark.parametrize("step", STEPS)
def test_every_step_gives_what_the_logits_would(step, dim):
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (torch.randn(shape, generator=generator) for shape in ((2, 3, dim), (5, dim), (5,)))
    expected = STEPS[step](nn.functional.linear(hidden, weight, bias))
    result = STEPS[step](LinearLogits(hidden, weight, bias))
    assert result.shape == expected.shape
    torch.testing.assert_close(result.compute() if isinstance(result, LinearLogits) else result, expected)


@pytest.mark.parametrize(
    "step",
    [
        "view",
        "view of an axis more",
        "mask",
        "mask of a row",
        "slice with vocabulary",
        "scale",
        "bias",
        "soft cap",
        "precision",
        "as another tensor",
    ],
)
def test_what_models_do_to_logits_keeps_them_uncomputed(step):
    assert isinstance(STEPS[step](LinearLogits(torch.randn(2, 3, 4), torch.randn(5, 4))), LinearLogits)


def test_logits_go_to_another_device():
    assert LinearLogits(torch.randn(2, 3, 4), torch.randn(5, 4)).to("meta").device.type == "meta"


@torch.inference_mode()
def test_logits_of_inference_mode_that_were_looked_at_can_be_scaled():
    z = LinearLogits(torch.randn(2, 3, 4), torch.randn(5, 4))
    torch.testing.assert_close(z.compute() * 0.5, (z * 0.5).compute())


class ByKeyword(nn.Linear):
    """A linear layer that calls torch's function by keyword."""

    def forward(self, x):
        return nn.functional.linear(x, weight=self.weight, bias=self.bias)


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_a_head_with_backward_hooks_gives_them_the_gradient_of_its_logits(register):
    seen = {}
    for fused in (False, True):
        model = sparsify(tiny_model("llama"), head="entmax15", fused_loss=fused).train()
        halved = lambda *given: tuple(grad / 2 for grad in given[1])  # noqa: E731
        getattr(model.lm_head, register)(halved)
        model(**labelled(model)).loss.backward()
        seen[fused] = [weight.grad for weight in model.parameters()]
    for plain, other in zip(*seen.values()):
        torch.testing.assert_close(other, plain)


def test_a_head_that_calls_by_keyword_is_put_off():
    model = tiny_model("llama")
    model.lm_head = ByKeyword(model.config.hidden_size, model.config.vocab_size, bias=False)
    sparsify(model, head="entmax15", fused_loss=True)
    output, _ = loss_and_gradients(model, labelled(model))
    assert not output.logits.computed


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_head_that_is_compiled_by_itself_has_the_same_loss(backend):
    """As Accelerate's regional compilation does to every module without blocks."""
    model = sparsify(tiny_model("llama", num_hidden_layers=1), head="entmax15", fused_loss=True)
    output, gradients = loss_and_gradients(model, labelled(model))
    model.zero_grad()
    model.lm_head = torch.compile(model.lm_head, backend=backend)
    compiled, compiled_gradients = loss_and_gradients(model, labelled(model))
    torch.testing.assert_close(compiled.loss, output.loss)
    assert len(compiled_gradients) == len(gradients)
    for plain, other in zip(gradients.values(), compiled_gradients.values()):
        torch.testing.assert_close(other, plain)


def test_a_head_whose_tokens_are_trained_by_peft_has_the_loss_of_its_logits():
    def trained(fused):
        model = sparsify(tiny_model("t5"), head="entmax15", fused_loss=fused)
        config = LoraConfig(target_modules=["q"], trainable_token_indices=[3, 4], init_lora_weights=False)
        torch.manual_seed(0)
        return loss_and_gradients(get_peft_model(model, config), labelled(model))[0].loss

    torch.testing.assert_close(trained(True), trained(False), atol=1e-5, rtol=1e-5)


class Coded(torch.Tensor):
    """Weights as quantization leaves them: a class of tensors of its own, whose products are plain tensors."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs)
        return result.as_subclass(torch.Tensor) if function is nn.functional.linear else result


def test_a_head_whose_weights_are_coded_is_not_fused_before_or_after():
    def code(model):
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().as_subclass(Coded))
        return model

    with pytest.raises(ValueError, match="the head of LlamaForCausalLM, a Linear, is quantized"):
        sparsify(code(tiny_model("llama")), head="entmax15", fused_loss=True)
    model = code(sparsify(tiny_model("llama"), head="entmax15", fused_loss=True)).train()
    with pytest.raises(NotImplementedError, match="or pass fused_loss=False"):
        model(**labelled(model))
    plain, inputs = sparsify(tiny_model("llama"), head="entmax15"), labelled(model)
    expected = plain(**inputs).loss
    assert torch.equal(sparsify(code(tiny_model("llama")), head="entmax15")(**inputs).loss, expected)


WRITES = {
    "by index": lambda z: z.__setitem__((..., 0), -1e4),
    "by a method": lambda z: z.div_(2.0),
    "by a mask": lambda z: z.masked_fill_(torch.zeros(z.shape, dtype=torch.bool), 0.0),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("then", [lambda z: z.loss(MapConfig("entmax15"), torch.tensor([1, 2])), lambda z: z[:1]])
def test_logits_that_were_written_into_have_no_fused_loss(write, then):
    z = LinearLogits(torch.randn(2, 4), torch.randn(5, 4))
    write(z)
    with pytest.raises(NotImplementedError, match="writes into its logits before its loss"):
        then(z)
    looked_at = LinearLogits(torch.randn(2, 4), torch.randn(5, 4))
    assert looked_at.softmax(-1).shape == (2, 5)
    assert then(looked_at) is not None
