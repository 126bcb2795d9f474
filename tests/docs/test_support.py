"""A slice of the sweep over Transformers' architectures, and the table made from the whole (``-m sweep`` runs it)."""

import json

import pytest
import transformers

from tests.sweep.architectures import MAPPINGS, entries
from tests.sweep.support import JSON, RESULTS, TABLE, read, table
from tests.sweep.verdict import verdict

SLICE = [
    ("CAUSAL_LM", "bloom", "BloomForCausalLM"),
    ("CAUSAL_LM", "deepseek_v32", "DeepseekV32ForCausalLM"),
    ("CAUSAL_LM", "gpt_oss", "GptOssForCausalLM"),
    ("CAUSAL_LM", "inkling2_text", "Inkling2ForCausalLM"),
    ("CAUSAL_LM", "mamba", "MambaForCausalLM"),
    ("CAUSAL_LM", "prophetnet", "ProphetNetForCausalLM"),
    ("SEQ_TO_SEQ_CAUSAL_LM", "longt5", "LongT5ForConditionalGeneration"),
    ("SEQ_TO_SEQ_CAUSAL_LM", "t5", "T5ForConditionalGeneration"),
    ("MASKED_LM", "convbert", "ConvBertForMaskedLM"),
    ("SEQUENCE_CLASSIFICATION", "falcon", "FalconForSequenceClassification"),
    ("SPEECH_SEQ_2_SEQ", "kyutai_speech_to_text", "KyutaiSpeechToTextForConditionalGeneration"),
    ("SPEECH_SEQ_2_SEQ", "speech_to_text", "Speech2TextForConditionalGeneration"),
    ("IMAGE_CLASSIFICATION", "levit", "LevitForImageClassification"),
    ("OBJECT_DETECTION", "detr", "DetrForObjectDetection"),
    ("TIME_SERIES_REGRESSION", "patchtst", "PatchTSTForRegression"),
    ("IMAGE_TEXT_TO_TEXT", "deepseek_ocr2", "DeepseekOcr2ForConditionalGeneration"),
    ("IMAGE_TEXT_TO_TEXT", "idefics", "IdeficsForVisionText2Text"),
    ("IMAGE_TEXT_TO_TEXT", "kosmos-2.5", "Kosmos2_5ForConditionalGeneration"),
    ("IMAGE_TEXT_TO_TEXT", "qwen2_vl", "Qwen2VLForConditionalGeneration"),
]
# Whose own forward leaves parts out that nothing here can call alone.
NEVER_CALLED = {"SeamlessM4Tv2ForTextToSpeech", "VJEPA2ForVideoClassification"}
ALL = [(mapping, kind, name) for mapping in MAPPINGS for kind, name in entries(mapping)]


def fails_nothing(entry):
    found, known = verdict(*entry), read()[entry]
    assert found["result"] == known["result"], found
    assert entry[2] in NEVER_CALLED or not found.get("not reached"), found
    assert not found.get("without zeros"), found
    assert found.get("head", "").partition(" ")[0] == known.get("head", "").partition(" ")[0], found["head"]


@pytest.mark.parametrize("entry", SLICE, ids=[entry[2] for entry in SLICE])
def test_architectures_behave_as_the_table_says(entry):
    fails_nothing(entry)


# Scores computed through the interface and inside a module, masks of every kind, a cache, an encoder-decoder.
OTHER_MAPS = [
    (("CAUSAL_LM", "bloom", "BloomForCausalLM"), "relu_over_n"),
    (("CAUSAL_LM", "gemma2", "Gemma2ForCausalLM"), "softpick"),
    (("SEQ_TO_SEQ_CAUSAL_LM", "t5", "T5ForConditionalGeneration"), "sigmoid"),
    (("IMAGE_CLASSIFICATION", "vit", "ViTForImageClassification"), "squared_relu_over_n"),
]


@pytest.mark.parametrize(("entry", "attn"), OTHER_MAPS, ids=[f"{entry[2]}-{attn}" for entry, attn in OTHER_MAPS])
def test_attention_whose_weights_do_not_sum_to_one_passes_the_sweep(entry, attn):
    found = verdict(*entry, attn)
    assert found["result"] == read()[entry]["result"], found
    assert "FAILED" not in str(found["checks"])


@pytest.mark.sweep
@pytest.mark.parametrize("entry", ALL, ids=["-".join(entry) for entry in ALL])
def test_all_architectures_behave_as_the_table_says(entry):
    fails_nothing(entry)


def test_the_sweep_was_made_with_the_transformers_that_ci_runs():
    pins = (JSON.parents[1] / "constraints.txt").read_text().split()
    assert f"transformers=={json.loads(JSON.read_text())['transformers']}" in pins


def test_the_table_is_made_from_the_sweep():
    assert TABLE.read_text() == table()


def test_the_sweep_has_every_entry_and_no_failure():
    known = read()
    if transformers.__version__ == json.loads(JSON.read_text())["transformers"]:
        assert set(ALL) == set(known)
    assert {found["result"] for found in known.values()} <= set(RESULTS) - {"FAILED"}
    assert not [key for key, found in known.items() if found.get("head", "").startswith("FAILED")]
    assert not [key for key, found in known.items() if found.get("without zeros")]
    assert {name for (*_, name), found in known.items() if found.get("not reached")} == NEVER_CALLED
    unexplained = [key for key, found in known.items() if "checks" not in found and not found.get("reason")]
    assert not unexplained
