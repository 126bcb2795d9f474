"""Training models with bounds or coverage: gradients, checkpointing, trainers and adapters."""

import pytest
import torch
from datasets import Dataset

from hf_sparse import SparseTrainer, SparseTrainingArguments, from_pretrained, save_pretrained, sparsify
from hf_sparse.attention import attention_sites
from tests.attention.sequential.models import (
    BOUNDED,
    COVERED,
    SOURCE,
    TARGET,
    VECTOR,
    bounded,
    covered,
    forced,
    sequential,
    vectors_of,
    without_dropout,
)
from tests.tiny_models import SEQ2SEQS, labelled, tiny_model, tokens
from tests.training.runs import arguments


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    ("name", "kind"),
    [("bart", "csparsemax"), ("t5", "csparsemax"), ("llama", "csparsemax"), ("bart", "softmax"), ("t5", "softmax")],
)
def test_gradient_checkpointing_changes_no_gradient(name, kind, reentrant):
    gradients = []
    for checkpointing in (False, True):
        model = without_dropout(sequential(name, kind).train())
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        takes_fertility = kind in BOUNDED and model.config.is_encoder_decoder
        given = {"fertility": torch.full((2, 7), 0.7)} if takes_fertility else {}
        model(**labelled(model), **given).loss.backward()
        gradients.append({key: p.grad for key, p in model.named_parameters() if p.grad is not None})
    plain, checkpointed = gradients
    assert plain.keys() == checkpointed.keys()
    for key, gradient in plain.items():
        torch.testing.assert_close(checkpointed[key], gradient, atol=1e-10, rtol=1e-8, msg=key)


def slope(model, parameter, *index):
    """The derivative of the mean square of the logits by one entry of a parameter, from two values."""
    values = []
    with torch.no_grad():
        for step in (1e-6, -2e-6):
            parameter[index] += step
            values.append(float(forced(model, SOURCE, TARGET).square().mean()))
    return (values[0] - values[1]) / 2e-6


def test_the_gradient_through_the_bounds_reaches_the_weights_of_the_model_and_can_be_left_out():
    gradients = {}
    for detach in (False, True):
        model = bounded("bart", detach=detach)
        forced(model, SOURCE, TARGET).square().mean().backward()
        gradients[detach] = model.model.decoder.layers[0].encoder_attn.q_proj.weight.grad
    assert not torch.allclose(gradients[False], gradients[True], rtol=1e-3)
    model = bounded("bart")
    weight = model.model.decoder.layers[0].encoder_attn.q_proj.weight
    assert float(gradients[False][3, 5]) == pytest.approx(slope(model, weight, 3, 5), rel=1e-4)


def test_the_gradient_of_the_vectors_is_that_of_the_formula():
    model = covered("bart")
    vectors = vectors_of(model)[0]
    forced(model, SOURCE, TARGET).square().mean().backward()
    assert float(vectors.grad[1, 3]) == pytest.approx(slope(model, vectors, 1, 3), rel=1e-4)


@pytest.mark.parametrize("kind", COVERED)
@pytest.mark.parametrize("name", SEQ2SEQS)
def test_vectors_start_at_zero_where_they_change_nothing_and_have_a_gradient(name, kind):
    model = sparsify(tiny_model(name), attn={"cross": {**COVERED[kind], **VECTOR}})
    plain = sparsify(tiny_model(name), attn={"cross": COVERED[kind]})
    inputs = labelled(model)
    output, expected = model(**inputs), plain(**inputs)
    torch.testing.assert_close(output.logits, expected.logits, atol=1e-5, rtol=1e-5)
    output.loss.backward(), expected.loss.backward()
    assert [tuple(vectors.shape) for vectors in vectors_of(model)] == [(4, 8)] * 2
    for vectors in vectors_of(model):
        assert not vectors.any()
        assert vectors.grad.any()
    own = dict(model.named_parameters())
    for key, parameter in plain.named_parameters():
        torch.testing.assert_close(own[key].grad, parameter.grad, atol=1e-4, rtol=1e-3, msg=key)


def test_the_score_of_the_sink_can_be_learned():
    model = bounded("bart", sink_score="learned")
    forced(model, SOURCE, TARGET).square().mean().backward()
    score = model.model.decoder.layers[0].encoder_attn.sparse_sink_score.value
    assert score.tolist() == [0.0] * 4
    assert bool((score.grad != 0).any())


def test_trainer_hands_a_column_of_fertilities_on(tmp_path):
    model = sparsify(
        tiny_model("bart"), attn={"cross": {**BOUNDED["csparsemax"], "fertility": "given"}}, head="entmax15"
    )
    columns = {"input_ids": tokens(4).tolist(), "labels": tokens(4, seed=4).tolist(), "fertility": [[1.0] * 7] * 4}
    settings = SparseTrainingArguments(
        str(tmp_path), max_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True
    )
    result = SparseTrainer(model, settings, train_dataset=Dataset.from_dict(columns)).train()
    assert result.training_loss > 0


def test_trainer_learns_vectors_and_checkpoints_bring_them_back(tmp_path):
    model = sparsify(tiny_model("t5"), attn={"cross": {"name": "entmax15", **VECTOR}}, head="entmax15")
    data = Dataset.from_dict({"input_ids": tokens(8).tolist(), "labels": tokens(8, seed=4).tolist()})
    SparseTrainer(model, arguments(tmp_path / "run", max_steps=3), train_dataset=data).train()
    assert all(vectors.any() for vectors in vectors_of(model))
    save_pretrained(model, tmp_path / "model")
    loaded = from_pretrained(tmp_path / "model")
    assert torch.equal(loaded(**labelled(model)).logits, model.eval()(**labelled(model)).logits)
    assert all(map(torch.equal, vectors_of(loaded), vectors_of(model)))
    assert "by a learned vector for each head" in (tmp_path / "model" / "README.md").read_text()


def test_lora_trains_and_saves_vectors(tmp_path):
    peft = pytest.importorskip("peft")
    attn = {"cross": {"name": "softmax", **VECTOR}}
    tiny_model("t5").save_pretrained(tmp_path / "base")
    base = sparsify(type(tiny_model("t5")).from_pretrained(tmp_path / "base"), attn=attn)
    config = peft.LoraConfig(target_modules=["q"], modules_to_save=["sparse_coverage"])
    model = peft.get_peft_model(base, config)
    data = Dataset.from_dict({"input_ids": tokens(4).tolist(), "labels": tokens(4).tolist()})
    SparseTrainer(model, arguments(tmp_path / "run", max_steps=2), train_dataset=data).train()
    learned = [module.sparse_coverage(None) for module, site in attention_sites(model) if site.has_coverage]
    assert all(vectors.any() for vectors in learned)
    save_pretrained(model.eval(), tmp_path / "adapter")
    again = from_pretrained(tmp_path / "adapter").eval()
    inputs = {"input_ids": SOURCE, "decoder_input_ids": TARGET}
    torch.testing.assert_close(again(**inputs).logits, model(**inputs).logits)
    with pytest.raises(ValueError, match="PEFT would not save a setting that is learned in a model it holds already"):
        sparsify(peft.get_peft_model(tiny_model("t5"), config), attn=attn)
