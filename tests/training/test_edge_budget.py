"""Training for few edges under a bound on the loss: the price, the loss it makes, and what it is refused for."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerState,
    TrainingArguments,
    Wav2Vec2ForCTC,
)

from hf_sparse import SparseTrainer, learn_settings, sparsify
from hf_sparse.attention.soft_edges import soft_edges
from hf_sparse.training.edge_budget import GAIN, MEMORY, PRICES, RATE, EdgeBudget, EdgePrice
from tests.sweep.architectures import build
from tests.tiny_models import tiny_model, tokens
from tests.training.runs import ROWS, arguments, heard, largest_change, sounds
from tests.training.test_distillation import no_dropout, scored

LLAMA = {"attn": "entmax15"}


def rows():
    """Rows of one length, so that every batch sees as many keys."""
    ids = tokens(ROWS, 6)
    return Dataset.from_dict({"input_ids": ids.tolist(), "labels": ids.tolist()})


def settings_only(name="llama", settings=("temperature",), **maps):
    """A model that trains nothing but settings of its attention."""
    model = learn_settings(sparsify(no_dropout(tiny_model(name)), **(maps or LLAMA)), settings)
    for path, weight in model.named_parameters():
        weight.requires_grad_("sparse_" in path)
    return model


def budgeted(model, path, teacher=None, data=None, resume=None, **options):
    options = {"max_loss_increase": 0.05, **options}
    trainer = SparseTrainer(model, arguments(path, **options), train_dataset=data or rows(), teacher=teacher)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


# --- the price


@pytest.mark.parametrize(
    ("increase", "excess"), [(0.05, 0.0), (0.0, -1.0), (0.075, 0.5), (0.1, 1.0), (9.0, 4.0), (-3.0, -1.0)]
)
def test_the_price_falls_above_the_bound_and_grows_below(increase, excess):
    price = EdgePrice(20.0)
    price.move(increase, 0.05)
    assert price.increase == pytest.approx(max(-0.4, min(0.4, increase)))
    assert price.standing == pytest.approx(20.0 * math.exp(-RATE * min(excess, 1.0)))
    assert price.price == pytest.approx(price.standing * math.exp(-GAIN * excess))


def test_the_last_steps_count_together():
    price = EdgePrice()
    assert math.isnan(price.increase)
    for increase in (0.3, 0.0, 0.0):
        price.move(increase, 0.05)
    assert price.increase == pytest.approx(0.3 * MEMORY**2 / (1 + MEMORY + MEMORY**2))


def test_the_price_stays_finite_and_forgets_a_loss_that_is_not():
    for increase, bound in ((1.0, PRICES[0]), (-1.0, PRICES[1]), (math.nan, PRICES[0])):
        price = EdgePrice()
        for _ in range(400):
            price.move(increase, 0.05)
        assert price.price == bound
    price.move(0.0, 0.05)
    assert price.increase == 0


def test_a_step_that_was_interrupted_does_not_count_when_training_begins_again():
    price, args = EdgePrice(20.0), SimpleNamespace(max_loss_increase=0.05)
    price.see(torch.tensor(9.0), torch.tensor(1.0))
    price.on_train_begin(args, TrainerState(), None)
    price.on_step_end(args, None, None)
    assert price.state() == EdgePrice(20.0).state()


def test_a_price_holds_no_graph_of_the_losses_it_saw():
    price = EdgePrice()
    price.see(torch.tensor(2.0, requires_grad=True) * 3, torch.tensor(1.0))
    assert not price.losses[0].requires_grad
    assert price.losses[0].tolist() == [6.0, 1.0]


def test_a_step_in_which_no_label_counts_leaves_the_price():
    price, args = EdgePrice(20.0), SimpleNamespace(max_loss_increase=0.05)
    price.see(torch.tensor(0.0), torch.tensor(0.0))
    price.on_step_end(args, None, None)
    assert price.state() == EdgePrice(20.0).state()
    assert price.losses == []
    price.see(torch.tensor(1.0), torch.tensor(0.0))  # beyond every bound
    price.on_step_end(args, None, None)
    assert price.excess == 4.0


@pytest.mark.parametrize("items", [0, 7])
def test_a_batch_in_which_no_label_counts_adds_nothing_to_the_losses(items):
    model, teacher = settings_only(), no_dropout(tiny_model("llama"))
    budget, price = EdgeBudget(model, teacher, shifts_labels=True), EdgePrice()
    labels = torch.full_like(tokens(), -100)
    budget.forward(model.train(), price, 1, input_ids=tokens(), labels=labels, num_items_in_batch=torch.tensor(items))
    assert price.losses[0].tolist() == [0.0, 0.0]


def test_a_loss_whose_edges_follow_late_stays_near_its_bound():
    """A model that loses edges above a price of ten and wins them back below, faster and faster."""
    price, allowed, speed, log_edges, losses = EdgePrice(), 0.01, 0.0, 0.0, []
    for _ in range(300):
        speed = 0.9 * speed + (0.008 if price.price < 10 else -0.008)
        log_edges = min(0.7, log_edges + speed)
        losses.append(0.005 * math.exp(-log_edges) - 0.005)
        price.move(losses[-1], allowed)
    settled = losses[100:]
    assert sum(settled) / len(settled) == pytest.approx(allowed, rel=0.2)
    assert max(settled) < 2 * allowed


def test_a_loss_that_begins_far_above_its_bound_comes_to_use_it():
    """The same model after fifty steps in which it learns what it lost when its edges were cut."""
    price, allowed, speed, log_edges, lost, losses = EdgePrice(), 0.01, 0.0, 0.0, 0.06, []
    for _ in range(200):
        speed, lost = 0.9 * speed + (0.008 if price.price < 10 else -0.008), 0.95 * lost
        log_edges = min(0.7, log_edges + speed)
        losses.append(0.005 * math.exp(-log_edges) - 0.005 + lost)
        price.move(losses[-1], allowed)
    settled = losses[130:]
    assert allowed / 2 < sum(settled) / len(settled) < 1.2 * allowed
    assert max(settled) < 2 * allowed


@pytest.mark.parametrize(("increase", "warned"), [(0.01, False), (0.014, False), (0.04, True)])
def test_a_loss_that_ends_above_its_bound_is_warned_of(increase, warned, caplog):
    price = EdgePrice()
    price.move(increase, 0.01)
    price.on_train_end(SimpleNamespace(max_loss_increase=0.01), None, None)
    assert ("was at least 4 % above the dense model's" in caplog.text) == warned == bool(caplog.text)


# --- the loss


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("name", ["llama", "bert", "t5", "bart"])
def test_the_teacher_has_a_part_in_the_loss_and_none_in_the_bound(name, own, tmp_path):
    batch = rows().with_format("torch")[:]
    model, dense = settings_only(name), no_dropout(tiny_model(name))
    with torch.no_grad(), soft_edges(model) as edges:
        outputs, teacher = model(**batch), dense(**batch)
        (z, _), (t, _) = (scored(name, each.logits, batch["labels"]) for each in (outputs, teacher))
    log_q = t.double().log_softmax(-1)
    divergence = float((log_q.exp() * (log_q - z.double().log_softmax(-1))).sum(-1).mean())
    expected = 0.25 * float(outputs.loss) + 0.75 * divergence + float(edges.soft_share)
    trainer = budgeted(model, tmp_path, None if own else dense, distillation_weight=0.75)
    (log, *_) = trainer.state.log_history
    assert log["loss"] == pytest.approx(expected, rel=1e-5)
    increase = float(outputs.loss) / float(teacher.loss) - 1
    assert log["loss_increase"] == pytest.approx(increase, rel=1e-3, abs=1e-6)


def test_a_teacher_in_the_loss_is_exact_under_accumulation(tmp_path):
    ends = []
    for size in (ROWS, 2):
        model = settings_only()
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": ROWS // size}
        budgeted(model, tmp_path, no_dropout(tiny_model("llama")), distillation_weight=0.5, **options)
        ends.append(model)
    assert largest_change(ends[0], settings_only()) > 1e-4
    assert largest_change(*ends) < 1e-5


@pytest.mark.parametrize("name", ["llama", "bert", "t5", "bart"])
def test_the_loss_has_the_price_of_the_edges(name, tmp_path):
    batch = rows().with_format("torch")[:]
    model, dense = settings_only(name), no_dropout(tiny_model(name))
    with torch.no_grad(), soft_edges(model) as edges:
        own = float(model(**batch).loss)
        increase = own / float(dense(**batch).loss) - 1
    trainer = budgeted(model, tmp_path)
    (log, *_) = trainer.state.log_history
    assert log["loss"] == pytest.approx(own + float(edges.soft_share), rel=1e-5)
    assert log["loss_increase"] == pytest.approx(increase, rel=1e-3, abs=1e-6)
    assert log["attention_edges"] == pytest.approx(edges.kept / edges.visible)
    assert log["edge_price"] == trainer._edge_price.price != 1


def test_another_teacher_is_another_measure(tmp_path):
    batch, teacher = rows().with_format("torch")[:], no_dropout(tiny_model("llama", seed=5))
    model = sparsify(tiny_model("llama"), **LLAMA)
    with torch.no_grad():
        increase = float(model(**batch).loss) / float(teacher(**batch).loss) - 1
    (log, *_) = budgeted(model, tmp_path, teacher).state.log_history
    assert log["loss_increase"] == pytest.approx(increase, rel=1e-3)


def sure_gpt2():
    """A model that is sure of what it predicts, so that dropout raises its loss."""
    model = tiny_model("gpt2")
    model.transformer.ln_f.weight.data.mul_(6)
    return model


@pytest.mark.parametrize("own", [True, False])
def test_the_dense_loss_has_the_dropout_of_training(own):
    model = learn_settings(sparsify(sure_gpt2(), **LLAMA), ["temperature"]).eval()
    for path, weight in model.named_parameters():
        weight.requires_grad_("sparse_" in path)
    teacher = None if own else sure_gpt2().eval()
    budget, losses = EdgeBudget(model, teacher, shifts_labels=True), set()
    for seed in range(3):
        torch.manual_seed(seed)
        losses.add(float(budget.dense_outputs({"input_ids": tokens(), "labels": tokens()}).loss))
    assert len(losses) == 3
    assert not (model if own else teacher).training


@pytest.mark.parametrize("own", [True, False])
def test_the_dense_loss_leaves_the_statistics_of_batch_normalization(own):
    dense = build("mobilevit", "MobileViTForImageClassification")
    model = learn_settings(sparsify(copy.deepcopy(dense), attn="entmax15"), ["temperature"]).train()
    for path, weight in model.named_parameters():
        weight.requires_grad_("sparse_" in path)
    measured = model if own else dense
    pixels, labels = torch.randn(2, 3, dense.config.image_size, dense.config.image_size), torch.tensor([0, 1])
    budget = EdgeBudget(model, None if own else dense, shifts_labels=False)
    loss = model(pixel_values=pixels, labels=labels).loss
    before = copy.deepcopy(dict(measured.named_buffers()))
    assert budget.dense_outputs({"pixel_values": pixels, "labels": labels}).loss.isfinite()
    assert all(torch.equal(buffer, before[name]) for name, buffer in measured.named_buffers())
    loss.backward()  # its graph may hold the statistics


def test_the_dense_loss_is_the_teachers_own_where_no_number_of_items_is_given():
    teacher, batch = no_dropout(tiny_model("llama")), {"input_ids": tokens(), "labels": tokens()}
    budget = EdgeBudget(settings_only(), teacher, shifts_labels=True)
    assert torch.equal(budget.dense_outputs(batch).loss, teacher(**batch).loss)


def test_logits_to_distil_from_that_do_not_go_with_the_labels_are_refused():
    budget, logits = EdgeBudget(settings_only(), None, shifts_labels=False, teacher_weight=0.5), torch.zeros(2, 9, 23)
    with pytest.raises(ValueError, match=r"must agree .* set distillation_weight=0"):
        budget.distilled(logits, logits, {"labels": tokens(2, 7)})


def test_a_teacher_in_half_precision_is_distilled_from_in_float32():
    budget = EdgeBudget(settings_only(), None, shifts_labels=False, teacher_weight=0.5)
    z, q = torch.randn(2, 2, 7, 23, generator=torch.Generator().manual_seed(0)).bfloat16()
    found, expected = (budget.distilled(z, each, {"labels": tokens(2, 7)}) for each in (q, q.float()))
    assert torch.equal(found, expected)


def test_activation_checkpointing_that_is_switched_on_later_is_refused_by_name():
    model, batch = settings_only().train(), {"input_ids": tokens(), "labels": tokens()}
    budget = EdgeBudget(model, None, shifts_labels=True)
    model.activation_checkpointing_enable()
    with pytest.raises(ValueError, match="activation checkpointing is on in this LlamaForCausalLM"):
        budget.forward(model, EdgePrice(), 1, **batch)
    budget.forward(model.eval(), EdgePrice(), 1, **batch)  # which computes nothing twice


def test_evaluation_needs_no_labels():
    model = settings_only()
    budget = EdgeBudget(model, None, shifts_labels=True)
    found = budget.forward(model.eval(), EdgePrice(), 1, input_ids=tokens())
    assert torch.equal(found.logits, model(tokens()).logits)


@pytest.mark.slow
def test_dropout_does_not_count_against_the_sparse_model(tmp_path):
    """Next to softmax both losses are those of one model, whose dropout of a half raises each."""
    model, against, ids = sure_gpt2(), no_dropout(sure_gpt2()), tokens(ROWS, 60)
    with torch.no_grad():
        predicted = against.eval()(ids).logits.argmax(-1)
    labels = torch.cat([ids[:, :1], predicted[:, :-1]], dim=1)
    data = Dataset.from_dict({"input_ids": ids.tolist(), "labels": labels.tolist()})
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    learn_settings(sparsify(model, attn={"name": "entmax", "alpha": 1.01}), ["temperature"])
    for path, weight in model.named_parameters():
        weight.requires_grad_("sparse_" in path)
    mean = {}
    for teacher in (None, against):
        runs = [budgeted(model, tmp_path, teacher, data, learning_rate=1e-9, seed=seed) for seed in range(4)]
        mean[teacher is None] = sum(run._edge_price.increase for run in runs) / 4
    assert abs(mean[True]) < 0.05
    assert mean[False] > 0.3  # of 0.4, as much as a step may count


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_accumulation_equals_one_big_batch(name, tmp_path):
    start, teacher = settings_only(name), no_dropout(tiny_model(name))
    whole = budgeted(settings_only(name), tmp_path, teacher)
    small = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    parts = budgeted(settings_only(name), tmp_path, teacher, **small)
    assert largest_change(start, whole.model) > 1e-3
    assert largest_change(whole.model, parts.model) < 1e-6
    assert whole._edge_price.increase == pytest.approx(parts._edge_price.increase, abs=1e-6)


# --- what it does


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """A dense model that has learnt its rows."""
    model = no_dropout(tiny_model("llama"))
    options = {"max_steps": 60, "learning_rate": 3e-3, "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    args = TrainingArguments(str(tmp_path_factory.mktemp("dense")), report_to=[], **options)
    Trainer(model, args, train_dataset=rows()).train()
    return model.eval()


def test_a_loss_that_is_a_sum_over_rows_has_the_same_increase_in_parts(tmp_path):
    increases = []
    for batch in (ROWS, 2):
        teacher = heard(Wav2Vec2ForCTC)
        options = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": ROWS // batch}
        trainer = budgeted(sparsify(copy.deepcopy(teacher), **LLAMA), tmp_path, teacher, sounds(), **options)
        increases.append(trainer.state.log_history[0]["loss_increase"])
    assert increases[1] == pytest.approx(increases[0], abs=1e-4)


@pytest.mark.parametrize("adapted", [False, True])
def test_edges_fall_and_the_loss_stays_within_its_bound(adapted, learnt, tmp_path):
    model = tiny_model("llama")
    model.load_state_dict(learnt.state_dict())
    start = {"attn": {"name": "entmax", "alpha": 1.5, "temperature": 8.0}}
    learn_settings(sparsify(no_dropout(model), **start))
    for path, weight in model.named_parameters():
        weight.requires_grad_("sparse_" in path)
    if adapted:
        names = ["sparse_alpha", "sparse_temperature"]
        model = get_peft_model(model, LoraConfig(target_modules=["q_proj", "k_proj"], modules_to_save=names))
    options = {"max_steps": 60, "optim": "adamw_torch", "learning_rate": 1e-3, "settings_learning_rate": 0.1}
    history = budgeted(model, tmp_path, max_loss_increase=0.02, **options).state.log_history
    logs = [log for log in history if "edge_price" in log]
    assert logs[-1]["attention_edges"] < 0.75 * logs[0]["attention_edges"]
    assert sum(log["loss_increase"] for log in logs[-10:]) / 10 < 0.04


def test_resuming_goes_on_at_the_price(tmp_path):
    options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    whole = budgeted(settings_only(), tmp_path, **options)
    again = budgeted(settings_only(), tmp_path, resume=str(tmp_path / "checkpoint-3"), **options)
    assert again._edge_price.price == pytest.approx(whole._edge_price.price, rel=1e-6)
    assert largest_change(whole.model, again.model) < 1e-7
    assert whole._edge_price.price != 1


def test_evaluation_tells_the_edges(tmp_path):
    model = settings_only()
    trainer = SparseTrainer(model, arguments(tmp_path, max_loss_increase=0.05), eval_dataset=rows())
    metrics = trainer.evaluate()
    with torch.no_grad(), soft_edges(model) as edges:
        model(**rows().with_format("torch")[:])
    assert metrics["eval_attention_edges"] == pytest.approx(edges.kept / edges.visible)


def test_settings_have_a_learning_rate_of_their_own(tmp_path):
    model = learn_settings(sparsify(tiny_model("llama"), **LLAMA), ["temperature"])
    start = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    options = {"optim": "adamw_torch", "learning_rate": 1e-3, "settings_learning_rate": 0.05}
    SparseTrainer(model, arguments(tmp_path, **options), train_dataset=rows()).train()
    for name, weight in model.named_parameters():
        moved = float((weight.detach() - start[name]).abs().max())
        assert moved == pytest.approx(0.05 if "sparse_" in name else 1e-3, rel=0.3)


def test_settings_with_a_learning_rate_train_twice_and_resume(tmp_path):
    model = learn_settings(sparsify(no_dropout(tiny_model("llama")), **LLAMA), ("temperature",))
    args = arguments(tmp_path, settings_learning_rate=0.05, max_steps=2, save_strategy="steps", save_steps=1)
    trainer = SparseTrainer(model, args, train_dataset=rows())
    trainer.create_optimizer()
    sizes = [len(group["params"]) for group in trainer.optimizer.param_groups]
    trainer.train()
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert [len(group["params"]) for group in trainer.optimizer.param_groups] == sizes


def test_a_learning_rate_for_nothing_is_refused(tmp_path):
    args = arguments(tmp_path, settings_learning_rate=0.05)
    with pytest.raises(ValueError, match="for learned settings, and none is learned"):
        SparseTrainer(sparsify(tiny_model("llama"), **LLAMA), args)
    model = settings_only()
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], 0.1)
    with pytest.raises(ValueError, match="and an optimizer is given; give it a group"):
        SparseTrainer(model, args, optimizers=(optimizer, None))


# --- what is refused


def test_what_has_no_budget_is_refused_by_name(tmp_path):
    def trainer(model, teacher=None, **options):
        return SparseTrainer(model, arguments(tmp_path, max_loss_increase=0.05, **options), teacher=teacher)

    llama, dense = sparsify(tiny_model("llama"), **LLAMA), tiny_model("llama")
    with pytest.raises(ValueError, match="max_loss_increase needs a teacher: pass teacher="):
        trainer(llama)
    with pytest.raises(ValueError, match="LlamaForCausalLM, is sparse; give a dense one"):
        trainer(llama, sparsify(tiny_model("llama"), **LLAMA))
    with pytest.raises(ValueError, match="that of a sparse head is another one"):
        trainer(sparsify(tiny_model("llama"), attn="entmax15", head="entmax15"), dense)
    bounded = sparsify(tiny_model("bart"), attn={"cross": {"name": "csparsemax", "fertility": 2.0}})
    with pytest.raises(ValueError, match="has bounds or coverage, whose edges have no price"):
        trainer(bounded, tiny_model("bart"))
    for name in ("sparse_label_smoothing", "suppression_weight"):
        with pytest.raises(ValueError, match=f"which {name}=0.1 changes"):
            trainer(llama, dense, **{name: 0.1})
    other = LlamaForCausalLM(LlamaConfig(vocab_size=7, hidden_size=8, intermediate_size=8, num_attention_heads=2))
    with pytest.raises(ValueError, match="has a vocabulary of 7, the model one of 23"):
        trainer(llama, other, distillation_weight=0.5)
    classifier = BertForSequenceClassification(BertConfig(hidden_size=8, intermediate_size=8, num_attention_heads=2))
    with pytest.raises(ValueError, match="has no language-model head to distil into"):
        trainer(sparsify(copy.deepcopy(classifier), attn="entmax15"), classifier, distillation_weight=0.5)
    stored = rows().add_column("support_ids", [[1]] * ROWS).add_column("support_probabilities", [[1.0]] * ROWS)
    with pytest.raises(ValueError, match="reads no stored supports; remove the columns"):
        budgeted(llama, tmp_path, dense, stored, distillation_weight=0.5)
    with pytest.raises(ValueError, match="activation_checkpointing=True would compute the edges"):
        trainer(llama, dense, activation_checkpointing=True)
    checkpointed = sparsify(tiny_model("llama"), **LLAMA)
    checkpointed.activation_checkpointing_enable()
    with pytest.raises(ValueError, match="activation checkpointing is on in this LlamaForCausalLM"):
        trainer(checkpointed, dense)
    checkpointed.activation_checkpointing_disable()
    trainer(checkpointed, dense)
    for name in ("max_loss_increase", "settings_learning_rate"):
        with pytest.raises(ValueError, match=f"{name} must be > 0, or None, was 0"):
            arguments(tmp_path, **{name: 0.0})


def test_a_loss_without_labels_or_gradient_is_refused(tmp_path):
    unlabelled = rows().remove_columns("labels")
    with pytest.raises(ValueError, match="max_loss_increase needs labels"):
        budgeted(settings_only(), tmp_path, data=unlabelled)
    model = sparsify(tiny_model("llama"), **LLAMA)
    for name, weight in model.named_parameters():
        weight.requires_grad_(name == "lm_head.weight")
    with pytest.raises(ValueError, match="the edges have no gradient: train weights of the layers"):
        budgeted(model, tmp_path, tiny_model("llama"))


def test_virtual_tokens_by_which_other_labels_count_are_refused(tmp_path):
    prompted = get_peft_model(
        sparsify(tiny_model("llama"), **LLAMA), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    )
    with pytest.raises(ValueError, match=r"logits \(8, 8, 23\) and labels \(8, 6\) must agree .* max_loss_increase"):
        budgeted(prompted, tmp_path)


def test_a_classifier_has_a_budget_too(tmp_path):
    sizes = {"vocab_size": 23, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32}
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**sizes, num_attention_heads=2))
    learn_settings(sparsify(no_dropout(model), attn="entmax15"), ["temperature"])
    for path, weight in model.named_parameters():
        weight.requires_grad_("sparse_" in path)
    data = Dataset.from_dict({"input_ids": tokens(ROWS, 6).tolist(), "labels": [0, 1] * (ROWS // 2)})
    (log, *_) = budgeted(model, tmp_path, data=data).state.log_history
    assert abs(log["loss_increase"]) < 0.5
    assert 0 < log["attention_edges"] <= 1
