"""Images and sounds for models of text and more, found by trying the forms such models take."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.sweep.shrink import IMAGE


def _noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _images(config: Any) -> Iterator[dict[str, Tensor]]:
    vision = getattr(config, "vision_config", None) or config
    patch = getattr(vision, "patch_size", None) or 16
    patch = patch if isinstance(patch, int) else 16
    sizes = torch.tensor([[IMAGE, IMAGE]] * 2)
    side = 4 * (getattr(vision, "spatial_merge_size", None) or 1)
    for size in {
        IMAGE,
        getattr(vision, "image_size", IMAGE) if isinstance(getattr(vision, "image_size", 0), int) else IMAGE,
    }:
        for pixels in (
            _noise(2, 3, size, size),
            _noise(2, 1, 3, size, size),
            _noise(2, 2, 3, size, size),
            _noise(2, 5, 3, size, size),
            _noise(2, 1, 1, 3, size, size),
        ):
            yield {"pixel_values": pixels}
            yield {"pixel_values": pixels, "image_sizes": sizes}
            yield {"pixel_values": pixels, "image_sizes": sizes, "high_res_pixel_values": pixels}
            yield {"pixel_values": pixels, "image_num_patches": torch.ones(2, dtype=torch.long)}
            yield {
                "pixel_values": pixels,
                "aspect_ratio_ids": torch.ones(2, 1, dtype=torch.long),
                "aspect_ratio_mask": torch.ones(2, 1, 4, dtype=torch.long),
            }
    frames = getattr(vision, "temporal_patch_size", None) or 1
    grid = torch.tensor([[1, side, side]] * 2)
    for values in (3 * frames * patch**2, 3 * patch**2):
        flat = _noise(2 * side**2, values)
        for name in ("image_grid_thw", "grid_thws", "grid_thw", "image_sizes", "spatial_shapes", "target_sizes"):
            yield {"pixel_values": flat, name: grid if name.endswith(("thw", "thws")) else grid[:, 1:]}
            yield {
                "pixel_values": flat,
                name: grid if name.endswith(("thw", "thws")) else grid[:, 1:],
                "image_merge_sizes": torch.ones(2, dtype=torch.long),
            }
        yield {
            "pixel_values": flat.view(2, side**2, values),
            "spatial_shapes": grid[:, 1:],
            "pixel_attention_mask": torch.ones(2, side**2, dtype=torch.long),
        }
        yield {
            "pixel_values": flat.view(2, side**2, values).view(2, side**2, 3, -1, patch)
            if values == 3 * patch**2
            else flat
        }


def _sounds(config: Any) -> Iterator[dict[str, Tensor]]:
    audio = getattr(config, "audio_config", None) or getattr(config, "encoder_config", None) or config
    mels = next(
        (getattr(audio, name) for name in ("num_mel_bins", "input_dim", "input_feat_size") if hasattr(audio, name)), 16
    )
    longest = 2 * (getattr(audio, "max_source_positions", None) or 32)
    for frames in (longest, 64, 128):
        for features in (_noise(2, mels, frames), _noise(2, frames, mels)):
            for mask in (None, "input_features_mask", "feature_attention_mask", "attention_mask"):
                yield {"input_features": features} | ({mask: torch.ones(2, frames, dtype=torch.long)} if mask else {})
    for name in ("input_values", "audio_values"):
        yield {name: _noise(2, 1, 640)}


KINDS = (
    ("get_image_features", ("image_token_id", "image_token_index", "image_patch_id"), _images),
    ("get_audio_features", ("audio_token_id", "audio_token_index"), _sounds),
)


def rows_of(features: Any) -> int:
    features = (
        getattr(features, "pooler_output", None) if not isinstance(features, Tensor | list | tuple) else features
    )
    if isinstance(features, Tensor):
        return features.flatten(0, -2).shape[0]
    return sum(rows_of(part) for part in features)


@torch.no_grad()
def with_senses(model: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """``inputs``, with an image or a sound a row where a form is found that the model takes."""
    for method, tokens, forms in KINDS:
        features = getattr(model, method, None) or getattr(getattr(model, "model", None), method, None)
        token = next((value for name in tokens if isinstance(value := getattr(model.config, name, None), int)), None)
        if features is None or token is None:
            continue
        takes = inspect.signature(features).parameters
        for form in forms(model.config):
            given = {name: value for name, value in form.items() if name in takes}
            if len(given) < len(form) and len(form) > 1 and "attention_mask" not in form:
                continue
            for places in _counts(features, given):
                filled = _fill(model, inputs, token, places, form)
                try:
                    model(**filled)
                except Exception:  # noqa: BLE001
                    continue
                inputs = filled
                break
            else:
                continue
            break
    return inputs


def _counts(features: Any, given: dict[str, Tensor]) -> list[int]:
    try:
        return [max(rows_of(features(**given)) // 2, 1)]
    except Exception:  # noqa: BLE001
        return []


def _fill(
    model: PreTrainedModel, inputs: dict[str, Tensor], token: int, places: int, form: dict[str, Tensor]
) -> dict[str, Tensor]:
    ids = inputs["input_ids"]
    ids = torch.cat([ids[:, :1], torch.full((ids.shape[0], places), token), ids[:, 1:]], dim=1)
    filled = {**inputs, **form, "input_ids": ids}
    if "mm_token_type_ids" in inspect.signature(type(model).forward).parameters:
        filled["mm_token_type_ids"] = (ids == token).long()
    return filled
