"""The doctor reports what sparsify would do, and leaves the model as it was."""

import re
import sys

import pytest
import torch
from peft import PromptTuningConfig, get_peft_model
from tqdm.auto import tqdm
from transformers import (
    BigBirdConfig,
    BigBirdForMaskedLM,
    ConvNextConfig,
    ConvNextForImageClassification,
    Dinov2Backbone,
    Dinov2Config,
)

from hf_sparse import calibrate, compare, doctor, estimate_tau_from_data, is_sparse, sparsify
from hf_sparse.model.doctor import difference, logits_of, relative_change
from hf_sparse.model.example import example_inputs
from tests.sweep.architectures import build
from tests.tiny_inline_models import tiny_inline_model
from tests.tiny_models import DECODER, TOKENS, spread, tiny_model, tokens


@pytest.mark.parametrize(
    ("model", "way", "kinds"),
    [
        (tiny_model("llama"), "interface", {"decoder"}),
        (tiny_model("bart"), "interface", {"encoder", "decoder", "cross"}),
        (tiny_inline_model("bloom"), "inline", {"decoder"}),
    ],
    ids=["llama", "bart", "bloom"],
)
def test_a_sound_model_passes_every_check(model, way, kinds):
    found = doctor(model, attn="entmax15", head="entmax15")
    assert found.sound
    assert {key[1] for key in found.changed} == kinds
    assert {key[2] for key in found.changed} == {way}
    for check in ("causal", "cached equals uncached", "alpha = 1 is the model's own", "head sums to one"):
        assert found.checks[check].startswith("yes"), check
    assert found.checks["attention reached"] == "yes"
    assert "sound" in str(found)
    assert type(model).__name__ in str(found)


def test_classes_that_a_model_rules_out_are_no_difference():
    model = tiny_model("llama")
    model.lm_head.register_forward_hook(lambda _, __, logits: logits.index_fill(-1, torch.tensor([5, 6]), -torch.inf))
    found = doctor(model, attn="entmax15")
    for check in ("causal", "cached equals uncached", "alpha = 1 is the model's own"):
        assert found.checks[check].startswith("yes"), check


@pytest.mark.parametrize(
    ("one", "other", "result"),
    [
        ([1.0, -torch.inf], [2.0, -torch.inf], 0.5),
        ([-torch.inf], [-torch.inf], 0.0),
        ([1.0, -torch.inf], [1.0, torch.inf], torch.inf),
        ([1.0, -torch.inf], [1.0, 1.0], torch.inf),
        ([torch.nan], [torch.nan], torch.inf),
    ],
)
def test_differences_of_what_is_not_finite(one, other, result):
    assert difference(torch.tensor(one), torch.tensor(other)) == result
    assert difference(torch.tensor(other), torch.tensor(one)) > 0 or result == 0


def test_attention_that_the_example_does_not_reach_is_counted():
    model = build("llava_next", "LlavaNextForConditionalGeneration")
    text = doctor(model, example={"input_ids": tokens()})
    assert text.checks["attention reached"].startswith("2 of 4 modules")
    pixels = {"pixel_values": torch.randn(2, 2, 3, 64, 64), "image_sizes": torch.full((2, 2), 64)}
    features = model.get_image_features(**pixels).pooler_output
    places = torch.full((2, len(features[0])), model.config.image_token_index)
    found = doctor(model, example={"input_ids": torch.cat([places, tokens()], 1), **pixels})
    assert found.checks["attention reached"] == "yes"


@torch.no_grad()
def test_the_model_is_left_as_it_was():
    model = tiny_model("gpt2").train()
    model.transformer.h[0].eval()
    ids = tokens()
    classes, modes = [type(part) for part in model.modules()], [part.training for part in model.modules()]
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    doctor(model, attn="sparsemax", head="sparsemax")
    assert torch.equal(torch.rand(3), expected)
    assert not is_sparse(model)
    assert [type(part) for part in model.modules()] == classes
    assert [part.training for part in model.modules()] == modes
    assert torch.equal(model.eval()(ids).logits, tiny_model("gpt2")(ids).logits)


def test_a_bidirectional_model_is_not_asked_to_be_causal():
    found = doctor(tiny_model("bert"))
    assert found.sound
    assert found.checks["causal"] == "not a property of the dense model"


def test_refusals_are_reported_in_the_words_of_sparsify():
    torch.manual_seed(0)
    found = doctor(BigBirdForMaskedLM(BigBirdConfig(vocab_size=23, **TOKENS, **DECODER)), "entmax15", "entmax15")
    assert not found.sound
    assert "BigBirdBlockSparseAttention" in found.refused[0]
    assert 'attention_type="original_full"' in str(found)
    assert found.checks["head sums to one"].startswith("yes")
    convolutions = ConvNextForImageClassification(ConvNextConfig(image_size=32, depths=[1] * 4, hidden_sizes=[8] * 4))
    assert "no attention that is computed with softmax" in doctor(convolutions).refused[0]


def test_a_leak_is_found(monkeypatch):
    from hf_sparse.attention import _scores

    dense = _scores.attention_scores

    def without_mask(query, key, attention_mask, *others):
        return dense(query, key, None, *others)

    monkeypatch.setattr(_scores, "attention_scores", without_mask)
    found = doctor(tiny_model("llama"))
    assert not found.sound
    assert found.checks["causal"].startswith("no: difference")
    assert found.checks["alpha = 1 is the model's own"].startswith("no: difference")


def test_an_example_replaces_made_up_input():
    ids = tokens(1, 3)
    assert doctor(tiny_model("llama"), example={"input_ids": ids}).checks["causal"].startswith("not checked")


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_a_cache_is_examined_with_the_padding_of_the_example(name, side):
    ids = tokens(length=8)
    mask = torch.ones_like(ids)
    mask[1, slice(3) if side == "left" else slice(5, None)] = 0
    found = doctor(tiny_model(name), "entmax15", example={"input_ids": ids, "attention_mask": mask}, progress=False)
    assert found.checks["cached equals uncached"].startswith("yes")


def test_what_cannot_be_examined_is_refused():
    with pytest.raises(ValueError, match="sparse already"):
        doctor(sparsify(tiny_model("llama"), attn="entmax15"))
    with pytest.raises(TypeError, match="a Transformers model"):
        doctor(torch.nn.Linear(2, 2))


def untrained(std):
    """A model with 500 classes whose logits are noise of about this size."""
    model = tiny_model("llama", vocab_size=500)
    with torch.no_grad():
        model.lm_head.weight.normal_(std=std / 6, generator=torch.Generator().manual_seed(0))
    return model


def test_an_untrained_head_that_starts_without_its_targets_is_told_the_cure():
    model = untrained(0.5)
    found = doctor(model, head="sparsemax")
    advice = found.checks["targets in the support"]
    assert re.match(r"9\d% of the targets have probability zero", advice)
    assert f'"temperature": "auto" ({500**0.5:.3g} here, it has 1)' in advice
    assert found.sound
    cured = doctor(model, head={"name": "entmax15", "temperature": "auto"})
    assert cured.checks["targets in the support"] == "yes"
    sparser = doctor(model, head={"name": "sparsemax", "temperature": "auto"})
    assert re.fullmatch(r"\d+% of them, until training brings in more", sparser.checks["targets in the support"])


def test_a_trained_head_is_meant_to_have_a_small_support():
    found = doctor(untrained(20.0), head="sparsemax")
    assert found.checks["targets in the support"] == "not all, as it should be in a trained model"


@torch.no_grad()
def test_the_change_of_the_output_without_training_is_told():
    model, example = tiny_model("llama"), {"input_ids": tokens(2, 9)}
    dense = model(**example).logits.double()
    sparse = sparsify(tiny_model("llama"), attn="sparsemax")(**example).logits.double()
    change, dense = (x - x.mean(-1, keepdim=True) for x in (sparse - dense, dense))
    expected = f"changes by {100 * change.norm() / dense.norm():.2g} %"
    assert doctor(model, attn="sparsemax", example=example).checks["output without training"] == expected
    line = "output without training:      changes by "
    assert line in str(doctor(model, attn="sparsemax"))
    same = doctor(model, attn="softmax", example=example).checks["output without training"]
    assert float(same.split()[2]) < 1e-3


def test_the_change_of_an_encoders_states_is_told_with_what_is_constant_in_them():
    model = tiny_model("bert").bert
    assert doctor(model).checks["output without training"].startswith("changes by ")
    assert relative_change(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0]), is_logits=False) == pytest.approx(
        13**0.5 / 2
    )


def test_progress_is_shown_on_request(capsys, monkeypatch):
    at_once = {"delay": 0}
    module = sys.modules["hf_sparse.model.doctor"]
    monkeypatch.setattr(module, "tqdm", lambda **options: tqdm(**{**options, **at_once}))
    doctor(tiny_model("llama"), head="entmax15", progress=False)
    assert "doctor" not in capsys.readouterr().err
    doctor(tiny_model("llama"), head="entmax15")
    assert "doctor: 100%" in capsys.readouterr().err


def test_a_backbone_is_measured_by_its_last_feature_map():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28, "patch_size": 7}
    model = spread(Dinov2Backbone(Dinov2Config(**sizes, out_indices=[1, 2])).eval())
    found = doctor(model, attn="entmax15", head=None)
    assert found.sound
    with torch.no_grad():
        assert torch.equal(logits_of(model, example_inputs(model)), model(**example_inputs(model)).feature_maps[-1])


def test_a_model_without_weights_is_not_run():
    model = tiny_model("llama").to("meta")
    batches = [{"input_ids": tokens(), "labels": tokens()}]
    sparse = sparsify(tiny_model("llama"), attn="entmax15").to("meta")
    for look in (
        lambda: doctor(model),
        lambda: compare(model, batches, attn="entmax15"),
        lambda: calibrate(sparse, batches),
        lambda: estimate_tau_from_data(model, batches),
    ):
        with pytest.raises(ValueError, match="this LlamaForCausalLM has no weights, its device is meta; load them"):
            look()


@pytest.mark.parametrize(
    "work", [doctor, lambda model: compare(model, [{"input_ids": tokens()}], attn="entmax15", progress=False)]
)
def test_the_very_configuration_stays(work):
    model = tiny_model("llama")
    config, generation = model.config, model.generation_config
    work(model)
    assert model.config is config
    assert model.model.config is config
    assert model.generation_config is generation


def test_models_that_return_tuples_and_prompts_are_refused():
    prompt = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    with pytest.raises(ValueError, match="puts a prompt before every input"):
        doctor(get_peft_model(tiny_model("llama"), prompt))
    model = tiny_model("bert")
    model.config.return_dict = False
    words = r"config.return_dict=False makes this BertForMaskedLM return tuples"
    for call in (
        doctor,
        lambda model: sparsify(model, head="entmax15"),
        lambda model: compare(model, [{}], attn="entmax15"),
    ):
        with pytest.raises(ValueError, match=words):
            call(model)
    assert sparsify(model, attn="entmax15")(tokens())[0].shape == (2, 7, 23)
