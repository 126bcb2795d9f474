"""What cameras, microphones and lower layers deliver to a model, in the layouts that models take."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from tests.sweep.shrink import IMAGE

Arguments = dict[str, Any]
WIDTHS = ("hidden_size", "d_model", "input_dim", "input_size", "embed_dim", "encoder_hidden_size")


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def ones(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.long)


def as_passed(value: Any) -> Any:
    """Copies of the arguments of a call to be made once more; of caches and states too, which a call changes."""
    if torch.is_tensor(value):  # a mask may be of a class that is not copied
        return value.clone() if type(value) is Tensor else value
    if type(value) in (list, tuple):
        return type(value)(map(as_passed, value))
    return {name: as_passed(entry) for name, entry in value.items()} if type(value) is dict else copy.deepcopy(value)


def number(config: Any, *names: str, default: Any) -> Any:
    """The first setting of these names that is a positive number, or the first of a list of them."""
    for name in names:
        value = getattr(config, name, None)
        value = value[0] if isinstance(value, list | tuple) and value else value
        if isinstance(value, int) and value > 0:
            return value
    return default


def whole_images(config: Any) -> Iterator[Arguments]:
    """Two images, or two rows of tiles or frames, as channels, height and width."""
    channels = number(config, "num_channels", "in_channels", default=3)
    patch = number(config, "patch_size", default=16)
    for size in dict.fromkeys((number(config, "image_size", default=IMAGE), IMAGE)):
        sizes = torch.full((2, 2), size)
        for tiles in ((), (1,), (2,), (5,), (1, 1)):
            pixels = noise(2, *tiles, channels, size, size)
            yield {
                "pixel_values": pixels,
                "image_sizes": sizes,
                "high_res_pixel_values": pixels,
                "image_num_patches": ones(2),
                "batch_num_images": ones(2),
                "aspect_ratio_ids": ones(2, 1),
                "aspect_ratio_mask": ones(2, 1, 4),
                "patch_attention_mask": ones(2, size // patch, size // patch).bool(),
                "pixel_mask": ones(2, size, size).bool(),
                "pixel_attention_mask": ones(2, *tiles, size, size).bool(),
            }


def patched_images(config: Any) -> Iterator[Arguments]:
    """Two square images cut into patches, with what tells where each patch was."""
    channels = number(config, "num_channels", "in_channels", default=3)
    patch = number(config, "patch_size", default=16)
    merge = number(config, "spatial_merge_size", "merge_size", "pooling_kernel_size", default=1)
    side = 4 * merge
    frames = number(config, "temporal_patch_size", "patch_temporal", default=1)
    rows = torch.cartesian_prod(torch.arange(side), torch.arange(side))
    grid = torch.full((2, 2), side)
    placed = {
        **dict.fromkeys(("image_grid_thw", "grid_thws", "grid_thw"), torch.cat([ones(2, 1), grid], 1)),
        **dict.fromkeys(("image_sizes", "spatial_shapes", "target_sizes", "image_grid_hw"), grid),
        **dict.fromkeys(("image_merge_sizes", "merge_sizes"), ones(2)),
        "pixel_attention_mask": ones(2, side**2),
        "pixel_position_ids": rows.expand(2, -1, -1),
    }
    for values in dict.fromkeys((channels * frames * patch**2, channels * patch**2)):
        flat = noise(2 * side**2, values)
        layouts = [flat, flat.view(2, side**2, values)]
        if values == channels * patch**2:
            layouts += [flat.view(-1, channels, patch, patch), flat.view(2, side**2, channels, patch, patch)]
            layouts += [flat.view(1, channels, patch, -1), noise(2 * side**2, merge * patch, merge * patch, channels)]
        for pixels, name in product(layouts, ("pixel_values", "hidden_states")):
            yield {name: pixels, **placed}


def sounds(config: Any) -> Iterator[Arguments]:
    """Two sounds as a spectrogram, its bands first or its frames first, or as a waveform."""
    bands = number(config, "num_mel_bins", "feature_size", "input_dim", "input_feat_size", default=16)
    bands *= number(config, "num_stacked_frames", default=1)
    longest = 2 * number(config, "max_source_positions", "n_window", default=32)
    for frames in dict.fromkeys((longest, 64, 128)):
        for features in (noise(2, bands, frames), noise(2, frames, bands), noise(bands, 2 * frames)):
            heard = ones(2, frames)
            yield {
                "input_features": features,
                **dict.fromkeys(("input_features_mask", "feature_attention_mask", "attention_mask"), heard),
                "padding_mask": heard,
                **dict.fromkeys(("feature_lens", "audio_feature_lengths"), torch.full((2,), frames)),
                "chunk_sample_lengths": torch.full((2,), 160 * frames),
            }
    for name, wave in product(("input_values", "audio_values"), (noise(2, 1, 19200), noise(2, 19200))):
        yield {name: wave}


def states(config: Any) -> Iterator[Arguments]:
    """Two rows of vectors as a lower layer returns them, a square of them for convolutions, or a square of codes."""
    widths = dict.fromkeys(value for name in WIDTHS if (value := number(config, name, default=0)))
    if isinstance(layers := getattr(config, "vision_feature_layer", None), list):
        widths[config.hidden_size * len(layers)] = None
    names = ("hidden_states", "inputs_embeds", "latents", "patch_embeds", "image_features", "query_embeds")
    for width, name in product(widths, names):
        for vectors in (noise(2, 16, width), noise(2, width, 16), noise(2, width, 4, 4)):
            yield {
                name: vectors,
                "mask": None,
                "num_patches": 8,
                "encoder_hidden_states": noise(2, 8, number(config, "encoder_hidden_size", "hidden_size", default=64)),
                "pooled_patches_idx": torch.arange(32).view(8, 4),
            }
    yield {"hidden_states": torch.arange(32).view(2, 4, 4) % 8}


DELIVERIES = (whole_images, patched_images, sounds, states)


def argument_sets(function: Callable, config: Any) -> Iterator[Arguments]:
    """Keyword arguments that ``function`` may take: all it names of a delivery, then only those it must have.

    Args:
        function: a method of a model or of a part of one.
        config: the configuration of that model or part; those inside it are asked too.
    """
    takes = inspect.signature(function).parameters
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = {name for name, taken in takes.items() if taken.default is taken.empty and taken.kind not in variable}
    inner = [part for name in config.sub_configs if (part := getattr(config, name, None)) is not None]
    for part, deliver in product((*inner, config), DELIVERIES):
        for delivery in deliver(part):
            main = next(iter(delivery))
            if main not in takes or not needed <= set(delivery):
                continue
            chosen = {name: value for name, value in delivery.items() if name in takes}
            least = {name: value for name, value in chosen.items() if name in needed or name == main}
            yield chosen
            if len(least) < len(chosen):
                yield least
