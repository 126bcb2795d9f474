"""What would train, evaluate or resume past the sparse loss is refused in words."""

import pytest
from peft import LoraConfig, get_peft_model
from transformers import (
    Seq2SeqTrainer,
    Trainer,
    TrainingArguments,
)

from hf_sparse import (
    SparseTrainer,
    sparsify,
)
from tests.peft_version import needs_fitting_peft
from tests.tiny_models import tiny_model
from tests.training.runs import arguments, largest_change, rows_of_uneven_length

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
    ("option", "value"),
    [
        ("sparse_label_smoothing", 0.1),
        ("distillation_weight", 0.5),
        ("suppression_weight", 0.25),
        ("max_loss_increase", 0.01),
        ("settings_learning_rate", 0.1),
    ],
)
@pytest.mark.parametrize("cls", [Trainer, Seq2SeqTrainer])
def test_options_of_the_sparse_trainers_are_not_ignored_by_stock_ones(cls, option, value, tmp_path):
    model = sparsify(tiny_model("llama"), head="entmax15")
    trainer = cls(model, arguments(tmp_path, **{option: value}), train_dataset=rows_of_uneven_length())
    with pytest.raises(ValueError, match=rf"{option}={value} is read by SparseTrainer .*, and {cls.__name__} would"):
        trainer.train()


def test_stock_trainers_take_arguments_of_the_sparse_ones_that_change_nothing(tmp_path):
    model = sparsify(tiny_model("llama"), head="entmax15")
    args = arguments(tmp_path, max_steps=1, log_sparsity=False)
    assert Trainer(model, args, train_dataset=rows_of_uneven_length()).train().global_step == 1


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
