"""Short forms of the recipes' runs on the models that packages ship: everything but the length of training."""

import math
import shutil

import pytest

from recipes.conditioning import run as conditioning
from recipes.data import scenes
from recipes.instructions import run as instructions
from recipes.pretrained import run as pretrained
from recipes.support_distillation import run as distillation

SINGLE = "dtype=float32"  # not every CPU has products in bfloat16: without them a step takes a minute


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    """A sentence in each line: running text, captions."""
    path = tmp_path_factory.mktemp("text") / "sentences.txt"
    path.write_text("\n".join(english for _, english in scenes.pairs()), encoding="utf-8")
    return str(path)


def figures_of(study, run, data, folder, *changes):
    options = ["--quick", "--only", run, "--out", str(folder), *(["--data", data] if data else [])]
    records = study.main(study.STUDY, [*options, *(["--set", *changes] if changes else [])])["runs"]
    return next(record["figures"] for record in records if record["run"] == run)


def test_attention_of_a_language_model(sentences, tmp_path):
    found = figures_of(pretrained, "smollm2-attention", sentences, tmp_path, "length=64")
    assert found["dense"] < found["calibrated"] < found["swapped"]
    assert found["edges"] < 0.3


def test_attention_of_a_language_model_is_trained(sentences, tmp_path):
    found = figures_of(pretrained, "smollm2-adapted", sentences, tmp_path, SINGLE, "batch_size=1", "edges=0.3")
    assert len(found["curve"]) == 2
    assert found["trained"] != found["calibrated"] < found["swapped"]
    assert 0 < found["edges"] < 0.5


def test_the_head_of_a_language_model_is_trained(sentences, tmp_path):
    found = figures_of(pretrained, "smollm2-head-trained", sentences, tmp_path, SINGLE, "batch_size=1")
    for way in ("calibrated", "trained", "cut"):
        assert 0.3 < found[way]["found"] < 1
        assert 100 < found[way]["support"] < 2500


def test_a_sentence_encoder_is_distilled(sentences, tmp_path):
    found = figures_of(pretrained, "minilm-captions-distilled", sentences, tmp_path, SINGLE, "rows=20", "steps=30")
    assert found["distilled"]["spearman"] > found["calibrated"]["spearman"] + 0.02
    assert 0.5 < found["calibrated"]["zeros"] < 1


def test_reactions(sentences, tmp_path):
    found = figures_of(pretrained, "rxnmapper-attention", sentences, tmp_path)
    assert max(found["dense"]["loss"], found["calibrated"]["loss"]) < found["swapped"]["loss"]


def test_instructions(sentences, tmp_path):
    found = figures_of(instructions, "ts2", sentences, tmp_path)
    assert 0.1 < found["accuracy"] < 1
    assert 0 < found["asked"] <= 1
    assert 0 < found["distinct_1"] <= found["distinct_2"] <= 1
    assert math.isfinite(found["loss"])


def test_a_pretrained_teacher(tmp_path):
    """A student of some of its layers learns from a few draws."""
    found = figures_of(distillation, "smollm2-draws", None, tmp_path, SINGLE, "batch_size=1", "test_rows=2")
    assert found["vocabulary"] == 49152
    assert 10 < found["bytes"] < 40


def test_fields_of_a_language_model_are_conditioned(tmp_path):
    found = figures_of(conditioning, "fields", None, tmp_path, "rows=4", "max_expanded=50")
    *years, question = found["cases"]
    assert not any(case["complete"] for case in years[:2])  # of 500 years
    assert question["complete"]
    assert all(0 < question[way] < 0.1 for way in ("masking", "asap"))


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="speech is made by espeak-ng")
def test_commands_to_a_speech_recogniser(tmp_path):
    found = figures_of(conditioning, "commands", None, tmp_path, "max_expanded=200")
    *commands, remark = found["cases"][:3]
    assert found["greedy"] <= 1 / 2 < sum(case["right"] for case in commands) / 2
    assert remark["complete"]
    assert "right" not in remark
