"""Models whose forward others have wrapped: by Accelerate's hooks and autocast, by Liger's kernels."""

import functools
import re
from types import MethodType

import pytest
import torch
from accelerate import Accelerator, disk_offload
from accelerate.state import AcceleratorState
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments
from transformers.modeling_outputs import CausalLMOutput

from hf_sparse import (
    SparseTrainer,
    SparseTrainingArguments,
    calibrate,
    compare,
    estimate_tau_from_data,
    is_sparse,
    sparse_config,
    sparsify,
    unsparsify,
)
from tests.conversion.data import loader
from tests.tiny_inline_models import tiny_inline_model
from tests.tiny_models import labelled, tiny_model

BOTH = {"attn": "entmax15", "head": "sparsemax"}


@pytest.fixture
def accelerator():
    """One of bfloat16; trainers share the precision of the first in the process, before this one and after it."""
    AcceleratorState._reset_state()
    yield Accelerator(mixed_precision="bf16", cpu=True)
    AcceleratorState._reset_state()


def offloaded(name, path):
    """A tiny model with all its weights on disk."""
    model = tiny_model(name)
    disk_offload(model, path, execution_device="cpu")
    assert all(parameter.is_meta for parameter in model.parameters())
    return model


def spread_over_devices(name, path):
    """A tiny model loaded with a device map: second layers on disk, all else on the CPU."""
    model = tiny_model(name)
    layer = re.compile(r"(.*\.(?:layers?|block)\.1)\..*")
    parts = {match[1] if (match := layer.fullmatch(key)) else key for key in model.state_dict()}
    device_map = {part: "disk" if part.endswith(".1") else "cpu" for part in parts}
    model.save_pretrained(path / "saved")
    model = type(model).from_pretrained(path / "saved", device_map=device_map, offload_folder=path / "disk")
    assert len({parameter.is_meta for parameter in model.parameters()}) == 2
    return model


@pytest.mark.filterwarnings("ignore:The following device_map keys")
@pytest.mark.parametrize("place", [offloaded, spread_over_devices])
@pytest.mark.parametrize("name", ["llama", "bart", "t5", "bert"])
@torch.no_grad()
def test_a_model_that_was_dispatched_before_is_as_sparse_as_another(name, place, tmp_path):
    inputs = labelled(tiny_model(name))
    dense, expected = tiny_model(name), sparsify(tiny_model(name), **BOTH)
    model = place(name, tmp_path)
    assert torch.equal(model(**inputs).loss, dense(**inputs).loss)
    sparsify(model, **BOTH)
    assert torch.equal(model(**inputs).loss, expected(**inputs).loss)
    inputs["log_probs"] = True
    assert torch.equal(model(**inputs).logits, expected(**inputs).logits)
    assert (model(**inputs).logits.exp() == 0).any()
    del inputs["log_probs"]
    assert torch.equal(unsparsify(model)(**inputs).loss, dense(**inputs).loss)


def test_an_offloaded_model_estimates_tau_and_is_audited(tmp_path):
    settings = {"attn": "entmax15", "head": {"name": "alpha_relu", "tau": "auto"}}
    model = sparsify(offloaded("llama", tmp_path), **settings)
    assert sparse_config(model) == sparse_config(sparsify(tiny_model("llama"), **settings))
    with pytest.raises(ValueError, match="parts of this LlamaForCausalLM are offloaded, where nothing can be learned"):
        sparsify(unsparsify(model), attn={"name": "entmax", "alpha": "learned"})
    assert not is_sparse(model)


def test_an_offloaded_model_is_calibrated_and_compared_as_one_in_memory(tmp_path):
    model, expected = offloaded("llama", tmp_path / "one"), tiny_model("llama")
    maps = {"attn": "entmax15", "head": "entmax15"}
    batches = loader(expected)
    found = compare(model, batches, **maps, progress=False)
    assert found == compare(expected, batches, **maps, progress=False)
    assert estimate_tau_from_data(model, batches, progress=False) == estimate_tau_from_data(
        expected, batches, progress=False
    )
    report = calibrate(sparsify(model, **maps), batches, progress=False)
    assert report == calibrate(sparsify(expected, **maps), batches, progress=False)
    assert sparse_config(model) == sparse_config(expected)


@torch.no_grad()
def test_attention_that_computes_its_own_softmax_is_reached_through_hooks(tmp_path):
    expected, model = tiny_inline_model("gptj"), tiny_inline_model("gptj")
    inputs = labelled(expected)
    dense = expected(**inputs).loss
    disk_offload(model, tmp_path, execution_device="cpu")
    assert torch.equal(
        sparsify(model, attn="sparsemax")(**inputs).loss, sparsify(expected, attn="sparsemax")(**inputs).loss
    )
    assert torch.equal(unsparsify(model)(**inputs).loss, dense)


@torch.no_grad()
def test_taking_accelerates_autocast_off_leaves_the_model_sparse(accelerator):
    model = sparsify(tiny_model("llama"), **BOTH)
    inputs = labelled(model)
    expected = model(**inputs).loss
    prepared = accelerator.prepare(model)
    assert 0 < abs(prepared(**inputs).loss - expected) < 0.1
    assert torch.equal(accelerator.unwrap_model(prepared, keep_fp32_wrapper=False)(**inputs).loss, expected)


@torch.no_grad()
@pytest.mark.parametrize("unwrapped", [False, True])
def test_what_was_prepared_before_is_as_sparse_and_as_dense_as_another(unwrapped, accelerator, caplog):
    inputs = labelled(tiny_model("llama"))
    dense, expected = tiny_model("llama")(**inputs).loss, sparsify(tiny_model("llama"), **BOTH)(**inputs).loss

    def prepared(model):
        model = accelerator.prepare(model)
        return accelerator.unwrap_model(model, keep_fp32_wrapper=False) if unwrapped else model

    model = sparsify(prepared(tiny_model("llama")), **BOTH)
    assert torch.equal(model(**inputs).loss, expected)
    assert ("was prepared for mixed precision, which is off now" in caplog.text) != unwrapped
    assert "forward" not in vars(model)
    again = accelerator.prepare(model)
    assert 0 < abs(again(**inputs).loss - expected) < 0.1
    assert torch.equal(unsparsify(prepared(model))(**inputs).loss, dense)


@torch.no_grad()
def test_what_was_prepared_with_an_adapter_around_it_is_as_sparse_and_as_dense(accelerator):
    inputs = labelled(tiny_model("llama"))
    dense, expected = tiny_model("llama")(**inputs).loss, sparsify(tiny_model("llama"), **BOTH)(**inputs).loss
    adapted = get_peft_model(tiny_model("llama"), LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    model = sparsify(accelerator.prepare(adapted), **BOTH)
    assert torch.equal(model(**inputs).loss, expected)
    assert 0 < abs(accelerator.prepare(model)(**inputs).loss - expected) < 0.1
    assert torch.equal(unsparsify(model)(**inputs).loss, dense)


@torch.no_grad()
def test_mixed_precision_stays_on_a_model_that_cannot_be_sparse(accelerator, caplog):
    model, inputs = accelerator.prepare(tiny_model("llama")), labelled(tiny_model("llama"))
    expected, kept = model(**inputs).loss, dict(vars(model))
    with pytest.raises(ValueError, match="unknown sparse map"):
        sparsify(model, attn="entmax15", head="no map")
    with pytest.raises(ValueError, match="is self-attention"):
        sparsify(model, attn={"name": "csparsemax", "fertility": "predicted"})
    assert vars(model).keys() == kept.keys()
    assert torch.equal(model(**inputs).loss, expected)
    assert not caplog.records


def test_a_model_is_sparse_and_dense_again_around_training_in_mixed_precision(tmp_path, accelerator):
    data = Dataset.from_list([{key: value[1].tolist() for key, value in labelled(tiny_model("llama")).items()}] * 4)
    options = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "max_steps": 1, "bf16": True}
    model = tiny_model("llama")
    Trainer(model, TrainingArguments(str(tmp_path), **options), train_dataset=data).train()
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    sparsify(model, **BOTH)
    SparseTrainer(model, SparseTrainingArguments(str(tmp_path), **options), train_dataset=data).train()
    assert any(not torch.equal(weights[name], weight) for name, weight in model.state_dict().items())
    assert not is_sparse(unsparsify(model))
    assert "forward" not in vars(model)


def dense_forward(self, input_ids=None, labels=None, **kwargs):
    """A fused linear cross-entropy, as Liger puts it on a model."""
    hidden = self.model(input_ids=input_ids)[0]
    return CausalLMOutput(loss=torch.nn.functional.cross_entropy(self.lm_head(hidden)[:, :-1].mT, labels[:, 1:]))


def with_liger(model, config):
    """What ``transformers.integrations.liger.apply_liger_kernel`` does to a Llama, but for its kernels."""
    if (config or {}).get("fused_linear_cross_entropy", True):
        model.forward = MethodType(dense_forward, model)


def test_another_forward_in_the_place_of_the_sparse_one_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("transformers.trainer.apply_liger_kernel", with_liger)
    data = Dataset.from_list([{key: value[1].tolist() for key, value in labelled(tiny_model("llama")).items()}] * 4)

    def trained(trainer_class, arguments_class, **options):
        args = arguments_class(
            str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, max_steps=1, logging_steps=1
        )
        args.use_liger_kernel = True  # in the constructor it asks for the package
        args.liger_kernel_config = options or None
        trainer = trainer_class(sparsify(tiny_model("llama"), **BOTH), args, train_dataset=data)
        trainer.train()
        return trainer.state.log_history[0]["loss"]

    with pytest.raises(ValueError, match=r'dense_forward in the place .*=\{"fused_linear_cross_entropy": False'):
        trained(Trainer, TrainingArguments)
    with pytest.raises(ValueError, match=r"use_liger_kernel=True would train with dense cross-entropy"):
        trained(SparseTrainer, SparseTrainingArguments)
    expected = sparsify(tiny_model("llama"), **BOTH)(**data.with_format("torch")[:]).loss
    for classes in ((Trainer, TrainingArguments), (SparseTrainer, SparseTrainingArguments)):
        assert trained(*classes, fused_linear_cross_entropy=False) == pytest.approx(float(expected.detach()), rel=1e-4)
    model = tiny_model("llama")
    with_liger(model, None)
    with pytest.raises(ValueError, match="Liger's kernels"):
        sparsify(model, **BOTH)


@torch.no_grad()
def test_a_wrapper_that_says_what_it_wraps_is_welcome():
    model = sparsify(tiny_model("llama"), **BOTH)
    inputs = labelled(model)
    expected, own, calls = model(**inputs).loss, model.forward, []

    @functools.wraps(own)
    def counted(*args, **kwargs):
        calls.append(1)
        return own(*args, **kwargs)

    model.forward = counted
    assert torch.equal(model(**inputs).loss, expected)
    assert calls == [1]


def redirected(model, method, *args):
    """One call of ``method`` through ``model(...)``, as TRL's trainer for distillation makes it."""
    own = model.forward

    def once(*args):
        model.forward = own
        return method(*args)

    model.forward = once
    return model(*args)


@torch.no_grad()
def test_one_call_may_be_redirected_where_only_attention_is_sparse():
    model = sparsify(tiny_model("llama"), attn="entmax15")
    ids = labelled(model)["input_ids"]
    expected = model(ids).logits
    assert torch.equal(redirected(model, lambda ids: model.lm_head(model.model(ids)[0]), ids), expected)
    assert torch.equal(model(ids).logits, expected)
    with_head = sparsify(tiny_model("llama"), **BOTH)
    with pytest.raises(ValueError, match=r"once in the place of .* or make attention alone sparse"):
        redirected(with_head, with_head.model, ids)


@torch.no_grad()
def test_a_forward_in_the_place_of_another_has_sparse_attention():
    model, expected = (sparsify(tiny_model("llama"), attn="entmax15") for _ in range(2))
    inputs = labelled(model)
    with_liger(model, None)
    torch.testing.assert_close(model(**inputs).loss, expected(**inputs).loss)
