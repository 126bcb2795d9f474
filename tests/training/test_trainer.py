"""Training: the model's own loss in every trainer, exact under accumulation, with sparsity in the logs."""

from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PeftMixedModel, get_peft_model
from torch import nn
from transformers import (
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Trainer,
    TrainingArguments,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
    Wav2Vec2ForSequenceClassification,
)
from transformers.hyperparameter_search import ALL_HYPERPARAMETER_SEARCH_BACKENDS
from transformers.trainer_utils import HPSearchBackend

from hf_sparse import (
    AnnealingCallback,
    SparseSeq2SeqTrainer,
    SparseTrainer,
    SparseTrainingArguments,
    log_probabilities,
    losses,
    probabilities,
    raw_scores,
    sparsify,
)
from hf_sparse.model import lazy_logits
from hf_sparse.model.lazy_logits import LinearLogits
from hf_sparse.model.state import sparse_state
from tests.peft_version import needs_fitting_peft
from tests.tiny_models import tiny_model, tokens

ROWS = 8


def rows_of_uneven_length():
    """Rows whose numbers of counted targets differ, so that a mean of means is not the mean."""
    ids, labels = tokens(ROWS, 6), tokens(ROWS, 6, seed=2)
    for row in range(ROWS):
        labels[row, : row % 5] = -100
    return Dataset.from_dict({"input_ids": ids.tolist(), "labels": labels.tolist()})


def arguments(path, **options):
    settings = {"per_device_train_batch_size": ROWS, "max_steps": 1, "learning_rate": 0.1, "optim": "sgd"}
    settings |= {"max_grad_norm": 0, "lr_scheduler_type": "constant", "report_to": [], "logging_steps": 1}
    settings |= {"disable_tqdm": True, "save_strategy": "no", "seed": 0, "use_cpu": True}
    return SparseTrainingArguments(str(path), **{**settings, **options})


def trained(trainer_class, name, path, settings, **options):
    """Parameters after training, without dropout so that only the data order could differ."""
    model = tiny_model(name)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
    if settings:
        sparsify(model, **settings)
    trainer = trainer_class(model, arguments(path, **options), train_dataset=rows_of_uneven_length())
    trainer.train()
    return model, trainer


def largest_change(one, other):
    return max(float((a - b).detach().abs().max()) for a, b in zip(one.parameters(), other.parameters()))


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


def heard(model_class, **options):
    """A dense model of sound, without a language-model head."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 9, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 9}
    sizes |= {"intermediate_size": 16, "conv_dim": (8,), "conv_kernel": (10,), "conv_stride": (5,)}
    sizes |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False}
    sizes |= {f"{part}_dropout": 0.0 for part in ("hidden", "attention", "feat_proj", "final")} | {"layerdrop": 0.0}
    return model_class(Wav2Vec2Config(**sizes, **options))


def sounds(of_rows=False):
    """Made-up sounds, with a label for each row or several in it."""
    labels = tokens(ROWS, 3, seed=2).clamp(1, 8)
    columns = {"input_values": tokens(ROWS, 60).float() / 23, "labels": labels[:, 0] if of_rows else labels}
    return Dataset.from_dict({name: value.tolist() for name, value in columns.items()})


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


@pytest.mark.parametrize("trainer_class", [Trainer, SparseTrainer])
def test_both_trainers_minimize_the_maps_loss(trainer_class, tmp_path):
    settings = {"head": {"name": "alpha_relu", "tau": 0.2}}
    model = sparsify(tiny_model("bart"), **settings)
    data = rows_of_uneven_length().with_format("torch")[:]
    logits = model(input_ids=data["input_ids"], labels=data["labels"]).logits.detach()
    expected = float(losses.alpha_relu_loss(logits, data["labels"], 1.5, 0.2))
    _, trainer = trained(trainer_class, "bart", tmp_path, settings)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-4)


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
    class OneTrial:
        def ensure_available(self):
            pass

        def run(self, trainer, n_trials, direction):
            trainer.train()
            metrics = trainer.evaluate()
            return metrics, trainer.compute_objective(metrics)

    monkeypatch.setitem(ALL_HYPERPARAMETER_SEARCH_BACKENDS, HPSearchBackend.OPTUNA, OneTrial)
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
        seen.append(sparse_state(model).figures)
        assert {f"eval_{name}" for name in seen[-1]} <= set(metrics)
    assert {"head_support", "head_missed_rate", "attention_support"} <= set(seen[1])
    assert seen[1] == pytest.approx(seen[0])


def test_a_peft_model_trains_its_adapter_on_the_sparse_loss(tmp_path):
    base = sparsify(tiny_model("llama"), attn="entmax15", head="entmax15")
    model = get_peft_model(base, LoraConfig(target_modules=["q_proj"], lora_dropout=0.0))
    data = rows_of_uneven_length()
    batch = data.with_format("torch")[:]
    expected = float(base(input_ids=batch["input_ids"], labels=batch["labels"]).loss.detach())
    trainer = SparseTrainer(model, arguments(tmp_path), train_dataset=data)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-4)


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


def empty_tokenizer():
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    return Tokenizer(WordLevel({"<pad>": 0, "a": 1}, unk_token="a"))


REFUSED = [
    ({"label_smoothing_factor": 0.1}, "label_smoothing_factor=0.1 would train with dense cross-entropy"),
    ({"sparse_label_smoothing": 1.5}, r"sparse_label_smoothing must be in \[0, 1\], was 1.5"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_options_that_bypass_the_loss_are_refused(options, message, tmp_path):
    model = sparsify(tiny_model("llama"), head="entmax15")
    with pytest.raises(ValueError, match=message):
        SparseTrainer(model, arguments(tmp_path, **options))


def test_other_ways_around_the_loss_are_refused(tmp_path):
    model = sparsify(tiny_model("llama"), head="entmax15")
    args = arguments(tmp_path)
    args.use_liger_kernel = True
    with pytest.raises(ValueError, match="use_liger_kernel=True would train with dense cross-entropy"):
        SparseTrainer(model, args)
    with pytest.raises(ValueError, match="compute_loss_func would replace the loss"):
        SparseTrainer(model, arguments(tmp_path), compute_loss_func=lambda *_, **__: 0)
    with pytest.raises(TypeError, match="args must be SparseTrainingArguments, was TrainingArguments"):
        SparseTrainer(model, TrainingArguments(str(tmp_path)))
    with pytest.raises(ValueError, match="LlamaForCausalLM is dense; call sparsify"):
        SparseTrainer(tiny_model("llama"), arguments(tmp_path))


@pytest.mark.parametrize(
    ("name", "options", "arguments_only"),
    [
        ("llama", {"label_smoothing_factor": 0.1}, {}),
        ("gpt2", {}, {"compute_loss_func": lambda outputs, labels, **_: outputs.logits.sum()}),
    ],
)
def test_the_stock_trainer_does_not_take_the_labels_away_from_a_sparse_head(name, options, arguments_only, tmp_path):
    def trainer(model):
        args = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, max_steps=1, **options)
        return Trainer(model, args, train_dataset=rows_of_uneven_length(), **arguments_only)

    with pytest.raises(ValueError, match=r"num_items_in_batch came without labels, .* use SparseTrainer"):
        trainer(sparsify(tiny_model(name), head="entmax15")).train()
    trainer(sparsify(tiny_model(name), attn="entmax15")).train()  # its loss is dense anyway


@pytest.mark.parametrize("generated", [False, True])
@pytest.mark.parametrize("name", ["llama", "bart"])
def test_the_stock_trainer_does_not_evaluate_a_sparse_head_with_smoothing_of_its_own(name, generated, tmp_path):
    def evaluated(model, smoothing):
        args = arguments(tmp_path, label_smoothing_factor=smoothing, predict_with_generate=generated)
        return Seq2SeqTrainer(model, args).evaluate(rows_of_uneven_length(), **{"max_length": 8} if generated else {})

    sparse, inside = (sparsify(tiny_model(name), head="entmax15") for _ in range(2))
    for model in (sparse, get_peft_model(inside, LoraConfig(target_modules=["q_proj"]))):
        with pytest.raises(ValueError, match=r"label_smoothing_factor=0.1 would report a dense loss"):
            evaluated(model, 0.1)
        assert evaluated(model, 0.0)["eval_loss"] > 0
    dense = evaluated(tiny_model(name), 0.1)["eval_loss"]
    assert evaluated(sparsify(tiny_model(name), attn="softmax"), 0.1)["eval_loss"] == pytest.approx(dense, rel=1e-5)


def test_the_stock_trainer_does_not_resume_a_sparse_run_with_a_dense_model(tmp_path):
    args = arguments(tmp_path, max_steps=1, save_strategy="steps", save_steps=1)
    Trainer(sparsify(tiny_model("llama"), attn="entmax15"), args, train_dataset=rows_of_uneven_length()).train()
    dense = Trainer(tiny_model("llama"), args, train_dataset=rows_of_uneven_length())
    with pytest.raises(ValueError, match=r"was trained with .*entmax15.*, and this LlamaForCausalLM is dense: give"):
        dense.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


@needs_fitting_peft
def test_the_stock_trainer_does_not_resume_an_adapter_under_other_settings(tmp_path):
    def trainer(**settings):
        model = sparsify(tiny_model("llama"), **settings)
        model.add_adapter(LoraConfig(target_modules=["q_proj"]))
        args = arguments(tmp_path, max_steps=1, save_strategy="steps", save_steps=1)
        return Trainer(model, args, train_dataset=rows_of_uneven_length())

    trainer(attn="entmax15").train()
    with pytest.raises(ValueError, match=r"was trained with .*entmax15.*, and this LlamaForCausalLM has .*sparsemax"):
        trainer(attn="sparsemax").train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


@pytest.mark.parametrize("trainer_class", [SparseTrainer, Trainer])
def test_a_run_is_not_resumed_under_other_settings(trainer_class, tmp_path):
    def run(settings, steps, **options):
        model = sparsify(tiny_model("llama"), **settings)
        args = arguments(tmp_path, max_steps=steps, save_strategy="steps", save_steps=1)
        trainer = trainer_class(model, args, train_dataset=rows_of_uneven_length())
        trainer.train(**options)
        return model

    settings = {"attn": {"name": "entmax", "alpha": "learned"}, "head": {"name": "alpha_relu", "tau": "auto"}}
    whole = run(settings, 2)
    for other in ({**settings, "head": {"name": "alpha_relu", "tau": 0.5}}, {"head": "entmax15"}):
        with pytest.raises(ValueError, match=r"checkpoint-1 was trained with .*alpha_relu.*this LlamaForCausalLM has"):
            run(other, 2, resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert largest_change(run(settings, 2, resume_from_checkpoint=str(tmp_path / "checkpoint-1")), whole) == 0


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


@pytest.mark.parametrize(
    "head",
    [{"name": "entmax15", "temperature": 9.0}, {"name": "sparsemax", "temperature": 5.0}, "softmax"],
    ids=["few are missed", "at a higher temperature than auto", "softmax"],
)
def test_the_first_step_does_not_warn(head, tmp_path, caplog):
    warned, log = first_warnings(caplog, tmp_path, head)
    assert not warned
    assert 0 <= log["head_missed_rate"] < 1


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


@pytest.mark.parametrize("trainer_class", [SparseTrainer, Trainer])
def test_training_ends_what_calibration_promised(trainer_class, tmp_path):
    model = sparsify(tiny_model("llama"), head="entmax15")
    sparse_state(model).figures = {"head_coverage": 0.9, "head_support": 3.0}
    trainer_class(model, arguments(tmp_path), train_dataset=rows_of_uneven_length()).train()
    assert sparse_state(model).figures == {"head_support": 3.0}
