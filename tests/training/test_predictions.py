"""What trainers predict and measure with a sparse head: its distribution, or texts from it."""

import pytest
import torch
from peft import LoraConfig, PeftMixedModel
from torch import nn
from transformers import (
    Seq2SeqTrainer,
    Trainer,
)

from hf_sparse import (
    SparseSeq2SeqTrainer,
    SparseTrainer,
    log_probabilities,
    probabilities,
    raw_scores,
    sparsify,
)
from hf_sparse.model import logits_guard
from hf_sparse.model.find import sparse_state
from hf_sparse.training import store_supports
from tests.tiny_models import tiny_model
from tests.training.runs import ROWS, arguments, rows_of_uneven_length


@pytest.mark.parametrize("trainer_class", [Trainer, Seq2SeqTrainer, SparseTrainer, SparseSeq2SeqTrainer])
@pytest.mark.parametrize("name", ["llama", "bert", "bart"])
def test_metrics_and_predictions_read_the_sparse_distribution(name, trainer_class, tmp_path):
    model = sparsify(tiny_model(name), attn="entmax15", head="entmax15")
    data = rows_of_uneven_length()
    with torch.no_grad(), log_probabilities(model):
        batch = data.with_format("torch")[:]
        expected = model(input_ids=batch["input_ids"], labels=batch["labels"])
    read = []

    def nll(prediction):
        logits = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
        read.append(torch.as_tensor(logits))
        return {"possible": float((read[-1].softmax(-1) > 0).double().mean())}

    trainer = trainer_class(model, arguments(tmp_path), eval_dataset=data, compute_metrics=nll)
    metrics = trainer.evaluate()
    assert metrics["eval_possible"] == pytest.approx(float((expected.logits.exp() > 0).double().mean()), abs=1e-6)
    assert 0 < metrics["eval_possible"] < 1
    assert metrics["eval_loss"] == pytest.approx(float(expected.loss), rel=1e-5)
    torch.testing.assert_close(read[0], expected.logits, rtol=1e-4, atol=1e-4)
    with raw_scores(model):
        trainer.predict(data)
    torch.testing.assert_close(probabilities(model, read[1]), expected.logits.exp(), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(read[0], read[1])


class Wrapper(nn.Module):
    """A user's own module around a language model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels=None):
        output = self.model(input_ids=input_ids, labels=labels)
        return {"loss": output.loss, "logits": output.logits}


@pytest.mark.parametrize(
    "wrapped",
    [Wrapper, lambda model: PeftMixedModel(model, LoraConfig(target_modules=["q_proj"]), adapter_name="first")],
    ids=["own", "mixed"],
)
def test_metrics_of_a_wrapped_model_read_the_sparse_distribution(wrapped, tmp_path):
    model = sparsify(tiny_model("llama"), head="entmax15").eval()
    data, seen = rows_of_uneven_length(), []
    trainer = Trainer(wrapped(model), arguments(tmp_path), compute_metrics=lambda found: seen.append(found) or {})
    trainer.evaluate(data)
    with torch.no_grad():
        expected = model(torch.tensor(data["input_ids"])).logits
    torch.testing.assert_close(torch.tensor(seen[0].predictions), expected)
    assert bool((expected.softmax(-1) == 0).any())


def test_prediction_by_generation_works(tmp_path):
    model = sparsify(tiny_model("bart"), attn="entmax15", head="entmax15")
    model.generation_config.max_length = 5
    args = arguments(tmp_path, predict_with_generate=True)
    output = SparseSeq2SeqTrainer(model, args).predict(rows_of_uneven_length())
    assert output.predictions.shape == (ROWS, 5)
    assert isinstance(SparseSeq2SeqTrainer(model, args), Seq2SeqTrainer)
    with pytest.raises(ValueError, match=r"predict_with_generate=True needs .*: use SparseSeq2SeqTrainer, or set"):
        SparseTrainer(model, args)


def test_an_evaluation_by_generation_tells_the_sparsity_at_the_labels(tmp_path):
    seen = []
    for generated in (False, True):
        model = sparsify(tiny_model("bart"), attn="entmax15", head="entmax15")
        model.generation_config.max_length = 5
        args = arguments(tmp_path, predict_with_generate=generated)
        trainer = SparseSeq2SeqTrainer(model, args, compute_metrics=lambda _: {})
        metrics = trainer.evaluate(rows_of_uneven_length())
        seen.append(sparse_state(model).metrics)
        assert {f"eval_{name}" for name in seen[-1]} <= set(metrics)
    assert {"head_support", "head_missed_rate", "attention_support"} <= set(seen[1])
    assert seen[1] == pytest.approx(seen[0])


class Distilling(Trainer):
    """Compares a model's logits with a teacher's beside the labels, as scripts do that distil."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = -outputs.logits[:, :-1].log_softmax(-1).gather(-1, inputs["labels"][:, 1:, None].clamp(min=0)).mean()
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize("fused", [False, True])
def test_a_compute_loss_of_ones_own_trains_on_the_logits_it_is_evaluated_by(fused, tmp_path):
    model = sparsify(tiny_model("llama"), attn="entmax15", head="entmax15", fused_loss=fused)
    data = rows_of_uneven_length()
    batch = data.with_format("torch")[:]
    args = arguments(tmp_path, max_steps=1, per_device_train_batch_size=len(data), learning_rate=0.0)
    trainer = Distilling(model, args, train_dataset=data, eval_dataset=data)
    with torch.no_grad():
        log_p = model(batch["input_ids"]).logits[:, :-1]
    by_hand = -log_p.gather(-1, batch["labels"][:, 1:, None].clamp(min=0)).mean()
    assert by_hand > 1000  # impossible tokens are on the floor
    assert trainer.train().training_loss == pytest.approx(float(by_hand), rel=1e-4)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(by_hand), rel=1e-4)
    with raw_scores(model):
        assert trainer.train().training_loss < 100


class Reading(SparseTrainer):
    """Takes the loss as it is, and looks at the logits."""

    def compute_loss(self, *args, return_outputs=False, **kwargs):
        loss, self.outputs = super().compute_loss(*args, return_outputs=True, **kwargs)
        return (loss, self.outputs) if return_outputs else loss


@pytest.mark.parametrize(
    ("option", "stored", "temperature"),
    [
        ("distillation_weight", False, 1.0),
        ("distillation_weight", False, 2.0),
        ("distillation_weight", True, 2.0),
        ("suppression_weight", False, 1.0),
    ],
)
def test_a_compute_loss_that_reads_logits_leaves_what_options_add_to_the_loss(option, stored, temperature, tmp_path):
    data, losses = rows_of_uneven_length(), []
    rows = store_supports(tiny_model("llama"), data, draws=4) if stored else data
    teacher = None if stored or option == "suppression_weight" else tiny_model("llama")
    for cls in (SparseTrainer, Reading):
        head = {"name": "entmax15", "temperature": temperature}
        model = sparsify(tiny_model("llama"), head=head, fused_loss=stored)
        args = arguments(tmp_path, learning_rate=0.0, **{option: 0.5})
        trainer = cls(model, args, train_dataset=rows, teacher=teacher)
        losses.append(trainer.train().training_loss)
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    total = trainer.outputs.logits.detach().exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-4, atol=0)  # of log-probabilities


class Logging(Trainer):
    """Takes the model's loss as it is."""

    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs)


@pytest.mark.parametrize("fused", [False, True])
def test_a_fused_loss_that_is_given_up_is_told_once_and_kept_among_raw_scores(fused, tmp_path, caplog):
    model = sparsify(tiny_model("llama"), attn="entmax15", head="entmax15", fused_loss=fused)
    type(logits_guard.logger).warning_once.cache_clear()
    trainer = Logging(model, arguments(tmp_path, max_steps=2), train_dataset=rows_of_uneven_length())
    with raw_scores(model):
        trainer.train()
    assert "unfused" not in caplog.text
    trainer.train()
    assert caplog.text.count("Logging has a compute_loss of its own") == fused
