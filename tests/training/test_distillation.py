"""Distillation: the teacher's part of the loss, exact under accumulation, and the teacher that costs no memory."""

import gc

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, LlamaForCausalLM

from hf_sparse import AnnealingCallback, SparseTrainer, is_sparse, sparse_config, sparsify, unsparsify
from hf_sparse.model.dense_blocks import dense_attention
from tests.tiny_inline_models import tiny_inline_model
from tests.tiny_models import labelled, tiny_model, tokens
from tests.training.runs import arguments, largest_change, rows_of_uneven_length

BOTH = {"attn": "entmax15", "head": "entmax15"}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    """A trainer makes the folder that its arguments name."""
    monkeypatch.chdir(tmp_path)


def entmax15_by_bisection(z):
    low, high = z.amax(-1, keepdim=True) / 2 - 1, z.amax(-1, keepdim=True) / 2
    for _ in range(100):
        middle = (low + high) / 2
        heavy = (z / 2 - middle).clamp(min=0).pow(2).sum(-1, keepdim=True) > 1
        low, high = torch.where(heavy, middle, low), torch.where(heavy, high, middle)
    return (z / 2 - low).clamp(min=0).pow(2)


def entmax15_reference(z, q):
    """``(p - q)^T z + H(p) - H(q)`` of each row, Tsallis entropy of index 1.5, in float64."""
    z, q = z.double(), q.double()
    p = entmax15_by_bisection(z)

    def entropy(p):
        return (p - p**1.5).sum(-1) / 0.75

    return ((p - q) * z).sum(-1) + entropy(p) - entropy(q)


def no_dropout(model):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    return model


def student(name, **settings):
    return sparsify(no_dropout(tiny_model(name, seed=3)), **(settings or BOTH))


def distilled(model, path, teacher=None, weight=0.4, **options):
    args = arguments(path, distillation_weight=weight, **options)
    trainer = SparseTrainer(model, args, train_dataset=rows_of_uneven_length(), teacher=teacher)
    trainer.train()
    return trainer


def scored(name, logits, labels):
    if name in ("llama", "gpt2"):
        logits, labels = logits[:, :-1], labels[:, 1:]
    return logits[labels != -100], labels[labels != -100]


@pytest.mark.parametrize("name", ["llama", "bart", "t5", "bert"])
@pytest.mark.parametrize("weight", [0.4, 1.0])
def test_the_loss_mixes_labels_and_teacher(name, weight, tmp_path):
    model, teacher = student(name), tiny_model(name)
    batch = rows_of_uneven_length().with_format("torch")[:]
    with torch.no_grad():
        z, y = scored(name, model(**batch).logits, batch["labels"])
        q = scored(name, teacher(**batch).logits, batch["labels"])[0].double().softmax(-1)
    hard = entmax15_reference(z, nn.functional.one_hot(y, z.shape[-1])).mean()
    soft = entmax15_reference(z, q).mean()
    trainer = distilled(model, tmp_path, teacher, weight)
    expected = float((1 - weight) * hard + weight * soft)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-4)
    assert abs(float(hard - soft)) > 0.01


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_the_gradient_at_the_logits_is_p_minus_q(temperature):
    """With weight 1, one batch and no ignored position, summed over the rows, at every temperature."""
    model, teacher = student("llama", head={"name": "entmax15", "temperature": temperature}), tiny_model("llama")
    ids = tokens(2, 6)
    trainer = SparseTrainer(model, arguments("unused", distillation_weight=1.0), teacher=teacher)
    outputs = trainer._distillation.forward(model, input_ids=ids, labels=ids)
    (gradient,) = torch.autograd.grad(outputs.loss, outputs.logits)
    p = entmax15_by_bisection(outputs.logits.detach().double()[:, :-1] / temperature)
    q = teacher(ids).logits.detach().double().softmax(-1)[:, :-1]
    torch.testing.assert_close(gradient[:, :-1].double() * 10, p - q, atol=1e-5, rtol=0)
    assert bool((gradient[:, -1] == 0).all())


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_accumulation_equals_one_big_batch(name, tmp_path):
    teacher, start = tiny_model(name), student(name)
    whole = distilled(student(name), tmp_path, teacher).model
    small = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    parts = distilled(student(name), tmp_path, teacher, **small).model
    assert largest_change(start, whole) > 1e-3
    assert largest_change(whole, parts) < 1e-5  # of weights that moved by 4, in float32


def test_ignored_positions_teach_nothing(tmp_path):
    """A teacher that is wild at the first token only, whose prediction no label scores."""

    class Wild(nn.Module):
        def forward(self, hidden):
            return hidden.index_add(1, torch.tensor([0]), torch.full_like(hidden[:, :1], 7.0))

    data = rows_of_uneven_length().with_format("torch")[:]
    data["labels"][:, :2] = -100
    rows = Dataset.from_dict({name: column.tolist() for name, column in data.items()})

    def after(teacher):
        model = student("llama", head="entmax15")
        args = arguments(tmp_path, distillation_weight=1.0)
        SparseTrainer(model, args, train_dataset=rows, teacher=teacher).train()
        return model

    plain, wild = tiny_model("llama"), tiny_model("llama")
    last = wild.model.norm
    wild.model.norm = nn.Sequential(last, Wild())
    with torch.no_grad():
        difference = (plain(data["input_ids"]).logits - wild(data["input_ids"]).logits).abs()
    assert float(difference[:, 0].min()) > 1e-3
    assert float(difference[:, 1:].max()) == 0
    assert largest_change(after(plain), after(wild)) == 0


def test_a_batch_without_labels_to_score_gives_zero():
    model, ids = student("llama"), tokens(2, 6)
    distillation = trainer_for(model, "unused", tiny_model("llama"))._distillation
    loss = distillation.forward(model, input_ids=ids, labels=torch.full_like(ids, -100)).loss
    loss.backward()
    assert float(loss.detach()) == 0
    assert all(bool((weight.grad == 0).all()) for weight in model.parameters() if weight.grad is not None)


def test_labels_shifted_by_the_collator_are_heeded():
    model, teacher = student("llama"), tiny_model("llama")
    ids = tokens(2, 6)
    shifted = torch.full_like(ids, -100)
    shifted[:, 2] = ids[:, 5]
    trainer = SparseTrainer(model, arguments("unused", distillation_weight=1.0), teacher=teacher)
    loss = trainer._distillation.forward(model, input_ids=ids, labels=ids, shift_labels=shifted).loss
    with torch.no_grad():
        q = teacher(ids).logits[:, 2].double().softmax(-1)
        expected = entmax15_reference(model(ids, log_probs=False).logits[:, 2], q).mean()
    assert float(loss.detach()) == pytest.approx(float(expected), rel=1e-5)


def test_a_dense_head_learns_by_cross_entropy(tmp_path):
    model, teacher = student("llama", attn="sparsemax"), tiny_model("llama")
    batch = rows_of_uneven_length().with_format("torch")[:]
    with torch.no_grad():
        z, _ = scored("llama", model(**batch).logits, batch["labels"])
        q, _ = scored("llama", teacher(**batch).logits, batch["labels"])
    kl = nn.functional.kl_div(z.log_softmax(-1), q.log_softmax(-1), log_target=True, reduction="batchmean")
    trainer = distilled(model, tmp_path, teacher, 1.0)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(float(kl), rel=1e-4)


def test_evaluation_is_of_the_model_alone(tmp_path):
    trainer = distilled(student("llama"), tmp_path, tiny_model("llama"), learning_rate=0.0)
    with_teacher = trainer.evaluate(rows_of_uneven_length())["eval_loss"]
    trainer = distilled(student("llama"), tmp_path, None, 0.0, learning_rate=0.0)
    assert with_teacher == trainer.evaluate(rows_of_uneven_length())["eval_loss"]


# --- the model as its own teacher


def adapted(name="llama", **settings):
    """A sparse model with an adapter that changes it, and its own dropout."""
    target = {"llama": "v_proj", "bart": "v_proj", "gpt2": "c_attn"}[name]
    config = LoraConfig(
        target_modules=[target], lora_dropout=0.0, init_lora_weights=False, fan_in_fan_out=name == "gpt2"
    )
    return get_peft_model(sparsify(tiny_model(name), **(settings or BOTH)), config)


@pytest.mark.parametrize("name", ["llama", "bart", "gpt2"])
def test_its_logits_equal_the_dense_bases_bit_for_bit(name, tmp_path):
    dense, model = tiny_model(name), adapted(name)
    args = arguments(tmp_path, distillation_weight=1.0)
    trainer = SparseTrainer(model, args, train_dataset=rows_of_uneven_length())
    batch = rows_of_uneven_length().with_format("torch")[:]
    with torch.no_grad():
        expected, before = dense(**batch).logits, model(**batch).logits
    for _ in range(2):
        model.train()
        assert torch.equal(trainer._distillation.teacher_logits(batch), expected)
        assert model.training
        trainer.train()  # the adapter learns, the teacher stays
    model.eval()
    with torch.no_grad():
        assert not torch.equal(before, expected)
        assert not torch.equal(model(**batch).logits, before)
    assert is_sparse(model)


def test_no_second_copy_of_the_weights_is_made(tmp_path):
    """Weights alive while the teacher runs are those alive while the student does, in the same places."""

    def alive():
        tensors = [value for value in gc.get_objects() if issubclass(type(value), nn.Parameter)]
        return {tensor.data_ptr() for tensor in tensors if tensor.numel() > 0}

    model = adapted()
    known, during, places = alive(), [], []
    embeddings = model.get_input_embeddings()

    def note(module, inputs):
        during.append(alive())
        places.append((torch.is_grad_enabled(), module.weight.data_ptr()))

    handle = embeddings.register_forward_pre_hook(note)
    distilled(model, tmp_path, None, 0.5, max_steps=2, log_sparsity=False)
    handle.remove()
    assert [graded for graded, _ in places[5:]] == [True, False, True, False]  # after it was checked
    assert len({place for _, place in places}) == 1
    for seen in during:
        assert seen <= known


def test_its_loss_is_against_the_base(tmp_path):
    dense, model = tiny_model("llama"), adapted()
    batch = rows_of_uneven_length().with_format("torch")[:]
    with torch.no_grad():
        z, _ = scored("llama", model(**batch).logits, batch["labels"])
        q, _ = scored("llama", dense(**batch).logits, batch["labels"])
    trainer = distilled(model, tmp_path, None, 1.0)
    expected = float(entmax15_reference(z, q.double().softmax(-1)).mean())
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-4)


def test_annealing_and_distillation_go_together(tmp_path):
    model = adapted()
    args = arguments(tmp_path, distillation_weight=0.5, max_steps=3)
    data = rows_of_uneven_length()
    SparseTrainer(model, args, train_dataset=data, callbacks=[AnnealingCallback(2)]).train()
    assert sparse_config(model).to_dict()["head"] == {"name": "entmax15"}


@pytest.mark.parametrize("name", ["llama", "t5", "bart"])
def test_densely_gives_the_dense_logits_and_takes_nothing_away(name):
    dense, model = tiny_model(name), sparsify(tiny_model(name), **BOTH)
    inputs = labelled(model)
    before = model(**inputs).logits
    with dense_attention(model):
        assert torch.equal(model(**inputs).logits, dense(**inputs).logits)
    assert torch.equal(model(**inputs).logits, before)
    assert torch.equal(unsparsify(model)(**inputs).logits, dense(**inputs).logits)


def test_densely_reaches_attention_computed_inline():
    dense, model = tiny_inline_model("gptj"), sparsify(tiny_inline_model("gptj"), attn="sparsemax")
    ids = tokens()
    before = model(ids).logits
    with dense_attention(model):
        assert torch.equal(model(ids).logits, dense(ids).logits)
    with pytest.raises(KeyError), dense_attention(model):
        raise KeyError
    assert torch.equal(model(ids).logits, before)
    assert not torch.equal(before, dense(ids).logits)


# --- what is refused


def trainer_for(model, path, teacher=None, **options):
    return SparseTrainer(model, arguments(path, distillation_weight=0.5, **options), teacher=teacher)


def test_a_model_whose_input_cannot_be_made_up_is_given_its_teacher(tmp_path):
    class NeedsMore(LlamaForCausalLM):
        def forward(self, input_ids=None, extra=None, **kwargs):
            return super().forward(input_ids + extra, **kwargs)

    torch.manual_seed(0)
    example = {"input_ids": tokens(), "extra": torch.zeros_like(tokens())}
    model = sparsify(NeedsMore(tiny_model("llama").config), attn="entmax15", example=example)
    with pytest.raises(ValueError, match=r"distillation_weight needs a teacher: .* made-up input.*pass teacher="):
        trainer_for(model, tmp_path)


def test_what_cannot_be_distilled_is_refused_by_name(tmp_path):
    teacher = tiny_model("llama")
    with pytest.raises(ValueError, match="needs a teacher: pass teacher="):
        trainer_for(student("llama"), tmp_path)
    with pytest.raises(ValueError, match="fused_loss=True never makes the logits"):
        trainer_for(student("llama", head="entmax15", fused_loss=True), tmp_path, teacher)
    with pytest.raises(ValueError, match="LlamaForCausalLM, has a vocabulary of 19, the model one of 23"):
        trainer_for(student("llama"), tmp_path, tiny_model("llama", vocab_size=19))
    with pytest.raises(ValueError, match="LlamaForCausalLM, is sparse; give a dense one"):
        trainer_for(student("llama"), tmp_path, student("llama"))
    with pytest.raises(ValueError, match="LlamaModel, has no language-model head"):
        trainer_for(student("llama"), tmp_path, teacher.model)
    with pytest.raises(TypeError, match="a Transformers model"):
        trainer_for(student("llama"), tmp_path, nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"distillation_weight must be in \[0, 1\], was 1.5"):
        SparseTrainer(student("llama"), arguments(tmp_path, distillation_weight=1.5), teacher=teacher)
    with pytest.raises(ValueError, match="a teacher is given but distillation_weight is 0"):
        SparseTrainer(student("llama"), arguments(tmp_path), teacher=teacher)
    classifier = BertForSequenceClassification(
        BertConfig(vocab_size=23, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    )
    with pytest.raises(ValueError, match="BertForSequenceClassification has no language-model head to distil into"):
        trainer_for(sparsify(classifier, attn="entmax15"), tmp_path, teacher)


def test_several_gpus_in_one_process_are_refused(tmp_path, monkeypatch):
    args = arguments(tmp_path, distillation_weight=0.5)
    monkeypatch.setattr(type(args), "n_gpu", 2)
    with pytest.raises(ValueError, match="several GPUs in one process"):
        SparseTrainer(student("llama"), args, teacher=tiny_model("llama"))


@pytest.mark.filterwarnings("ignore:Careful, disabling adapter layers with bias:UserWarning")  # so we refuse it
@pytest.mark.parametrize("what", ["weight", "bias"])
def test_a_base_that_learns_is_no_teacher(what, tmp_path):
    if what == "weight":
        model = adapted()
        model.get_input_embeddings().weight.requires_grad_(True)
    else:
        config = LoraConfig(target_modules=["v_proj"], bias="all")
        model = get_peft_model(sparsify(tiny_model("bart"), **BOTH), config)
    with pytest.raises(ValueError, match=rf"{what}' is trained but no part of the adapter"):
        trainer_for(model, tmp_path)


def test_a_learned_alpha_does_not_move_the_teacher(tmp_path):
    model = adapted(attn={"name": "entmax", "alpha": "learned"}, head="entmax15")
    for name, weight in model.named_parameters():
        weight.requires_grad_(weight.requires_grad or "sparse_alpha" in name)
    assert trainer_for(model, tmp_path)._distillation.teacher is None


def test_logits_that_do_not_go_with_the_labels_are_refused():
    model = student("llama")
    distillation = trainer_for(model, "unused", tiny_model("llama"))._distillation
    with pytest.raises(ValueError, match="distillation needs labels"):
        distillation.forward(model, input_ids=tokens())
    with pytest.raises(ValueError, match=r"logits \(2, 3, 23\) and labels \(2, 7\) must agree"):
        distillation.forward(
            lambda **inputs: model(inputs["input_ids"], logits_to_keep=3), input_ids=tokens(), labels=tokens()
        )
