"""Labels that are scored without logits, as trainers of others ask for: by the distribution, or by the map's loss."""

import functools
from types import MethodType

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from hf_sparse import sparsify
from hf_sparse.functional import entmax15
from hf_sparse.losses import entmax15_loss
from hf_sparse.model.find import sparse_state
from tests.tiny_models import DECODER, TOKENS, labelled, tiny_model


def with_fused_head(model, temperature=1.0, outputs=("log_probs", "entropy", "is_top1")):
    """As ``trl.trainer.utils.add_fused_lm_head`` leaves a model, by the names that its closure holds."""
    own = model.forward

    @functools.wraps(type(model).forward)
    def fused_forward(self, *args, fused_lm_head=False, **kwargs):
        return (temperature, outputs) if fused_lm_head else own(*args, **kwargs)

    model.forward = MethodType(fused_forward, model)
    return model


@pytest.mark.parametrize("fused_loss", [False, True])
@pytest.mark.parametrize("by_loss", [False, True])
def test_labels_are_scored_by_the_distribution_or_by_the_loss_of_the_map(by_loss, fused_loss):
    head = {"name": "entmax15", "temperature": 2.0}
    model = with_fused_head(sparsify(tiny_model("llama"), head=head, fused_loss=fused_loss))
    inputs = labelled(model)
    targets = inputs["labels"][:, 1:]
    mask = targets != -100
    z = model(inputs["input_ids"], log_probs=False).logits[:, :-1][mask] / 2
    log_p = model(inputs["input_ids"]).logits[:, :-1][mask]
    sparse_state(model).scored_by_loss = by_loss
    output = model(**inputs, fused_lm_head=True)
    if by_loss:
        expected = -2 * entmax15_loss(z, targets[mask], reduction="none")
    else:
        expected = log_p.gather(-1, targets[mask][:, None])[:, 0]
    torch.testing.assert_close(output.log_probs[mask], expected)
    assert not output.log_probs[~mask].any()
    torch.testing.assert_close(output.loss, -expected.mean())
    torch.testing.assert_close(output.entropy[mask], -(log_p.exp() * log_p).sum(-1))
    assert torch.equal(output.is_top1[mask], z.argmax(-1) == targets[mask])


@pytest.mark.parametrize("at_a_time", [46, 1 << 24], ids=["two rows at a time", "all rows"])
def test_what_is_asked_for_is_read_at_the_samplers_temperature(at_a_time, monkeypatch):
    monkeypatch.setattr("hf_sparse.model.label_scores.LOGITS_AT_A_TIME", at_a_time)
    model = with_fused_head(sparsify(tiny_model("llama"), head="entmax15"), 0.5, ("log_sum_sq_probs", "mean_logits"))
    inputs = labelled(model)
    targets = inputs["labels"][:, 1:]
    mask = targets != -100
    z = model(inputs["input_ids"], log_probs=False).logits[:, :-1][mask]
    p = entmax15(z).square()
    p = p / p.sum(-1, keepdim=True)
    output = model(**inputs, fused_lm_head=True, num_items_in_batch=50)
    torch.testing.assert_close(output.log_probs[mask].exp(), p.gather(-1, targets[mask][:, None])[:, 0])
    torch.testing.assert_close(output.loss, -output.log_probs.sum() / 50)
    torch.testing.assert_close(output.log_sum_sq_probs[mask], p.square().sum(-1).log())
    torch.testing.assert_close(output.mean_logits[mask], z.mean(-1) / 0.5)
    assert output.entropy is None
    assert output.is_top1 is None


def test_labels_of_a_model_in_half_precision_are_scored_in_float32():
    model = with_fused_head(sparsify(tiny_model("llama"), head="entmax15").bfloat16(), outputs=("mean_logits",))
    output = model(**labelled(model), fused_lm_head=True)
    assert output.log_probs.dtype == output.mean_logits.dtype == torch.float32


def test_a_dense_head_and_a_forward_that_stood_there_before_are_kept():
    assert with_fused_head(sparsify(tiny_model("llama"), attn="entmax15"))(fused_lm_head=True)[0] == 1.0
    model, seen = sparsify(tiny_model("llama"), head="entmax15"), []
    own = model.forward
    model.forward = functools.wraps(own)(lambda **inputs: seen.append(inputs.keys()) or own(**inputs))
    with_fused_head(model)
    model(**labelled(model))
    model(**labelled(model), fused_lm_head=True)
    assert len(seen) == 2


def test_the_loss_of_scored_labels_has_that_of_experts():
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=23, **TOKENS, **DECODER, num_key_value_heads=2, num_local_experts=4,
        output_router_logits=True, router_aux_loss_coef=0.5,
    )  # fmt: skip
    model = with_fused_head(sparsify(MixtralForCausalLM(config).eval(), head="entmax15"))
    inputs = labelled(tiny_model("llama"))
    own, output = model(**inputs), model(**inputs, fused_lm_head=True)
    assert own.aux_loss > 0
    torch.testing.assert_close(output.aux_loss, own.aux_loss)
    count = (inputs["labels"][:, 1:] != -100).sum()
    torch.testing.assert_close(output.loss, -output.log_probs.sum() / count + 0.5 * own.aux_loss)
