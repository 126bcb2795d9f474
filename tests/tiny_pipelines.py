"""A tiny model for every pipeline of text, speech, images, and images with text, and a call of that pipeline.

Each function of ``PIPELINES`` takes a folder for files, and returns the model, the pipeline's other arguments, its
input, and the options of the call.
"""

import json

import numpy as np
import pandas as pd
import torch
from PIL import Image
from tokenizers import processors
from transformers import (
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    ClapAudioConfig,
    ClapConfig,
    ClapFeatureExtractor,
    ClapModel,
    ClapTextConfig,
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPTextConfig,
    CLIPVisionConfig,
    LayoutLMConfig,
    LayoutLMForQuestionAnswering,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    OwlViTConfig,
    OwlViTForObjectDetection,
    OwlViTImageProcessorPil,
    OwlViTTextConfig,
    OwlViTVisionConfig,
    Speech2TextConfig,
    Speech2TextFeatureExtractor,
    Speech2TextForConditionalGeneration,
    SpeechT5Config,
    SpeechT5ForTextToSpeech,
    SpeechT5HifiGan,
    SpeechT5HifiGanConfig,
    TapasConfig,
    TapasForQuestionAnswering,
    TapasTokenizer,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
    ViTModel,
    VitsConfig,
    VitsModel,
    VitsTokenizer,
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    Wav2Vec2ForSequenceClassification,
)
from transformers.decision import DecisionConfig

from tests.tiny_models import spread, tiny_model
from tests.word_tokenizer import word_tokenizer

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT = "w5 w6 w7"
SOUND = np.random.default_rng(0).standard_normal(4000).astype(np.float32)
IMAGE = Image.fromarray((np.random.default_rng(0).random((8, 8, 3)) * 255).astype("uint8"))
EIGHT = {"height": 8, "width": 8}
FEW_TOKENS = {"max_new_tokens": 4, "do_sample": False}


def random(model_class, config):
    torch.manual_seed(0)
    return spread(model_class(config).eval())


def pairs_tokenizer(**special):
    """A tokenizer that ends each of two texts, as BERT's does."""
    tokenizer = word_tokenizer(**special)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B:1 </s>:1", special_tokens=[("</s>", 2)]
    )
    return tokenizer


def bert_for(model_class, **more):
    return random(model_class, type(tiny_model("bert").config)(vocab_size=23, **SIZES, **SPECIAL, **more))


def text_classification(folder):
    return bert_for(BertForSequenceClassification), {"tokenizer": word_tokenizer()}, TEXT, {}


def token_classification(folder):
    return bert_for(BertForTokenClassification), {"tokenizer": word_tokenizer()}, TEXT, {}


def feature_extraction(folder):
    return bert_for(BertForMaskedLM).bert, {"tokenizer": word_tokenizer()}, TEXT, {}


def fill_mask(folder):
    options = {"tokenizer": word_tokenizer(mask_token="<mask>")}
    return bert_for(BertForMaskedLM), options, "w5 <mask> w7", {"top_k": 23}


def zero_shot_classification(folder):
    labels = {"id2label": {0: "neutral", 1: "entailment", 2: "contradiction"}}
    model = bert_for(BertForSequenceClassification, **labels, label2id={"entailment": 1})
    call = {"candidate_labels": ["w8", "w9"], "hypothesis_template": "w10 {} ."}
    return model, {"tokenizer": pairs_tokenizer()}, TEXT, call


def table_question_answering(folder):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[EMPTY]", *(f"w{i}" for i in range(20))]
    (folder / "vocab.txt").write_text("\n".join(words))
    config = TapasConfig(vocab_size=len(words), **SIZES, max_position_embeddings=64)
    table = pd.DataFrame({"w1": ["w5", "w6"], "w2": ["w7", "w8"]})
    options = {"tokenizer": TapasTokenizer(str(folder / "vocab.txt"), model_max_length=64)}
    return random(TapasForQuestionAnswering, config), options, {"table": table, "query": "w9 w1"}, {}


def text_generation(folder):
    return tiny_model("llama"), {"tokenizer": word_tokenizer()}, TEXT, FEW_TOKENS


def decision(folder):
    template = "{{ state }} {{ question.instructions }} <|mark|>"
    request = {"state": TEXT, "questions": {"one": {"type": "noul", "instructions": "w8"}}}
    config = DecisionConfig(labels={"noul": ["w9", "w10"]}, chat_template=template)
    return tiny_model("llama"), {"tokenizer": word_tokenizer(), "decision_config": config}, request, {}


def text_to_audio(folder):
    letters = {"w": 0, "5": 1, "6": 2, "7": 3, " ": 4, "<pad>": 5}
    (folder / "vocab.json").write_text(json.dumps(letters))
    options = {"phonemize": False, "is_uroman": False, "normalize": False, "pad_token": "<pad>", "unk_token": "<pad>"}
    tokenizer = VitsTokenizer(str(folder / "vocab.json"), **options)
    small = {"flow_size": 8, "ffn_dim": 16, "posterior_encoder_num_wavenet_layers": 1, "prior_encoder_num_flows": 1}
    waves = {"upsample_initial_channel": 8, "upsample_rates": (2, 2), "upsample_kernel_sizes": (4, 4)}
    still = {"noise_scale": 0.0, "noise_scale_duration": 0.0, "use_stochastic_duration_prediction": False}
    layers = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "spectrogram_bins": 9}
    config = VitsConfig(vocab_size=6, **layers, **small, **waves, **still, duration_predictor_filter_channels=8)
    return random(VitsModel, config), {"tokenizer": tokenizer}, TEXT, {}


def spectrograms():
    """A model of text to spectrograms, and a vocoder for them."""
    mel, speaker = {"num_mel_bins": 8, "speech_decoder_postnet_units": 8, "speech_decoder_postnet_layers": 2}, 4
    layers = {f"{part}_{name}": 1 for part in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    widths = {"hidden_size": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "speech_decoder_prenet_units": 16}
    config = SpeechT5Config(vocab_size=40, **widths, **layers, **mel, speaker_embedding_dim=speaker)
    waves = {"upsample_initial_channel": 8, "upsample_rates": [2, 2], "upsample_kernel_sizes": [4, 4]}
    blocks = {"resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3, 5]]}
    vocoder = SpeechT5HifiGan(SpeechT5HifiGanConfig(model_in_dim=8, **waves, **blocks))
    return random(SpeechT5ForTextToSpeech, config), vocoder.eval()


def wav2vec2(model_class):
    convolutions = {"conv_dim": (8, 8), "conv_kernel": (10, 8), "conv_stride": (5, 8)}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    config = Wav2Vec2Config(vocab_size=8, **SIZES, **convolutions, **positions, pad_token_id=0)
    return random(model_class, config), {"feature_extractor": Wav2Vec2FeatureExtractor()}


def audio_classification(folder):
    return *wav2vec2(Wav2Vec2ForSequenceClassification), SOUND, {"top_k": 2}


def speech_recognition_by_frames(folder):
    letters = {letter: number for number, letter in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", *"abc"])}
    (folder / "vocab.json").write_text(json.dumps(letters))
    model, options = wav2vec2(Wav2Vec2ForCTC)
    return model, options | {"tokenizer": Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))}, SOUND, {}


def speech_recognition(folder):
    layers = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "input_feat_per_channel": 8}
    config = Speech2TextConfig(
        vocab_size=23,
        conv_channels=16,
        max_source_positions=200,
        **layers,
        **heads,
        **SPECIAL,
        decoder_start_token_id=2,
    )
    extractor = Speech2TextFeatureExtractor(feature_size=8, num_mel_bins=8)
    options = {"feature_extractor": extractor, "tokenizer": word_tokenizer()}
    call = {"generate_kwargs": {"max_new_tokens": 4, "num_beams": 2}}
    return random(Speech2TextForConditionalGeneration, config), options, SOUND, call


def zero_shot_audio_classification(folder):
    text = ClapTextConfig(vocab_size=23, **SIZES, projection_dim=16, max_position_embeddings=40)
    audio = ClapAudioConfig(
        spec_size=32, num_mel_bins=8, patch_size=4, patch_stride=[4, 4], patch_embeds_hidden_size=8, depths=[1, 1],
        num_attention_heads=[2, 2], window_size=4, hidden_size=16, projection_dim=16, patch_embed_input_channels=1,
        num_hidden_layers=2, aff_block_r=1,
    )  # fmt: skip
    extractor = ClapFeatureExtractor(feature_size=8, max_length_s=1, sampling_rate=8000, truncation="rand_trunc")
    options = {"feature_extractor": extractor, "tokenizer": word_tokenizer()}
    model = random(ClapModel, ClapConfig(text_config=text, audio_config=audio, projection_dim=16))
    return model, options, SOUND, {"candidate_labels": ["w5 w6 w9", "w7 w8"], "hypothesis_template": "w10 w4 {}"}


def zero_shot_image_classification(folder):
    text = CLIPTextConfig(vocab_size=23, **SIZES, **SPECIAL, max_position_embeddings=16)
    vision = CLIPVisionConfig(**SIZES, image_size=8, patch_size=4)
    model = random(CLIPModel, CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))
    options = {"tokenizer": pairs_tokenizer(), "image_processor": clip_images()}
    return model, options, IMAGE, {"candidate_labels": ["w5 w6 w9", "w7 w4 w12"], "hypothesis_template": "{}"}


def zero_shot_object_detection(folder):
    text = OwlViTTextConfig(vocab_size=23, **SIZES, **SPECIAL, max_position_embeddings=16)
    vision = OwlViTVisionConfig(**SIZES, image_size=8, patch_size=4)
    model = random(OwlViTForObjectDetection, OwlViTConfig(text_config=text, vision_config=vision, projection_dim=16))
    options = {"tokenizer": pairs_tokenizer(), "image_processor": OwlViTImageProcessorPil(size=EIGHT, crop_size=EIGHT)}
    return model, options, IMAGE, {"candidate_labels": ["w5 w6", "w7"], "threshold": 0.0}


def document_question_answering(folder):
    model = random(LayoutLMForQuestionAnswering, LayoutLMConfig(vocab_size=23, **SIZES, max_position_embeddings=64))
    words = [[f"w{i}", [i * 10, 5, i * 10 + 8, 15]] for i in range(5, 15)]
    options = {"tokenizer": pairs_tokenizer()}
    return model, options, {"question": "w5 w7", "word_boxes": words, "image": None}, {"top_k": 3}


def clip_images():
    return CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size=EIGHT)


def llava():
    vision = CLIPVisionConfig(**SIZES, image_size=8, patch_size=4)
    text = LlamaConfig(vocab_size=23, **SIZES, **SPECIAL)
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=3, vision_feature_layer=-1)
    processor = LlavaProcessor(
        image_processor=clip_images(),
        tokenizer=word_tokenizer(image_token="<image>"),
        patch_size=4,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
    )
    return random(LlavaForConditionalGeneration, config), {"processor": processor}


def image_text_to_text(folder):
    return *llava(), None, {"images": IMAGE, "text": "<image> w5 w6", "generate_kwargs": FEW_TOKENS}


def vision_transformer(model_class):
    config = ViTConfig(**SIZES, image_size=8, patch_size=4, num_labels=3)
    return random(model_class, config), {"image_processor": ViTImageProcessorPil(size=EIGHT)}


def image_classification(folder):
    return *vision_transformer(ViTForImageClassification), IMAGE, {"top_k": 3}


def image_feature_extraction(folder):
    return *vision_transformer(ViTModel), IMAGE, {}


PIPELINES = {
    "text-classification": text_classification,
    "token-classification": token_classification,
    "feature-extraction": feature_extraction,
    "fill-mask": fill_mask,
    "zero-shot-classification": zero_shot_classification,
    "table-question-answering": table_question_answering,
    "text-generation": text_generation,
    "decision": decision,
    "text-to-audio": text_to_audio,
    "audio-classification": audio_classification,
    "automatic-speech-recognition": speech_recognition,
    "automatic-speech-recognition by frames": speech_recognition_by_frames,
    "zero-shot-audio-classification": zero_shot_audio_classification,
    "zero-shot-image-classification": zero_shot_image_classification,
    "zero-shot-object-detection": zero_shot_object_detection,
    "document-question-answering": document_question_answering,
    "image-text-to-text": image_text_to_text,
    "any-to-any": image_text_to_text,
    "image-classification": image_classification,
    "image-feature-extraction": image_feature_extraction,
}
