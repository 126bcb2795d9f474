"""Made-up input runs through the model it is made for, or the user is asked for an example."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Blip2Config,
    Blip2ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PerceiverConfig,
    PerceiverForMaskedLM,
    ResNetConfig,
    ResNetModel,
    T5Config,
    ViTConfig,
    ViTForImageClassification,
)

from hf_sparse import doctor, is_sparse, sparsify
from hf_sparse.attention import attention_sites, observe
from hf_sparse.model.example import NoExampleError, example_inputs
from tests.sweep.architectures import build
from tests.tiny_models import DECODER, SEQ2SEQ, TOKENS, tiny_model, tokens


@pytest.mark.parametrize("name", ["llama", "bart", "bert"])
def test_tokens_are_ordinary_ones(name):
    model = tiny_model(name)
    inputs = example_inputs(model, length=6)
    assert inputs["input_ids"].shape == (2, 6)
    assert ("decoder_input_ids" in inputs) == (name == "bart")
    special = {model.config.pad_token_id, model.config.bos_token_id, model.config.eos_token_id}
    assert not special & set(inputs["input_ids"].flatten().tolist())
    model(**inputs)


def test_classifiers_get_one_row_as_they_look_for_its_end():
    model = BertForSequenceClassification(BertConfig(vocab_size=23, **DECODER))
    assert example_inputs(model)["input_ids"].shape == (1, 5)


def test_images_have_the_size_and_dtype_of_the_model():
    model = ViTForImageClassification(ViTConfig(image_size=32, patch_size=16, **DECODER)).bfloat16()
    pixels = example_inputs(model)["pixel_values"]
    assert pixels.shape == (2, 3, 32, 32)
    assert pixels.dtype == torch.bfloat16


def test_images_for_a_model_of_timm_have_the_size_that_its_checkpoint_says():
    model = ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1]))
    model.config.pretrained_cfg = {"architecture": "vit_base_patch16_384", "input_size": [3, 48, 64]}
    assert example_inputs(model)["pixel_values"].shape == (2, 3, 48, 64)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("llava", "LlavaForConditionalGeneration"),
        ("qwen2_vl", "Qwen2VLForConditionalGeneration"),
        ("instructblip", "InstructBlipForConditionalGeneration"),  # reads tokens twice
        ("whisper", "WhisperForConditionalGeneration"),
        ("speech_to_text", "Speech2TextForConditionalGeneration"),
        ("clip", "CLIPModel"),
        ("videomae", "VideoMAEModel"),
        ("wav2vec2-bert", "Wav2Vec2BertForCTC"),
        ("parakeet_ctc", "ParakeetForCTC"),
        ("seamless_m4t", "SeamlessM4TForSpeechToText"),
        ("audio-spectrogram-transformer", "ASTModel"),
        ("bert", "BertForMultipleChoice"),
        ("vitpose", "VitPoseForPoseEstimation"),  # the size of the image stands in the configuration of its backbone
        ("fastspeech2_conformer", "FastSpeech2ConformerModel"),  # does not say where its embeddings are
    ],
)
@torch.no_grad()
def test_images_sounds_and_choices_reach_every_attention_module(kind, name):
    model = sparsify(build(kind, name), attn="entmax15")
    with observe(model) as counts:
        model(**example_inputs(model))
    assert all(count.calls for count in counts.values())


@pytest.mark.parametrize(("kind", "name"), [("qwen2_vl", "Qwen2VLModel"), ("gemma3", "Gemma3Model")])
@torch.no_grad()
def test_images_are_made_up_for_a_model_whose_configuration_asks_for_tuples(kind, name):
    model, other = build(kind, name), build(kind, name)
    other.config.return_dict = False
    expected, made_up = example_inputs(model), example_inputs(other)
    assert made_up.keys() == expected.keys()
    assert all(torch.equal(made_up[key], expected[key]) for key in expected)
    with observe(sparsify(other, attn="entmax15")) as counts:
        assert isinstance(other(**made_up), tuple)
    assert all(count.calls for count in counts.values())


def test_token_0_may_stand_for_an_image():
    model = build("qwen2_vl", "Qwen2VLModel")
    model.config.image_token_id = 0
    inputs = example_inputs(model)
    assert "pixel_values" in inputs
    assert (inputs["input_ids"] == 0).any()
    assert is_sparse(sparsify(model, attn="entmax15"))


def test_blip_2_around_an_encoder_decoder_reads_tokens_beside_its_image():
    config = build("blip-2", "Blip2ForConditionalGeneration").config
    text = T5Config(vocab_size=99, d_model=32, d_ff=64, d_kv=8, num_layers=2, num_heads=4, decoder_start_token_id=0)
    model = Blip2ForConditionalGeneration(Blip2Config(**{**config.to_dict(), "text_config": text.to_dict()}))
    assert model.config.is_encoder_decoder
    assert example_inputs(model).keys() == {"pixel_values", "input_ids", "decoder_input_ids"}
    assert len(attention_sites(sparsify(model, attn="entmax15", head="entmax15"))) == 11


def test_what_cannot_be_made_up_is_asked_for():
    config = PerceiverConfig(vocab_size=23, d_model=16, d_latents=16, num_latents=4, num_self_attends_per_block=1)
    model = PerceiverForMaskedLM(config)
    with pytest.raises(ValueError, match=r"PerceiverForMaskedLM takes 'inputs', .*pass example="):
        sparsify(model, attn="entmax15")
    assert not is_sparse(model)
    assert is_sparse(sparsify(model, attn="entmax15", example={"inputs": torch.ones(1, 8, dtype=torch.long)}))


def test_a_whole_without_a_forward_call_is_refused_with_its_parts_by_name():
    model = build("bark", "BarkModel")
    with pytest.raises(NoExampleError, match=r"^BarkModel has no forward call; make its parts \(semantic, coarse_a"):
        sparsify(model, attn="entmax15", example={"input_ids": tokens()})
    assert is_sparse(sparsify(model.semantic, attn="entmax15"))


class ReadsBoxes(BertForSequenceClassification):
    def forward(self, input_ids, boxes=None):
        return super().forward(input_ids, token_type_ids=boxes.clamp(max=1))


@pytest.mark.parametrize("examine", [sparsify, doctor])
def test_a_model_that_cannot_read_what_is_made_up_asks_for_an_example(examine):
    model = ReadsBoxes(BertConfig(vocab_size=23, **DECODER))
    with pytest.raises(ValueError, match=r"made up for it \(input_ids: AttributeError, .*pass example=") as error:
        examine(model, attn={"name": "entmax", "alpha": "learned"})
    assert isinstance(error.value.__cause__, AttributeError)
    assert not is_sparse(model)
    examine(model, attn="entmax15", example={"input_ids": tokens(), "boxes": tokens()})


def test_failures_on_the_users_own_example_name_it():
    with pytest.raises(
        ValueError, match=r"given for 3 heads, but scores are of shape .* give one number, or a list of 4$"
    ):
        sparsify(tiny_model("llama"), attn={"name": "entmax", "alpha": [1.5, 1.5, 1.5]})
    with pytest.raises(NoExampleError, match=r"ReadsBoxes does not run on example={'input_ids'}: AttributeError"):
        sparsify(ReadsBoxes(BertConfig(vocab_size=23, **DECODER)), attn="entmax15", example={"input_ids": tokens()})


@pytest.mark.parametrize(("source", "target"), [(4, 23), (23, 4)])
def test_source_and_target_have_vocabularies_of_their_own(source, target):
    sizes = {"vocab_size": source, "decoder_vocab_size": target, "share_encoder_decoder_embeddings": False}
    config = MarianConfig(**{**TOKENS, **SEQ2SEQ, **sizes, "decoder_start_token_id": 0, "pad_token_id": 0})
    inputs = example_inputs(MarianMTModel(config))
    assert len(inputs["input_ids"].unique()) == min(source - 3, 10)
    assert is_sparse(sparsify(MarianMTModel(config), attn="entmax15"))
