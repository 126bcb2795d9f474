"""Supports stored once: the loss of training beside the teacher, or an unbiased estimate of it, without it."""

from contextlib import nullcontext

import pytest
import torch
from datasets import Dataset, DatasetDict, load_from_disk
from peft import LoraConfig, get_peft_model
from torch.utils.data import Subset
from transformers import (
    BertModel,
    DataCollatorForSeq2Seq,
    DataCollatorWithFlattening,
    LlamaConfig,
    LlamaForCausalLM,
)

from hf_sparse import (
    SparseSeq2SeqTrainer,
    SparseTrainer,
    is_sparse,
    probabilities,
    raw_scores,
    sparse_config,
    sparsify,
    store_supports,
)
from hf_sparse.model.lazy_logits import LinearLogits
from hf_sparse.training.supports import IDS, PROBABILITIES, SupportCollator, Supports, _padded, check_positions
from tests.tiny_models import tiny_model, tokens
from tests.training.runs import ROWS, arguments, largest_change, rows_of_uneven_length
from tests.training.test_distillation import entmax15_reference, scored, student
from tests.word_tokenizer import word_tokenizer

NARROW = {"name": "entmax15", "temperature": 2.0}


def narrow_teacher(name, head=NARROW):
    return sparsify(tiny_model(name), head=head)


def stored_rows(name="llama", head=NARROW):
    return store_supports(narrow_teacher(name, head), rows_of_uneven_length(), batch_size=3)


def trained_on(model, data, path, weight=0.4, **options):
    trainer = SparseTrainer(model, arguments(path, distillation_weight=weight, **options), train_dataset=data)
    trainer.train()
    return trainer


@pytest.mark.parametrize("name", ["llama", "bart", "bert"])
def test_stored_supports_are_the_teachers_distributions_at_the_labels_that_count(name):
    teacher, data = narrow_teacher(name), stored_rows(name)
    batch = rows_of_uneven_length().with_format("torch")[:]
    with torch.no_grad():
        output = teacher(**{key: value for key, value in batch.items() if key != "labels" or name == "bart"})
    p, _ = scored(name, probabilities(teacher, output.logits), batch["labels"])
    ids = [support for row in data[IDS] for support in row]
    weights = [support for row in data[PROBABILITIES] for support in row]
    assert len(ids) == len(p)
    for row, classes, stored in zip(p, ids, weights):
        assert classes == row.nonzero()[:, 0].tolist()
        torch.testing.assert_close(torch.tensor(stored), row[classes], rtol=0, atol=1e-6)
    assert 1 < sum(map(len, ids)) / len(ids) < 20


def test_a_teacher_in_training_mode_is_asked_without_dropout():
    teacher = narrow_teacher("bart").train()
    assert store_supports(teacher, rows_of_uneven_length())[:] == stored_rows("bart")[:]
    assert teacher.training


@pytest.mark.parametrize("form", ["torch", "numpy", "arrow", "pandas"])
def test_a_data_set_may_have_any_format(form):
    stored = store_supports(narrow_teacher("llama"), rows_of_uneven_length().with_format(form), batch_size=3)
    assert stored.format["type"] == form
    assert stored.with_format(None)[:] == stored_rows()[:]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("weight", [0.4, 1.0])
@pytest.mark.parametrize("name", ["llama", "bart"])
def test_the_loss_and_the_step_are_those_of_training_beside_the_teacher(name, weight, fused, tmp_path):
    teacher, model = narrow_teacher(name), student(name, head=NARROW, fused_loss=fused)
    batch = rows_of_uneven_length().with_format("torch")[:]
    with torch.no_grad():
        dense = {key: value for key, value in batch.items() if key != "labels" or name == "bart"}
        q, y = scored(name, probabilities(teacher, teacher(**dense).logits), batch["labels"])
    own = student(name, head=NARROW)
    with raw_scores(own):
        z, _ = scored(name, own(**dense).logits, batch["labels"])
    target = (1 - weight) * torch.nn.functional.one_hot(y, z.shape[-1]) + weight * q.double()
    p = probabilities(own, z.detach()).double()
    z.backward((p - target).float() / len(z))  # the gradient of the loss at loss_scale="temperature"
    trainer = trained_on(model, stored_rows(name), tmp_path, weight)
    for mine, reference in zip(model.parameters(), own.parameters()):
        moved = reference if reference.grad is None else reference - 0.1 * reference.grad
        torch.testing.assert_close(mine, moved, rtol=0, atol=1e-6)
    hard = entmax15_reference(z.detach() / 2, torch.nn.functional.one_hot(y, z.shape[-1])).mean()
    soft = entmax15_reference(z.detach() / 2, q).mean()
    expected = 2 * float((1 - weight) * hard + weight * soft)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-5)
    assert abs(float(hard - soft)) > 0.01


@pytest.mark.parametrize(
    "head", [NARROW, "sparsemax", {"name": "alpha_relu", "tau": 0.3}, {"name": "entmax", "alpha": 1.2}]
)
def test_fused_and_dense_losses_of_supports_agree_with_a_bias(head):
    map_config = sparse_config(sparsify(tiny_model("llama"), head=head)).head
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(6, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(11, generator=generator, dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([[3, 4, 0], [1, 0, 0], [2, 9, 10], [5, 6, 7], [8, 0, 0], [0, 1, 0]])
    p = torch.tensor([[0.5, 0.5, 0], [1, 0, 0], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4], [1, 0, 0], [0.9, 0.1, 0]]).double()
    supports = Supports(ids, p)
    lazy = LinearLogits(hidden, weight, bias, scale=0.7)
    for num_items in (None, 9):
        fused = supports.loss(map_config, lazy, num_items)
        dense = supports.loss(map_config, lazy.compute(), num_items)
        torch.testing.assert_close(fused, dense, rtol=1e-6, atol=1e-6)
        inputs = (hidden, weight, bias)
        for one, other in zip(
            torch.autograd.grad(fused, inputs), torch.autograd.grad(dense, inputs, retain_graph=True)
        ):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
    with pytest.raises(ValueError, match="soft-capped logits are not linear"):
        supports.loss(map_config, torch.tanh(lazy) * 3.0, None)


def test_a_batch_in_which_no_label_counts_costs_nothing():
    map_config = sparse_config(sparsify(tiny_model("llama"), head="sparsemax")).head
    collator = SupportCollator(lambda rows: {"labels": torch.full((len(rows), 3), -100)})
    batch = collator([{IDS: [], PROBABILITIES: []}] * 2)
    supports = Supports.taken(batch, batch["labels"] != -100, 11)
    weight = torch.randn(11, 5, requires_grad=True)
    lazy = LinearLogits(torch.zeros(0, 5), weight)
    for logits in (lazy, lazy.compute()):
        loss = supports.loss(map_config, logits, None)
        assert loss == 0
        assert not torch.autograd.grad(loss, weight)[0].any()


def test_a_fused_student_never_makes_logits(tmp_path, monkeypatch):
    def made(_):
        raise AssertionError("logits were made")

    monkeypatch.setattr(LinearLogits, "compute", made)
    trained_on(student("llama", head=NARROW, fused_loss=True), stored_rows(), tmp_path, log_sparsity=False)


def test_accumulated_gradients_are_those_of_one_batch(tmp_path):
    data, models = stored_rows(), []
    for size in (ROWS, 2):
        models.append(student("llama"))
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": ROWS // size}
        trained_on(models[-1], data, tmp_path, **options)
    assert largest_change(*models) < 1e-6


def test_rows_are_padded_by_the_collator_that_was_stored_with(tmp_path):
    collator = DataCollatorForSeq2Seq(word_tokenizer(), padding=True)
    rows = [tokens(1, length, seed=length)[0].tolist() for length in (3, 7, 5, 4)]
    data = Dataset.from_dict({"input_ids": rows, "labels": rows, "note": ["a", "b", "c", "d"]})
    stored = store_supports(narrow_teacher("llama"), data, collator, batch_size=4)
    alone = store_supports(narrow_teacher("llama"), data, collator, batch_size=1)
    assert [len(row) for row in stored[IDS]] == [2, 6, 4, 3]
    assert stored[IDS] == alone[IDS]
    stored.save_to_disk(tmp_path / "data")
    args = arguments(tmp_path, distillation_weight=0.5, max_steps=2, per_device_train_batch_size=2)
    data = load_from_disk(tmp_path / "data")
    trainer = SparseSeq2SeqTrainer(
        student("llama"), args, train_dataset=data, eval_dataset=data, data_collator=collator
    )
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0


def test_a_student_of_sparse_attention_alone_learns_from_supports_by_cross_entropy(tmp_path):
    model = student("llama", attn="entmax15")
    trainer = trained_on(model, stored_rows(), tmp_path, weight=1.0)
    assert trainer.state.log_history[0]["loss"] > 0


def test_stored_supports_are_smaller_than_distributions():
    stored = stored_rows(head={"name": "entmax15", "temperature": 0.5})
    classes = sum(len(support) for row in stored[IDS] for support in row)
    labels = sum(map(len, stored[IDS]))
    assert classes < labels * 5
    assert stored.data.column(IDS).nbytes + stored.data.column(PROBABILITIES).nbytes < 6 * classes + 16 * labels + 100


def test_dense_teachers_are_refused_with_the_cure():
    for teacher in (tiny_model("llama"), sparsify(tiny_model("llama"), attn="entmax15")):
        with pytest.raises(
            ValueError, match=r"is dense: .* Pass draws=64.*sparsify\(teacher, head=...\), then calibrate"
        ):
            store_supports(teacher, rows_of_uneven_length())


def test_data_that_cannot_be_stored_are_refused():
    teacher, rows = narrow_teacher("llama"), rows_of_uneven_length()
    with pytest.raises(TypeError, match=r"dataset must be a datasets\.Dataset, was DatasetDict; store each split"):
        store_supports(teacher, DatasetDict({"train": rows}))
    with pytest.raises(ValueError, match="store_supports needs labels"):
        store_supports(teacher, rows.remove_columns("labels"))
    with pytest.raises(ValueError, match="batch_size must be"):
        store_supports(teacher, rows, batch_size=0)
    with pytest.raises(ValueError, match="draws must be at least 1, or None, was 0"):
        store_supports(teacher, rows, draws=0)
    with pytest.raises(TypeError, match=r"draws must be a whole number, or None, was 2\.5"):
        store_supports(teacher, rows, draws=2.5)
    with pytest.raises(ValueError, match="the teacher, a BertModel, has no language-model head"):
        store_supports(BertModel(tiny_model("bert").config), rows, draws=2)
    with pytest.raises(ValueError, match="must agree in all but the vocabulary for store_supports"):
        check_positions(torch.zeros(2, 3, 9), torch.zeros(2, 4), "store_supports")


def test_training_refuses_supports_that_do_not_fit(tmp_path):
    data = stored_rows()
    with pytest.raises(ValueError, match="have a teacher's supports but distillation_weight is 0"):
        trained_on(student("llama"), data, tmp_path, weight=0.0)
    args = arguments(tmp_path, distillation_weight=0.5)
    with pytest.raises(ValueError, match="the data have a teacher's supports already"):
        SparseTrainer(student("llama"), args, train_dataset=data, teacher=tiny_model("llama"))
    others = data.remove_columns("labels").add_column("labels", rows_of_uneven_length()["input_ids"])
    with pytest.raises(ValueError, match=r"in which .* count; store them with the collator that trains"):
        trained_on(student("llama"), others, tmp_path)
    with pytest.raises(ValueError, match="the stored supports have class 22, and the model 9 classes"):
        Supports.taken({IDS: torch.tensor([[[22]]]), PROBABILITIES: torch.ones(1, 1, 1)}, torch.ones(1, 1).bool(), 9)
    with pytest.raises(ValueError, match="a batch came without supports"):
        Supports.taken({}, torch.ones(1, 1).bool(), 9)
    with pytest.raises(ValueError, match=r"pads on the left.*make that label -100"):
        Supports.taken({IDS: torch.zeros(2, 1, 1), PROBABILITIES: torch.ones(2, 1, 1)}, torch.ones(2, 2).bool(), 9)


@pytest.mark.parametrize(
    "hidden", [lambda data: Subset(data, range(4)), list, lambda data: data.to_iterable_dataset().map(dict)]
)
def test_supports_that_the_trainer_cannot_see_are_not_ignored(hidden, tmp_path):
    adapter = get_peft_model(student("llama"), LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    with pytest.raises(ValueError, match=r"would teach nothing: train_dataset, a .* its columns\. Give"):
        trained_on(adapter, hidden(stored_rows()), tmp_path)


def test_a_collator_that_joins_rows_trains_on_supports_stored_row_by_row(tmp_path):
    rows = [tokens(1, length, seed=length)[0].tolist() for length in (3, 7, 5, 4)]
    data = Dataset.from_dict({"input_ids": rows, "labels": rows})
    padded, joined = DataCollatorForSeq2Seq(word_tokenizer(), padding=True), DataCollatorWithFlattening()
    stored, models = store_supports(narrow_teacher("llama"), data, padded), []
    for collator in (padded, joined):
        models.append(student("llama", attn="entmax15"))
        args = arguments(tmp_path, distillation_weight=0.5, per_device_train_batch_size=4)
        SparseTrainer(models[-1], args, train_dataset=stored, data_collator=collator).train()
    assert largest_change(*models) < 1e-6
    assert largest_change(models[0], student("llama", attn="entmax15")) > 1e-3
    with pytest.raises(ValueError, match=r"made 1 rows of labels of 4 rows of the data.*a collator that pads"):
        store_supports(narrow_teacher("llama"), data, joined)


def test_sentences_are_generated_for_data_with_supports(tmp_path):
    data = stored_rows("bart")
    args = arguments(tmp_path, distillation_weight=0.5, predict_with_generate=True, generation_max_length=4)
    trainer = SparseSeq2SeqTrainer(student("bart"), args, train_dataset=data)
    assert len(trainer.predict(data).predictions) == len(data)


def test_rows_without_supports_give_batches_without_them():
    collate = SupportCollator(lambda rows: {"count": len(rows), "keys": sorted(rows[0])})
    assert collate([{"input_ids": [1]}]) == {"count": 1, "keys": ["input_ids"]}
    batch = collate([{"input_ids": [1], IDS: [[1, 2], [3]], PROBABILITIES: [[0.5, 0.5], [1.0]]}])
    assert batch["keys"] == ["input_ids"]
    assert batch[IDS].tolist() == [[[1, 2], [3, 0]]]
    assert _padded([[], []], [[], []], torch.long).shape == (2, 0, 1)  # room for a class, whose argmax is taken


def test_the_last_probability_is_that_of_all_further_classes():
    collate = SupportCollator(lambda rows: {})
    two, one = {IDS: [[4, 1, 2, 3], [3]], PROBABILITIES: [[0.4, 0.2], [1.0]]}, {IDS: [[5]], PROBABILITIES: [[1]]}
    batch = collate([two, one])
    assert batch[IDS].tolist() == [[[4, 1, 2, 3], [3, 0, 0, 0]], [[5, 0, 0, 0], [0, 0, 0, 0]]]
    torch.testing.assert_close(batch[PROBABILITIES][0, 0], torch.tensor([0.4, 0.2, 0.2, 0.2]))
    assert batch[PROBABILITIES][1].tolist() == [[1, 0, 0, 0], [0, 0, 0, 0]]


def drawn_and_whole(name, teacher, rows, **options):
    """The stored estimates (N, V), by the collator that trains, and the teacher's distributions at the same labels."""
    stored = store_supports(teacher, rows, **options)
    batch = SupportCollator(lambda _: {})(list(stored))
    counts = batch[PROBABILITIES].sum(-1) > 0
    q = Supports.taken(batch, counts, 23).dense(23)
    inputs = rows.with_format("torch")[:]
    with torch.no_grad(), raw_scores(teacher) if is_sparse(teacher) else nullcontext():
        kept = {key: value for key, value in inputs.items() if key != "labels" or name == "bart"}
        z, _ = scored(name, teacher(**kept).logits, inputs["labels"])
    return q, probabilities(teacher, z) if is_sparse(teacher) else z.softmax(-1)


@pytest.mark.parametrize("settings", [{}, {"head": NARROW}, {"attn": "entmax15"}])
@pytest.mark.parametrize("name", ["llama", "bart", "bert"])
def test_draws_estimate_any_distribution_without_bias(name, settings):
    """Of one row, stored again and again: its mean is as near as the largest variance, p (1/4 - p), allows."""
    teacher = sparsify(tiny_model(name), **settings) if settings else tiny_model(name)
    rows = rows_of_uneven_length().select([1] * 400)
    q, p = drawn_and_whole(name, teacher, rows, draws=4, batch_size=50)
    labels = len(p) // len(rows)
    assert int((q > 0).sum(-1).max()) == 4
    torch.testing.assert_close(q.sum(-1), torch.ones(len(q)))
    spread = (p * (1 / 4 - p).clamp(min=0) / len(rows)).sqrt()[:labels]
    assert bool(((q.unflatten(0, (-1, labels)).mean(0) - p[:labels]).abs() < 5 * spread + 2e-4).all())


def test_draws_of_a_small_support_are_all_of_it():
    teacher = narrow_teacher("llama", {"name": "entmax15", "temperature": 0.5})
    q, p = drawn_and_whole("llama", teacher, rows_of_uneven_length(), draws=23)
    torch.testing.assert_close(q, p, rtol=1e-3, atol=1e-6)
    assert torch.equal(q > 0, p > 0)


def test_a_teacher_runs_once_for_each_batch():
    teacher, calls = tiny_model("gpt2"), []  # whose class does not tell whether it shifts labels
    teacher.register_forward_hook(lambda *_: calls.append(1))
    store_supports(teacher, rows_of_uneven_length().select(range(4)), draws=2, batch_size=2)
    few = len(calls)
    calls.clear()
    store_supports(teacher, rows_of_uneven_length().select(range(8)), draws=2, batch_size=2)
    assert len(calls) == few + 2


def test_the_seed_draws_and_the_batch_size_does_not():
    def ids(**options):
        return store_supports(tiny_model("llama"), rows_of_uneven_length(), draws=5, **options)[IDS]

    assert ids() == ids(seed=0, batch_size=3)
    assert ids() != ids(seed=1)


def test_draws_take_two_bytes_a_class_and_two_for_each_that_is_certain():
    rows = rows_of_uneven_length()
    stored = store_supports(tiny_model("llama"), rows, draws=6)
    assert stored.features[IDS].feature.feature.dtype == "uint16"
    assert stored.features[PROBABILITIES].feature.feature.dtype == "float16"
    labels = sum(map(len, stored[IDS]))
    weights = sum(len(support) for row in stored[PROBABILITIES] for support in row)
    assert {len(support) for row in stored[IDS] for support in row} == {6}
    assert weights < 5 * labels
    size = stored.data.column(IDS).nbytes + stored.data.column(PROBABILITIES).nbytes
    assert size < 2 * 6 * labels + 2 * weights + 16 * labels + 100


def test_large_vocabularies_have_ids_of_four_bytes():
    sizes = {"hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    teacher = LlamaForCausalLM(LlamaConfig(vocab_size=2**16 + 1, **sizes))
    with torch.no_grad():
        teacher.lm_head.weight.zero_()
    stored = store_supports(teacher, rows_of_uneven_length().select([0]), draws=2**16)
    assert stored.features[IDS].feature.feature.dtype == "int32"
    assert max(stored[IDS][0][0]) >= 2**16 - 1


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("head", [NARROW, "softmax", {"name": "alpha_relu", "tau": 0.3}])
def test_the_step_of_draws_is_that_of_their_distributions(head, fused, tmp_path):
    teacher, rows = tiny_model("llama"), rows_of_uneven_length()
    stored = store_supports(teacher, rows, draws=4)
    q, _ = drawn_and_whole("llama", teacher, rows, draws=4)
    settings = {"attn": "entmax15"} if head == "softmax" else {"head": head, "fused_loss": fused}
    model, own = student("llama", **settings), student("llama", **settings)
    batch = rows.with_format("torch")[:]
    with raw_scores(own):
        z, _ = scored("llama", own(batch["input_ids"]).logits, batch["labels"])
    weights = sparse_config(own).head(z.detach()) if "head" in settings else z.detach().softmax(-1)
    z.backward((weights - q).float() / len(z))
    trained_on(model, stored, tmp_path, weight=1.0)
    for mine, reference in zip(model.parameters(), own.parameters()):
        moved = reference if reference.grad is None else reference - 0.1 * reference.grad
        torch.testing.assert_close(mine, moved, rtol=0, atol=1e-6)


def test_the_tokenizer_of_a_collator_is_saved_and_rows_may_be_of_any_kind(tmp_path):
    collator = DataCollatorForSeq2Seq(word_tokenizer())
    args = arguments(tmp_path, distillation_weight=0.5)
    data = rows_of_uneven_length()
    trainer = SparseTrainer(student("llama"), args, collator, data, teacher=tiny_model("llama"))
    trainer.save_model()
    assert (tmp_path / "tokenizer.json").exists()
    ids = [(torch.tensor(row),) for row in tokens().tolist()]

    def joined(rows):
        stacked = torch.stack([row for (row,) in rows])
        return {"input_ids": stacked, "labels": stacked}

    trainer = SparseTrainer(student("llama"), args, joined, ids, teacher=tiny_model("llama"))
    assert not hasattr(trainer.data_collator, "tokenizer")
    assert trainer.train().training_loss > 0
