"""Annealing: from softmax to the target, and back to the same target after an interruption."""

import json
import math

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainerCallback, TrainingArguments

from hf_sparse import (
    AnnealingCallback,
    SparseConfig,
    SparseTrainer,
    from_pretrained,
    sparse_config,
    sparsify,
    unsparsify,
)
from hf_sparse.functional import entmax
from hf_sparse.losses import entmax_loss
from tests.tiny_models import tiny_model, tokens
from tests.training.runs import arguments, rows_of_uneven_length


class Watch(TrainerCallback):
    """Notes the settings each step runs with."""

    def __init__(self):
        self.seen = []

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        self.seen.append(sparse_config(model))


class Stop(TrainerCallback):
    """Interrupts training after some steps."""

    def __init__(self, after):
        self.after = after

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == self.after


def anneal(model, path, callback, *more, trainer_class=SparseTrainer, resume=None, **options):
    """Train; the settings each step ran with, and the trainer."""
    watch = Watch()
    args = arguments(path, **{"max_steps": 4, "per_device_train_batch_size": 2, **options})
    trainer = trainer_class(model, args, train_dataset=rows_of_uneven_length(), callbacks=[callback, watch, *more])
    trainer.train(resume_from_checkpoint=resume)
    return watch.seen, trainer


def alphas(seen):
    return [config.head.map_settings["alpha"] for config in seen]


EXPECTED = {
    "linear": [1.0, 1.125, 1.25, 1.375],
    "cosine": [1 + 0.25 * (1 - math.cos(math.pi * step / 4)) for step in range(4)],
    "step": [1.0, 1.0, 1.25, 1.25],
}


@pytest.mark.parametrize("trainer_class", [Trainer, SparseTrainer])
@pytest.mark.parametrize("schedule", EXPECTED)
def test_alpha_follows_the_schedule_from_exactly_one_to_exactly_the_target(schedule, trainer_class, tmp_path):
    settings = {"attn": "entmax15", "head": {"name": "entmax", "alpha": 1.5}}
    model = sparsify(tiny_model("llama"), **settings)
    callback = AnnealingCallback(4, schedule, stages=2)
    seen, trainer = anneal(model, tmp_path, callback, trainer_class=trainer_class, max_steps=6)
    assert alphas(seen) == pytest.approx([*EXPECTED[schedule], 1.5, 1.5], abs=1e-12)
    assert seen[0] == SparseConfig.parse(attn={"name": "entmax", "alpha": 1}, head={"name": "entmax", "alpha": 1})
    assert [config.attention("decoder", 0).name for config in seen[:4]] == ["entmax"] * 4
    assert seen[4] == seen[5] == sparse_config(model) == SparseConfig.parse(**settings)
    shares = [log["annealed"] for log in trainer.state.log_history if "loss" in log]
    assert shares[-3:] == [1.0, 1.0, 1.0]
    assert shares[0] == pytest.approx(2 * (EXPECTED[schedule][1] - 1))


def test_the_first_step_is_softmax_and_cross_entropy(tmp_path):
    dense = tiny_model("llama")
    data = rows_of_uneven_length()
    batch = data.with_format("torch")[:]
    expected = float(dense(input_ids=batch["input_ids"], labels=batch["labels"]).loss.detach())
    for head in ("entmax15", {"name": "sparsemax", "temperature": 0.5}):
        model = sparsify(tiny_model("llama"), attn="sparsemax", head=head)
        _, trainer = anneal(model, tmp_path, AnnealingCallback(1), max_steps=1, per_device_train_batch_size=8)
        assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-5)
        assert sparse_config(model) == SparseConfig.parse(attn="sparsemax", head=head)


def test_the_second_step_runs_the_map_of_its_alpha(tmp_path):
    model = sparsify(tiny_model("llama"), head="sparsemax")
    ids = rows_of_uneven_length().with_format("torch")[:]
    logits = model(ids["input_ids"], log_probs=False).logits.detach()[:, :-1]
    expected = float(entmax_loss(logits, ids["labels"][:, 1:], 1.5))
    options = {"learning_rate": 0.0, "per_device_train_batch_size": 8, "max_steps": 3}
    _, trainer = anneal(model, tmp_path, AnnealingCallback(2), **options)
    assert trainer.state.log_history[1]["loss"] == pytest.approx(expected, rel=1e-4)


def test_any_setting_moves_where_it_is_asked_to(tmp_path):
    model = sparsify(
        tiny_model("llama"),
        attn={"name": "entmax", "alpha": [1.2, 1.5, 2.0, 1.0], "temperature": 2.0},
        head={"name": "alpha_relu", "tau": 0.4},
    )
    callback = AnnealingCallback(2, attn={"alpha": 1.0}, head={"tau": 0.0, "alpha": 2})
    seen, _ = anneal(model, tmp_path, callback, max_steps=3)
    assert [config.attention("decoder", 0).map_settings["alpha"] for config in seen] == [
        1.0,
        pytest.approx([1.1, 1.25, 1.5, 1.0]),
        [1.2, 1.5, 2.0, 1.0],
    ]
    assert {config.attention("decoder", 0).temperature for config in seen} == {2.0}
    assert [config.head.map_settings for config in seen] == [
        {"alpha": 2.0, "tau": 0.0},
        {"alpha": 1.75, "tau": 0.2},
        {"alpha": 1.5, "tau": 0.4},
    ]


def test_only_the_part_that_is_named_moves(tmp_path):
    model = sparsify(tiny_model("bart"), attn={"decoder": ["sparsemax", None], "cross": "softmax"}, head="entmax15")
    seen, _ = anneal(model, tmp_path, AnnealingCallback(0.5, attn={"alpha": 1.0}))
    assert {config.head.name for config in seen} == {"entmax15"}
    assert seen[1].to_dict()["attn"] == {
        "decoder": [{"name": "entmax", "alpha": 1.5}, None],
        "cross": {"name": "softmax"},
    }
    assert sparse_config(model).attention("decoder", 0).name == "sparsemax"


def test_attention_runs_with_the_settings_of_the_step(tmp_path):
    model = sparsify(tiny_model("llama"), attn="entmax15")
    ids = tokens()
    anneal(model, tmp_path, AnnealingCallback(4), Stop(2), learning_rate=0.0)
    expected = sparsify(tiny_model("llama"), attn={"name": "entmax", "alpha": 1.25})
    other = sparsify(tiny_model("llama"), attn="entmax15")
    # In float64: how a CPU rounds sums may depend on where a matrix lies in memory.
    found, expected, other = (each.double()(ids).logits for each in (model, expected, other))
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    assert float((found - other).abs().max().detach()) > 1e-2


@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("start", ["sparsify", "checkpoint"])
def test_training_goes_on_from_a_checkpoint(start, restore, tmp_path):
    settings = {"attn": "entmax15", "head": "sparsemax"}
    options = {"save_strategy": "steps", "save_steps": 2, "restore_callback_states_from_checkpoint": restore}
    whole = sparsify(tiny_model("llama"), **settings)
    seen, _ = anneal(whole, tmp_path / "whole", AnnealingCallback(0.75))
    parts = sparsify(tiny_model("llama"), **settings)
    first, _ = anneal(parts, tmp_path / "parts", AnnealingCallback(0.75), Stop(2), **options)

    checkpoint = tmp_path / "parts" / "checkpoint-2"
    saved = json.loads((checkpoint / "config.json").read_text())
    assert saved["hf_sparse"]["head"] == {"name": "entmax", "alpha": pytest.approx(1 + 2 / 3)}
    assert sparse_config(from_pretrained(checkpoint)) == sparse_config(parts)

    again = sparsify(tiny_model("llama"), **settings) if start == "sparsify" else from_pretrained(checkpoint)
    rest, _ = anneal(again, tmp_path / "parts", AnnealingCallback(0.75), resume=str(checkpoint), **options)
    assert [*first, *rest] == seen
    assert sparse_config(again) == SparseConfig.parse(**settings)
    for one, other in zip(again.parameters(), whole.parameters()):
        assert torch.equal(one, other)
    assert sparse_config(from_pretrained(tmp_path / "parts" / "checkpoint-4")) == SparseConfig.parse(**settings)


def test_training_goes_on_from_its_first_step(tmp_path):
    first = sparsify(tiny_model("llama"), head="sparsemax")
    anneal(first, tmp_path, AnnealingCallback(0.75), Stop(1), save_strategy="steps", save_steps=1)
    again = from_pretrained(tmp_path / "checkpoint-1")
    anneal(again, tmp_path, AnnealingCallback(0.75), resume=str(tmp_path / "checkpoint-1"))
    assert sparse_config(again) == SparseConfig.parse(head="sparsemax")


class Interrupt(TrainerCallback):
    """Raises once, before a step."""

    def __init__(self, step, error):
        self.step, self.error = step, error

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step and self.error is not None:
            error, self.error = self.error, None
            raise error


@pytest.mark.parametrize("trainer_class", [Trainer, SparseTrainer])
@pytest.mark.parametrize("step", [0, 2])
def test_a_batch_size_that_memory_cannot_hold_does_not_lose_the_target(step, trainer_class, tmp_path):
    settings = {"attn": "entmax15", "head": {"name": "entmax", "alpha": 1.4}}
    model, error = sparsify(tiny_model("llama"), **settings), RuntimeError("CUDA out of memory.")
    seen, _ = anneal(
        model, tmp_path, AnnealingCallback(4), Interrupt(step, error), trainer_class=trainer_class, max_steps=5,
        auto_find_batch_size=True,
    )  # fmt: skip
    assert alphas(seen)[-5:] == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.4], abs=1e-12)
    assert sparse_config(model) == SparseConfig.parse(**settings)


@pytest.mark.parametrize("same", [True, False])
def test_training_that_was_interrupted_and_begins_again_has_the_same_target(same, tmp_path):
    settings = {"attn": "entmax15", "head": {"name": "entmax", "alpha": 1.4}}
    model, callback = sparsify(tiny_model("llama"), **settings), AnnealingCallback(4)
    with pytest.raises(KeyboardInterrupt):
        anneal(model, tmp_path, callback, Interrupt(2, KeyboardInterrupt()), max_steps=5)
    assert sparse_config(model) != SparseConfig.parse(**settings)
    seen, _ = anneal(model, tmp_path, callback if same else AnnealingCallback(4), max_steps=5)
    assert alphas(seen) == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.4], abs=1e-12)
    assert sparse_config(model) == SparseConfig.parse(**settings)


def test_settings_given_to_a_model_on_the_way_are_its_target(tmp_path):
    model = sparsify(tiny_model("llama"), head={"name": "entmax", "alpha": 1.4})
    with pytest.raises(KeyboardInterrupt):
        anneal(model, tmp_path, AnnealingCallback(4), Interrupt(2, KeyboardInterrupt()), max_steps=5)
    sparsify(unsparsify(model), head={"name": "entmax", "alpha": 1.2})
    seen, _ = anneal(model, tmp_path, AnnealingCallback(4), max_steps=5)
    assert alphas(seen)[-1] == 1.2


@pytest.mark.parametrize("trainer_class", [Trainer, SparseTrainer])
def test_an_adapter_goes_on_from_a_checkpoint(trainer_class, tmp_path):
    settings = {"attn": "entmax15", "head": "sparsemax"}

    def adapted():
        torch.manual_seed(0)
        return get_peft_model(sparsify(tiny_model("llama"), **settings), LoraConfig(target_modules=["q_proj"]))

    options = {"save_strategy": "steps", "save_steps": 2, "trainer_class": trainer_class}
    whole = adapted()
    seen, _ = anneal(whole, tmp_path / "whole", AnnealingCallback(0.75), trainer_class=trainer_class)
    first, _ = anneal(adapted(), tmp_path / "parts", AnnealingCallback(0.75), Stop(2), **options)
    again, checkpoint = adapted(), str(tmp_path / "parts" / "checkpoint-2")
    rest, _ = anneal(again, tmp_path / "parts", AnnealingCallback(0.75), resume=checkpoint, **options)
    assert [*first, *rest] == seen
    for one, other in zip(again.parameters(), whole.parameters()):
        assert torch.equal(one, other)


def test_tags_follow_the_settings(tmp_path):
    model = sparsify(tiny_model("llama"), head="sparsemax")
    before = list(model.model_tags)
    anneal(model, tmp_path, AnnealingCallback(4), Stop(2))
    assert "sparsemax" not in model.model_tags
    assert "entmax" in model.model_tags
    anneal(model, tmp_path, AnnealingCallback(1), max_steps=1)
    assert before == ["hf_sparse", "sparsemax"]


@pytest.mark.parametrize("alpha", [1.0, 1 + 1e-6, 1.0001, 1.001, 1.01, 1.05])
def test_maps_on_the_way_are_exact(alpha):
    """Annealing passes through alphas next to 1, where exponents are large: float32 against bisection in float64."""
    z = torch.randn(20, 50, generator=torch.Generator().manual_seed(0)) * 3
    x = z.double() * (alpha - 1)
    if alpha == 1:
        expected = z.double().softmax(-1)
    else:
        low, high = x.amax(-1, keepdim=True) - 1, x.amax(-1, keepdim=True)
        for _ in range(100):
            middle = (low + high) / 2
            heavy = (x - middle).clamp(min=0).pow(1 / (alpha - 1)).sum(-1, keepdim=True) > 1
            low, high = torch.where(heavy, middle, low), torch.where(heavy, high, middle)
        expected = (x - low).clamp(min=0).pow(1 / (alpha - 1))
    assert float((entmax(z, alpha) - expected).abs().max()) < 2e-5


BAD_ARGUMENTS = [
    ({"over": 0}, ValueError, "over must be a number of steps >= 1"),
    ({"over": 1.5}, ValueError, r"a share in \(0, 1\] \(float\), was 1.5"),
    ({"over": True}, TypeError, "over must be a number of steps"),
    ({"schedule": "sine"}, ValueError, "schedule must be one of 'linear', 'cosine', 'step', was 'sine'"),
    ({"stages": 0}, ValueError, "stages must be at least 1, was 0"),
    ({"stages": 2.5}, TypeError, "stages must be a whole number, was 2.5"),
    ({"attn": "alpha"}, TypeError, "attn must map settings to where they start"),
    ({"head": {}}, TypeError, "head must map settings to where they start"),
    ({"head": {"tau": math.nan}}, ValueError, "head: tau must start at a finite number, was nan"),
    ({"head": {"tau": "auto"}}, TypeError, "head: tau must start at a number, was 'auto'"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_ARGUMENTS)
def test_bad_arguments_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        AnnealingCallback(**options)


def test_annealing_may_take_all_of_training():
    assert AnnealingCallback(1.0).share(step=3, max_steps=4) == 0.75


def test_a_share_that_is_no_whole_number_of_steps_is_rounded_up():
    assert AnnealingCallback(0.5).share(step=2, max_steps=5) == 2 / 3


def test_training_of_no_steps_is_refused_by_name(tmp_path):
    model = sparsify(tiny_model("llama"), head="entmax15")
    with pytest.raises(ValueError, match="do not end within 0 training steps"):
        anneal(model, tmp_path, AnnealingCallback(), max_steps=-1, num_train_epochs=0)


REFUSED = [
    ({"head": "alpha_relu"}, {}, "head: alpha_relu does not begin at softmax; say what moves and from where, as in h"),
    ({"attn": "sparsegen_lin"}, {}, "attn: sparsegen_lin does not begin at softmax"),
    ({"attn": "sigmoid"}, {}, r'attn: sigmoid does not begin at softmax; .*as in attn=\{"temperature": \.\.\.\}'),
    ({"attn": {"decoder": ["softmax", "sparsegen_lin"]}}, {}, r"attn\['decoder'\]\[1\]: sparsegen_lin does not begin"),
    (
        {"attn": {"name": "entmax", "alpha": "learned"}},
        {},
        r"attn\['decoder'\]: alpha is learned, so that training moves it",
    ),
    ({"attn": "softmax"}, {}, "the model has nothing to anneal"),
    ({"head": "entmax15"}, {"attn": {"alpha": 1}}, "attn has nothing to anneal"),
    ({"attn": "sparsemax", "head": "entmax15"}, {"attn": {"alpha": 2}, "head": {"alpha": 1}}, "attn has nothing to"),
    ({"head": "entmax15"}, {"head": {"alpha": 1.5}}, "head has nothing to anneal"),
    ({"head": "entmax15"}, {"head": {"tau": 1}}, "head: entmax15 has no 'tau' to anneal; it has 'temperature'"),
    (
        {"head": {"name": "alpha_relu", "tau": 0.3}},
        {"head": {"alpha": 1}},
        "head: the start of alpha must be a number from 1.001 to 5",
    ),
    ({"attn": "sigmoid"}, {"attn": {"bias": -3}}, "attn: bias ends at the word 'length'; give it a number to anneal"),
    ({"head": "entmax15"}, {"over": 5}, "over=5 annealing steps do not end within 4 training steps"),
]


@pytest.mark.parametrize(("settings", "options", "message"), REFUSED)
def test_what_cannot_be_annealed_is_refused_by_name(settings, options, message, tmp_path):
    model = sparsify(tiny_model("llama"), **settings)
    before = sparse_config(model)
    with pytest.raises(ValueError, match=message):
        anneal(model, tmp_path, AnnealingCallback(**options))
    assert sparse_config(model) == before


def test_other_trainers_settings_are_refused(tmp_path):
    model = sparsify(tiny_model("llama"), head="entmax15")
    best = {"load_best_model_at_end": True, "save_strategy": "no", "eval_strategy": "no"}
    with pytest.raises(ValueError, match="load_best_model_at_end=True would compare losses"):
        anneal(model, tmp_path, AnnealingCallback(), **best)
    with pytest.raises(ValueError, match="give the trainer one"):
        anneal(model, tmp_path, AnnealingCallback(), AnnealingCallback(0.7))
    args = TrainingArguments(str(tmp_path), max_steps=1, report_to=[], use_cpu=True)
    dense = Trainer(tiny_model("llama"), args, train_dataset=rows_of_uneven_length(), callbacks=[AnnealingCallback(1)])
    with pytest.raises(ValueError, match="is not sparse"):
        dense.train()
    anneal(model, tmp_path / "plain", Stop(2), save_strategy="steps", save_steps=2)
    with pytest.raises(ValueError, match="the checkpoint was saved without annealing"):
        anneal(model, tmp_path, AnnealingCallback(), resume=str(tmp_path / "plain" / "checkpoint-2"))
