"""The page of claims: verdicts follow from figures, and what was not tested says why."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def claims():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return importlib.import_module("blocks.claims")
    finally:
        sys.path.remove(str(ROOT / "docs"))


@pytest.mark.parametrize(("found", "verdict"), [(("1 > 0", True), "same"), (("0 < 1", False), "**different**")])
def test_a_verdict_is_what_was_found(claims, found, verdict):
    line = claims.Claim("It wins", "Table 1", "2 > 1", lambda: found, "one seed").line()
    assert line == f"| It wins | Table 1 | 2 > 1 | {found[0]} | {verdict} | one seed |"


def test_every_claim_has_a_figure_or_a_reason(claims):
    lines = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("|").split(" | ") for line in lines if line.startswith("| ") and not line.startswith("| claim")]
    assert len(rows) >= 25
    for text, place, _, ours, verdict, remark in rows:
        assert text.strip()
        assert place.strip()
        assert verdict in ("same", "**different**", "not tested here")
        assert ours.strip() if verdict != "not tested here" else remark.strip(), text


@pytest.mark.parametrize(
    ("softmax", "entmax15", "sparsemax", "held"),
    [
        ((0.5, 0.5, 0.5), (0.6, 0.6, 0.6), (0.6, 0.6, 0.6), True),
        ((0.5, 0.5, 0.5), (0.6, 0.6, 0.6), (0.4, 0.4, 0.4), False),
        ((0.5, 0.5, 0.9), (0.6, 0.6, 0.6), (0.7, 0.7, 0.7), False),
    ],
)
def test_sparse_outputs_must_both_be_ahead_on_average(claims, monkeypatch, softmax, entmax15, sparsemax, held):
    rows = zip(claims.OUTPUTS, (softmax, entmax15, sparsemax))
    cells = {(head, within): v for head, row in rows for within, v in zip(claims.OUTPUTS, row)}
    monkeypatch.setattr(claims, "grid_means", lambda key, grid: cells)
    assert claims.sparse_output_is_more_accurate("")[1] is held


def test_a_claim_whose_runs_are_missing_is_not_tested(claims, monkeypatch):
    monkeypatch.setattr(claims, "grid_means", lambda key, grid: {("", ""): 0.5})
    line = claims.Claim("It wins", "Table 1", "2 > 1", lambda: claims.sparse_output_is_more_accurate("")).line()
    assert line.endswith("|  | not tested here | no run `output-1.5-*` so far |")


@pytest.mark.parametrize(("attended", "held"), [({-1.0: 9, 0.0: 5, 0.9: 2}, True), ({-1.0: 9, 0.0: 2, 0.9: 3}, False)])
def test_sparsity_must_grow_with_lambda_at_every_step(claims, monkeypatch, attended, held):
    runs = {value: {"attended": number} for value, number in attended.items()}
    monkeypatch.setattr(claims, "controlled", lambda kind: dict(reversed(runs.items())))
    assert claims.lambda_controls_sparsity()[1] is held
