"""Labels that are scored without logits, as trainers of others ask for: by the distribution, or by the map's loss."""

import functools
from types import MethodType

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from hf_sparse import sparsify
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
