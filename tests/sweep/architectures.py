"""Every entry of Transformers' mappings as a tiny random model."""

import re
from contextlib import suppress
from typing import Any

import torch
import transformers
import transformers.models.auto.modeling_auto as auto
from transformers import CONFIG_MAPPING, PreTrainedModel

from tests.sweep.overrides import OVERRIDES, SEED
from tests.sweep.shrink import shrink

MAPPINGS = (
    "CAUSAL_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "MASKED_LM",
    "SEQUENCE_CLASSIFICATION",
    "SPEECH_SEQ_2_SEQ",
    "IMAGE_CLASSIFICATION",
    "IMAGE_TEXT_TO_TEXT",
    "NEXT_SENTENCE_PREDICTION",
    "AUDIO_CLASSIFICATION",
    "CTC",
    "VIDEO_CLASSIFICATION",
    "TOKEN_CLASSIFICATION",
    "QUESTION_ANSWERING",
    "MULTIPLE_CHOICE",
    "AUDIO_FRAME_CLASSIFICATION",
    "AUDIO_XVECTOR",
    "RNNT",
    "TDT",
    "TEXT_TO_SPECTROGRAM",
    "TEXT_TO_WAVEFORM",
    "VISUAL_QUESTION_ANSWERING",
    "DOCUMENT_QUESTION_ANSWERING",
    "TABLE_QUESTION_ANSWERING",
    "TABLE_RECOGNITION",
    "TEXT_RECOGNITION",
    "ZERO_SHOT_IMAGE_CLASSIFICATION",
    "ZERO_SHOT_OBJECT_DETECTION",
    "OBJECT_DETECTION",
    "IMAGE_SEGMENTATION",
    "INSTANCE_SEGMENTATION",
    "SEMANTIC_SEGMENTATION",
    "UNIVERSAL_SEGMENTATION",
    "MASK_GENERATION",
    "DEPTH_ESTIMATION",
    "NORMAL_ESTIMATION",
    "POINTMAP_ESTIMATION",
    "POSE_ESTIMATION",
    "KEYPOINT_DETECTION",
    "KEYPOINT_MATCHING",
    "IMAGE_MATTING",
    "IMAGE_TO_IMAGE",
    "MASKED_IMAGE_MODELING",
    "CAUSAL_IMAGE_MODELING",
    "TIME_SERIES_CLASSIFICATION",
    "TIME_SERIES_PREDICTION",
    "TIME_SERIES_REGRESSION",
    "DECISION",
    "RETRIEVAL",
    "MULTIMODAL_LM",
    "PRETRAINING",
    "BACKBONE",
    "TEXT_ENCODING",
    "IMAGE",
)
QUERY = re.compile(r"(^|[._])(q|query|q_proj|to_q|q_norm|query_norm|q_layernorm|qkv_proj)([._]|$)")
MOST_PARAMETERS = 30_000_000


def entries(mapping: str) -> list[tuple[str, str]]:
    """(model type, class name) of every entry that no mapping before has; some types have several classes."""
    before = {entry for earlier in MAPPINGS[: MAPPINGS.index(mapping)] for entry in _named(earlier)}
    return [entry for entry in _named(mapping) if entry not in before]


def _named(mapping: str) -> list[tuple[str, str]]:
    names = getattr(auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES")
    return [(kind, name) for kind, value in names.items() for name in ([value] if isinstance(value, str) else value)]


def tiny_config(kind: str, name: str) -> Any:
    config_class = CONFIG_MAPPING[kind]
    override = OVERRIDES.get(name, OVERRIDES.get(kind, {}))
    if callable(override):
        return override()
    data = config_class(**SEED.get(kind, {})).to_dict()
    for key in ("transformers_version", "_name_or_path", "architectures"):
        data.pop(key, None)
    return config_class(**shrink(data, override))


def build(kind: str, name: str, seed: int = 0) -> PreTrainedModel:
    """A random model in evaluation mode whose scores have a spread as of a trained one."""
    model_class = getattr(transformers, name)
    config = tiny_config(kind, name)
    if model_class.config_class is not None and not isinstance(config, model_class.config_class):
        parts = (getattr(config, key) for key in config.sub_configs)
        config = next((part for part in parts if isinstance(part, model_class.config_class)), config)
    size = 0
    with suppress(RuntimeError), torch.device("meta"):
        size = sum(
            parameter.numel() for parameter in model_class(config.__class__.from_dict(config.to_dict())).parameters()
        )
    if size > MOST_PARAMETERS:
        raise RuntimeError(f"still has {size:,} parameters when shrunk")
    for part in (config, config.get_text_config(decoder=True)):
        for token, value in (("pad_token_id", 0), ("eos_token_id", 2), ("decoder_start_token_id", 0)):
            if getattr(part, token, None) is None:
                setattr(part, token, value)
    torch.manual_seed(seed)
    return spread(model_class(config).eval())


@torch.no_grad()
def spread(model: PreTrainedModel) -> PreTrainedModel:
    """Scale small random weights up, open gates that start closed, and fill what was left uninitialized."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if not parameter.numel():
            continue
        if not parameter.isfinite().all() or parameter.abs().max() > 1e4:
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        elif parameter.dim() >= 2 and not parameter.any():  # tokens and biases that training fills
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        elif parameter.dim() >= 4 and parameter.std() > 0:  # convolutions, or images fade on their way
            parameter.mul_(1.6 / parameter[0].numel() ** 0.5 / parameter.std())
        elif parameter.dim() >= 2 and parameter.numel() > 1 and 0 < parameter.std() < 0.1:
            fan_in = parameter[0].numel() if parameter.dim() != 3 else parameter.shape[-1]
            sharper = 2.0 if QUERY.search(name) else 1.0
            parameter.mul_(sharper * min(0.3, 1.5 / fan_in**0.5) / parameter.std())
        elif parameter.dim() == 1 and QUERY.search(name) and "norm" in name and "bias" not in name:
            parameter.mul_(3.0).clamp_(min=2.0)
        elif (
            parameter.dim() < 2
            and parameter.abs().max() < 1e-3
            and any(gate in name for gate in ("gate", "scale", "temp"))
        ):
            parameter.fill_(0.5)
    return model


@torch.no_grad()
def calibrate(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> None:
    """Let batch normalization take its statistics from ``inputs``: with those of a fresh model images fade away."""
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)]
    for layer in layers:
        layer.train()
        layer.momentum = 1.0
    if layers:
        model(**inputs)
    for layer in layers:
        layer.eval()
