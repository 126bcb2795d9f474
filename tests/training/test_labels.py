"""Which label scores which position, whatever a model's class is called."""

import pytest
import torch
from transformers import BertConfig, BertForPreTraining, XLNetConfig, XLNetLMHeadModel

from hf_sparse import SparseTrainer, SparseTrainingArguments, sparsify
from hf_sparse.training.labels import counted, shifts_labels
from tests.tiny_models import tiny_model


def xlnet():
    torch.manual_seed(0)
    return XLNetLMHeadModel(XLNetConfig(vocab_size=32, d_model=16, n_layer=1, n_head=2, d_inner=16)).eval()


@pytest.mark.parametrize("settings", [None, {"head": "entmax15"}, {"head": "entmax15", "fused_loss": True}], ids=str)
@pytest.mark.parametrize(
    ("name", "shifts"), [("llama", True), ("gpt2", True), ("bert", False), ("bart", False), ("t5", False)]
)
def test_labels_are_shifted_where_the_loss_of_the_model_shifts_them(name, shifts, settings):
    model = tiny_model(name)
    if settings:
        sparsify(model, **settings)
    random = torch.get_rng_state()
    assert shifts_labels(model) == shifts
    assert torch.equal(random, torch.get_rng_state())


def test_a_causal_class_that_scores_each_token_at_its_own_place_does_not_shift():
    assert not shifts_labels(xlnet())


def test_a_model_without_a_loss_for_labels_alone_shifts_nothing_and_is_trained(tmp_path):
    """BERT for pretraining, whose class name says nothing either, wants labels of the next sentence besides."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = sparsify(BertForPreTraining(BertConfig(vocab_size=23, **sizes)).eval(), attn="entmax15")
    assert not shifts_labels(model)
    row = {"input_ids": torch.arange(3, 9), "labels": torch.arange(3, 9), "next_sentence_label": torch.tensor(1)}
    arguments = SparseTrainingArguments(str(tmp_path), max_steps=1, report_to=[], use_cpu=True, disable_tqdm=True)
    assert SparseTrainer(model, arguments, train_dataset=[row]).train().training_loss > 0


def test_the_first_label_of_a_row_counts_only_where_none_is_shifted():
    inputs = {"labels": torch.tensor([[5, -100, 7], [-100, 6, -100]])}
    assert counted(inputs, shifts_labels=True).tolist() == [[False, True], [True, False]]
    assert counted(inputs, shifts_labels=False).tolist() == [[True, False, True], [False, True, False]]
    shifted = {**inputs, "shift_labels": torch.tensor([[-100, 7, -100], [6, -100, -100]])}
    assert counted(shifted, shifts_labels=True).tolist() == [[False, True, False], [True, False, False]]


def test_the_log_of_missed_targets_looks_at_the_next_token(tmp_path):
    """GPT-2, whose class says nothing of its loss, after each token of which one token is possible."""
    model = sparsify(tiny_model("gpt2"), head="sparsemax")
    model.eval()
    ids = torch.tensor([[3, 7, 11, 15, 3, 7, 11, 15]]).repeat(4, 1)
    arguments = SparseTrainingArguments(
        str(tmp_path),
        max_steps=150,
        learning_rate=1e-2,
        report_to=[],
        logging_steps=50,
        use_cpu=True,
        disable_tqdm=True,
    )
    rows = [{"input_ids": row, "labels": row} for row in ids]
    trainer = SparseTrainer(model, arguments, train_dataset=rows)
    trainer.train()
    logs = [log for log in trainer.state.log_history if "head_missed_rate" in log]
    assert logs[-1]["loss"] < 0.05
    assert logs[-1]["head_missed_rate"] == 0
