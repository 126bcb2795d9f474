"""The inflection recipe: its words, its tokenizer, its messages, its counts, and small runs from end to end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoTokenizer

import hf_sparse
from recipes.inflection import data, predictions
from recipes.inflection import model as made
from recipes.inflection import run as recipe
from recipes.lib.study import main

LEMMAS = "ijklmnopqrs"  # of which the rule holds out q
FINNISH = "hyvä päivä\thyvät päivät\tN;NOM;PL\nǧ'\u0301a\tǧa\tN;IN+ABL;{DAT/GEN}\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def finnish(tmp_path):
    return data.read_table(write(tmp_path / "finnish", FINNISH))


def test_spaces_marks_and_tags_survive_the_tokenizer(finnish):
    tokenizer = made.build_tokenizer(finnish)
    for text in ("hyvä päivä<N><NOM><PL>", "ǧ'\u0301a<N><IN+ABL><{DAT/GEN}>", " ä ", ""):
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("ä y<N><NOM>").input_ids)
    assert tokens == ["ä", " ", "y", "<N>", "<NOM>", "</s>"]


def test_tokenizer_comes_back_from_disk_the_same(finnish, tmp_path):
    tokenizer = made.build_tokenizer(finnish)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    again = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    text = "hyvä päivä<N><NOM><PL>"
    assert again(text).input_ids == tokenizer(text).input_ids
    assert again.decode(again(text).input_ids, skip_special_tokens=True) == text


def test_unknown_characters_become_unk(finnish):
    tokenizer = made.build_tokenizer(finnish)
    assert tokenizer.convert_ids_to_tokens(tokenizer("z<V>").input_ids) == ["<unk>", "<unk>", "</s>"]


def test_split_holds_out_whole_lemmas_draw_among_them():
    train, dev = data.read_words()
    assert not set(train["lemma"]) & set(dev["lemma"])
    assert recipe.EXAMPLE in zip(dev["lemma"], dev["tags"])
    assert len(train) + len(dev) == len(data.read_verbs())
    assert 0.08 < len(dev) / (len(train) + len(dev)) < 0.12


@pytest.fixture
def places(tmp_path):
    """The same words as files, as a folder, and as a data set."""
    rows = [f"{lemma}\t{lemma}s\tN;PL\n" for lemma in LEMMAS]
    write(tmp_path / "all.tsv", "".join(rows))
    for folder, names in (("folder", ("train.tsv", "dev.tsv")), ("hub", ("train.csv", "validation.csv"))):
        (tmp_path / folder).mkdir()
        for name, part in zip(names, (rows[:9], rows[9:])):
            table = "".join(part)
            if folder == "hub":
                table = "lemma,form,tags\n" + table.replace("\t", ",")
            write(tmp_path / folder / name, table)
    return tmp_path


def lemmas(words):
    return ["".join(rows["lemma"]) for rows in words]


def test_words_come_from_a_file_two_files_or_a_folder(places):
    assert lemmas(data.read_words(str(places / "all.tsv"))) == ["ijklmnoprs", "q"]
    folder = places / "folder"
    assert lemmas(data.read_words(str(folder))) == [LEMMAS[:9], LEMMAS[9:]]
    assert lemmas(data.read_words(str(folder / "train.tsv"), str(folder / "dev.tsv"))) == [LEMMAS[:9], LEMMAS[9:]]


def test_words_come_from_a_data_set(places):
    words = data.read_hub(str(places / "hub"))  # load_dataset takes a folder for a data set, too
    assert lemmas(words) == [LEMMAS[:9], LEMMAS[9:]]
    assert words.dev[0] == {"lemma": "r", "form": "rs", "tags": "N;PL"}
    write(places / "hub" / "train.csv", "lemma,form,features\na,as,N\n")
    write(places / "hub" / "validation.csv", "lemma,form,features\na,as,N\n")
    with pytest.raises(ValueError, match="needs columns lemma, form, tags; has lemma, form, features"):
        data.read_hub(str(places / "hub"))
    (places / "hub" / "validation.csv").unlink()
    with pytest.raises(ValueError, match="needs a split 'train' and one of dev, validation, test; has train"):
        data.read_hub(str(places / "hub"))


@pytest.mark.parametrize(
    ("where", "dev", "message"),
    [
        ("folder/train.tsv", "", ""),
        ("folder", "folder/dev.tsv", "Is a directory"),
        ("", "folder/dev.tsv", "goes with a table to train on: --data FILE"),
        ("few.tsv", "", r"too few lemmas \(1\) to hold out one in ten; name a table to evaluate on: --set dev=FILE"),
        ("hub", "", r"hub has no train.tsv and no dev.tsv; name files otherwise: --data FILE --set dev=FILE"),
        ("./nowhere", "", "no file, no folder, and no data set that was found"),
    ],
)
def test_words_that_cannot_be_read_are_named(places, monkeypatch, where, dev, message):
    monkeypatch.chdir(places)
    write(places / "few.tsv", "draw\tdrawn\tV\n")
    if not message:
        assert data.read_words(where, dev)
        return
    with pytest.raises((OSError, ValueError), match=message):
        data.read_words(where, dev)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "draw\tdrawn\tV\nfly\tflown\n",
            r"line 2: expected three fields, lemma TAB .* was \['fly', 'flown'\]",
        ),
        ("draw drawn V", "line 1: expected three fields"),
        ("draw\t\tV", "line 1: expected three fields"),
        ("a<b\tc\tV", "line 1: the characters < and > mark tags"),
        ("draw\tdrawn\tV;;PST", "line 1: a tag is empty or one of pad, s, /s, unk"),
        ("draw\tdrawn\tpad", "line 1: a tag is empty or one of pad, s, /s, unk"),
        ("\n\n", "no rows"),
        ("d" * 500 + "\tdrawn\tV", "line 1: more than 400 characters"),
    ],
)
def test_bad_rows_are_named_by_line(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        data.read_table(write(tmp_path / "rows", text))


def test_other_encodings_are_refused(tmp_path):
    (tmp_path / "rows").write_bytes("päivä\tpäivät\tN".encode("latin-1"))
    with pytest.raises(ValueError, match="must be UTF-8 text; byte 1 is not"):
        data.read_table(tmp_path / "rows")


def test_windows_line_ends_and_byte_order_mark_are_read(tmp_path):
    (tmp_path / "rows").write_bytes("draw\tdrawn\tV;PST\r\n".encode("utf-8-sig"))
    assert data.read_table(tmp_path / "rows").to_list() == [{"lemma": "draw", "form": "drawn", "tags": "V;PST"}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "./nowhere"], "softmax: ./nowhere: no file, no folder, and no data set"),
        (["--data", "bad"], "softmax: bad, line 1: expected three fields"),
        (["--data", "bad", "--set", "dev=nowhere"], "softmax: bad, line 1"),
        (["--set", "steps=0"], "steps must be above 0, was 0"),
        (["--set", "steps=many"], "steps must be int, was 'many'"),
        (["--set", "lr=-1"], "lr must be above 0, was -1"),
        (["--set", "dev_rows=-1"], "dev_rows must be above 0, or 0 for all, was -1"),
        (["--set", "width=30"], "width must be a multiple of 4, the heads of attention, was 30"),
        (["--set", "dropout=1"], "dropout must be at least 0 and below 1, was 1"),
        (["--set", "head=entmx15"], "unknown sparse map 'entmx15'"),
        (["--set", "attention=alpha_relu"], "for attention give alpha_relu a number"),
        (["--only", "entmx15"], "no such run; there are: softmax, entmax15, alpha_relu, sparsemax"),
        (["--out", "bad"], "is a file"),
    ],
)
def test_bad_arguments_end_in_a_message(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "bad", "no table")
    with pytest.raises(SystemExit) as exit_:
        main(recipe.STUDY, arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


def test_candidates_are_counted_up_to_the_end_token():
    gone = -1e4
    one, two, three = [0.0, gone, gone], [-0.7, -0.7, gone], [-1.1, -1.1, -1.1]
    logits = torch.tensor([[two, one, three], [three, one, two]])
    generated = torch.tensor([[1, 2, 0], [1, 1, 1]])  # 2 ends the first row after two steps; the second never ends
    counts = predictions.count_candidates(logits, generated, end=2)
    assert counts == [2, 1, 3, 1, 2]
    found = predictions.Predictions(["", ""], counts)
    assert found.one_candidate_rate == pytest.approx(2 / 5)
    assert found.support_size == pytest.approx(9 / 5)


def test_exact_match_is_the_share_of_equal_strings():
    score = predictions.ExactMatch().compute(
        predictions=["drew", "flied", "went "], references=["drew", "flew", "went"]
    )
    assert score == {"exact_match": pytest.approx(1 / 3)}


def test_same_seed_gives_the_same_weights_and_settings_reach_the_model(finnish):
    tokenizer = made.build_tokenizer(finnish)
    one, again, other = (made.build_model(tokenizer, 10, seed) for seed in (3, 3, 4))
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)
    small = made.build_model(tokenizer, 10, 3, width=16, layers=1, dropout=0.5).config
    assert (small.d_model, small.decoder_ffn_dim, small.encoder_layers, small.decoder_layers) == (16, 64, 1, 1)
    assert small.dropout == 0.5


SMALL = ["--quick", "--set", "steps=2", "batch_size=16", "width=16", "layers=1", "max_hypotheses=5"]


@pytest.mark.slow
def test_a_run_leaves_table_forms_picture_card_and_a_model_that_comes_back(tmp_path, capsys):
    write(tmp_path / "train", FINNISH * 4)
    write(tmp_path / "dev", FINNISH)
    data, out = [f"dev={tmp_path / 'dev'}", "--data", str(tmp_path / "train")], tmp_path / "out"
    results = main(recipe.STUDY, [*SMALL, *data, "--out", str(out)])
    printed = capsys.readouterr().out
    assert "exact match" in printed
    assert "hyvä päivä N;NOM;PL: " in printed
    assert "equal predictions" in printed
    assert results == json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert [record["run"] for record in results["runs"]] == list(recipe.STUDY.usual)
    dense, sparse, _ = results["runs"]
    assert "hypotheses" not in dense["figures"]
    assert dense["figures"]["head_support"] == dense["figures"]["rows"]["vocabulary"]
    assert sparse["settings"]["steps"] == 2
    assert sparse["figures"]["step_cpu_seconds"] > 0

    folder = out / "runs" / "entmax15-0"
    assert (folder / "cross_attention.png").read_bytes().startswith(b"\x89PNG")
    card = ModelCard.load(folder / "model" / "README.md")
    assert {"hf_sparse", "entmax15"} <= set(card.data.tags)
    assert card.data.eval_results[0].metric_value == pytest.approx(sparse["figures"]["exact_match"], abs=1e-6)
    figures = sparse["figures"]
    assert f"| **entmax15** | **{figures['exact_match']:.1%}** | **{figures['head_support']:.2f}** |" in card.text
    snippet = re.search(r"```python\n(.*?)```", card.text, re.S).group(1)
    ran = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0] == figures["hypotheses"]["greedy"]
    assert "complete: " in ran.stdout

    main(recipe.STUDY, [*SMALL, *data, "--out", str(out)])
    assert "[3/3]" in capsys.readouterr().out  # nothing was trained again
    assert json.loads((out / "results.json").read_text(encoding="utf-8")) == results


@pytest.mark.slow
def test_a_card_compares_runs_that_differ_in_nothing_but_maps_and_seeds_are_kept_apart(tmp_path, capsys):
    small = ["--quick", "--out", str(tmp_path), "--only", "entmax15"]
    main(recipe.STUDY, [*small, "--seeds", "2", *SMALL[1:]])
    main(recipe.STUDY, ["--quick", "--out", str(tmp_path), "--only", "sparsemax", *SMALL[1:], "steps=1"])
    table = ModelCard.load(tmp_path / "runs" / "entmax15-1" / "model" / "README.md").text
    assert table.count("| **entmax15** |") == 1
    assert "| sparsemax |" not in table
    assert "draw V;V.PTCP;PST: " in capsys.readouterr().out  # an unseen word, whatever rows are left to evaluate on


def test_without_a_sparse_head_only_the_table_is_left(tmp_path, capsys):
    main(recipe.STUDY, [*SMALL, "--only", "softmax", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "exact match" in printed
    assert "there are no forms to list" in printed
    assert not list(tmp_path.rglob("*.png"))


def test_a_sparse_head_over_dense_attention_is_drawn_too(tmp_path):
    main(recipe.STUDY, [*SMALL, "attention=softmax", "steps=1", "--only", "entmax15", "--out", str(tmp_path)])
    assert (tmp_path / "runs" / "entmax15-0" / "cross_attention.png").is_file()
    card = ModelCard.load(tmp_path / "runs" / "entmax15-0" / "model" / "README.md").text
    assert "# English inflection with entmax15 at the head and softmax in attention" in card


def test_reload_check_notices_other_predictions(finnish, tmp_path):
    tokenizer = made.build_tokenizer(finnish)
    model = hf_sparse.sparsify(made.build_model(tokenizer, 10, seed=0), attn="entmax15", head="entmax15")
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    found = predictions.predict(model, tokenizer, finnish)
    recipe.check_reload(tmp_path / "model", finnish, found, model.device)
    other = found._replace(supports=[1] * len(found.supports))
    with pytest.raises(RuntimeError, match="predicts otherwise"):
        recipe.check_reload(tmp_path / "model", finnish, other, model.device)


def test_the_list_shows_the_papers_values(capsys):
    main(recipe.STUDY, ["--list", "--only", "entmax15"])
    listed = capsys.readouterr().out
    assert "    dropout = 0.3   paper: 0.3 (4)" in listed
    assert "    batch_size = 128   paper: 64 (4)" in listed
