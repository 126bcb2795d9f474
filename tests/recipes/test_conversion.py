"""The conversion recipe: its data, the loss it compares, and a small run that goes on where it stopped."""

import dataclasses
import math

import pytest
import torch

import hf_sparse
from hf_sparse import sparsify
from recipes.conversion import data
from recipes.conversion import model as models
from recipes.conversion import run as recipe
from recipes.language_modelling.data import learn_tokenizer
from recipes.lib.study import main


def test_verbs_are_held_out_whole():
    text = data.text_lines("")
    pairs, held_out_pairs, _ = data.line_pairs("", "de", "en")
    assert "draw draws drawing drew drawn" in text.train + text.test
    assert {line.split()[0] for line in text.test} == {source.split()[0] for source, _ in held_out_pairs}
    assert not {source.split()[0] for source, _ in pairs} & {line.split()[0] for line in text.test}


def test_tokenizer_has_a_place_for_what_it_has_not_seen():
    tokenizer = learn_tokenizer(["row ähm"], 300)
    assert tokenizer.decode(tokenizer("93 ζ").input_ids, skip_special_tokens=True).strip() == "93 ζ"


def test_both_models_learn_from_data_of_ones_own(tmp_path):
    lines = [f"row {number}" for number in range(400)]
    (tmp_path / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "pairs.tsv").write_text("".join(f"{line}\trow\n" for line in lines), encoding="utf-8")
    tiny = {"vocabulary": 300, "width": 16, "layers": 1, "train_rows": 5, "dev_rows": 3}
    texts = recipe.task_of(recipe.Conversion(data=str(tmp_path / "text.txt"), **tiny))
    assert texts.tokenizer.decode(texts.dev[0]["input_ids"]).startswith(" row 0</s> row 10</s>")
    assert (len(texts.train), texts.what) == (5, f"{tmp_path.name}/text.txt")
    pairs = recipe.task_of(recipe.Conversion(model="bart", data=str(tmp_path / "pairs.tsv"), **tiny))
    assert [pairs.tokenizer.decode(ids) for ids in pairs.dev["input_ids"]] == [f" row {n}</s>" for n in (3, 13, 23)]
    assert pairs.tokenizer.decode(pairs.train[0]["labels"]) == " row</s>"
    assert (len(pairs.train), pairs.what) == (5, "pairs.tsv")


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_the_loss_is_that_of_the_distribution_with_a_little_uniform_mixed_in(name):
    tiny = {"vocabulary": 300, "width": 16, "layers": 1, "train_rows": 50, "dev_rows": 7}
    task = recipe.task_of(recipe.Conversion(model=name, **tiny))
    model = sparsify(task.build(0), head="sparsemax").eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)  # spread the logits, so that some tokens are missed
    found = models.evaluate(model, task, batch_size=3)
    losses, missed, seen = [], [], 0
    for row in range(7):
        batch = task.collator([task.dev[row]])
        with torch.no_grad():
            z = model(**batch).logits[0].double()
        labels = batch["labels"][0]
        pairs = zip(z[:-1], labels[1:]) if name == "gpt2" else zip(z, labels)
        for scores, token in pairs:
            top = scores.sort(descending=True).values
            k = max(k for k in range(1, len(top) + 1) if 1 + k * top[k - 1] > top[:k].sum())
            p = float((scores[token] - (top[:k].sum() - 1) / k).clamp(min=0))
            losses.append(-math.log(0.99 * p + 0.01 / len(scores)))
            missed.append(p == 0)
            seen += k
    assert found["tokens"] == len(losses)
    assert found["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert found["loss"] == found["loss_at"]["0.01"]
    assert 0 < found["missed"] == pytest.approx(sum(missed) / len(missed))
    assert found["support"] == pytest.approx(seen / len(losses), rel=1e-3)


@pytest.mark.slow
def test_a_conversion_comes_after_the_dense_model_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    line = ["--quick", "--only", "gpt2-both-*", "--set", "calibration_rows=4", "--out", str(tmp_path)]
    evaluate, seen = recipe.evaluate, []

    def interrupted(model, *rest):
        seen.append(model)
        if len(seen) == 15:  # in the middle of `train`
            raise KeyboardInterrupt
        return evaluate(model, *rest)

    monkeypatch.setattr(recipe, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main(recipe.STUDY, line)
    assert not (tmp_path / "results.json").exists()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert len(before) == 4
    results = main(recipe.STUDY, line)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    figures = {record["run"]: record["figures"] for record in results["runs"]}
    assert list(figures) == ["gpt2-dense", "gpt2-continue", *(f"gpt2-both-{way}" for way in recipe.WAYS)]
    assert [found["step"] for found in figures.values()] == [6, 10, 6, 6, 10, 10, 10, 10]
    assert len({found["loss"] for found in figures.values()}) == len(figures)
    assert (tmp_path / "conversion.png").read_bytes().startswith(b"\x89PNG")
    assert figures["gpt2-dense"]["missed"] == 0 < figures["gpt2-both-swap"]["missed"]
    assert figures["gpt2-dense"]["support"] == 300 > figures["gpt2-both-swap"]["support"]
    model = hf_sparse.from_pretrained(tmp_path / "runs" / "gpt2-both-anneal-0" / "model")
    assert hf_sparse.sparse_config(model).to_dict()["head"]["alpha"] == 1.5


def test_training_resumed_gives_the_curve_of_training_in_one_piece(tmp_path):
    settings = dataclasses.replace(recipe.Conversion(), **{**recipe.QUICK, "steps": 10})
    task = recipe.task_of(settings)
    whole = recipe.trained(task.build(0), task, settings, tmp_path / "whole")
    model, calls = task.build(0), []

    def stop_at_twelfth(module, args, kwargs):
        calls.append(1)
        if len(calls) == 12:  # six steps, and evaluations in between
            raise KeyboardInterrupt

    handle = model.register_forward_pre_hook(stop_at_twelfth, with_kwargs=True)
    with pytest.raises(KeyboardInterrupt):
        recipe.trained(model, task, settings, tmp_path / "parts")
    handle.remove()
    assert list((tmp_path / "parts").rglob("checkpoint-*"))
    assert recipe.trained(task.build(0), task, settings, tmp_path / "parts") == whole
    assert [point["step"] for point in whole] == [2, 4, 6, 8, 10]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["steps=0"], "steps must be above 0, was 0"),
        (["anneal_over=2"], "anneal_over must be in (0, 1], was 2"),
        (["alpha=1"], "alpha must be in (1, 2], was 1"),
        (["width=6"], "width must be a multiple of 4, was 6"),
        (["vocabulary=100"], "vocabulary must be at least 300"),
        (["train_rows=-1"], "train_rows must be at least 0, which means all, was -1"),
        (["way=jump"], "way must be one of dense, continue, swap"),
        (["place=head"], "dense does not go with place head; dense and continue are without one"),
    ],
)
def test_wrong_settings_are_refused(settings, message, capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(recipe.STUDY, ["--out", str(tmp_path / "out"), "--set", *settings])
    assert message in capsys.readouterr().err


def test_data_that_is_not_right_is_named_before_anything_is_done(capsys, tmp_path):
    (tmp_path / "train.txt").write_text("one\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        main(recipe.STUDY, ["--out", str(tmp_path / "out"), "--only", "gpt2-*", "--data", str(tmp_path)])
    assert "gpt2-dense: " in (told := capsys.readouterr().err)
    assert "must hold train.txt and test.txt or valid.txt" in told
    assert not (tmp_path / "out").exists()
