"""The runner of studies: what it keeps, goes on with, refuses, and shows."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.lib.card import Card, Measure
from recipes.lib.settings import Settings, setting
from recipes.lib.study import Study, command, main


def card(record, records):
    rows = {other["run"]: other["figures"] for other in records}
    measures = (Measure("power", "power", ".1f", "higher"),)
    return Card(record["run"], "T", "t", "What.", "Data: x.", measures, rows, record["run"], "", "Limits.", record)


@pytest.fixture
def run(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Powers(Settings):
        base: float = setting(2.0, paper="3", where="Table 1")
        exponent: int = setting(1)
        data: str = setting("none")
        widths: tuple[int, ...] = setting((1, 2))
        names: tuple[str, ...] = setting(("a",))

    performed, reported = [], []

    def perform(settings, folder):
        performed.append((settings, folder))
        if settings.base == 0:
            raise ZeroDivisionError("the run itself failed")
        if settings.exponent == 2:
            (folder / "model").mkdir(parents=True)
        return {"power": settings.base**settings.exponent + settings.seed}

    def powers(**functions):
        runs = {"square": Powers(exponent=2), "cube": Powers(exponent=3)}
        report = lambda results, folder: reported.append((results, folder))  # noqa: E731
        return Study("powers", "Powers.", runs, perform, report, {"exponent": 0}, card=card, **functions)

    def go(*arguments, **functions):
        performed.clear()
        return main(powers(**functions), ["--out", str(tmp_path / "out"), *arguments]), len(performed)

    go.folder, go.reported, go.performed, go.study = tmp_path / "out", reported, performed, powers
    return go


KEPT = {"seed": 0, "base": 2.0, "data": "none", "widths": [1, 2], "names": ["a"]}  # settings as a record has them


def figures(results):
    return [(r["run"], r["settings"]["seed"], r["figures"]["power"]) for r in results["runs"]]


def test_every_run_is_done_once_and_all_are_gathered(run):
    results, performed = run("--only", "cube")
    assert (figures(results), performed) == ([("cube", 0, 8)], 1)
    results, performed = run("--seeds", "2")
    assert figures(results) == [("square", 0, 4), ("square", 1, 5), ("cube", 0, 8), ("cube", 1, 9)]
    assert performed == 3
    assert run()[1] == 0
    assert json.loads((run.folder / "results.json").read_text()) == results
    assert run.reported[-1] == (results, run.folder)


def test_a_record_says_what_it_ran_with_and_on(run):
    record = run("--only", "cu*")[0]["runs"][0]
    assert record["settings"] == KEPT | {"exponent": 3}
    assert record["versions"]["torch"]
    assert record["hardware"]["cores"]
    assert "commit" in record
    assert record["seconds"] >= 0
    assert record["cpu_seconds"] >= 0


def test_settings_are_changed_from_the_command_line(run):
    results, _ = run("--only", "square", "--set", "base=5", "exponent=1", "--data", "file.tsv")
    assert results["runs"][0]["settings"] == KEPT | {"base": 5, "exponent": 1, "data": "file.tsv"}
    assert figures(results) == [("square", 0, 5)]
    results, _ = run("--only", "square", "--set", "widths=(3,)", "--out", f"{run.folder}-other")
    assert results["runs"][0]["settings"]["widths"] == [3]


def test_quick_settings_yield_to_those_of_the_command_line(run):
    assert figures(run("--quick", "--only", "square")[0]) == [("square", 0, 1)]
    assert run("--quick", "--only", "cube", "--set", "exponent=4")[0]["runs"][1]["figures"] == {"power": 16}


def test_a_setting_that_a_run_does_not_read_is_refused_with_those_that_it_reads(run, capsys):
    def reads(settings):
        return ("base", "exponent") if settings.exponent == 3 else ("exponent",)

    for arguments in (["--set", "base=5", "names=('b',)"], ["--list", "--set", "base=5", "names=('b',)"]):
        with pytest.raises(SystemExit):
            run("--only", "cube", "square", *arguments, reads=reads)
        said = capsys.readouterr().err
        assert "error: no run asked for reads names: square reads seed, exponent; cube reads seed, base, expon" in said
        assert not run.performed
    assert run("--only", "cube", "--set", "base=5", reads=reads)[0]["runs"][0]["figures"] == {"power": 125}
    both = run("--only", "square", "cube", "--out", f"{run.folder}-both", "--set", "base=5", reads=reads)[0]["runs"]
    assert [record["settings"]["base"] for record in both] == [2.0, 5]  # each takes what it reads
    with pytest.raises(SystemExit):  # what a run reads may depend on what was changed
        run("--only", "square", "cube", "--set", "exponent=2", "base=5", reads=reads)
    assert "error: no run asked for reads base" in capsys.readouterr().err


def test_settings_that_a_run_does_not_read_are_not_made_quick_and_not_listed(run, capsys):
    records = run("--quick", "--data", "some", reads=lambda settings: ("base",))[0]["runs"]
    assert [(record["settings"]["exponent"], record["settings"]["data"]) for record in records] == [
        (2, "some"),  # one option of all runs
        (3, "some"),
    ]
    run("--list", reads=lambda settings: ("base",))
    assert capsys.readouterr().out.splitlines()[-3:] == ["cube", "    seed = 0", "    base = 2.0   paper: 3 (Table 1)"]


def test_a_folder_with_other_settings_is_refused(run, capsys):
    run("--only", "square")
    with pytest.raises(SystemExit):
        run("--only", "square", "--set", "base=7")
    assert "was begun with other settings ({'base': 2.0})" in capsys.readouterr().err


def test_a_folder_with_other_settings_is_refused_before_anything_is_run(run, capsys):
    run("--only", "cube", "--seeds", "2")
    for arguments in (["--set", "base=7"], ["--set", "seed=1", "base=7"]):
        with pytest.raises(SystemExit):
            run(*arguments)
        assert "was begun with other settings ({'base': 2.0})" in capsys.readouterr().err
        assert not run.performed


def test_an_interrupted_run_is_begun_again(run):
    with pytest.raises(ZeroDivisionError):
        run("--only", "square", "--set", "base=0")
    assert not (run.folder / "results.json").exists()
    with pytest.raises(ZeroDivisionError):
        run("--only", "square", "--set", "base=0")


def test_a_run_with_weights_has_a_card_and_the_command_beside_them(run):
    square, cube = run()[0]["runs"]
    assert square["weights"] == (run.folder / "runs" / "square-0" / "model").as_posix()
    assert "weights" not in cube
    text = (run.folder / "runs" / "square-0" / "model" / "README.md").read_text()
    assert "| **square** | **4.0** |" in text
    assert "| cube | 8.0 |" in text
    assert f"    {square['command']}\n" in text


def test_a_card_that_is_up_to_date_is_left_alone(run):
    run()
    path = run.folder / "runs" / "square-0" / "model" / "README.md"
    time = path.stat().st_mtime_ns
    run()
    assert path.stat().st_mtime_ns == time
    path.write_text("other")
    run()
    assert path.read_text() != "other"


def test_a_command_has_the_settings_that_are_not_the_recipes_own(run):
    arguments = ["--only", "square", "--set", "base=5.0", "seed=3", "--data", "my file.tsv"]
    (record,) = run(*arguments)[0]["runs"]
    asked = f"--data 'my file.tsv' --only square --set seed=3 base=5.0 --out {run.folder}"
    assert record["command"] == f"python -m recipes.powers.run {asked}"
    powers = run.study()
    assert command(powers, record | {"settings": record["settings"] | {"data": "none"}}, powers.out) == (
        "python -m recipes.powers.run --only square --set seed=3 base=5.0"
    )


def test_a_summary_is_written_where_it_is_asked_for(run, tmp_path):
    path = tmp_path / "results" / "powers.json"
    run("--summary", str(path), condensed=lambda figures: {"half": figures["power"] / 2})
    assert [record["figures"] for record in json.loads(path.read_text())["runs"]] == [{"half": 2}, {"half": 4}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "root"], "no such run; there are: square, cube"),
        (["--set", "height=3"], "no setting named height; there are: seed, base, exponent, data, widths, names"),
        (["--set", "base=two"], "base must be float, was 'two'"),
        (["--set", "exponent=2.5"], "exponent must be int, was 2.5"),
        (["--set", "exponent=True"], "exponent must be int, was True"),
        (["--set", "widths=3"], "widths must be a list of int, as in widths=[...], was 3"),
        (["--set", "widths=[3, 0.5]"], "widths must be a list of int, as in widths=[...], was [3, 0.5]"),
        (["--set", "names=abc"], "names must be a list of str, as in names=[...], was 'abc'"),
        (["--set", "base"], "expected NAME=VALUE, was 'base'"),
        (["--seeds", "0"], "--seeds must be at least 1, was 0"),
    ],
)
def test_a_wrong_command_line_is_named(run, capsys, arguments, message):
    with pytest.raises(SystemExit):
        run(*arguments)
    assert message in capsys.readouterr().err


def test_a_run_comes_after_those_it_needs(run):
    needs = {2: ["cube"], 3: []}  # by exponent
    results, performed = run("--only", "square", "--seeds", "2", needs=lambda settings: needs[settings.exponent])
    assert performed == 4
    assert [settings.exponent for settings, _ in run.performed] == [3, 3, 2, 2]
    assert figures(results) == [("square", 0, 4), ("square", 1, 5), ("cube", 0, 8), ("cube", 1, 9)]


def test_nothing_is_done_where_something_to_be_read_is_wrong(run, capsys):
    def check(settings):
        if settings.exponent == 3:
            raise FileNotFoundError("no such file")

    with pytest.raises(SystemExit):
        run(check=check)
    assert "cube: no such file" in capsys.readouterr().err
    assert not run.performed
    assert not run.folder.exists()


def test_a_file_is_no_folder_for_results(run, capsys):
    run.folder.write_text("mine")
    with pytest.raises(SystemExit):
        run()
    assert "is a file; choose a folder" in capsys.readouterr().err


def test_the_list_shows_the_papers_values(run, capsys):
    assert run("--list") == ({}, 0)
    listed = capsys.readouterr().out
    assert "square" in listed
    assert "    base = 2.0   paper: 3 (Table 1)" in listed


# In a process of its own: of one that is long there, the system may take idle pages away meanwhile.
MEMORY = """
from recipes.lib import memory

memory.reset_peak_memory()
before = memory.peak_memory()
block = bytearray(64 << 20)
block[::4096] = b"x" * len(block[::4096])
assert before is None or memory.peak_memory() >= before + (60 << 20)
del block
memory.reset_peak_memory()
assert before is None or memory.peak_memory() < before + (60 << 20)
"""


def test_the_peak_of_memory_is_that_since_it_was_forgotten():
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run([sys.executable, "-c", MEMORY], cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_runs_that_are_not_usual_are_done_when_they_are_named(tmp_path, capsys):
    runs = {name: Settings() for name in ("first", "second")}
    done = []

    def go(*arguments):
        def perform(settings, folder):
            done.append(folder.name)
            return {}

        arguments = ["--out", str(tmp_path), *arguments]
        main(Study("named", "Named.", runs, perform, lambda *both: None, {}, card=card, usual=["first"]), arguments)

    go()
    assert done == ["first-0"]
    go("--only", "*")
    assert done == ["first-0", "second-0"]
    with pytest.raises(SystemExit):
        go("--help")
    assert "(default: first, of first second)" in " ".join(capsys.readouterr().out.split())


def test_a_quick_run_does_not_stand_in_the_way_of_a_whole_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = Study("named", "", {"run": Settings()}, lambda *both: {}, lambda *both: None, {"seed": 1}, card=card)
    for arguments in (["--quick"], []):
        main(named, arguments)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["named", "named-quick"]


def test_nothing_is_done_where_a_run_cannot_read_its_data(tmp_path, capsys):
    def check(settings):
        raise FileNotFoundError("no such file")

    named = Study("named", "", {"run": Settings()}, lambda *both: {}, lambda *both: None, {}, card=card, check=check)
    with pytest.raises(SystemExit):
        main(named, ["--out", str(tmp_path / "out")])
    assert "run: no such file" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
