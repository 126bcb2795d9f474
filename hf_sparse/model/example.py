"""Made-up input for one forward call of a model, of the kinds its forward asks for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from .dry_run import DryRun, dry_run, input_device


class NoExampleError(ValueError):
    """No input can be made up for a model."""


_PASS_ONE = "pass example={...}, keyword arguments for one forward call"
# What models raise on input that they cannot read.
_FAILURES = (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


def example_inputs(model: PreTrainedModel, length: int = 5) -> dict[str, Tensor]:
    """Two rows of made-up input for ``model``: tokens, an image, sound, tokens and an image, or tokens around one.

    Args:
        model: any Transformers model.
        length: number of tokens a row, in tokens.

    Returns:
        Keyword arguments for one forward call, on the device and in the dtype of ``model``.

    Raises:
        NoExampleError: the kind of input is not one we can make up.
    """
    takes = frozenset(inspect.signature(type(model).forward).parameters)
    main = model.main_input_name
    if main in ("pixel_values", "input_features", "input_values") and main in takes:
        inputs = _seen_or_heard(model, main, length, takes)
    elif main == "input_ids":
        inputs = _read(model, length, takes)
    else:
        raise _cannot(model, main)
    _fit_to_task(model, inputs, length, takes)
    return {
        name: (value.to(model.dtype) if value.is_floating_point() else value).to(input_device(model))
        for name, value in inputs.items()
    }


def first_run(model: PreTrainedModel, example: Mapping[str, object] | None) -> DryRun:
    """Run a dense model once, on the user's input or on made-up input.

    Args:
        model: any Transformers model.
        example: keyword arguments for one forward call; None makes them up.

    Returns:
        The record of the run, with its input.

    Raises:
        NoExampleError: no input can be made up, or the model does not run on it, or on the user's own example.
        TypeError: an example that is no mapping from names.
    """
    if type(model).forward is nn.Module.forward:
        parts = [name for name, part in model.named_children() if isinstance(part, PreTrainedModel)]
        raise NoExampleError(
            f"{type(model).__name__} has no forward call; make its parts ({', '.join(parts)}) sparse and save them, "
            "one by one"
        )
    if example is not None:
        return _run_on(model, example)
    inputs: dict[str, Tensor] = {}
    try:
        inputs = example_inputs(model)
        return dry_run(model, inputs)
    except (NoExampleError, torch.OutOfMemoryError):
        raise
    except _FAILURES as error:
        raise NoExampleError(
            f"{type(model).__name__} does not run on the input made up for it ({', '.join(inputs)}: "
            f"{type(error).__name__}, {error}); {_PASS_ONE}"
        ) from error


def _seen_or_heard(model: PreTrainedModel, main: str, length: int, takes: frozenset[str]) -> dict[str, Tensor]:
    """An image or sound, and the tokens beside it: BLIP-2 around T5 reads some, InstructBLIP reads them twice."""
    texts = {name for name in _needed_for(model.forward) if name.endswith("input_ids")}
    if texts or not model.config.is_encoder_decoder:
        texts |= takes & {"input_ids"}
    seen = _image(model) if main == "pixel_values" else _sound(model, main)
    return {main: seen, **{name: _tokens(model, length) for name in sorted(texts)}}


def _read(model: PreTrainedModel, length: int, takes: frozenset[str]) -> dict[str, Tensor]:
    """Tokens, and the images or sounds that a model takes among them or beside them."""
    ids = _tokens(model, length, _source_vocabulary(model))
    if _takes_plain_images(model):
        return {"input_ids": ids, **_tokens_around_image(model, ids)}
    if "pixel_values" in takes and _is_beside_text(model):
        return {"input_ids": ids, "pixel_values": _image(model)}
    if "input_features" in takes and hasattr(getattr(model.config, "audio_config", None), "spec_size"):
        return {"input_ids": ids, "input_features": _square_spectrogram(model.config.audio_config)}
    return {"input_ids": ids}


def _fit_to_task(model: PreTrainedModel, inputs: dict[str, Tensor], length: int, takes: frozenset[str]) -> None:
    """Bring tokens into the form of the task, and add those of a decoder. Changes ``inputs``."""
    if _reads_off_last_token(model):
        inputs["input_ids"] = inputs["input_ids"][:1]
        if model.config.is_encoder_decoder:
            inputs["input_ids"][:, -1] = getattr(model.config, "eos_token_id", None) or 1
    elif type(model).__name__.endswith("ForMultipleChoice") and "input_ids" in inputs:
        inputs["input_ids"] = inputs["input_ids"][:, None]
    elif model.config.is_encoder_decoder and "decoder_input_ids" in takes:
        inputs["decoder_input_ids"] = _tokens(model, length)


def _run_on(model: PreTrainedModel, example: Mapping[str, object]) -> DryRun:
    if not isinstance(example, Mapping) or not all(isinstance(name, str) for name in example):
        raise TypeError(f"example must map names of arguments to their values, for one forward call, was {example!r}")
    try:
        return dry_run(model, example)
    except torch.OutOfMemoryError:  # no fault of the example
        raise
    except _FAILURES as error:
        raise NoExampleError(
            f"{type(model).__name__} does not run on example={{{', '.join(map(repr, example))}}}: "
            f"{type(error).__name__}, {error}"
        ) from error


def _cannot(model: PreTrainedModel, main: str) -> NoExampleError:
    return NoExampleError(
        f"{type(model).__name__} takes {main!r}, for which no input can be made up here; {_PASS_ONE}"
    )


def _source_vocabulary(model: PreTrainedModel) -> int | None:
    """The size of the vocabulary that an encoder reads, where it is another than the decoder's (Marian)."""
    if not model.config.is_encoder_decoder:
        return None
    try:
        return getattr(model.get_input_embeddings(), "num_embeddings", None)
    except NotImplementedError:  # FastSpeech2's class does not say where they are
        return None


def _tokens(model: PreTrainedModel, length: int, vocab_size: int | None = None) -> Tensor:
    config = model.config.get_text_config(decoder=True)
    named = {**vars(config), **vars(model.config)}
    special = [value for name, value in named.items() if name.endswith(("_token_id", "_token_index"))]
    special += [token for tokens in special if isinstance(tokens, list) for token in tokens]
    size: int = getattr(config, "vocab_size", 100) if vocab_size is None else vocab_size
    known = range(1, size)
    plain = [token for token in known if token not in special][: 2 * length] or [0]
    return torch.tensor((plain * (2 * length))[: 2 * length], device="cpu").view(2, length)


def _reads_off_last_token(model: PreTrainedModel) -> bool:
    """Whether rows must be padded, or end, by a special token: classifiers look for where a row ends."""
    return type(model).__name__.endswith("ForSequenceClassification") and model.main_input_name == "input_ids"


def _uniform(*shape: int) -> Tensor:
    """Float32 numbers between 0 and 1, the same in every call."""
    return torch.rand(*shape, dtype=torch.float32, generator=torch.Generator().manual_seed(0), device="cpu")


def _normal(*shape: int) -> Tensor:
    """Float32 numbers of a standard normal distribution, the same in every call."""
    return torch.randn(*shape, dtype=torch.float32, generator=torch.Generator().manual_seed(0), device="cpu")


def _image(model: PreTrainedModel) -> Tensor:
    parts = (getattr(model.config, name, None) for name in ("vision_config", "encoder", "backbone_config"))
    config = next((part for part in parts if hasattr(part, "image_size")), model.config)
    size = getattr(config, "image_size", None) or getattr(model.config, "image_size", None) or _size_in_timm(config)
    height, width = (size, size) if isinstance(size, int) else size
    channels: Any = getattr(config, "num_channels", None) or getattr(config, "in_channels", 3)
    frames = [model.config.num_frames] if hasattr(model.config, "num_frames") else []  # a video
    return _uniform(2, *frames, channels, height, width)


def _size_in_timm(config: PreTrainedConfig) -> Sequence[int]:
    """Height and width of the images that a model of timm was pretrained on, which its checkpoints say."""
    pretrained = getattr(config, "pretrained_cfg", None) or {}
    return pretrained.get("input_size", (3, 224, 224))[-2:]


def _is_beside_text(model: PreTrainedModel) -> bool:
    """Whether images go to a part of their own, beside that for text (CLIP and its kin)."""
    return getattr(model.config, "vision_config", None) is not None and _image_token(model) is None


def _sound(model: PreTrainedModel, main: str) -> Tensor:
    """Spectrogram frames, or a waveform."""
    parts = (getattr(model.config, name, None) for name in ("encoder", "encoder_config"))
    config = next((part for part in parts if part is not None), model.config)
    if main == "input_values":
        patches = hasattr(config, "patch_size") and hasattr(config, "num_mel_bins")  # of a spectrogram
        shape = (config.max_length, config.num_mel_bins) if patches else (4000,)
        return _normal(2, *shape)
    if getattr(config, "input_feat_per_channel", None):
        return _normal(2, 32, config.input_feat_per_channel)
    if getattr(config, "num_mel_bins", None) and getattr(config, "max_source_positions", None):
        return _normal(2, config.num_mel_bins, 2 * config.max_source_positions)
    width: Any = getattr(config, "feature_projection_input_dim", None) or getattr(config, "num_mel_bins", None)
    if width:  # conformers take frames as they are
        return _normal(2, 64, width)
    raise _cannot(model, main)


def _square_spectrogram(config: PreTrainedConfig) -> Tensor:
    """Frames by mel bins, which CLAP's kin fold into a square; a fused one has the whole and three cuttings of it."""
    shape = (4 if config.enable_fusion else 1, config.spec_size, config.num_mel_bins)
    return _normal(2, *shape)


def _takes_plain_images(model: PreTrainedModel) -> bool:
    """Whether the model puts features of images, of a fixed size or in patches, in the place of image tokens."""
    features = getattr(model, "get_image_features", None)
    vision = getattr(model.config, "vision_config", None)
    if features is None or vision is None or _image_token(model) is None:
        return False
    needed = _needed_for(features)
    if needed == {"pixel_values", "image_grid_thw"}:
        return hasattr(vision, "temporal_patch_size") and hasattr(vision, "spatial_merge_size")
    return needed == {"pixel_values"} and getattr(vision, "image_size", None) is not None


def _needed_for(features: Callable[..., Any]) -> set[str]:
    """Names of the arguments that describe images, and of those without a default."""
    return {
        name
        for name, parameter in inspect.signature(features).parameters.items()
        if name.startswith(("image_", "pixel_", "spatial_"))
        or (parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD)
    }


def _image_token(model: PreTrainedModel) -> int | None:
    """The token that stands where an image does; it may be token 0."""
    tokens = (getattr(model.config, name, None) for name in ("image_token_id", "image_token_index"))
    return next((token for token in tokens if token is not None), None)


@torch.no_grad()
def _tokens_around_image(model: PreTrainedModel, tokens: Tensor) -> dict[str, Tensor]:
    image_token: Any = _image_token(model)
    images = {"pixel_values": _image(model)}
    if "image_grid_thw" in inspect.signature(model.get_image_features).parameters:
        images = _patches(model.config.vision_config)
    images = {
        name: x.to(input_device(model), model.dtype if x.is_floating_point() else x.dtype)
        for name, x in images.items()
    }
    named = {} if getattr(model.config, "return_dict", True) else {"return_dict": True}  # else a tuple of all outputs
    features = model.get_image_features(**images, **named)
    if not isinstance(features, Tensor | list | tuple):
        features = features.last_hidden_state if features.pooler_output is None else features.pooler_output
    features = torch.cat(list(features)) if isinstance(features, list | tuple) else features.flatten(0, -2)
    places = torch.full((2, features.shape[0] // 2), image_token, dtype=torch.long, device="cpu")
    ids = torch.cat([tokens[:, :1], places, tokens[:, 1:]], dim=1)
    if "mm_token_type_ids" in inspect.signature(type(model).forward).parameters:
        images["mm_token_type_ids"] = torch.eq(ids, image_token).long()
    return {"input_ids": ids, **images}


def _patches(vision: Any) -> dict[str, Tensor]:
    """Two images cut into patches, each flattened (Qwen2-VL and its kin)."""
    side = 2 * vision.spatial_merge_size
    channels = getattr(vision, "in_channels", None) or getattr(vision, "num_channels", 3)
    values = channels * vision.temporal_patch_size * vision.patch_size**2
    pixels = _uniform(2 * side**2, values)
    return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, side, side]] * 2, device="cpu")}
