"""Training: the model's own loss in every trainer, whatever model, collator or override."""

import pytest
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import (
    DataCollatorForSeq2Seq,
    Trainer,
)

from hf_sparse import (
    SparseTrainer,
    losses,
    sparsify,
)
from tests.tiny_models import tiny_model
from tests.training.runs import arguments, rows_of_uneven_length, trained


@pytest.mark.parametrize("trainer_class", [Trainer, SparseTrainer])
def test_both_trainers_minimize_the_maps_loss(trainer_class, tmp_path):
    settings = {"head": {"name": "alpha_relu", "tau": 0.2}}
    model = sparsify(tiny_model("bart"), **settings)
    data = rows_of_uneven_length().with_format("torch")[:]
    logits = model(input_ids=data["input_ids"], labels=data["labels"]).logits.detach()
    expected = float(losses.alpha_relu_loss(logits, data["labels"], 1.5, 0.2))
    _, trainer = trained(trainer_class, "bart", tmp_path, settings)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-4)


def test_label_smoothing_is_part_of_the_sparse_loss_in_training_only(tmp_path):
    settings = {"head": "entmax15"}
    data = rows_of_uneven_length()
    batch = data.with_format("torch")[:]
    model = sparsify(tiny_model("bart"), **settings)
    logits = model(input_ids=batch["input_ids"], labels=batch["labels"]).logits.detach()
    smoothed = float(losses.entmax15_loss(logits, batch["labels"], label_smoothing=0.3))
    _, trainer = trained(SparseTrainer, "bart", tmp_path, settings, sparse_label_smoothing=0.3, learning_rate=0.0)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(smoothed, rel=1e-4)
    plain = float(losses.entmax15_loss(logits, batch["labels"]))
    assert trainer.evaluate(data)["eval_loss"] == pytest.approx(plain, rel=1e-4)


def test_a_peft_model_trains_its_adapter_on_the_sparse_loss(tmp_path):
    base = sparsify(tiny_model("llama"), attn="entmax15", head="entmax15")
    model = get_peft_model(base, LoraConfig(target_modules=["q_proj"], lora_dropout=0.0))
    data = rows_of_uneven_length()
    batch = data.with_format("torch")[:]
    expected = float(base(input_ids=batch["input_ids"], labels=batch["labels"]).loss.detach())
    trainer = SparseTrainer(model, arguments(tmp_path), train_dataset=data)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-4)


def empty_tokenizer():
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    return Tokenizer(WordLevel({"<pad>": 0, "a": 1}, unk_token="a"))


def test_a_padding_collator_works(tmp_path):
    from transformers import PreTrainedTokenizerFast

    from tests.tiny_models import PAD

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=empty_tokenizer(), pad_token="<pad>")
    assert tokenizer.pad_token_id == PAD
    model = sparsify(tiny_model("bart"), attn="entmax15", head="entmax15")
    data = Dataset.from_list([{"input_ids": [5, 4, 3], "labels": [3, 4]}, {"input_ids": [5], "labels": [4, 4, 4, 2]}])
    trainer = SparseTrainer(
        model, arguments(tmp_path), train_dataset=data, data_collator=DataCollatorForSeq2Seq(tokenizer, model=model)
    )
    trainer.train()
    assert trainer.state.log_history[0]["loss"] > 0


class ByPosition(SparseTrainer):
    """Hands Trainer's arguments on by their places."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def evaluation_loop(
        self, loader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ):
        return super().evaluation_loop(loader, description, prediction_loss_only, ignore_keys, metric_key_prefix)


def test_overrides_may_hand_arguments_on_by_position(tmp_path):
    losses = []
    for trainer_class in (SparseTrainer, ByPosition):
        model = sparsify(tiny_model("llama"), head="entmax15")
        trainer = trainer_class(model, arguments(tmp_path), train_dataset=rows_of_uneven_length())
        losses.append(trainer.train().training_loss)
        assert "test_head_support" in trainer.evaluate(rows_of_uneven_length(), metric_key_prefix="test")
    assert losses[0] == losses[1]
