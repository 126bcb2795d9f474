"""The translation recipe: its corpora, its messages, its sample, and a small run that is interrupted and resumed."""

from __future__ import annotations

import copy
import dataclasses
import gzip
import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import hf_sparse
from recipes.lib.study import main
from recipes.translation import data as corpus
from recipes.translation import measures, report, systems
from recipes.translation.model import LONGEST, as_read

pytest.importorskip("sacrebleu", reason="the translation recipe needs sacrebleu: pip install 'hf_sparse[recipes]'")

from recipes.translation import run as recipe
from recipes.translation_sweep import run as sweep


def folder_of(path: Path, **files: str) -> Path:
    path.mkdir(exist_ok=True)
    for name, text in files.items():
        part, language = name.split("_")
        data = text.encode()
        gz = language.endswith("z")
        (path / f"{part}.{language[:2]}{'.gz' if gz else ''}").write_bytes(gzip.compress(data) if gz else data)
    return path


def test_sample_has_three_disjoint_parts():
    train, dev, test = corpus.read_scenes()
    assert (len(train), len(dev), len(test)) == (2400, 300, 300)
    sources = [{pair.source for pair in part} for part in (train, dev, test)]
    assert len(set.union(*sources)) == 3000


def test_folder_tables_and_data_set_give_the_same_corpus(tmp_path):
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
    assert corpus.read_tables(tmp_path) == corpus.read_named(str(tmp_path), "de", "en") == read

    (tmp_path / "set").mkdir()
    for name, part in zip(("train", "validation", "test"), read):
        rows = [json.dumps({"translation": {"de": a, "en": b}}) for a, b in part]
        (tmp_path / "set" / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    assert corpus.read_dataset(str(tmp_path / "set"), "de", "en") == read


def test_rows_that_occur_twice_are_in_one_part(tmp_path):
    rows = [f"source {number}\ttarget {number}\n" for number in range(20)]
    (tmp_path / "table.tsv").write_text("".join([*rows, "source 7\tanother\n", *rows[::-1]]), encoding="utf-8")
    parts = corpus.read_named(str(tmp_path / "table.tsv"), "de", "en")
    sources = [{pair.source for pair in part} for part in parts]
    assert [len(part) for part in sources] == [16, 2, 2]
    assert sum(map(len, parts)) == 41
    assert set.union(*sources) == {f"source {number}" for number in range(20)}
    assert [pair.target for pair in parts.test if pair.source == "source 7"] == ["target 7", "another", "target 7"]


def test_the_test_set_that_is_taken_has_a_name(tmp_path):
    parts = {f"{part}_{language}": "a\n" for part in ("train", "val") for language in ("de", "en")}
    folder = folder_of(tmp_path / "a", **parts)
    for name in ("test_2018_flickr", "test_2017_flickr"):
        for language in ("de", "en"):
            (folder / f"{name}.{language}.gz").write_bytes(gzip.compress(f"{name}\n".encode()))
        assert corpus.name_of_test(str(folder), "de", "en") == name
        assert corpus.read_named(str(folder), "de", "en").test == [(name, name)]
    first = corpus.read_named(str(folder), "de", "en").test
    assert corpus.read_named(str(folder), "de", "en", "test_2018_flickr").test != first
    assert corpus.name_of_test(str(folder), "de", "en", "test_2018_flickr") == "test_2018_flickr"
    with pytest.raises(ValueError, match=r"no files for test; looked for mine\.de"):
        corpus.read_named(str(folder), "de", "en", "mine")
    with pytest.raises(ValueError, match="test='mine' names a part of a folder or data set; the sample is"):
        corpus.read_named("", "de", "en", "mine")
    assert corpus.name_of_test("", "de", "en") == corpus.name_of_test(str(tmp_path / "none"), "de", "en") == ""
    figures = {"test_set": "test_2017_flickr"}
    assert (report.test_text(figures), report.test_text({})) == (" (test_2017_flickr)", "")


def test_a_table_has_the_languages_it_was_given_and_no_others(tmp_path):
    (tmp_path / "table.tsv").write_text("a\tb\n", encoding="utf-8")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "train.tsv.gz").write_bytes(b"")
    for table in (tmp_path / "table.tsv", tmp_path / "tables"):
        assert corpus.sides(str(table), "de", "en") == ("source", "target")
        assert corpus.sides(str(table), "fi", "en") == ("fi", "English")
    assert corpus.sides("", "de", "en") == corpus.sides("multi30k", "de", "en") == ("German", "English")
    assert (recipe.Translation().source, recipe.Translation().target) == corpus.USUAL


def test_wrong_corpora_are_refused_by_name(tmp_path):
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
    for read in (corpus.read_folder, lambda path, *languages: corpus.read_named(str(path), *languages)):
        with pytest.raises(
            ValueError, match=r"no files for train; looked for train\.fr\[\.gz\] and the same with \.en"
        ):
            read(folder, "fr", "en")
    (folder / "train.tsv").write_text("a\tb\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"no table for dev; looked for dev\.tsv\[\.gz\], val\.tsv"):
        corpus.read_tables(folder)
    (tmp_path / "rows").write_text("".join(f"{row}\ta\n" for row in range(7)), encoding="utf-8")
    with pytest.raises(ValueError, match=r"no pairs for test \(6 train, 1 dev, 0 test\); .* needs 8 sources"):
        corpus.read_named(str(tmp_path / "rows"), "de", "en")
    parts = {f"{part}_{language}": "a\n" for part in ("train", "val", "test") for language in ("de", "en")}
    with pytest.raises(ValueError, match=r"no pairs for dev \(1 train, 0 dev, 1 test\)"):
        corpus.read_named(str(folder_of(tmp_path / "b", **parts | {"val_en": "\n"})), "de", "en")


def test_tokenizer_keeps_text_and_comes_back_the_same(tmp_path):
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


def test_texts_longer_than_the_model_reads_are_cut_and_translated():
    task = recipe.task_of(recipe.Translation(vocabulary=300))
    model = recipe.build_model(task.tokenizer, 0)
    model.generation_config.max_new_tokens = 3
    pair = corpus.Pair("Die Frau lacht. " * 100, "The woman laughs. " * 100)
    assert len(task.tokenizer(pair.source).input_ids) > LONGEST + 2
    assert len(systems.translate(model, task.tokenizer, [pair.source, "Ja."]).texts) == 2
    model.set_attn_implementation("eager")
    long, short = systems.attention_of(model, task.tokenizer, [pair, corpus.Pair("Ja.", "Yes.")])
    assert long.shape == (LONGEST, LONGEST)
    assert len(short) == len(task.tokenizer("Yes.").input_ids)
    (ids,) = as_read(pair.source, task.tokenizer).input_ids
    assert ids[-1] == task.tokenizer.eos_token_id


def test_words_are_lower_cased_and_marks_are_words():
    assert corpus.words("Die Frau, sie  lacht.") == ["die", "frau", ",", "sie", "lacht", "."]


def test_chinese_is_scored_by_characters():
    assert corpus.words("Er sagt 你好, ja.") == ["er", "sagt", "你", "好", ",", "ja", "."]
    texts, references = ["一个女人在厨房里做饭。"], [["一个男人在厨房里做饭。"]]
    assert measures.bleu_of("zh").corpus_score(texts, references).score > 60
    assert measures.bleu_of("en").corpus_score(texts, references).score < 20
    both = ["The dog, it sleeps.", "A cat."], [["The dog, he sleeps.", "A cat."]]
    assert measures.bleu_of("en").corpus_score(*both).score == recipe.sacrebleu.corpus_bleu(*both).score


@pytest.mark.parametrize("recipe_", [recipe, sweep])
def test_a_language_whose_words_cannot_be_found_is_refused(recipe_, tmp_path, capsys):
    if find_spec("MeCab"):
        pytest.skip("the words of Japanese can be found here")
    with pytest.raises(SystemExit):
        main(recipe_.STUDY, ["--only", "softmax", "--set", "target=ja", "--out", str(tmp_path / "out")])
    assert "target=ja: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_example_is_where_the_first_system_repeats_most():
    pairs = [recipe.Pair("x", "a b"), recipe.Pair("y", "a b"), recipe.Pair("z", "a a")]
    assert measures.repetitions("a a b", "a b") == 2
    assert measures.most_repeated(pairs, ["a b", "a a a b", "a a a"], ["a b", "a b", "a a a"]) == 1
    assert measures.most_repeated(pairs, ["a " * 30, "a a a b", "a a a"], ["a b", "a b", "a a a"]) == 1
    assert measures.rep_without_worst(pairs * 3, ["a b", "a a", "a b"] * 3) == pytest.approx(0)
    assert measures.rep_without_worst(pairs * 3, ["a a", "a a", "a b"] * 3) == pytest.approx(100 * 2 / 18)
    assert measures.most_repeated(pairs[:1], ["a " * 30], ["a b"]) == 0


def test_bounds_for_training_are_counts_plus_one_where_they_are_predicted():
    rows = recipe.Dataset.from_list([{"input_ids": [3, 4]}, {"input_ids": [4, 4]}])
    counts = [[0, 2], [3, 1]]
    made = {name: systems.with_fertility(rows, systems.SYSTEMS[name], counts) for name in systems.SYSTEMS}
    assert made["csparsemax-predicted"]["fertility"] == [[1, 3], [4, 2]]
    without = ("csparsemax-guided", "csparsemax-2", "softmax", "csparsemax-predicted-throughout")
    assert all("fertility" not in made[name].column_names for name in without)


def test_systems_with_coverage_vectors_have_them():
    covered = {name: system.cross for name, system in systems.SYSTEMS.items() if "coverage" in system.cross}
    assert covered == {f"{name}-coverage": {"name": name, "coverage": "vector"} for name in ("softmax", "sparsemax")}


def test_systems_with_a_penalty_use_the_model_of_those_without():
    assert recipe.SYSTEMS["softmax-penalty"].model_name == "softmax"
    assert recipe.SYSTEMS["sparsemax-penalty"].model_name == "sparsemax"
    own = [name for name in recipe.SYSTEMS if not name.endswith("penalty")]
    assert [recipe.SYSTEMS[name].model_name for name in own] == own


def test_every_run_names_what_it_needs():
    def needs(makes):
        return recipe.needs(recipe.Translation(makes=makes))

    assert [needs(makes) for makes in recipe.SHARED] == [()] * 3
    assert needs("softmax") == needs("csparsemax-2") == ("base", "aligner")
    assert needs("csparsemax-guided") == needs("csoftmax-predicted") == ("base", "aligner", "fertility")
    assert needs("sparsemax-penalty") == ("sparsemax",)
    assert needs("example") == ("softmax", "csparsemax-predicted")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "steps=0"], "steps must be above 0, was 0"),
        (["--set", "base_steps=-1"], "base_steps must be at least 0, was -1"),
        (["--set", "beams=1"], "beams must be at least 2, was 1"),
        (["--set", "makes=hardmax"], "makes must be one of base, aligner"),
        (["--only", "hardmax"], "no such run; there are: base, aligner, fertility, softmax"),
    ],
)
def test_wrong_arguments_leave_with_a_message(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(recipe.STUDY, [*arguments, "--out", str(tmp_path / "out")])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_corpus_that_is_not_right_is_named_before_anything_is_done(tmp_path, capsys):
    (tmp_path / "table.tsv").write_text("a\tb\nc\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        main(recipe.STUDY, ["--data", str(tmp_path / "table.tsv"), "--out", str(tmp_path / "out")])
    assert "base: " in (told := capsys.readouterr().err)
    assert "table.tsv, line 2: expected two fields" in told
    assert not (tmp_path / "out").exists()


def test_from_scratch_all_systems_start_from_the_same_untrained_weights(tmp_path, monkeypatch):
    settings = dataclasses.replace(recipe.Translation(), **{**recipe.QUICK, "base_steps": 0})
    rates = []

    def untrained(model, rows, settings, folder, steps, lr, schedule_steps=None):
        rates.append(lr)
        return {}

    monkeypatch.setattr(recipe, "trained", untrained)
    assert recipe.base(settings, tmp_path / "base-0") == {}
    weights = {}
    for name in ("softmax", "csparsemax-2"):
        recipe.made(settings, tmp_path / f"{name}-0", recipe.SYSTEMS[name])
        weights[name] = dict(hf_sparse.from_pretrained(tmp_path / f"{name}-0" / "model").named_parameters())
    assert rates == [settings.lr] * 2
    start = recipe.build_model(recipe.task_of(settings).tokenizer, settings.seed)
    for name, value in start.named_parameters():
        assert all(torch.equal(one[name], value) for one in weights.values())
    recipe.made(dataclasses.replace(settings, base_steps=1), tmp_path / "sparsemax-0", recipe.SYSTEMS["sparsemax"])
    assert rates[2:] == [settings.tuning_lr]


@pytest.mark.parametrize(("bf16", "attention"), [(False, "sdpa"), (True, "eager")])
def test_products_of_training_are_in_the_dtype_of_the_settings(bf16, attention, tmp_path, monkeypatch):
    settings = dataclasses.replace(recipe.Translation(), **{**recipe.QUICK, "base_steps": 0, "bf16": bf16})
    trained = []

    def spy(model, *rest, **options):
        dense = hf_sparse.unsparsify(copy.deepcopy(model))
        trained.append((options["bf16"], dense.config._attn_implementation))
        return []

    monkeypatch.setattr(recipe, "train", spy)
    recipe.base(settings, tmp_path / "base-0")
    recipe.made(settings, tmp_path / "softmax-0", recipe.SYSTEMS["softmax"])
    assert trained == [(bf16, attention)]


@pytest.mark.slow
def test_quick_runs_make_everything_and_go_on_where_they_stopped(tmp_path, monkeypatch):
    names = ["softmax", "softmax-penalty", "softmax-coverage", "csparsemax-predicted"]
    arguments = ["--quick", "--out", str(tmp_path), "--only", *names, "example"]
    translate, calls = recipe.translate, []

    def interrupted(*rest):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return translate(*rest)

    torn = tmp_path / "runs" / "softmax-0" / "model"
    torn.mkdir(parents=True)  # saving it was interrupted
    monkeypatch.setattr(recipe, "translate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main(recipe.STUDY, arguments)
    trained = (tmp_path / "runs" / "softmax-0" / "model" / "model.safetensors").stat().st_mtime_ns
    runs = {record["run"]: record["figures"] for record in main(recipe.STUDY, arguments)["runs"]}
    assert (tmp_path / "runs" / "softmax-0" / "model" / "model.safetensors").stat().st_mtime_ns == trained
    assert list(runs) == ["base", "aligner", "fertility", *names, "example"]
    assert all(0 <= runs[name]["bleu"] <= 100 and runs[name]["rep"] >= 0 for name in names)
    assert all(0 <= runs[name]["drop"] <= 100 for name in names)
    assert runs["softmax-penalty"]["penalty"]["beta"] > 0
    assert runs["softmax-coverage"]["config"]["attn"]["cross"]["coverage"] == {"vector": [4, 40]}
    assert runs["csparsemax-predicted"]["config"]["attn"]["cross"]["fertility"] == "predicted"
    assert len(runs["base"]["training_log"]) > 1
    assert list(runs["example"]["translations"]) == ["softmax", "csparsemax-predicted"]
    for name, seen in runs["example"]["attention"].items():
        least = 0 if name.startswith("cs") else 0.9999  # what the sink receives is not shown
        assert all(least <= sum(row) < 1.0001 for row in seen["weights"])
        assert (len(seen["weights"]), len(seen["weights"][0])) == (len(seen["queries"]), len(seen["keys"]))
    pictures = {"attention_softmax.png", "attention_csparsemax-predicted.png"}
    assert {path.name for path in tmp_path.glob("*.png")} == pictures
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.*")}
    main(recipe.STUDY, arguments)
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.*")}
