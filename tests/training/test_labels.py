"""Which label scores which position, whatever a model's class is called."""

import pytest
import torch
from transformers import (
    BartConfig,
    BartForCausalLM,
    BertConfig,
    BertForPreTraining,
    GPT2Config,
    GPT2DoubleHeadsModel,
    XLNetConfig,
    XLNetLMHeadModel,
)

from hf_sparse import SparseTrainer, SparseTrainingArguments, raw_scores, sparsify
from hf_sparse.losses import entmax15_loss
from hf_sparse.training.labels import counted, shifts_labels
from tests.sweep.architectures import build
from tests.tiny_models import spread, tiny_model, tokens


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


def decoder():
    """A causal class by its name, whose loss is of the token of each place."""
    sizes = {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 16}
    torch.manual_seed(0)
    return BartForCausalLM(BartConfig(vocab_size=23, d_model=16, dropout=0.0, **sizes)).eval()


@pytest.mark.parametrize("make", [xlnet, decoder])
def test_a_causal_class_that_scores_each_token_at_its_own_place_does_not_shift(make):
    assert not shifts_labels(make())
    assert not shifts_labels(sparsify(make(), head="entmax15"))


def test_the_name_of_a_class_decides_where_weights_are_elsewhere():
    assert shifts_labels(tiny_model("llama").to("meta"))
    assert shifts_labels(decoder().to("meta"))


@pytest.mark.parametrize("head", [None, "entmax15"])
def test_where_the_name_says_nothing_the_loss_that_is_asked_for_decides(head):
    """GPT-2 where its weights are elsewhere, Idefics, of which no inputs can be made up; XLNet scores in place."""
    gpt2, idefics = tiny_model("gpt2").to("meta"), build("idefics", "IdeficsForVisionText2Text")
    assert gpt2.loss_type is idefics.loss_type is None
    models = [gpt2, idefics, xlnet().to("meta")]
    if head:
        for model in models:
            sparsify(model, head=head)
    assert [shifts_labels(model) for model in models] == [True, True, False]


def test_a_decoder_that_shifts_nothing_is_trained_on_the_mean_over_its_labels(tmp_path):
    model = sparsify(decoder(), head="entmax15")
    ids = torch.randint(3, 23, (4, 6), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row[:-1], "labels": row[1:]} for row in ids]
    with torch.no_grad(), raw_scores(model):
        logits = model(torch.stack([row["input_ids"] for row in rows])).logits
    loss = entmax15_loss(logits.flatten(0, 1), ids[:, 1:].flatten())
    arguments = SparseTrainingArguments(
        str(tmp_path), max_steps=1, per_device_train_batch_size=4, report_to=[], use_cpu=True, disable_tqdm=True
    )
    trainer = SparseTrainer(model, arguments, train_dataset=rows)
    assert trainer.train().training_loss == pytest.approx(float(loss), rel=1e-5)


def test_rows_of_several_choices_are_trained(tmp_path):
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    model = sparsify(spread(GPT2DoubleHeadsModel(GPT2Config(vocab_size=23, **sizes))), head="entmax15")
    ids = torch.randint(3, 23, (2, 8), generator=torch.Generator().manual_seed(0))
    row = {"input_ids": ids, "labels": ids, "mc_token_ids": torch.tensor([7, 7]), "mc_labels": torch.tensor(1)}
    arguments = SparseTrainingArguments(str(tmp_path), max_steps=1, report_to=[], use_cpu=True, disable_tqdm=True)
    trainer = SparseTrainer(model, arguments, train_dataset=[row, row])
    assert trainer.train().training_loss > 0
    with torch.no_grad():
        logits = model.eval()(ids[None], mc_token_ids=row["mc_token_ids"][None]).logits
    support = (logits[..., :-1, :].exp() > 0).sum(-1).double().mean()
    assert trainer.evaluate([row])["eval_head_support"] == pytest.approx(float(support))


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


def test_labels_of_another_head_alone_ask_nothing_of_the_sparse_one():
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2}
    model = spread(GPT2DoubleHeadsModel(GPT2Config(vocab_size=23, **sizes))).eval()
    choices = {"input_ids": tokens()[None], "mc_token_ids": torch.tensor([[3, 3]]), "mc_labels": torch.tensor([1])}
    expected = model(**choices).mc_loss
    assert torch.equal(sparsify(model, head="entmax15")(**choices).mc_loss, expected)
