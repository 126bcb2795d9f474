"""How the recipes train: interrupted and resumed, with smoothed targets, and along the schedule."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerCallback

import hf_sparse
from recipes.lib import training
from recipes.lib.batches import padding_collator
from recipes.translation import data as corpus
from recipes.translation import model

SETTINGS = {"steps": 5, "lr": 1e-3, "batch_size": 8, "seed": 0}


@pytest.fixture(scope="module")
def task() -> SimpleNamespace:
    pairs = corpus.read_scenes().train[:64]
    tokenizer = corpus.build_tokenizer(pairs, 120)
    rows = model.encode(pairs, tokenizer)

    def build():
        return model.build_model(tokenizer, 0)

    def train(trained, folder, **settings):
        collator = padding_collator(tokenizer, trained)
        return training.train(trained, tokenizer, rows, folder, collator=collator, **(SETTINGS | settings))

    return SimpleNamespace(build=build, train=train)


@pytest.mark.parametrize("at", [4, None])
def test_training_goes_on_from_its_last_checkpoint(at, task, tmp_path, monkeypatch):
    """``at``: the step that is interrupted; None is after the last one."""
    whole = task.build()
    log = task.train(whole, tmp_path / "whole", schedule_steps=7)

    class Interrupted(Exception):
        pass

    model = task.build()
    calls = []

    def stop(*_, **options):
        calls.append(1)
        if at is None or len(calls) == at:
            raise Interrupted

    handle = model.register_forward_pre_hook(stop) if at else None
    with monkeypatch.context() as patch:
        if at is None:
            patch.setattr(training.shutil, "rmtree", stop)
        with pytest.raises(Interrupted):
            task.train(model, tmp_path / "parts", schedule_steps=7)
    if handle is not None:
        handle.remove()
    for step, state in ((8, None), (9, '{"global_step": 9, ')):  # interrupted while they were saved
        broken = tmp_path / "parts" / f"checkpoint-{step}"
        broken.mkdir()
        if state:
            (broken / "trainer_state.json").write_text(state, encoding="utf-8")
    resumed = task.build()
    log_of_parts = task.train(resumed, tmp_path / "parts", schedule_steps=7)
    steps = [[entry["step"] for entry in each if "loss" in entry] for each in (log, log_of_parts)]
    assert steps[0] == steps[1]
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(resumed.get_parameter(name), parameter, msg=name)
    assert not (tmp_path / "parts").exists()


@pytest.mark.parametrize("embedding_lr", [1.0, 4.0])
def test_warmup_and_settings_of_the_optimizer_are_those_given(embedding_lr, task, tmp_path):
    groups, rates = [], []

    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, optimizer=None, lr_scheduler=None, **kwargs):
            groups.extend(optimizer.param_groups)
            rates.append(lr_scheduler.get_last_lr()[0])

    adam = {"adam_beta2": 0.9, "adam_epsilon": 1e-5, "weight_decay": 0.2}
    task.train(task.build(), tmp_path, steps=5, warmup=0.6, adam=adam, embedding_lr=embedding_lr, callbacks=[Look()])
    assert {group["betas"][1] for group in groups} == {0.9}
    assert {group["eps"] for group in groups} == {1e-5}
    assert 0.2 in {group["weight_decay"] for group in groups}
    assert rates.index(max(rates)) == 2


@pytest.mark.parametrize("head", [None, "entmax15"])
def test_smoothed_targets_reach_the_loss_of_dense_and_sparse_models(task, head, tmp_path):
    losses = []
    for smoothing in (0.0, 0.2):
        model = task.build() if head is None else hf_sparse.sparsify(task.build(), head=head)
        losses.append(task.train(model, tmp_path / "run", label_smoothing=smoothing, steps=1)[0]["loss"])
    assert losses[0] != pytest.approx(losses[1], abs=1e-3)


def test_a_teacher_has_its_part_in_the_loss(task, tmp_path):
    def loss(**settings):
        model = hf_sparse.sparsify(task.build(), head="entmax15")
        return task.train(model, tmp_path / "run", steps=1, **settings)[0]["loss"]

    labels, halves, teacher = loss(), loss(teacher=task.build()), loss(teacher=task.build(), teacher_weight=1.0)
    assert labels != pytest.approx(teacher, abs=1e-3)
    assert halves == pytest.approx((labels + teacher) / 2, rel=1e-3)


@pytest.mark.parametrize(("schedule_steps", "last"), [(None, 0.5 * (1 + math.cos(math.pi * 3 / 4))), (9, None)])
def test_the_rate_falls_to_zero_only_at_the_end_of_the_schedule(task, schedule_steps, last, tmp_path):
    rates = [log["learning_rate"] for log in task.train(task.build(), tmp_path / "run", schedule_steps=schedule_steps)
             if "learning_rate" in log]  # fmt: skip
    expected = 0.5 * (1 + math.cos(math.pi * 3 / 8)) if last is None else last
    assert rates[0] == 0
    assert rates[-1] == pytest.approx(1e-3 * expected)


@pytest.mark.parametrize("maps", [None, {"attn": "entmax15", "head": "entmax15"}])
def test_products_are_in_float32_again_after_training_in_bfloat16(task, maps, tmp_path):
    trained = hf_sparse.sparsify(task.build(), **maps) if maps else task.build()
    task.train(trained, tmp_path / "checkpoints", bf16=True)
    trained.save_pretrained(tmp_path / "model")
    fresh = type(trained).from_pretrained(tmp_path / "model", attn_implementation=trained.config._attn_implementation)
    ids = torch.arange(3, 9)[None]
    with torch.no_grad():
        ours, theirs = (each.eval()(input_ids=ids, decoder_input_ids=ids).logits for each in (trained, fresh))
    torch.testing.assert_close(ours, theirs)
