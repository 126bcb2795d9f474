"""Summaries: smaller than the records, and the same records when they are read."""

import json

import pytest

from recipes.lib import blocks
from recipes.lib.environment import short_commit
from recipes.lib.summary import factored, merged, write_summary

VERSIONS = {"torch": "2", "hf_sparse": "1"}


def record(run, seed, **other):
    settings = {"seed": seed, "lr": 0.1, "attention": {"cross": {"name": "entmax", "alpha": 1.5 + seed}}}
    common = {"commit": "abc", "versions": VERSIONS, "cpu_seconds": 1.0, "seconds": 2.0, "peak_memory": 3}
    return {"run": run, "settings": settings, "figures": {"loss": 0.5, "log": [1, 2]}, **common, **other}


@pytest.mark.parametrize(
    "records",
    [
        [record("a", 0)],
        [record("a", 0), record("b", 1)],
        [record("a", 0), record("b", 0, commit=None)],
        [record("a", 0), record("b", 0, versions={"torch": "3"})],
        [record("a", 0), record("b", 0, weights="out/b", command="python")],
        [record("a", 0), record("b", 0, settings={})],
    ],
    ids=["one", "nested settings", "commits", "versions", "weights", "empty"],
)
def test_records_come_back_from_their_shared_part_and_the_rest(records):
    shared, rest = factored(records)
    assert merged(shared, rest) == records
    if len(records) > 1:
        assert len(json.dumps([shared, rest])) < len(json.dumps(records))


def test_a_summary_has_a_line_for_each_run_and_the_figures_that_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "ROOT", tmp_path)
    path, records = tmp_path / "results" / "x.json", [record("a", 0), record("b", 1)]
    write_summary(path, records, lambda figures: {"loss": figures["loss"]})
    assert len(path.read_text().splitlines()) == 7
    (first, second) = blocks.read("results/x.json")["runs"]
    assert first["figures"] == {"loss": 0.5}
    assert second["settings"] == records[1]["settings"]
    assert "seconds" not in first
    assert "peak_memory" not in first


def test_a_note_stays_when_a_summary_is_written_again(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"note": "Read this."}')
    write_summary(path, [record("a", 0)], lambda figures: figures)
    write_summary(path, [record("b", 0)], lambda figures: figures)
    content = json.loads(path.read_text())
    assert content["note"] == "Read this."
    assert [run["run"] for run in content["runs"]] == ["b"]


def test_two_blocks_of_one_name_are_a_mistake(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCKS", {})
    blocks.block(record)
    with pytest.raises(ValueError, match=r"has a block record, and .*test_summary has one"):
        blocks.block(record)


@pytest.mark.parametrize(
    ("commit", "text"), [("a" * 40, "aaaaaaaaaa"), ("a" * 40 + "-dirty", "aaaaaaaaaa-dirty"), (None, "unknown")]
)
def test_a_commit_that_does_not_hold_the_code_says_so(commit, text):
    assert short_commit({"commit": commit}) == text
