"""The page of claims: verdicts follow from figures, and what was not tested says why."""

import importlib
import inspect
import pkgutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def claims():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return importlib.import_module("blocks.claims")
    finally:
        sys.path.remove(str(ROOT / "docs"))


@pytest.fixture
def measure(claims, monkeypatch):
    """Replace our figures by what a test says."""

    def replace(outcome):
        made = SimpleNamespace(win=outcome)
        monkeypatch.setattr(claims, "import_module", lambda *name: made)
        return claims.Claim("It wins", "Table 1", "2 > 1", "module.win", remark="one seed").row()

    return replace


@pytest.mark.parametrize(("figures", "holds", "verdict"), [("1 > 0", True, "same"), ("0 < 1", False, "**different**")])
def test_a_verdict_is_what_was_found(claims, measure, figures, holds, verdict):
    row = measure(lambda: claims.Outcome(figures, holds))
    assert row == ["It wins", "Table 1", "2 > 1", figures, verdict, "one seed"]


def test_a_claim_whose_runs_are_missing_is_not_tested(claims, measure):
    def win():
        raise claims.NotRun("output-1.5-*")

    assert measure(win) == ["It wins", "Table 1", "2 > 1", "", "not tested here", "no run `output-1.5-*` so far"]


def test_every_claim_is_measured_or_says_why_not(claims):
    everything = [claim for paper in claims.papers().values() for claim in paper]
    assert len(everything) >= 25
    for claim in everything:
        assert all((claim.claim, claim.place, claim.there))
        assert claim.here or claim.remark, claim.claim


def test_every_measure_belongs_to_a_claim(claims):
    used = {claim.here for paper in claims.papers().values() for claim in paper}
    measures = {
        f"{info.name}.{name}"
        for info in pkgutil.iter_modules(claims.__path__)
        for name, function in inspect.getmembers(importlib.import_module(f"blocks.claims.{info.name}"))
        if inspect.isfunction(function) and function.__annotations__.get("return") == "Outcome"
        if not name.startswith("_")
    }
    assert measures == used - {""}


@pytest.mark.parametrize(
    ("softmax", "entmax15", "sparsemax", "holds"),
    [
        ((0.5, 0.5, 0.5), (0.6, 0.6, 0.6), (0.6, 0.6, 0.6), True),
        ((0.5, 0.5, 0.5), (0.6, 0.6, 0.6), (0.4, 0.4, 0.4), False),
        ((0.5, 0.5, 0.9), (0.6, 0.6, 0.6), (0.7, 0.7, 0.7), False),
    ],
)
def test_sparse_outputs_must_both_be_ahead_on_average(claims, monkeypatch, softmax, entmax15, sparsemax, holds):
    inflection = importlib.import_module("blocks.claims.inflection")
    rows = zip(inflection.ALPHAS, (softmax, entmax15, sparsemax))
    cells = {(head, within): {0: v, 1: v} for head, row in rows for within, v in zip(inflection.ALPHAS, row)}
    monkeypatch.setattr(inflection, "grid_of", lambda key, grid: cells)
    assert inflection.sparse_output_is_more_accurate("medium").holds is holds


@pytest.mark.parametrize(
    ("entmax15", "sparsemax", "holds"), [(0.8, 0.8, True), (0.7, 0.8, False), (0.8, 0.7, False), (0.75, 0.8, False)]
)
def test_longer_training_must_agree(claims, monkeypatch, entmax15, sparsemax, holds):
    inflection = importlib.import_module("blocks.claims.inflection")
    accuracy = {"softmax": 0.5, "entmax15": 0.6, "sparsemax": 0.6}
    grids = {
        "medium": {(head, within): {0: accuracy[head]} for head in accuracy for within in accuracy},
        "eight_languages_longer": {
            ("softmax", "softmax"): {0: 0.7, 1: 0.8},
            ("entmax15", "softmax"): {0: entmax15},
            ("sparsemax from alpha 1.5", "softmax"): {0: sparsemax},
        },
    }
    monkeypatch.setattr(inflection, "grid_of", lambda key, grid: grids[grid])
    found = inflection.sparse_output_is_more_accurate("medium", "eight_languages_longer")
    expected = f"1: 75.0% ± 7.1%, 1.5: {entmax15:.1%}, 2 from 1.5: {sparsemax:.1%}"
    assert found.figures.endswith(f"after 7,200 steps under softmax attention {expected}")
    assert found.holds is holds


@pytest.mark.parametrize(("num_seeds", "share"), [(1, "70%"), (2, "60%")])
def test_a_share_of_one_seed_does_not_count_beside_others_of_more(claims, monkeypatch, num_seeds, share):
    inflection = importlib.import_module("blocks.claims.inflection")
    cells = {("entmax15", "softmax"): dict.fromkeys(range(num_seeds), 0.6), ("sparsemax", "softmax"): {0: 0.7}}
    monkeypatch.setattr(inflection, "grid_of", lambda key, grid: cells)
    assert inflection.most_words("one_form").figures.startswith(share)


def test_an_output_map_without_runs_is_named(claims, monkeypatch):
    inflection = importlib.import_module("blocks.claims.inflection")
    row = {("softmax", within): {0: 0.5} for within in inflection.ALPHAS}
    monkeypatch.setattr(inflection, "grid_of", lambda key, grid: row)
    with pytest.raises(claims.NotRun, match=r"output-1\.5-attention-1"):
        inflection.sparse_output_is_more_accurate("medium")


@pytest.mark.parametrize(
    ("attended", "holds"), [({-1.0: 9, 0.0: 5, 0.9: 2}, True), ({-1.0: 9, 0.0: 2, 0.9: 3}, False)]
)
def test_sparsity_must_grow_with_lambda_at_every_step(claims, monkeypatch, attended, holds):
    sweep = importlib.import_module("blocks.claims.translation_sweep")
    runs = {value: {"attended": number} for value, number in attended.items()}
    monkeypatch.setattr(sweep, "swept", lambda prefix: dict(reversed(runs.items())))
    assert sweep.lambda_controls_sparsity().holds is holds


@pytest.fixture
def studies(claims, monkeypatch):
    """The sweep's claims on made-up studies: figures by name of the run, one record a seed."""
    sweep, outcome = (importlib.import_module(f"blocks.claims.{name}") for name in ("translation_sweep", "_outcome"))

    def replace(multi30k, embedded):
        records = {
            path: [{"run": name, "figures": {"bleu": bleu}} for name, all_seeds in study.items() for bleu in all_seeds]
            for path, study in zip(sweep.STUDIES.values(), ({}, multi30k, embedded))
        }
        monkeypatch.setattr(outcome, "runs", records.__getitem__)
        return sweep

    return replace


MAPS = ("softmax", "entmax15", "sparsemax")


def outputs(softmax, sparsemax, entmax15, alpha_relu):
    names = ("softmax", "output-sparsemax", "output-entmax15", "output-alpha_relu")
    return {name: bleu for name, bleu in zip(names, (softmax, sparsemax, entmax15, alpha_relu)) if bleu}


@pytest.mark.parametrize(
    ("multi30k", "embedded", "figures", "holds"),
    [
        (
            outputs([33], [], [32], [31.6]),
            outputs([9], [6], [7], [8]),
            "Multi30k: softmax 33.0, entmax15 32.0, alpha_relu 31.6; "
            "embedded sample: softmax 9.0, sparsemax 6.0, entmax15 7.0, alpha_relu 8.0",
            True,
        ),
        (
            outputs([33], [27], [32, 30], [30.4, 30]),
            outputs([9], [6], [7], [8]),
            "Multi30k (means of 1 to 2 seeds): softmax 33.0, sparsemax 27.0, entmax15 31.0 ± 1.4, "
            "alpha_relu 30.2 ± 0.3; embedded sample: softmax 9.0, sparsemax 6.0, entmax15 7.0, alpha_relu 8.0",
            False,
        ),
        (
            outputs([33], [], [], [31]),
            outputs([9], [8], [7], [8]),
            "embedded sample: softmax 9.0, sparsemax 8.0, entmax15 7.0, alpha_relu 8.0",
            False,
        ),
    ],
    ids=["sparsemax from elsewhere", "all there", "needed one missing"],
)
def test_every_study_with_the_runs_that_are_needed_counts(studies, multi30k, embedded, figures, holds):
    assert studies(multi30k, embedded).relu_is_on_par() == (figures, holds)


@pytest.mark.parametrize(("softmax", "holds"), [(31, True), (33, False)])
def test_a_rival_counts_in_the_longest_training_that_has_it(studies, softmax, holds):
    longer = {name: [bleu] for name, bleu in (("softmax", softmax), ("entmax15", 32), ("en-de-softmax", 9))}
    shorter = {prefix + name: [bleu] for prefix in ("", "en-de-") for name, bleu in zip(MAPS, (30, 29, 28))}
    shorter |= {"en-de-entmax15": [31]}
    assert studies(longer, shorter).entmax_translates_best().holds is holds


def test_runs_that_no_study_has_are_named(claims, studies):
    with pytest.raises(claims.NotRun, match="output-sparsemax"):
        studies(outputs([33], [], [32], [31]), outputs([9], [], [7], [8])).relu_is_on_par()
