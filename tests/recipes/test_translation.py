"""The translation recipe: its corpora, its messages, its sample, and a small run that is interrupted and resumed."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.recipes.modules import load


@pytest.fixture(scope="module")
def corpus() -> ModuleType:
    return load("translation_corpus")


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    pytest.importorskip("sacrebleu", reason="the translation recipe needs sacrebleu: pip install 'hf_sparse[recipes]'")
    return load("translation")


def folder_of(path: Path, **files: str) -> Path:
    path.mkdir(exist_ok=True)
    for name, text in files.items():
        part, language = name.split("_")
        data = text.encode()
        gz = language.endswith("z")
        (path / f"{part}.{language[:2]}{'.gz' if gz else ''}").write_bytes(gzip.compress(data) if gz else data)
    return path


def test_sample_is_what_its_program_writes(corpus, tmp_path):
    before = corpus.SCENES.read_bytes()
    script = "import scenes, pathlib, sys; scenes.TABLE = pathlib.Path(sys.argv[1]); scenes.main()"
    command = [sys.executable, "-c", script, str(tmp_path / "scenes.tsv")]
    subprocess.run(command, cwd=corpus.SCENES.parent, check=True, timeout=60)
    assert (tmp_path / "scenes.tsv").read_bytes() == before


def test_sample_has_three_disjoint_parts(corpus):
    train, dev, test = corpus.read_scenes()
    assert (len(train), len(dev), len(test)) == (2400, 300, 300)
    sources = [{pair.source for pair in part} for part in (train, dev, test)]
    assert len(set.union(*sources)) == 3000


def test_folder_tables_and_data_set_give_the_same_corpus(corpus, tmp_path):
    folder = folder_of(
        tmp_path / "a",
        train_de="Ein Haus.\nZwei Häuser.\n",
        train_en="A house.\r\nTwo houses.\r\n",
        val_dez="Ja.\n",
        val_enz="Yes.\n",
        test_de="Nein.",
        test_en="No.",
    )
    read = corpus.read_folder(folder, "de", "en")
    assert read.train == [("Ein Haus.", "A house."), ("Zwei Häuser.", "Two houses.")]
    assert (read.dev, read.test) == ([("Ja.", "Yes.")], [("Nein.", "No.")])

    for name, part in zip(corpus.Corpus._fields, read):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{a}\t{b}\n\n" for a, b in part), encoding="utf-8")
    assert corpus.Corpus(*(corpus.read_table(tmp_path / f"{name}.tsv") for name in corpus.Corpus._fields)) == read

    (tmp_path / "set").mkdir()
    for name, part in zip(("train", "validation", "test"), read):
        rows = [json.dumps({"translation": {"de": a, "en": b}}) for a, b in part]
        (tmp_path / "set" / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    assert corpus.read_dataset(str(tmp_path / "set"), "de", "en") == read


def test_wrong_corpora_are_refused_by_name(corpus, tmp_path):
    (tmp_path / "rows").write_text("a\tb\nc\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 2: expected two fields, source TAB target, was 'c'"):
        corpus.read_table(tmp_path / "rows")
    (tmp_path / "rows").write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no rows; expected lines of source TAB target"):
        corpus.read_table(tmp_path / "rows")
    (tmp_path / "rows").write_bytes(b"a\xff")
    with pytest.raises(ValueError, match="must be UTF-8 text; byte 1 is not"):
        corpus.read_table(tmp_path / "rows")
    folder = folder_of(tmp_path / "a", train_de="a\nb", train_en="a")
    with pytest.raises(ValueError, match=r"train.de has 2 lines, train.en 1"):
        corpus.read_folder(folder, "de", "en")
    with pytest.raises(ValueError, match=r"no files for train; looked for train\.fr\[\.gz\] and the same with \.en"):
        corpus.read_folder(folder, "fr", "en")


def test_tokenizer_keeps_text_and_comes_back_the_same(corpus, tmp_path):
    pairs = corpus.read_scenes().train
    tokenizer = corpus.build_tokenizer(pairs, 300)
    assert len(tokenizer) == 300
    tokenizer.save_pretrained(tmp_path)
    again = type(tokenizer).from_pretrained(tmp_path)
    for text in [text for pair in pairs[:50] for text in pair]:
        ids = tokenizer(text).input_ids
        assert ids[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert again(text).input_ids == ids


def test_words_are_lower_cased_and_marks_are_words(corpus):
    assert corpus.words("Die Frau, sie  lacht.") == ["die", "frau", ",", "sie", "lacht", "."]


def test_example_is_where_the_first_system_repeats_most(recipe):
    report = load("translation_report")
    pairs = [recipe.Pair("x", "a b"), recipe.Pair("y", "a b"), recipe.Pair("z", "a a")]
    assert report.repetitions("a a b", "a b") == 2
    assert report.most_repeated(pairs, ["a b", "a a a b", "a a a"], ["a b", "a b", "a a a"]) == 1
    assert report.most_repeated(pairs, ["a " * 30, "a a a b", "a a a"], ["a b", "a b", "a a a"]) == 1
    assert report.rep_without_worst(pairs * 3, ["a b", "a a", "a b"] * 3) == pytest.approx(0)
    assert report.rep_without_worst(pairs * 3, ["a a", "a a", "a b"] * 3) == pytest.approx(100 * 2 / 18)
    assert report.most_repeated(pairs[:1], ["a " * 30], ["a b"]) == 0


def test_bounds_for_training_are_counts_plus_one_where_they_are_predicted(recipe):
    systems = load("translation_systems")
    rows = recipe.datasets.Dataset.from_list([{"input_ids": [3, 4]}, {"input_ids": [4, 4]}])
    counts = [[0, 2], [3, 1]]
    made = {name: systems.with_fertility(rows, systems.SYSTEMS[name], counts) for name in systems.SYSTEMS}
    assert made["csparsemax-predicted"]["fertility"] == [[1, 3], [4, 2]]
    assert all("fertility" not in made[name].column_names for name in ("csparsemax-guided", "csparsemax-2", "softmax"))


def test_systems_with_coverage_vectors_have_them(recipe):
    systems = load("translation_systems").SYSTEMS
    covered = {name: system.cross for name, system in systems.items() if "coverage" in system.cross}
    assert covered == {f"{name}-coverage": {"name": name, "coverage": "vector"} for name in ("softmax", "sparsemax")}


def test_systems_with_a_penalty_use_the_model_of_those_without(recipe):
    assert recipe.SYSTEMS["softmax-penalty"].model_name == "softmax"
    assert recipe.SYSTEMS["sparsemax-penalty"].model_name == "sparsemax"
    own = [name for name in recipe.SYSTEMS if not name.endswith("penalty")]
    assert [recipe.SYSTEMS[name].model_name for name in own] == own


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "--steps must be above 0, was 0"),
        (["--base-steps", "-1"], "--base-steps must be at least 0, was -1"),
        (["--systems", "hardmax"], "invalid choice: 'hardmax'"),
        (["--folder", "nowhere"], "no files for train"),
        (["--folder", "a", "--dataset", "b"], "not allowed with argument"),
    ],
)
def test_wrong_arguments_leave_with_a_message(recipe, arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        recipe.parse_arguments([*arguments, "--out", str(tmp_path / "out")])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_foreign_folders_and_other_settings_are_refused(recipe, tmp_path, capsys):
    recipe.parse_arguments(["--out", str(tmp_path / "run")])
    recipe.parse_arguments(["--out", str(tmp_path / "run"), "--systems", "softmax"])
    with pytest.raises(SystemExit):
        recipe.parse_arguments(["--out", str(tmp_path / "run"), "--seed", "1"])
    assert "holds a run with other settings" in capsys.readouterr().err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(SystemExit):
        recipe.parse_arguments(["--out", str(tmp_path / "mine")])
    assert "holds something else than an earlier run" in capsys.readouterr().err


def test_from_scratch_all_systems_start_from_the_same_untrained_weights(recipe, tmp_path):
    options, corpus = recipe.parse_arguments(["--quick", "--base-steps", "0", "--out", str(tmp_path / "run")])
    assert options.base_steps == 0
    run = recipe.Run(options, recipe.Corpus(corpus.train[:80], corpus.dev, corpus.test))
    rates = []
    run.train = lambda model, rows, name, **schedule: rates.append((name, schedule["lr"]))
    weights = [dict(run.model(name).named_parameters()) for name in ("softmax", "csparsemax-2")]
    assert rates == [("softmax", options.lr), ("csparsemax-2", options.lr)]
    untrained = dict(recipe.build_model(run.tokenizer, options.seed).named_parameters())
    for name, value in untrained.items():
        assert all(torch.equal(one[name], value) for one in weights)


@pytest.mark.slow
def test_quick_run_writes_everything_and_a_second_one_repeats_nothing(recipe, tmp_path):
    systems = ["softmax", "softmax-penalty", "softmax-coverage", "csparsemax-predicted"]
    arguments = ["--quick", "--out", str(tmp_path / "run"), "--systems", *systems]
    assert recipe.main(arguments) == 0
    result = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    assert [row["system"] for row in result["systems"]] == systems
    assert all(0 <= row["bleu"] <= 100 and row["rep"] >= 0 and 0 <= row["drop"] <= 100 for row in result["systems"])
    assert result["systems"][1]["penalty"]["beta"] > 0
    assert result["systems"][2]["settings"]["attn"]["cross"]["coverage"] == {"vector": [4, 40]}
    assert result["systems"][3]["settings"]["attn"]["cross"]["fertility"] == "predicted"
    assert {"attention_softmax.png", "attention_csparsemax.png", "settings.json"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "systems").rglob("*.*")}
    assert recipe.main(arguments) == 0
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "systems").rglob("*.*")}
