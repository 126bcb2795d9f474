"""The length-generalisation recipe: its tasks, what it counts, and a small run of every map."""

from __future__ import annotations

import dataclasses
import json
import math
from random import Random

import pytest
import torch

from hf_sparse import from_pretrained, sparse_config
from recipes.length_generalisation import data as tasks
from recipes.length_generalisation import run as recipe
from recipes.lib.study import main


def test_copy_and_reverse_ask_for_the_text_after_the_second_mark():
    for make, order in ((tasks.copy_row, 1), (tasks.reverse_row, -1)):
        row = make(5, 20, Random(0))
        ids, labels = row["input_ids"], row["labels"]
        text = ids[1:6]
        assert len(set(text)) == 5
        assert all(tasks.FIRST <= symbol < tasks.FIRST + 20 for symbol in text)
        assert ids == [tasks.MARK, *text, tasks.MARK, *text[::order]]
        assert labels == [-100] * 7 + text[::order]


@pytest.mark.parametrize(("n", "asked"), [(3, 3), (40, 16)])
def test_recall_asks_for_values_of_keys_that_were_there(n, asked):
    row = tasks.recall_row(n, 100, Random(1))
    ids, labels = row["input_ids"], row["labels"]
    assert ids[0] == ids[1 + 2 * n] == tasks.MARK
    known = dict(zip(ids[1 : 1 + 2 * n : 2], ids[2 : 2 + 2 * n : 2]))
    assert len(known) == n
    questions, answers = ids[2 + 2 * n :: 2], ids[3 + 2 * n :: 2]
    assert len(set(questions)) == asked
    assert [known[key] for key in questions] == answers
    assert max(known) < tasks.FIRST + 50 <= min(known.values())
    assert labels == [-100] * (2 + 2 * n) + [label for answer in answers for label in (-100, answer)]


def test_rows_depend_on_the_seed_alone_and_have_every_length():
    def drawn(seed):
        return list(tasks.rows("copy", range(2, 6), 50, 20, seed))

    assert drawn(0) == drawn(0) != drawn(1)
    assert {len(row["input_ids"]) for row in drawn(0)} == {2 * n + 2 for n in range(2, 6)}


@pytest.mark.parametrize(("task", "most"), [("copy", 20), ("recall", 10)])
def test_lengths_without_enough_symbols_are_refused(task, most):
    assert next(tasks.rows(task, range(most, most + 1), 1, 20, 0))
    with pytest.raises(ValueError, match=f"{task}: length {most + 1} needs as many different symbols.*are {most}"):
        next(tasks.rows(task, range(most + 1, most + 2), 1, 20, 0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("task=foo", "task must be one of copy, reverse, recall, was 'foo'"),
        ("attention=foo", "attention must be one of softmax, scalable softmax"),
        ("shortest=9", "longest must be at least shortest, 9, was 8"),
        ("steps=0", "steps must be above 0, was 0"),
        ("multiples=()", "multiples must be some numbers from 1 on"),
        ("multiples=(1, 65)", "copy: length 520 needs as many different symbols, and there are 512"),
    ],
)
def test_wrong_settings_are_named_before_anything_is_trained(change, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(recipe.STUDY, ["--only", "copy-softmax", "--set", change, "--out", str(tmp_path / "out")])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_batch_is_padded_where_nothing_counts():
    batch = tasks.collate([{"input_ids": [1, 5, 1, 5], "labels": [-100] * 3 + [5]}, {"input_ids": [1], "labels": [1]}])
    assert batch["input_ids"].tolist() == [[1, 5, 1, 5], [1, 0, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 0, 0, 0]]
    assert batch["labels"].tolist() == [[-100, -100, -100, 5], [1, -100, -100, -100]]


class Oracle(torch.nn.Module):
    """Knows the answers, but for the last symbol of every row where it is told to err."""

    device = torch.device("cpu")

    def __init__(self, errs):
        super().__init__()
        self.errs = errs

    def forward(self, input_ids, attention_mask):
        next_ids = input_ids.roll(-1, 1)
        if self.errs:
            next_ids[:, -2] = 0
        logits = torch.nn.functional.one_hot(next_ids, 64).float()
        return type("Output", (), {"logits": logits})


@pytest.mark.parametrize(("errs", "exact", "tokens"), [(False, 1.0, 1.0), (True, 0.0, 0.75)])
def test_accuracy_counts_rows_without_a_mistake_and_right_tokens(errs, exact, tokens):
    settings = recipe.LengthSettings(symbols=20, test_rows=6)
    found = recipe.test(Oracle(errs), settings, 4)
    right = math.log(math.e + 63) - 1  # logits of 1 for what is said and 0 for the other 63
    loss = right + (1 - tokens)
    assert found == {"length": 4, "exact": exact, "tokens": tokens, "loss": pytest.approx(loss), "keys": None}


def test_all_runs_of_a_task_begin_alike_and_the_first_layer_sees_its_neighbour_only():
    settings = dataclasses.replace(recipe.RUNS["copy-softmax"], **recipe.QUICK)
    dense = recipe.build(settings)
    for name in recipe.ATTENTION:
        model = recipe.build(dataclasses.replace(settings, attention=name))
        assert all(torch.equal(weight, model.state_dict()[key]) for key, weight in dense.state_dict().items())
    local = dense.eval()(torch.tensor([[1, 3, 4, 5]]), output_hidden_states=True).hidden_states[1]
    other = dense(torch.tensor([[1, 9, 4, 5]]), output_hidden_states=True).hidden_states[1]
    assert torch.equal(local[:, 3], other[:, 3])
    assert not torch.allclose(local[:, 2], other[:, 2])


@pytest.mark.slow
def test_a_quick_run_of_every_map(tmp_path, capsys):
    results = main(recipe.STUDY, ["--quick", "--only", "recall-*", "--out", str(tmp_path)])
    assert [run["settings"]["attention"] for run in results["runs"]] == list(recipe.ATTENTION)
    for run in results["runs"]:
        assert [entry["length"] for entry in run["figures"]["lengths"]] == [4, 8]
        assert all(0 <= entry["exact"] <= entry["tokens"] <= 1 for entry in run["figures"]["lengths"])
    learned = {run["settings"]["attention"]: sorted(run["figures"]["learned"]) for run in results["runs"]}
    adaptive = {name: ["beta", "gamma"] for name in learned if name.startswith("adaptive-scalable")}
    assert {name: names for name, names in learned.items() if names} == {"scalable softmax": ["beta"], **adaptive}
    assert len(adaptive) == 2
    assert json.loads((tmp_path / "results.json").read_text()) == results
    assert (tmp_path / "length_generalisation.png").stat().st_size > 10_000
    assert "recall   adaptive-scalable entmax15" in capsys.readouterr().out
    kept = from_pretrained(tmp_path / "runs" / "recall-adaptive-scalable-entmax15-0" / "model")
    assert sparse_config(kept).is_learned
