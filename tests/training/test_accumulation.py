"""Gradient accumulation: several small batches train as one big batch does."""

import pytest
from transformers import (
    Trainer,
    Wav2Vec2ForCTC,
    Wav2Vec2ForSequenceClassification,
)

from hf_sparse import (
    SparseSeq2SeqTrainer,
    SparseTrainer,
    sparsify,
)
from tests.tiny_models import tiny_model
from tests.training.runs import ROWS, arguments, heard, largest_change, sounds, trained


@pytest.mark.parametrize(
    "settings", [{"attn": "entmax15", "head": "entmax15"}, {"attn": "sparsemax"}], ids=["both", "attn"]
)
@pytest.mark.parametrize("trainer_class", [Trainer, SparseTrainer, SparseSeq2SeqTrainer])
@pytest.mark.parametrize("name", ["llama", "bert", "t5", "bart"])
def test_accumulation_equals_one_big_batch(name, trainer_class, settings, tmp_path):
    start = sparsify(tiny_model(name), **settings)
    whole, _ = trained(trainer_class, name, tmp_path, settings)
    parts, _ = trained(
        trainer_class, name, tmp_path, settings, per_device_train_batch_size=2, gradient_accumulation_steps=4
    )
    moved = largest_change(start, whole)
    assert moved > 1e-3
    assert largest_change(parts, whole) < 1e-6 * max(1, moved)


@pytest.mark.parametrize("trainer_class", [Trainer, SparseTrainer])
@pytest.mark.parametrize(
    ("model_class", "reduction"),
    [(Wav2Vec2ForCTC, "sum"), (Wav2Vec2ForCTC, "mean"), (Wav2Vec2ForSequenceClassification, "sum")],
)
def test_accumulation_of_sums_and_means_without_a_head_equals_one_big_batch(
    model_class, reduction, trainer_class, tmp_path
):
    data, losses_seen = sounds(of_rows=model_class is Wav2Vec2ForSequenceClassification), []
    for batch in (ROWS, 2):
        options = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": ROWS // batch}
        model = sparsify(heard(model_class, ctc_loss_reduction=reduction), attn="entmax15")
        trainer = trainer_class(model, arguments(tmp_path, **options), train_dataset=data)
        trainer.train()
        losses_seen.append(trainer.state.log_history[0]["loss"])
    assert losses_seen[1] == pytest.approx(losses_seen[0], rel=1e-4)


def test_a_class_without_a_head_may_say_that_its_losses_add_up():
    class Summing(Wav2Vec2ForSequenceClassification):
        accepts_loss_kwargs = True

    assert sparsify(heard(Summing), attn="entmax15").accepts_loss_kwargs
    assert not sparsify(heard(Wav2Vec2ForSequenceClassification), attn="entmax15").accepts_loss_kwargs


def test_the_stock_trainer_accumulates_this_dense_model_wrongly(tmp_path):
    """What the test above guards against: T5 says it takes num_items_in_batch, and forgets it."""
    whole, _ = trained(Trainer, "t5", tmp_path, {})
    parts, _ = trained(Trainer, "t5", tmp_path, {}, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    assert largest_change(parts, whole) > 1e-3
