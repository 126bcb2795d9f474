"""Training sparse to decode dense: the price beside the loss, exact under accumulation, and what goes without it."""

import pytest
import torch

from hf_sparse import SparseTrainer, SparseTrainingArguments, sparsify, unsparsify
from hf_sparse.functional import sparsemax
from hf_sparse.losses import sparsemax_loss
from tests.tiny_models import tiny_model
from tests.training.runs import arguments, largest_change, rows_of_uneven_length
from tests.training.test_distillation import no_dropout, scored


def sharp(name, head="sparsemax", **settings):
    """A model whose logits leave classes outside the support."""
    model, batch = no_dropout(tiny_model(name, seed=3)), rows_of_uneven_length().with_format("torch")[:]
    scale = float(model(**batch).logits.detach().std())
    model.get_output_embeddings().register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2 / scale,))
    return sparsify(model, head=head, **settings)


def trained(model, path, **options):
    trainer = SparseTrainer(model, arguments(path, **options), train_dataset=rows_of_uneven_length())
    trainer.train()
    return trainer


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("name", ["llama", "bart", "t5", "bert", "gpt2"])
def test_the_loss_is_the_sparse_one_and_the_price(name, temperature, tmp_path):
    head = {"name": "sparsemax", "temperature": temperature}
    model, batch = sharp(name, head), rows_of_uneven_length().with_format("torch")[:]
    with torch.no_grad():
        z, y = scored(name, model(**batch).logits.double(), batch["labels"])
    p, q = sparsemax(z / temperature), z.softmax(-1)
    outside = (q * ((p == 0) & ~torch.nn.functional.one_hot(y, z.shape[-1]).bool())).sum(-1)
    own, price = temperature * sparsemax_loss(z / temperature, y), -torch.log1p(-outside).mean()
    assert float(price) > 0.01
    trainer = trained(model, tmp_path, suppression_weight=0.25)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(float(own + 0.25 * price), rel=1e-4)


def test_accumulated_batches_are_one_batch(tmp_path):
    whole, parts = sharp("llama"), sharp("llama")
    trained(whole, tmp_path, suppression_weight=0.5)
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    trained(parts, tmp_path, suppression_weight=0.5, **options)
    assert largest_change(whole, sharp("llama")) > 1e-3
    assert largest_change(whole, parts) < 1e-5


def test_the_softmax_of_the_trained_scores_has_less_outside(tmp_path):
    def outside(model):
        batch = rows_of_uneven_length().with_format("torch")[:]
        with torch.no_grad():
            z, _ = scored("llama", model(**batch).logits, batch["labels"])
        return float((z.softmax(-1) * (sparsemax(z) == 0)).sum(-1).mean())

    plain, priced = sharp("llama"), sharp("llama")
    trained(plain, tmp_path, max_steps=20)
    trained(priced, tmp_path, max_steps=20, suppression_weight=1.0)
    assert outside(priced) < 0.9 * outside(plain)
    assert type(unsparsify(priced)) is type(tiny_model("llama"))


def test_the_price_is_for_training_alone(tmp_path):
    model = sharp("llama")
    plain = SparseTrainer(model, arguments(tmp_path), eval_dataset=rows_of_uneven_length()).evaluate()
    options = arguments(tmp_path, suppression_weight=0.5)
    priced = SparseTrainer(model, options, eval_dataset=rows_of_uneven_length()).evaluate()
    assert priced["eval_loss"] == plain["eval_loss"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attn": "entmax15"}, "LlamaForCausalLM has no such head"),
        ({"head": "softmax"}, "LlamaForCausalLM has no such head"),
        ({"head": {"name": "entmax", "alpha": 1.0}}, "LlamaForCausalLM has no such head"),
        ({"head": "sparsemax", "fused_loss": True}, "fused_loss=True never makes the logits"),
    ],
)
def test_models_without_an_outside_are_refused(settings, message, tmp_path):
    model = sparsify(tiny_model("llama"), **settings)
    with pytest.raises(ValueError, match=message):
        SparseTrainer(model, arguments(tmp_path, suppression_weight=0.25))


def test_options_that_do_not_go_with_it_are_refused(tmp_path):
    for other in ({"distillation_weight": 0.5}, {"max_loss_increase": 0.01}):
        options = arguments(tmp_path, suppression_weight=0.25, **other)
        with pytest.raises(ValueError, match="suppression_weight"):
            SparseTrainer(sharp("llama"), options, teacher=tiny_model("llama"))
    for wrong in (-1.0, float("inf"), "much"):
        with pytest.raises((ValueError, TypeError), match="suppression_weight must be"):
            SparseTrainingArguments(str(tmp_path), suppression_weight=wrong)
