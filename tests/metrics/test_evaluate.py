"""REP, DROP and AER as metrics of ``evaluate``: they load by path, offline, and give the scores of the functions."""

import math
import subprocess
import sys
from pathlib import Path

import evaluate
import pytest

from hf_sparse.metrics.evaluate import NAMES, load

FOLDER = Path(__file__).resolve().parents[2] / "hf_sparse" / "metrics" / "evaluate"


@pytest.mark.parametrize("name", ["rep", "drop", "aer"])
def test_metrics_load_from_the_folder_by_path(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert name in NAMES
    metric = evaluate.load(str(FOLDER / name))
    lines = ["0-0 1-1"]
    assert metric.compute(predictions=lines, references=lines) == {name: 0.0}
    metric.add_batch(predictions=lines, references=lines)
    metric.add(prediction="0-0", reference="0-0")
    assert metric.compute() == {name: 0.0}


@pytest.mark.parametrize(
    ("name", "predictions", "references", "score"),
    [
        ("rep", ["the the the cat sat"], ["the cat sat"], 200.0),
        ("drop", ["0-0 0-1", ""], ["0-0 0-2", "1-0 1-1 0-2"], 200 / 3),
        ("aer", ["0-0 1-1"], ["0-0 2-2 3-3"], 1 - 2 / 5),
        ("aer", ["0-0 1-1"], ["0-0 1?1"], 0.0),
    ],
)
def test_scores_are_those_of_the_functions(name, predictions, references, score):
    assert load(name).compute(predictions=predictions, references=references)[name] == pytest.approx(score)


@pytest.mark.parametrize(("name", "prediction"), [("rep", "a"), ("drop", "0-0"), ("aer", "")])
def test_undefined_scores_are_nan_where_asked(name, prediction):
    assert math.isnan(load(name).compute(predictions=[prediction], references=[""], strict=False)[name])


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match="Mismatch in the number of predictions"):
        load("drop").compute(predictions=["0-0"], references=["0-0", "1-1"])
    with pytest.raises(ValueError, match="unknown metric 'bleu'; choose one of 'aer', 'drop', 'rep'"):
        load("bleu")


def test_the_libraries_are_imported_when_a_metric_is_loaded():
    code = "import sys, hf_sparse.metrics.evaluate; print({'evaluate', 'datasets'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=FOLDER.parents[2])
    assert result.stdout.strip() == "set()", result.stderr
