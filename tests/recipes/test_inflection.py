"""The inflection recipe: its tokenizer, its split, its messages, its counts, and a small run from end to end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from huggingface_hub import ModelCard

from tests.recipes.modules import load

FINNISH = "hyvä päivä\thyvät päivät\tN;NOM;PL\nǧ'\u0301a\tǧa\tN;IN+ABL;{DAT/GEN}\n"


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return load("inflection")


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_spaces_marks_and_tags_survive_the_tokenizer(recipe, tmp_path):
    tokenizer = recipe.build_tokenizer(recipe.read_table(write(tmp_path / "rows", FINNISH)))
    for text in ("hyvä päivä<N><NOM><PL>", "ǧ'\u0301a<N><IN+ABL><{DAT/GEN}>", " ä ", ""):
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("ä y<N><NOM>").input_ids)
    assert tokens == ["ä", " ", "y", "<N>", "<NOM>", "</s>"]


def test_tokenizer_comes_back_from_disk_the_same(recipe, tmp_path):
    tokenizer = recipe.build_tokenizer(recipe.read_table(write(tmp_path / "rows", FINNISH)))
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    again = recipe.AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    text = "hyvä päivä<N><NOM><PL>"
    assert again(text).input_ids == tokenizer(text).input_ids
    assert again.decode(again(text).input_ids, skip_special_tokens=True) == text


def test_unknown_characters_become_unk(recipe, tmp_path):
    tokenizer = recipe.build_tokenizer(recipe.read_table(write(tmp_path / "rows", FINNISH)))
    assert tokenizer.convert_ids_to_tokens(tokenizer("z<V>").input_ids) == ["<unk>", "<unk>", "</s>"]


def test_split_holds_out_whole_lemmas_draw_among_them(recipe):
    _, train, dev = recipe.parse_arguments([])
    _, again, _ = recipe.parse_arguments([])
    assert not set(train["lemma"]) & set(dev["lemma"])
    assert train["form"] == again["form"]
    assert "draw" in dev["lemma"]
    assert recipe.EXAMPLE in zip(dev["lemma"], dev["tags"])
    assert len(train) + len(dev) == len(recipe.read_table(recipe.ENGLISH_VERBS))
    assert 0.08 < len(dev) / (len(train) + len(dev)) < 0.12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "draw\tdrawn\tV\nfly\tflown\n",
            r"line 2: expected three fields, lemma TAB .* was 'fly\\tflown'",
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
def test_bad_rows_are_named_by_line(recipe, tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        recipe.read_table(write(tmp_path / "rows", text))


def test_other_encodings_are_refused(recipe, tmp_path):
    (tmp_path / "rows").write_bytes("päivä\tpäivät\tN".encode("latin-1"))
    with pytest.raises(ValueError, match="must be UTF-8 text; byte 1 is not"):
        recipe.read_table(tmp_path / "rows")


def test_windows_line_ends_and_byte_order_mark_are_read(recipe, tmp_path):
    (tmp_path / "rows").write_bytes("draw\tdrawn\tV;PST\r\n".encode("utf-8-sig"))
    assert recipe.read_table(tmp_path / "rows").to_list() == [{"lemma": "draw", "form": "drawn", "tags": "V;PST"}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--train", "rows"], "--train and --dev go together"),
        (["--train", "nowhere", "--dev", "nowhere"], "No such file or directory: 'nowhere'"),
        (["--train", "bad", "--dev", "bad"], "bad, line 1: expected three fields"),
        (["--steps", "0"], "--steps must be above 0, was 0"),
        (["--lr", "-1"], "--lr must be above 0, was -1"),
        (["--warmup", "-1"], "--warmup must not be below 0, was -1"),
        (["--out", "."], "holds something else than an earlier run"),
        (["--out", "bad"], "is a file"),
        (["--heads", "entmx15"], "invalid choice: 'entmx15'"),
    ],
)
def test_bad_arguments_end_in_a_message(recipe, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "bad", "no table")
    with pytest.raises(SystemExit) as exit_:
        recipe.main(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_candidates_are_counted_up_to_the_end_token(recipe):
    gone = -1e4
    one, two, three = [0.0, gone, gone], [-0.7, -0.7, gone], [-1.1, -1.1, -1.1]
    logits = torch.tensor([[two, one, three], [three, one, two]])
    generated = torch.tensor([[1, 2, 0], [1, 1, 1]])  # 2 ends the first row after two steps; the second never ends
    counts = recipe.count_candidates(logits, generated, end=2)
    assert counts == [2, 1, 3, 1, 2]
    predictions = recipe.Predictions(["", ""], counts)
    assert predictions.one_candidate_rate == pytest.approx(2 / 5)
    assert predictions.support_size == pytest.approx(9 / 5)


def test_exact_match_is_the_share_of_equal_strings(recipe):
    score = recipe.ExactMatch().compute(predictions=["drew", "flied", "went "], references=["drew", "flew", "went"])
    assert score == {"exact_match": pytest.approx(1 / 3)}


def test_same_seed_gives_every_head_the_same_weights(recipe, tmp_path):
    tokenizer = recipe.build_tokenizer(recipe.read_table(write(tmp_path / "rows", FINNISH)))
    dense, sparse = (recipe.build_model(head, tokenizer, 10, seed=3) for head in ("softmax", "entmax15"))
    other = recipe.build_model("softmax", tokenizer, 10, seed=4)
    for name, weight in dense.state_dict().items():
        assert torch.equal(weight, sparse.state_dict()[name])
    assert not torch.equal(dense.lm_head.weight, other.lm_head.weight)


@pytest.mark.slow
def test_run_leaves_table_hypotheses_picture_card_and_a_model_that_comes_back(recipe, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["--quick", "--steps", "2", "--batch-size", "16", "--max-hypotheses", "5", "--out", str(out)]
    write(tmp_path / "train", FINNISH * 4)
    write(tmp_path / "dev", FINNISH)
    files = ["--train", str(tmp_path / "train"), "--dev", str(tmp_path / "dev")]
    assert recipe.main([*arguments, *files]) == 0
    assert recipe.main(arguments) == 0  # takes the place of the earlier run
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dev", "out", "train"]

    printed = capsys.readouterr().out
    assert "exact match" in printed
    assert "hyvä päivä N;NOM;PL: " in printed
    assert "draw V;V.PTCP;PST: " in printed
    assert "equal predictions" in printed
    assert (out / "cross_attention.png").read_bytes().startswith(b"\x89PNG")

    result = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert [row["head"] for row in result["heads"]] == ["softmax", "entmax15", "alpha_relu"]
    assert result["saved_head"] == "entmax15"
    assert result["settings"]["steps"] == 2
    assert {"versions", "hardware", "hypotheses"} <= set(result)
    dense, sparse, _ = result["heads"]
    assert dense["support_size"] == result["data"]["vocabulary"] > sparse["support_size"]

    card = ModelCard.load(out / "model" / "README.md")
    assert {"hf_sparse", "entmax15"} <= set(card.data.tags)
    assert card.data.eval_results[0].metric_value == sparse["exact_match"]
    assert f"| entmax15 | entmax15 | {sparse['exact_match']:.1%} | {sparse['support_size']:.2f} |" in card.text
    snippet = re.search(r"```python\n(.*?)```", card.text, re.S).group(1)
    ran = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0] == result["hypotheses"]["greedy"]
    assert "complete: " in ran.stdout


def test_reload_check_notices_other_predictions(recipe, tmp_path):
    rows = recipe.read_table(write(tmp_path / "rows", FINNISH))
    tokenizer = recipe.build_tokenizer(rows)
    model = recipe.build_model("entmax15", tokenizer, 10, seed=0)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    predictions = recipe.predict(model, tokenizer, rows)
    recipe.check_reload(tmp_path / "model", rows, predictions, model.device)
    other = predictions._replace(supports=[1] * len(predictions.supports))
    with pytest.raises(RuntimeError, match="predicts otherwise"):
        recipe.check_reload(tmp_path / "model", rows, other, model.device)


def test_without_a_sparse_head_only_the_table_is_left(recipe, tmp_path):
    out = tmp_path / "out"
    assert recipe.main(["--quick", "--steps", "1", "--batch-size", "8", "--heads", "softmax", "--out", str(out)]) == 0
    assert [path.name for path in out.iterdir()] == ["results.json"]


def test_interrupted_run_leaves_the_earlier_one(recipe, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    write(out / "results.json", "{}")

    def interrupted() -> None:
        with recipe.fresh_folder(out) as folder:
            write(folder / "results.json", "half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out / "results.json").read_text() == "{}"
