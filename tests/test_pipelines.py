"""Pipelines for text, speech and images with text: what they return is read from the sparse model."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    BertForSequenceClassification,
    BertForTokenClassification,
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    Speech2TextConfig,
    Speech2TextFeatureExtractor,
    Speech2TextForConditionalGeneration,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForSequenceClassification,
    pipeline,
)

from hf_sparse import sparsify
from tests.tiny_models import spread, tiny_model
from tests.word_tokenizer import word_tokenizer

TEXT = "w5 w6 w7"


def bert_for(model_class):
    config = tiny_model("bert").config
    torch.manual_seed(0)
    model = model_class(config).eval()
    model.bert.load_state_dict(tiny_model("bert").bert.state_dict(), strict=False)
    return model


def both(task, model, given, score, **options):
    """A score that a pipeline returns for the dense model, then for the model with sparse attention."""
    dense = score(pipeline(task, model=model, **options)(given))
    sparse = score(pipeline(task, model=sparsify(model, attn="sparsemax"), **options)(given))
    assert dense != pytest.approx(sparse, abs=1e-6)
    return sparse


@torch.no_grad()
def test_text_pipelines_run_on_sparse_attention():
    options = {"tokenizer": word_tokenizer()}
    inputs = word_tokenizer()(TEXT, return_tensors="pt")
    model = bert_for(BertForSequenceClassification)
    found = both("text-classification", model, TEXT, lambda out: out[0]["score"], **options)
    assert found == pytest.approx(float(model(**inputs).logits[0].softmax(-1).max()), rel=1e-5)
    model = bert_for(BertForTokenClassification)
    found = both("token-classification", model, TEXT, lambda out: float(out[0]["score"]), **options)
    assert found == pytest.approx(float(model(**inputs).logits[0, 0].softmax(-1).max()), rel=1e-5)
    model = tiny_model("bert").bert
    found = both("feature-extraction", model, TEXT, lambda out: out[0][1][2], **options)
    assert found == pytest.approx(float(model(**inputs).last_hidden_state[0, 1, 2]), rel=1e-4)


SOUND = np.random.default_rng(0).standard_normal(4000).astype(np.float32)


@torch.no_grad()
def test_a_pipeline_classifies_sounds_by_sparse_attention():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    convolutions = {"conv_dim": (8, 8), "conv_kernel": (10, 8), "conv_stride": (5, 8)}
    config = Wav2Vec2Config(**sizes, **convolutions, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2)
    model = Wav2Vec2ForSequenceClassification(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "attention" in name or "projector" in name or "classifier" in name:
                parameter.mul_(20)
    extractor = Wav2Vec2FeatureExtractor()
    found = both(
        "audio-classification", model, SOUND, lambda out: out[0]["score"], feature_extractor=extractor, top_k=1
    )
    features = extractor(SOUND, sampling_rate=16000, return_tensors="pt").input_values
    assert found == pytest.approx(float(model(features).logits[0].softmax(-1).max()), rel=1e-4)


@torch.no_grad()
def test_a_pipeline_transcribes_from_the_sparse_distribution():
    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "input_feat_per_channel": 8}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    config = Speech2TextConfig(vocab_size=23, conv_channels=16, max_source_positions=200, **sizes, **heads, **special)
    model = sparsify(Speech2TextForConditionalGeneration(config).eval(), attn="entmax15", head="entmax15")
    extractor, tokenizer = Speech2TextFeatureExtractor(feature_size=8, num_mel_bins=8), word_tokenizer()
    transcribe = pipeline(
        "automatic-speech-recognition", model=model, feature_extractor=extractor, tokenizer=tokenizer
    )
    found = transcribe(SOUND, generate_kwargs={"max_new_tokens": 4, "num_beams": 2})["text"]
    features = extractor(SOUND, sampling_rate=16000, return_tensors="pt").input_features
    ids = model.generate(input_features=features, max_new_tokens=4, num_beams=2)
    assert found == tokenizer.decode(ids[0], skip_special_tokens=True)


@torch.no_grad()
def test_a_pipeline_answers_to_an_image_from_the_sparse_distribution():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision = CLIPVisionConfig(**sizes, image_size=8, patch_size=4)
    text = LlamaConfig(vocab_size=23, **sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=3, vision_feature_layer=-1)
    model = sparsify(spread(LlavaForConditionalGeneration(config).eval()), attn="entmax15", head="entmax15")
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8}),
        tokenizer=word_tokenizer(image_token="<image>"),
        patch_size=4,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
    )
    image = Image.fromarray((np.random.default_rng(0).random((8, 8, 3)) * 255).astype("uint8"))
    options = {"max_new_tokens": 4, "do_sample": False}
    answer = pipeline("image-text-to-text", model=model, processor=processor)
    (found,) = answer(images=image, text="<image> w5 w6", generate_kwargs=options)
    inputs = processor(images=image, text="<image> w5 w6", return_tensors="pt")
    ids = model.generate(**inputs, **options)[0, inputs.input_ids.shape[1] :]
    assert found["generated_text"] == f"<image> w5 w6 {processor.tokenizer.decode(ids)}"
