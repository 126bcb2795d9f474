"""Trainers that build their models: model_init and the search of hyperparameters."""

from types import SimpleNamespace

import pytest
from transformers.hyperparameter_search import ALL_HYPERPARAMETER_SEARCH_BACKENDS
from transformers.trainer_utils import HPSearchBackend

from hf_sparse import (
    AnnealingCallback,
    SparseTrainer,
    sparsify,
)
from tests.tiny_models import tiny_model
from tests.training.runs import arguments, rows_of_uneven_length, trained


@pytest.mark.parametrize("options", [{"distillation_weight": 1.0}, {"suppression_weight": 1.0}], ids=str)
def test_every_model_of_model_init_has_what_adds_to_its_loss(options, tmp_path):
    losses = []
    for way in ("model", "model_init"):
        build = lambda: sparsify(tiny_model("llama"), head="entmax15")  # noqa: E731
        given = {way: build() if way == "model" else build}
        if "distillation_weight" in options:
            given["teacher"] = tiny_model("llama")
        data, args = rows_of_uneven_length(), arguments(tmp_path, max_steps=2, **options)
        trainer = SparseTrainer(**given, args=args, train_dataset=data, callbacks=[AnnealingCallback(2)])
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == losses[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["distillation_weight", "suppression_weight"])
def test_every_trial_of_a_search_trains_with_its_own_arguments(name, tmp_path, monkeypatch):
    def trainer(weight):
        given = {"teacher": tiny_model("llama", seed=3)} if name == "distillation_weight" else {}
        build = lambda trial=None: sparsify(tiny_model("llama"), head="entmax15")  # noqa: E731
        args = arguments(tmp_path, **{name: weight})
        return SparseTrainer(model_init=build, args=args, train_dataset=rows_of_uneven_length(), **given)

    def loss_of(trainer, **trial):
        trainer.train(**trial)
        return trainer.state.log_history[0]["loss"]

    search, asked = trainer(0.5), lambda weight: SimpleNamespace(number=0, params={name: weight})
    search.hp_search_backend, search.hp_space = HPSearchBackend.OPTUNA, lambda trial: trial.params
    monkeypatch.setattr("transformers.integrations.hp_params", lambda trial: trial.params)  # optuna is not installed
    for weight in (1.0, 0.25, 1.0):
        assert loss_of(search, trial=asked(weight)) == loss_of(trainer(weight))
    _, plain = trained(SparseTrainer, "llama", tmp_path, {"head": "entmax15"})
    assert loss_of(search, trial=asked(0.0)) == plain.state.log_history[0]["loss"]
    with pytest.raises(ValueError, match=f"{name} must be"):
        search.train(trial=asked(-1.0))


@pytest.mark.parametrize("own", [{}, {"accuracy": 0.25, "recall": 0.5}], ids=["loss", "metrics"])
def test_a_search_aims_at_the_loss_or_the_metrics_and_not_at_sparsity(own, tmp_path, monkeypatch):
    class TwoTrials:
        def ensure_available(self):
            pass

        def run(self, trainer, n_trials, direction):
            trainer.train()
            trainer.model = None  # as between the trials of Optuna
            trainer.train()
            metrics = trainer.evaluate()
            return metrics, trainer.compute_objective(metrics)

    monkeypatch.setitem(ALL_HYPERPARAMETER_SEARCH_BACKENDS, HPSearchBackend.OPTUNA, TwoTrials)
    trainer = SparseTrainer(
        model_init=lambda: sparsify(tiny_model("llama"), attn="entmax15", head="entmax15"),
        args=arguments(tmp_path, max_steps=1),
        train_dataset=rows_of_uneven_length(),
        eval_dataset=rows_of_uneven_length(),
        compute_metrics=(lambda _: dict(own)) if own else None,
    )
    metrics, objective = trainer.hyperparameter_search(lambda trial: {}, backend="optuna", n_trials=1)
    assert metrics["eval_head_support"] > 1
    assert metrics["eval_attention_support"] > 1
    assert objective == (sum(own.values()) or metrics["eval_loss"])
    _, objective = trainer.hyperparameter_search(
        lambda trial: {}, lambda metrics: metrics["eval_head_support"], backend="optuna", n_trials=1
    )
    assert objective == metrics["eval_head_support"]


def test_a_second_run_of_model_init_is_the_first_again(tmp_path):
    def build():
        return sparsify(tiny_model("llama"), attn={"name": "entmax", "alpha": "learned"})

    args = arguments(tmp_path, max_steps=3, max_loss_increase=0.01)
    data, teacher, runs = rows_of_uneven_length(), tiny_model("llama"), []
    trainer = SparseTrainer(model_init=build, args=args, train_dataset=data, teacher=teacher)
    for _ in range(2):
        trainer.train()
        logs = [entry for entry in trainer.state.log_history if "edge_price" in entry]
        runs.append([(entry["loss"], entry["edge_price"], entry["loss_increase"]) for entry in logs])
    assert len(set(runs[0])) == 3
    assert runs[0] == runs[1]


def test_a_dense_model_of_model_init_is_refused(tmp_path):
    built = iter([sparsify(tiny_model("llama"), head="entmax15"), tiny_model("llama")])
    data = rows_of_uneven_length()
    trainer = SparseTrainer(model_init=lambda: next(built), args=arguments(tmp_path), train_dataset=data)
    with pytest.raises(ValueError, match="LlamaForCausalLM is dense; call sparsify"):
        trainer.train()
