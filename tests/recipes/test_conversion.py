"""The conversion recipe: its data, the loss it compares, and a small run that goes on where it stopped."""

import gzip
import json
import math
import re
from types import ModuleType, SimpleNamespace

import pytest
import torch

from hf_sparse import sparsify
from tests.recipes.modules import load


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return load("conversion")


@pytest.fixture(scope="module")
def data() -> ModuleType:
    return load("conversion_data")


def options(**given):
    settings = {"text": None, "source": None, "target": None, "vocabulary": 300, "width": 16, "layers": 1}
    return SimpleNamespace(**{**settings, "train_rows": 50, "dev_rows": 7, **given})


def test_the_last_tenth_is_held_out_and_the_tokenizer_has_not_seen_it(data, tmp_path):
    text = tmp_path / "text.txt.gz"
    text.write_bytes(gzip.compress("\n".join(f"row {i} ähm\n" for i in range(100)).encode()))
    train, dev, what = data.text_lines(text)
    assert train == [f"row {i} ähm" for i in range(90)]
    assert dev == [f"row {i} ähm" for i in range(90, 100)]
    assert what == "text.txt.gz, its last tenth held out"
    tokenizer = data.learn_tokenizer(train, 300)
    assert tokenizer.decode(tokenizer("93 ζ").input_ids, skip_special_tokens=True).strip() == "93 ζ"


def test_verbs_are_held_out_whole(data):
    train, dev, _ = data.text_lines(None)
    pairs, held_out_pairs, _ = data.pair_lines(None, None)
    assert "draw draws drawing drew drawn" in train + dev
    assert {line.split()[0] for line in dev} == {source.split()[0] for source, _ in held_out_pairs}
    assert not {source.split()[0] for source, _ in pairs} & {line.split()[0] for line in dev}


def test_files_that_do_not_fit_are_named(data, tmp_path):
    (tmp_path / "a").write_text("one\ntwo\n", encoding="utf-8")
    (tmp_path / "b").write_text("eins\n", encoding="utf-8")
    (tmp_path / "c.gz").write_text("no gzip", encoding="utf-8")
    (tmp_path / "d").write_text("\n\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"a has 2 lines and .*b has 1; they must be aligned"):
        data.pair_lines(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ValueError, match=r"must be UTF-8 text, gzipped if its name ends in \.gz"):
        data.read_lines(tmp_path / "c.gz")
    with pytest.raises(ValueError, match="d: no text"):
        data.read_lines(tmp_path / "d")


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_the_loss_is_that_of_the_distribution_with_a_little_uniform_mixed_in(data, name):
    task = data.TASKS[name](options())
    model = sparsify(task.build(0), head="sparsemax").eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)  # spread the logits, so that some tokens are missed
    found = data.evaluate(model, task, batch_size=3)
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


def test_a_quick_run_goes_on_where_it_stopped(recipe, tmp_path, monkeypatch):
    out = tmp_path / "out"
    line = ["--quick", "--models", "gpt2", "--places", "both", "--ways", "swap", "anneal", "--out", str(out)]
    run, done = recipe.run, []

    def interrupted(unit, task, given):
        done.append(unit)
        if len(done) == 3:
            raise KeyboardInterrupt
        return run(unit, task, given)

    monkeypatch.setattr(recipe, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        recipe.main(line)
    assert not (out / "results.json").exists()
    assert recipe.main(line) == 0
    assert done[2:] == [("gpt2", "both", "swap"), ("gpt2", "both", "swap"), ("gpt2", "both", "anneal")]
    result = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert [row["way"] for row in result["rows"]] == ["dense", "continue", "swap", "anneal"]
    assert [row["step"] for row in result["rows"]] == [6, 10, 6, 10]
    assert (out / "conversion.png").read_bytes().startswith(b"\x89PNG")
    dense, _, swapped, _ = result["rows"]
    assert dense["missed"] == 0 < swapped["missed"]
    assert dense["support"] == 300 > swapped["support"]

    with pytest.raises(SystemExit, match="holds a run with other settings"):
        recipe.main([*line, "--seed", "1"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source", "a"], "--source and --target go together"),
        (["--steps", "0"], "--steps must be above 0, was 0"),
        (["--anneal-over", "2"], r"--anneal-over must be in \(0, 1\], was 2.0"),
        (["--alpha", "1"], r"--alpha must be in \(1, 2\], was 1.0"),
        (["--width", "6"], "--width must be a multiple of 4, was 6"),
        (["--vocabulary", "100"], "--vocabulary must be at least 300"),
    ],
)
def test_bad_arguments_are_refused(recipe, arguments, message, capsys):
    with pytest.raises(SystemExit):
        recipe.parse_arguments(arguments)
    assert re.search(message, capsys.readouterr().err)
