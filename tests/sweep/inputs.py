"""Inputs for the checks: those the package makes up, or by hand for models that need more."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_sparse.model.example import example_inputs
from tests.sweep.deliveries import noise, ones
from tests.sweep.senses import with_senses
from tests.sweep.shrink import IMAGE

LENGTH = 8


def ids(*shape: int) -> Tensor:
    return torch.randint(3, 80, shape, generator=torch.Generator().manual_seed(1))


def _perceiver(model: PreTrainedModel) -> dict[str, Tensor]:
    images = "ImageClassification" in type(model).__name__
    return {"inputs": noise(2, 3, IMAGE, IMAGE) if images else ids(2, LENGTH)}


def _queried(*frames: int) -> Any:
    """Tokens with places for the query tokens of every frame, as BLIP-2 and InstructBLIP want them."""

    def make(model: PreTrainedModel) -> dict[str, Tensor]:
        config = model.config
        token = getattr(config, "video_token_index", None) or config.image_token_index
        places = torch.full((2, config.num_query_tokens * (frames[0] if frames else 1)), token)
        inputs = {
            "input_ids": torch.cat([places, ids(2, LENGTH)], 1),
            "pixel_values": noise(2, *frames, 3, IMAGE, IMAGE),
        }
        takes_question = "InstructBlip" in type(model).__name__
        return {**inputs, "qformer_input_ids": ids(2, 4)} if takes_question else inputs

    return make


def _decoder(model: PreTrainedModel) -> dict[str, Tensor]:
    """Tokens, and the states of an encoder for the cross-attention of a decoder used by itself."""
    width = getattr(model.config, "d_model", None) or model.config.hidden_size
    if "ForCausalLM" not in type(model).__name__:
        return example_inputs(model, LENGTH)
    return {"input_ids": ids(2, LENGTH), "encoder_hidden_states": noise(2, 5, width)}


def _seamless(model: PreTrainedModel) -> dict[str, Tensor]:
    speech = {"input_features": noise(2, 32, model.config.feature_projection_input_dim)}
    text = {"input_ids": ids(2, LENGTH)}
    return {**(text if "TextTo" in type(model).__name__ else speech), "decoder_input_ids": ids(2, LENGTH)}


def _features(model: PreTrainedModel) -> dict[str, Tensor]:
    """Frames for the encoders of speech that take them as they are."""
    encoder = getattr(model.config, "encoder_config", model.config)
    width = getattr(encoder, "feature_projection_input_dim", None) or encoder.num_mel_bins
    return {"input_features": noise(2, 64, width)}


def _video(model: PreTrainedModel) -> dict[str, Tensor]:
    config = model.config
    frames = getattr(config, "num_frames", None) or config.frames_per_clip
    return {"pixel_values_videos": noise(2, frames, 3, IMAGE, IMAGE)}


def _codebooks(model: PreTrainedModel) -> dict[str, Tensor]:
    return {"input_ids": ids(2 * model.config.num_codebooks, LENGTH) % 30}


def _music(model: PreTrainedModel) -> dict[str, Tensor]:
    codes = ids(2 * model.config.decoder.num_codebooks, LENGTH) % 30
    return {"input_ids": ids(2, LENGTH), "decoder_input_ids": codes}


def _separated(*shape: int) -> dict[str, Tensor]:
    """Rows with the three separators by which a Longformer finds the question."""
    tokens = ids(*shape, LENGTH)
    tokens[..., [2, 4, 7]] = 2
    return {"input_ids": tokens}


def _question(model: PreTrainedModel) -> dict[str, Tensor]:
    tokens = ids(2, LENGTH)
    tokens[:, 3] = model.config.question_token_id
    return {"input_ids": tokens}


def _masked_video(model: PreTrainedModel) -> dict[str, Tensor]:
    config = model.config
    patches = (config.num_frames // config.tubelet_size) * (IMAGE // config.patch_size) ** 2
    every_other = ones(2, patches).cumsum(1) % 2 > 0
    return {"pixel_values": noise(2, config.num_frames, 3, IMAGE, IMAGE), "bool_masked_pos": every_other}


def _mllama(model: PreTrainedModel) -> dict[str, Tensor]:
    if type(model).__name__ == "MllamaTextModel":
        return {"input_ids": ids(2, LENGTH), "cross_attention_states": noise(2, 5, 64)}
    if type(model).__name__ == "MllamaVisionModel":
        tiles = model.config.max_num_tiles
        return {
            "pixel_values": noise(2, 1, tiles, 3, IMAGE, IMAGE),
            "aspect_ratio_ids": ones(2, 1),
            "aspect_ratio_mask": ones(2, 1, tiles),
        }
    if "ForCausalLM" in type(model).__name__:
        return {"input_ids": ids(2, LENGTH), "cross_attention_states": noise(2, 5, 64)}
    tiles = model.config.vision_config.max_num_tiles
    return {
        "input_ids": ids(2, LENGTH),
        "pixel_values": noise(2, 1, tiles, 3, IMAGE, IMAGE),
        "aspect_ratio_ids": ones(2, 1),
        "aspect_ratio_mask": ones(2, 1, tiles),
        "cross_attention_mask": ones(2, LENGTH, 1, tiles),
    }


def _whisper(model: PreTrainedModel) -> dict[str, Tensor]:
    if "ForCausalLM" in type(model).__name__:
        return {"input_ids": ids(2, LENGTH), "encoder_outputs": noise(2, 5, 64)}
    return example_inputs(model, LENGTH)


def _pi0(model: PreTrainedModel) -> dict[str, Tensor]:
    config = model.config
    places = torch.full((2, 16), config.vlm_config.image_token_id)
    return {
        "state": noise(2, config.max_state_dim),
        "input_ids": torch.cat([places, ids(2, LENGTH)], 1),
        "attention_mask": ones(2, 16 + LENGTH),
        "pixel_values": noise(2, 1, 3, IMAGE, IMAGE),
        "pixel_attention_mask": ones(2, 1).bool(),
        "noise": noise(2, config.chunk_size, config.max_action_dim),
        "timestep": torch.tensor([0.3, 0.6]),
    }


def _flat_patches(model: PreTrainedModel) -> Tensor:
    """Two images of sixteen patches, each after its row and its column."""
    places = torch.arange(1, 17).view(1, 16, 1).expand(2, 16, 2).float()
    return torch.cat([places, noise(2, 16, model.config.vision_config.patch_embed_hidden_size)], -1)


IMAGE_PLACES = torch.tensor([[0, 1, 1, 1, 1, 0, 0, 0]] * 2)
DECODERS = (
    "bart",
    "bigbird_pegasus",
    "blenderbot",
    "blenderbot-small",
    "marian",
    "mbart",
    "mvp",
    "pegasus",
    "plbart",
    "prophetnet",
    "trocr",
)


def _pair_of_images(model: PreTrainedModel) -> dict[str, Tensor]:
    return {"pixel_values": noise(2, 2, 3, IMAGE, IMAGE)}


def _transducer(model: PreTrainedModel) -> dict[str, Tensor]:
    return {**_features(model), "decoder_input_ids": ids(2, LENGTH)}


def _series(model: PreTrainedModel) -> dict[str, Tensor]:
    return {"past_values": noise(2, model.config.context_length, model.config.num_input_channels)}


# By class or model type, what ``example_inputs`` cannot make up.
INPUTS: dict[str, Any] = {
    "omniasr_ctc": lambda model: {"input_values": noise(2, 1, 4000)},
    "bros": lambda model: {"input_ids": ids(2, LENGTH), "bbox": torch.rand(2, LENGTH, 4)},
    "BlipForQuestionAnswering": lambda model: {
        "input_ids": ids(2, LENGTH),
        "pixel_values": noise(2, 3, IMAGE, IMAGE),
        "decoder_input_ids": ids(2, LENGTH),
    },
    "Blip2ForImageTextRetrieval": lambda model: (
        _queried()(model) | {"attention_mask": ones(2, model.config.num_query_tokens + LENGTH)}
    ),
    "Llama4VisionModel": lambda model: {"pixel_values": noise(2, 3, IMAGE, IMAGE)},
    "LongformerForMultipleChoice": lambda model: _separated(2, 2),
    "LongformerForQuestionAnswering": lambda model: _separated(2),
    "MusicgenForConditionalGeneration": _music,
    "MusicgenMelodyForConditionalGeneration": _music,
    "SplinterForPreTraining": _question,
    "VideoMAEForPreTraining": _masked_video,
    "VideoPrismClipModel": lambda model: {**_video(model.video_model), "input_ids": ids(2, LENGTH)},
    "Siglip2Model": lambda model: {**INPUTS["siglip2"](model), "input_ids": ids(2, LENGTH)},
    "SpeechT5ForTextToSpeech": lambda model: {
        "input_ids": ids(2, LENGTH),
        "decoder_input_values": noise(2, 6, model.config.num_mel_bins),
    },
    "ViltForQuestionAnswering": lambda model: {
        "input_ids": ids(2, LENGTH),
        "pixel_values": noise(2, 3, IMAGE, IMAGE),
    },
    **dict.fromkeys(
        ("grounding-dino", "mm-grounding-dino"),
        lambda model: {"input_ids": ids(2, LENGTH), "pixel_values": noise(2, 3, IMAGE, IMAGE)},
    ),
    # Whose windows divide the image.
    **dict.fromkeys(("lw_detr", "rf_detr"), lambda model: {"pixel_values": noise(2, 3, 2 * IMAGE, 2 * IMAGE)}),
    "oneformer": lambda model: {"pixel_values": noise(2, 3, IMAGE, IMAGE), "task_inputs": ids(2, 77)},
    **dict.fromkeys(("lightglue", "superglue", "efficientloftr"), _pair_of_images),
    **dict.fromkeys(("nemotron3_5_asr", "nemotron_asr_streaming", "parakeet_rnnt", "parakeet_tdt"), _transducer),
    **dict.fromkeys(("patchtst", "patchtsmixer"), _series),
    # Shorter series are padded, and what attention gives to padding is nobody's business.
    "timesfm": lambda model: {"past_values": noise(2, model.config.context_length), "freq": [0, 1]},
    "timesfm2_5": lambda model: {"past_values": noise(2, model.config.context_length)},
    "videomt": lambda model: {"pixel_values_videos": noise(1, 2, 3, IMAGE, IMAGE)},
    **dict.fromkeys(DECODERS, _decoder),
    "blip-2": _queried(),
    "git": lambda model: {"input_ids": ids(2, LENGTH), "pixel_values": noise(2, 3, IMAGE, IMAGE)},
    "lxmert": lambda model: {
        "input_ids": ids(2, LENGTH),
        "visual_feats": noise(2, 5, model.config.visual_feat_dim),
        "visual_pos": torch.rand(2, 5, 4),
    },
    "mllama": _mllama,
    "evolla": lambda model: {
        "input_ids": ids(2, LENGTH),
        "protein_input_ids": ids(2, LENGTH) % 20,
        "protein_attention_mask": ones(2, LENGTH),
    },
    # Frames with their deltas, in pairs.
    "granite_speech5_ctc": lambda model: {
        "input_features": noise(2, 64, 4 * model.config.encoder_config.num_mel_bins)
    },
    "wav2vec2-bert": _features,
    "instructblip": _queried(),
    "instructblipvideo": _queried(4),
    "kosmos-2": lambda model: {
        "input_ids": ids(2, LENGTH),
        "pixel_values": noise(2, 3, IMAGE, IMAGE),
        "image_embeds_position_mask": IMAGE_PLACES,
    },
    "kosmos-2.5": lambda model: {
        "input_ids": ids(2, LENGTH),
        "flattened_patches": _flat_patches(model),
        "image_embeds_position_mask": IMAGE_PLACES,
    },
    "musicgen": lambda model: {**_codebooks(model), "encoder_hidden_states": noise(2, 5, model.config.hidden_size)},
    "musicgen_melody": _codebooks,
    "dia": lambda model: {"input_ids": ids(2, LENGTH), "decoder_input_ids": ids(2, LENGTH, 9) % 20},
    "idefics": lambda model: {
        "input_ids": ids(2, LENGTH),
        "pixel_values": noise(2, 1, 3, IMAGE, IMAGE),
        "image_attention_mask": ones(2, LENGTH, 1).float(),
    },
    "kyutai_speech_to_text": lambda model: {"input_ids": ids(2, LENGTH, model.config.num_codebooks + 1) % 30},
    "perceiver": _perceiver,
    "pi0": _pi0,
    **dict.fromkeys(("videoprism_vision_model", "vjepa2"), _video),
    "whisper": _whisper,
    "voxtral_realtime": lambda model: {
        "input_ids": ids(2, LENGTH),
        "input_features": noise(2, 16, 8 * LENGTH),
        "num_delay_tokens": 2,
    },
    "pix2struct": lambda model: {"flattened_patches": _flat_patches(model), "decoder_input_ids": ids(2, LENGTH)},
    "seamless_m4t": _seamless,
    "seamless_m4t_v2": _seamless,
    "siglip2": lambda model: {
        "pixel_values": noise(2, 16, 768),
        "pixel_attention_mask": ones(2, 16),
        "spatial_shapes": torch.tensor([[4, 4], [4, 4]]),
    },
    "speech-encoder-decoder": lambda model: {"inputs": noise(2, 400), "decoder_input_ids": ids(2, LENGTH)},
    "udop": lambda model: {
        "input_ids": ids(2, LENGTH),
        "bbox": torch.rand(2, LENGTH, 4),
        "decoder_input_ids": ids(2, LENGTH),
    },
}


def inputs_for(kind: str, model: PreTrainedModel) -> dict[str, Tensor]:
    """Keyword arguments for one forward call."""
    name = type(model).__name__
    make = INPUTS.get(name, INPUTS.get(kind))
    if make is not None:
        made = make(model)
    elif name.endswith("ForXVector"):  # its convolutions over time need more frames than an example has
        made = {"input_values": noise(2, 8000)}
    else:
        made = example_inputs(model, LENGTH)
        if "input_ids" in made:
            made = with_senses(model, made)
    if made.get("decoder_input_ids") is not None and made["decoder_input_ids"].dim() == 2:
        made["decoder_input_ids"] = ids(made["decoder_input_ids"].shape[0], LENGTH)
    return made
