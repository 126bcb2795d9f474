"""The user's data are read once, checked, and scored as the model's own loss scores them."""

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from hf_sparse import calibrate, compare, estimate_tau_from_data, sparse_config, sparsify
from hf_sparse.conversion._batches import _CrossEntropyWatch, read_batches, scored
from hf_sparse.model.dry_run import as_it_runs
from tests.conversion.data import loader
from tests.model.test_head import scored as by_hand
from tests.tiny_models import ARCHITECTURES, tiny_model, tokens


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_scored_gives_the_rows_of_the_models_own_loss(name):
    model = tiny_model(name)
    batch = loader(model)[0]
    output = model(**batch)
    logits, target = scored(model, batch)
    z, y = by_hand(name, output.logits, batch["labels"])
    assert torch.equal(target, y[y != -100])
    assert torch.equal(logits, z[y != -100])
    torch.testing.assert_close(nn.functional.cross_entropy(logits, target), output.loss)
    sparse = sparsify(model, head="sparsemax")
    assert torch.equal(scored(sparse, batch)[0], logits)
    assert sparse_config(sparse).head.name == "sparsemax"


@torch.no_grad()
def test_classifiers_are_scored_too_and_regressions_refused():
    config = {"vocab_size": 23, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = BertForSequenceClassification(BertConfig(**config, num_labels=3)).eval()
    batch = {"input_ids": tokens(), "labels": torch.tensor([0, 2])}
    logits, target = scored(model, batch)
    assert torch.equal(logits, model(**batch).logits)
    assert target.tolist() == [0, 2]
    model = BertForSequenceClassification(BertConfig(**config, num_labels=1)).eval()
    with pytest.raises(ValueError, match="BertForSequenceClassification computes no cross-entropy over its classes"):
        scored(model, {"input_ids": tokens(), "labels": torch.tensor([0.0, 2.0])})


@torch.no_grad()
def test_a_head_that_torch_quantized_has_its_weight_behind_a_call():
    model = torch.ao.quantization.quantize_dynamic(tiny_model("llama"), {nn.Linear})
    batch = loader(model)[0]
    logits, target = scored(model, batch)
    assert logits.shape == (len(target), 23)


@pytest.mark.parametrize("function", [calibrate, compare])
def test_one_batch_in_the_place_of_several_is_asked_for_in_a_list(function):
    model = tiny_model("llama")
    one = sparsify(model, head="entmax15") if function is calibrate else model
    with pytest.raises(TypeError, match=r"was one batch of input_ids, labels: give a list, \[batch\]"):
        function(one, {"input_ids": tokens(), "labels": tokens()})


def test_prompts_of_peft_are_refused_and_other_adapters_are_not():
    """The model inside is run alone, without its prompt."""
    prompt = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    lora = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"])
    model = get_peft_model(sparsify(tiny_model("llama"), attn="entmax15"), prompt)
    with pytest.raises(ValueError, match="PromptTuningConfig puts a prompt before every input"):
        calibrate(model, [ROW], progress=False)
    for function, given in ((compare, {"attn": "entmax15"}), (estimate_tau_from_data, {})):
        with pytest.raises(ValueError, match="PromptTuningConfig puts a prompt"):
            function(get_peft_model(tiny_model("llama"), prompt), [ROW], **given, progress=False)
    model = tiny_model("llama")
    assert as_it_runs(get_peft_model(model, lora)) is model


def test_calls_are_understood_however_they_are_written():
    z, y = torch.randn(2, 5, 3), torch.tensor([[0, 1, 4], [4, 2, 3]])  # (batch, classes, positions), 4 is ignored
    with _CrossEntropyWatch(num_classes=5) as watch:
        nn.functional.cross_entropy(z, y, None, None, 4)
        nn.functional.cross_entropy(input=torch.randn(2, 7), target=torch.tensor([0, 1]))  # not the head's classes
        nn.functional.cross_entropy(torch.randn(2, 5), torch.full((2, 5), 0.2))  # no observed classes
    ((logits, target),) = watch.seen
    assert target.tolist() == [0, 1, 2, 3]
    assert torch.equal(logits, z.mT[y != 4])


ROW = {"input_ids": tokens(), "labels": tokens()}
BAD = [
    ([], ValueError, "the loader is empty; it must yield at least one batch"),
    ([ROW, {**ROW, "labels": None}], ValueError, "batch 1 of the loader has no labels"),
    ([ROW, {}], ValueError, "batch 1 of the loader is empty; it must have the model's arguments"),
    ([{"input_ids": tokens()[0]}], ValueError, r"batch 0 of the loader is one row, its input_ids are of shape \(7,\)"),
    ([(tokens(), tokens())], TypeError, "must yield mappings of the model's arguments, yielded tuple"),
    (
        [ROW, {"input_ids": [[3, 4]], "labels": [[3, 4]]}],
        TypeError,
        r"batch 1 .* no tensor \(input_ids is list, labels",
    ),
    (
        [{**ROW, "labels": [{"class_labels": tokens()}]}],
        TypeError,
        "labels .* must be a tensor of whole numbers, were list; leave them out",
    ),
    ([{**ROW, "labels": tokens().float()}], TypeError, r"whole numbers, were torch\.float32; leave them out"),
    ([{**ROW, "labels": tokens(length=4)}], ValueError, r"Expected input batch_size \(\d+\) to match target"),
    ([{**ROW, "labels": torch.full((2, 7), -100)}], ValueError, r"every label in the loader is -100 \(ignored\)"),
]


@pytest.mark.parametrize(("batches", "error", "message"), BAD, ids=[case[2][:30] for case in BAD])
@pytest.mark.parametrize("function", [calibrate, compare, estimate_tau_from_data])
def test_unusable_loaders_are_refused_and_the_model_stays_as_it_was(function, batches, error, message):
    model = tiny_model("llama")
    arguments = {"head": "entmax15"} if function is compare else {}
    if function is calibrate:
        sparsify(model, attn="entmax15", head="entmax15")
    before = model.config.to_dict()
    with pytest.raises(error, match=message):
        function(model, batches, **arguments, progress=False)
    assert model.config.to_dict() == before


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16])
def test_labels_may_be_whole_numbers_of_any_width(dtype):
    """A dense model takes int64 alone, and so does the decoder that makes its input of them."""
    reports = []
    for kind in (torch.int64, dtype):
        model, batch = (
            sparsify(tiny_model("t5"), attn="entmax15"),
            {"input_ids": tokens(), "labels": tokens().to(kind)},
        )
        reports.append(calibrate(model, [batch], progress=False))
    assert str(reports[0]) == str(reports[1])


def test_labels_are_asked_for_by_what_needs_them():
    with pytest.raises(ValueError, match="batch 0 of the loader has no labels, and estimate_tau_from_data needs them"):
        estimate_tau_from_data(tiny_model("gpt2"), [{"input_ids": tokens()}], progress=False)
    with pytest.raises(
        ValueError, match=r"batch 1 of the loader has no labels, and others have \(it has: 'input_ids'"
    ):
        read_batches([ROW, {"input_ids": tokens()}], None)
    assert len(read_batches([{"input_ids": tokens()}], None)) == 1


@pytest.mark.parametrize("function", [calibrate, compare, estimate_tau_from_data])
def test_labels_that_the_shift_takes_away_are_no_labels(function):
    """Only the first token is labelled, and nothing predicts it."""
    labels = torch.full((2, 7), -100)
    labels[:, 0] = 5
    model = tiny_model("gpt2")
    if function is calibrate:
        sparsify(model, attn="entmax15")
    arguments = {"attn": "entmax15"} if function is compare else {}
    with pytest.raises(ValueError, match="no target counts in the model's loss"):
        function(model, [{"input_ids": tokens(), "labels": labels}], **arguments, progress=False)


def test_only_as_many_batches_are_read_as_asked_for():
    def endless():
        while True:
            yield ROW

    assert len(read_batches(endless(), 3)) == 3
    assert len(read_batches([ROW, ROW], None)) == 2
    with pytest.raises(ValueError, match="max_batches must be at least 1, or None for all, was 0"):
        read_batches([ROW], 0)
