"""What training logs of sparsity, and what its first step warns of."""

import pytest
import torch
from transformers import (
    Trainer,
)

from hf_sparse import (
    SparseTrainer,
    probabilities,
    sparsify,
)
from hf_sparse.model import lazy_logits
from hf_sparse.model.find import sparse_state
from hf_sparse.model.lazy_logits import LinearLogits
from tests.tiny_models import tiny_model
from tests.training.runs import ROWS, arguments, rows_of_uneven_length, trained


def test_logs_tell_supports_of_head_and_attention(tmp_path):
    settings = {"attn": "entmax15", "head": "entmax15"}
    model = sparsify(tiny_model("t5"), **settings)
    data = rows_of_uneven_length().with_format("torch")[:]
    with torch.no_grad():
        logits = model(input_ids=data["input_ids"], labels=data["labels"]).logits
    support = (probabilities(model, logits[data["labels"] != -100]) > 0).sum(-1).float()
    _, trainer = trained(SparseTrainer, "t5", tmp_path, settings, max_steps=2, logging_steps=1)
    first = trainer.state.log_history[0]
    assert first["head_support"] == pytest.approx(float(support.mean()))
    assert first["head_zero_rate"] == pytest.approx(1 - float(support.mean()) / 23)
    assert 1 <= first["attention_support"] < 6
    assert 0 < first["attention_zero_rate"] < 1
    metrics = trainer.evaluate(rows_of_uneven_length())
    assert {"eval_head_support", "eval_attention_zero_rate"} <= set(metrics)
    _, quiet = trained(SparseTrainer, "t5", tmp_path, settings, log_sparsity=False)
    assert "head_support" not in quiet.state.log_history[0]


@pytest.mark.parametrize(
    ("options", "counted", "logs"),
    [
        ({"max_steps": -1, "num_train_epochs": 3}, {0, 3, 7, 11}, 3),
        ({"max_steps": 5}, {0, 3, 4}, 2),
        ({"max_steps": -1, "num_train_epochs": 3, "gradient_accumulation_steps": 3}, {0, 1, 3, 5}, 3),
    ],
    ids=["whole epochs", "the last one cut off", "a last step of fewer batches"],
)
def test_logs_of_epochs_tell_supports_at_their_ends(options, counted, logs, tmp_path, monkeypatch):
    seen, count_head = set(), SparseTrainer._count_head

    def watched(self, *args):
        seen.add(self.state.global_step)
        count_head(self, *args)

    monkeypatch.setattr(SparseTrainer, "_count_head", watched)
    options = {"logging_strategy": "epoch", "per_device_train_batch_size": ROWS // 4, **options}
    _, trainer = trained(SparseTrainer, "t5", tmp_path, {"head": "entmax15"}, **options)
    found = [log for log in trainer.state.log_history if "loss" in log]
    assert [("head_support" in log) for log in found] == [True] * logs
    assert seen == counted


def test_logs_of_a_fused_loss_hold_few_logits_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(lazy_logits, "LOGITS_AT_A_TIME", 3 * tiny_model("llama").config.vocab_size)
    compute, computed, logs = LinearLogits.compute, [], []

    def counted(z):
        computed.append(len(z.hidden))
        return compute(z)

    monkeypatch.setattr(LinearLogits, "compute", counted)
    for fused in (False, True):
        model = sparsify(tiny_model("llama"), head="entmax15", fused_loss=fused)
        trainer = SparseTrainer(model, arguments(tmp_path), train_dataset=rows_of_uneven_length())
        trainer.train()
        logs.append({name: value for name, value in trainer.state.log_history[0].items() if name.startswith("head")})
    assert logs[0] == pytest.approx(logs[1], rel=1e-6)
    assert len(logs[0]) == 3
    assert len(computed) > 1
    assert max(computed) == 3


@pytest.mark.parametrize("lazy", [False, True])
def test_rows_of_logits_come_a_few_at_a_time_and_none_where_no_label_counts(lazy, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    logits = LinearLogits(torch.randn(2, 3, 4, generator=generator), torch.randn(5, 4, generator=generator))
    given, chosen = logits if lazy else logits.compute(), torch.tensor([[True, False, True], [True, True, False]])
    monkeypatch.setattr(lazy_logits, "_IN_CACHE", 1)
    few = max(1, torch.get_num_threads() // 5)
    rows = list(lazy_logits.computed_rows(given, chosen))
    assert {len(each) for each in rows} == {few}
    torch.testing.assert_close(torch.cat(rows), logits.compute()[chosen])
    assert list(lazy_logits.computed_rows(given, torch.zeros_like(chosen))) == []


def test_causal_positions_are_those_that_are_scored(tmp_path):
    settings = {"head": "sparsemax"}
    model = sparsify(tiny_model("llama"), **settings)
    data = rows_of_uneven_length().with_format("torch")[:]
    with torch.no_grad():
        logits = model(input_ids=data["input_ids"]).logits[:, :-1]
    scored = logits[data["labels"][:, 1:] != -100]
    support = (probabilities(model, scored) > 0).sum(-1).float().mean()
    _, trainer = trained(SparseTrainer, "llama", tmp_path, settings)
    assert trainer.state.log_history[0]["head_support"] == pytest.approx(float(support))


def first_warnings(caplog, path, head, **options):
    caplog.clear()
    _, trainer = trained(SparseTrainer, "bart", path, {"head": head}, max_steps=2, logging_steps=2, **options)
    warned = [record.getMessage() for record in caplog.records if record.name.startswith("hf_sparse")]
    return warned, trainer.state.log_history[0]


def test_the_first_step_warns_where_most_targets_are_missed(tmp_path, caplog):
    cold = {"name": "entmax15", "temperature": 0.05}
    warned, log = first_warnings(caplog, tmp_path, cold, learning_rate=0.0)
    model = sparsify(tiny_model("bart"), head=cold)
    batch = rows_of_uneven_length().with_format("torch")[:]
    p = probabilities(model, model(input_ids=batch["input_ids"], labels=batch["labels"]).logits)
    counted = batch["labels"] != -100
    missed = float((p[counted].gather(-1, batch["labels"][counted][:, None]) == 0).float().mean())
    assert missed > 0.5
    assert log["head_missed_rate"] == pytest.approx(missed)
    assert len(warned) == 1
    assert warned[0].startswith(f"at the first step {missed:.0%} of the targets have probability zero")
    assert f'"temperature": "auto" ({23**0.25:.3g} here, it has 0.05)' in warned[0]


def test_the_first_step_warns_once_of_several_batches(tmp_path, caplog):
    batches = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    warned, _ = first_warnings(caplog, tmp_path, {"name": "entmax15", "temperature": 0.05}, **batches)
    assert len(warned) == 1


@pytest.mark.parametrize(
    "head",
    [{"name": "entmax15", "temperature": 9.0}, {"name": "sparsemax", "temperature": 5.0}, "softmax"],
    ids=["few are missed", "at a higher temperature than auto", "softmax"],
)
def test_the_first_step_does_not_warn(head, tmp_path, caplog):
    warned, log = first_warnings(caplog, tmp_path, head)
    assert not warned
    assert 0 <= log["head_missed_rate"] < 1


@pytest.mark.parametrize("trainer_class", [SparseTrainer, Trainer])
def test_training_ends_what_calibration_promised(trainer_class, tmp_path):
    model = sparsify(tiny_model("llama"), head="entmax15")
    sparse_state(model).metrics = {"head_coverage": 0.9, "head_support": 3.0}
    trainer_class(model, arguments(tmp_path), train_dataset=rows_of_uneven_length()).train()
    assert sparse_state(model).metrics == {"head_support": 3.0}
