"""Speech made by espeak-ng: sentences in several voices with noise, for models that transcribe."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.io import wavfile
from scipy.signal import resample_poly
from torch import Tensor
from transformers import PreTrainedModel, WhisperForConditionalGeneration, WhisperProcessor

from hf_sparse.conversion.text_file import read_lines

from .whisper_ct2 import whisper_base

RATE = 16_000
PROMPT: dict[str, Any] = {"language": "en", "task": "transcribe"}


@dataclass(frozen=True)
class Clip:
    """A sentence and the log-mel features (1, mel bins, frames) of its sound."""

    text: str
    features: Tensor


def load_whisper(source: str) -> tuple[WhisperForConditionalGeneration, WhisperProcessor]:
    """A dense Whisper in float32 and evaluation mode with its processor: ``whisper-base`` out of its packages, or a
    folder or a name on the Hub.
    """
    if source == "whisper-base" and not Path(source).is_dir():
        return whisper_base()
    model = WhisperForConditionalGeneration.from_pretrained(source).float().eval()
    return model, WhisperProcessor.from_pretrained(source)


def sentences_of(path: Path, count: int, part: int) -> list[str]:
    """Sentences evenly spaced through a file. Parts of equal counts have no line in common, others may have some.

    Args:
        path: a sentence in each line, UTF-8, plain or ``.gz``.
        count: how many.
        part: 0 or 1: which of every two of the evenly spaced sentences.

    Raises:
        ValueError: a text without sentences.
    """
    lines = [line.strip() for line in read_lines(path) if 5 <= len(line.split()) <= 20]
    if len(lines) < 2:
        raise ValueError(f"{path} has {len(lines)} lines of 5 to 20 words, and two sentences are needed")
    chosen = torch.linspace(0, len(lines) - 1, min(2 * count, len(lines))).long().tolist()[part::2]
    return [lines[index] for index in chosen]


def spoken_clips(
    processor: WhisperProcessor, sentences: Sequence[str], voices: Sequence[str], noise: float, seed: int
) -> list[Clip]:
    """Sentences, spoken by voices in turn.

    Args:
        processor: makes the features.
        sentences: texts.
        voices: names that espeak-ng knows, as ``en-us+f3``.
        noise: standard deviation of white noise, as a share of the sound's.
        seed: of the noise.

    Raises:
        ValueError: see ``check_voices``.
    """
    check_voices(voices)
    random = np.random.default_rng(seed)
    found = []
    for number, sentence in enumerate(sentences):
        sound = spoken(sentence, voices[number % len(voices)])
        sound = sound + noise * sound.std() * random.standard_normal(len(sound)).astype(np.float32)
        features = processor(sound, sampling_rate=RATE, return_tensors="pt").input_features
        found.append(Clip(sentence, features))
    return found


def check_voices(*lists: Sequence[str]) -> None:
    """Refuse voices that espeak-ng does not have; it would speak in another one.

    Args:
        lists: names of voices, ``LANGUAGE`` or ``LANGUAGE+VARIANT``, at least one in each list.

    Raises:
        ValueError: espeak-ng is not installed, or has no such voice, or a list is empty.
    """
    if shutil.which("espeak-ng") is None:
        raise ValueError("speech is made by espeak-ng, which is not installed: apt install espeak-ng")
    if not all(lists):
        raise ValueError("speech needs at least one voice")
    languages, variants = (_listed(option) for option in ("--voices", "--voices=variant"))
    known = {fields[1] for fields in languages}
    shades = {fields[4].removeprefix("!v/") for fields in variants}
    for voice in chain(*lists):
        language, plus, variant = voice.partition("+")
        if language not in known or (plus and variant not in shades):
            raise ValueError(
                f"espeak-ng has no voice {voice!r}: give LANGUAGE or LANGUAGE+VARIANT, of espeak-ng --voices and "
                "espeak-ng --voices=variant"
            )


def _listed(option: str) -> list[list[str]]:
    """The fields of the voices that espeak-ng lists."""
    table = subprocess.run(["espeak-ng", option], capture_output=True, text=True, check=True).stdout
    return [line.split() for line in table.splitlines()[1:] if line.strip()]


def spoken(text: str, voice: str) -> np.ndarray:
    """The sound of a sentence at 16 kHz, in float32 between -1 and 1."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sentence.wav"
        command = ["espeak-ng", "-v", voice, "-s", "150", "-w", str(path), "--", text]
        subprocess.run(command, check=True)
        rate, sound = wavfile.read(path)
    common = gcd(rate, RATE)
    resampled: np.ndarray = resample_poly(sound.astype(np.float32) / 2**15, RATE // common, rate // common)
    return resampled.astype(np.float32)


def word_by_word(text: str, voice: str) -> tuple[np.ndarray, list[float]]:
    """The sound of a sentence whose words are spoken one by one, and the second at which each begins."""
    sounds = [spoken(word, voice) for word in text.split()]
    lengths = np.cumsum([0, *map(len, sounds)])
    return np.concatenate(sounds), [float(samples) / RATE for samples in lengths[:-1]]


def batches(processor: WhisperProcessor, heard: Sequence[Clip]) -> list[dict[str, Tensor]]:
    """Keyword arguments for the model's forward, a clip in each; the prompt has no labels."""
    tokenizer = processor.tokenizer
    tokenizer.set_prefix_tokens(**PROMPT, predict_timestamps=False)
    prompt, found = len(tokenizer.prefix_tokens), []
    for clip in heard:
        ids = torch.tensor([tokenizer(" " + clip.text).input_ids])
        labels = ids[:, 1:].clone()
        labels[:, : prompt - 1] = -100
        found.append({"input_features": clip.features, "decoder_input_ids": ids[:, :-1], "labels": labels})
    return found


@torch.no_grad()
def transcripts(model: PreTrainedModel, processor: WhisperProcessor, heard: Sequence[Clip]) -> list[str]:
    """What a model writes down, greedily."""
    texts = []
    for clip in heard:
        ids = model.generate(input_features=clip.features, **PROMPT, max_new_tokens=60)
        texts += processor.batch_decode(ids, skip_special_tokens=True)
    return texts
