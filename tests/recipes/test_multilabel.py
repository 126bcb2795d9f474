"""The multilabel recipe: its data are what they claim to be, its fits learn, and a run leaves what it promises."""

import dataclasses

import pytest
import torch

from recipes.lib.study import main

metrics = pytest.importorskip("sklearn.metrics", reason="the recipes' extra is not installed")

from recipes.multilabel import data, model  # noqa: E402
from recipes.multilabel import run as recipe  # noqa: E402


def test_documents_have_the_labels_and_words_asked_for():
    part = data.documents(range(2, 5), length=300, rows=2000, seed=1)
    counts = part.labels.sum(1)
    assert set(counts.tolist()) == {2, 3, 4}
    assert abs((counts == 3).float().mean() - 1 / 3) < 0.05
    assert abs(part.features.sum(1).mean() - 300) < 3
    assert abs(part.labels.float().mean(0) - 0.3).max() < 0.05
    again = data.documents(range(2, 5), length=300, rows=2000, seed=1)
    assert torch.equal(part.features, again.features)


def test_the_parts_of_a_problem_are_disjoint_and_scaled_on_the_training_rows():
    rows = torch.arange(100.0)[:, None]
    problem = data.divided(data.Part(rows, torch.ones(100, 3, dtype=torch.bool)), seed=0)
    assert [len(part.labels) for part in problem] == [50, 20, 30]
    assert len(torch.cat([part.features for part in problem]).unique()) == 100
    assert abs(problem.train.features.mean()) < 1e-5
    assert abs(problem.train.features.std() - 1) < 1e-5


ARFF = """@relation small
@attribute size numeric
@attribute 'the cat\\'s' {0,1}
@attribute dog {0,1}
@data
1.5,1,0
2.5,0,0
3.5,1,1
"""
XML = """<labels xmlns="http://mulan.sourceforge.net/labels"><label name="the cat's"/><label name="dog"/></labels>"""


def test_mulan_files_are_read_and_rows_without_label_left_out(tmp_path):
    (tmp_path / "small-train.arff").write_text(ARFF)
    with pytest.raises(ValueError, match=r"small\.xml, which does not exist"):
        data.read_mulan(tmp_path / "small-train.arff")
    (tmp_path / "small.xml").write_text(XML)
    part = data.read_mulan(tmp_path / "small-train.arff")
    assert part.features.tolist() == [[1.5], [3.5]]
    assert part.labels.tolist() == [[True, False], [True, True]]
    (tmp_path / "small.xml").write_text(XML.replace("dog", "cow"))
    with pytest.raises(ValueError, match="names the label 'cow', which it lacks"):
        data.read_mulan(tmp_path / "small-train.arff")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,?,1,0", "values of 'length' are missing or infinite"),
        ("{0 1, 2 1}", "cannot be read as dense ARFF of numbers"),
    ],
)
def test_rows_that_cannot_be_learned_from_are_refused(row, message, tmp_path):
    (tmp_path / "small.xml").write_text(XML)
    names = ("@attribute weight numeric", "@attribute length numeric", "@attribute 'the cat\\'s' {0,1}")
    text = "\n".join(["@relation r", *names, "@attribute dog {0,1}", "@data", row, ""])
    (tmp_path / "small.arff").write_text(text)
    with pytest.raises(ValueError, match=message):
        data.read_mulan(tmp_path / "small.arff")
    (tmp_path / "small.xml").write_text("<labels")
    with pytest.raises(ValueError, match=r"small\.xml is no XML"):
        data.read_mulan(tmp_path / "small.arff")


def test_a_part_without_rows_is_refused():
    few = data.Part(torch.ones(4, 2), torch.ones(4, 3).bool())
    with pytest.raises(ValueError, match="4 rows with a label are too few to divide; 5 are needed"):
        data.divided(few)
    five = data.Part(torch.ones(5, 2), torch.ones(5, 3).bool())
    assert all(len(part.labels) for part in data.divided(five))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("pair=foo", "pair must be one of softmax+log, sparsemax+huber"),
        ("model=foo", "model must be one of linear, classifier, was 'foo'"),
        ("steps=0", "steps must be above 0, was 0"),
        ("batch_size=0", "batch_size must be above 0, was 0"),
        ("mean_labels=12", "mean_labels must be at most 10"),
        ("spread=2", "spread at least 0 and below mean_labels, were 2 and 2"),
    ],
)
def test_wrong_settings_are_named_before_anything_is_trained(change, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(recipe.STUDY, ["--only", "classifier-softmax+log", "--set", change, "--out", str(tmp_path / "out")])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["softmax+log", "sparsemax+huber", "sparsemax+hinge", "sparsehourglass+hinge"])
def test_every_pair_learns_labels_that_the_features_tell(name):
    labels = data.documents(range(1, 4), 10, rows=400, seed=0).labels
    problem = data.divided(data.Part(labels.float(), labels), seed=0)
    fit = model.fit_linear(problem, model.PAIRS[name], seed=0, steps=120, lr=0.1)
    assert fit.measured(problem.test)["micro_f1"] > 0.97


def test_micro_f1_counts_decisions_of_all_rows_together():
    labels = torch.tensor([[1, 1, 0], [0, 0, 1]]).bool()
    on = torch.tensor([[1, 0, 1], [0, 0, 1]]).bool()
    assert model.micro_f1(labels, on) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert model.micro_f1(labels, on) == pytest.approx(metrics.f1_score(labels, on, average="micro"))
    assert model.micro_f1(labels[:0], on[:0]) == 0


def test_runs_differ_in_what_their_names_say():
    runs = recipe.runs()
    assert (runs["labels-9-softmax+log"].mean_labels, runs["range-0-softmax+log"].spread) == (9, 0)
    counts = recipe.made_up(runs["labels-9-softmax+log"]).labels.sum(1)
    assert set(counts.tolist()) == {8, 9, 10}
    assert {run.pair for run in runs.values()} == set(model.PAIRS)
    assert runs["classifier-sparsemax+hinge"].model == "classifier"


def test_data_for_a_run_that_makes_up_its_own_is_refused(tmp_path):
    settings = dataclasses.replace(recipe.runs()["labels-2-softmax+log"], data="birds-train.arff")
    with pytest.raises(ValueError, match=r"birds-train\.arff can be read with --only 'data-\*'"):
        recipe.perform(settings, tmp_path)


@pytest.mark.slow
def test_quick_runs_leave_results_models_and_a_picture(tmp_path):
    arguments = ["--quick", "--out", str(tmp_path), "--only", "labels-2-s*", "data-*log", "classifier-*hinge"]
    results = main(recipe.STUDY, arguments)
    assert len(results["runs"]) == 4 + 1 + 2
    assert all(0 <= record["figures"]["micro_f1"] <= 1 for record in results["runs"])
    assert (tmp_path / "runs" / "classifier-sparsemax+hinge-0" / "model" / "model.safetensors").is_file()
    assert (tmp_path / "multilabel.png").stat().st_size > 10_000
