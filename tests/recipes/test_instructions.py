"""The recipe of instructions: its data, its measures, and a small run of every loss."""

import dataclasses

import pytest
import torch

import hf_sparse
from recipes.instructions import data, measures
from recipes.instructions import run as recipe
from recipes.instructions.report import AIM
from tests.tiny_models import EOS, tiny_model
from tests.word_tokenizer import word_tokenizer

LINES = [f"w{n} w{n + 1} w{n + 2} w{n + 3}" for n in range(3, 19)]


@pytest.fixture
def sentences(tmp_path):
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(LINES), encoding="utf-8")
    return str(path)


def test_words_asked_for_are_of_the_sentence(sentences):
    train, test = data.read_instructions(sentences, 2, 10, 0)
    assert len(train) + len(test) == len(LINES)
    assert not {row.sentence for row in train} & {row.sentence for row in test}
    for row in train + test:
        assert len(set(row.asked)) == 2
        assert set(row.asked) <= set(row.sentence.split())
        assert ", ".join(row.asked) in row.prompt
    again, same = data.read_instructions(sentences, 2, 10, 1)
    assert same == test
    assert sorted(row.sentence for row in again) == sorted(row.sentence for row in train)
    assert again != train
    with pytest.raises(ValueError, match="no sentences with 5 different words"):
        data.read_instructions(sentences, 5, 10, 0)


def test_labels_are_those_of_the_answer():
    row = data.Instruction(("w4", "w5"), "w3 w4 w5")
    encoded = data.encoded(word_tokenizer(), row)
    answer = [*word_tokenizer()("w3 w4 w5").input_ids, EOS]
    assert encoded["input_ids"][-4:] == encoded["labels"][-4:] == answer
    assert set(encoded["labels"][:-4]) == {-100}
    batch = data.collate([encoded, {"input_ids": [3], "labels": [3]}])
    assert batch["attention_mask"].sum(-1).tolist() == [len(encoded["input_ids"]), 1]
    assert batch["labels"][1].tolist() == [3] + [-100] * (len(encoded["input_ids"]) - 1)


def test_ngrams_are_counted_over_the_answers_to_one_prompt():
    assert measures.distinct([["a b a", "a b"], ["c", "c"]], 1) == (2 / 5 + 1 / 2) / 2
    assert measures.distinct([["a b a", "a b"], ["c", "c"]], 2) == 2 / 3
    rows = [data.Instruction(("dog", "runs"), ""), data.Instruction(("cat", "sits"), "")]
    assert measures.has_asked(["The Dog runs.", "Cats sit."], rows) == 0.5


@pytest.mark.parametrize("run", recipe.RUNS)
def test_a_model_is_dense_again_after_training(run, sentences, tmp_path):
    settings = recipe.RUNS[run]
    model, before = tiny_model("llama"), tiny_model("llama")
    rows, _ = data.read_instructions(sentences, 2, 10, 0)
    small = dataclasses.replace(settings, steps=2, batch_size=2, learning_rate=1e-2)
    recipe.train(model, word_tokenizer(), rows, small, tmp_path)
    assert not hf_sparse.is_sparse(model)
    assert not torch.equal(model.lm_head.weight, before.lm_head.weight)


@pytest.mark.slow
def test_a_small_run_of_every_loss(sentences, tmp_path, capsys):
    tiny_model("llama").save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    changes = ["--set", f"source={tmp_path / 'model'}", "asked=2", "--out", str(tmp_path / "out")]
    runs = recipe.main(recipe.STUDY, ["--quick", "--seeds", "2", "--data", sentences, *changes])["runs"]
    assert len(runs) == 2 * len(recipe.RUNS)
    for run in runs:
        assert all(0 <= run["figures"][name] <= 1 for name in AIM)
        assert run["figures"]["entropy"] > 0
    printed = capsys.readouterr().out
    assert "- `ts2`, aim: ahead of cross-entropy" in printed


def test_a_text_without_sentences_is_refused_before_anything_is_trained(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("word\nanother\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        recipe.main(recipe.STUDY, ["--data", str(tmp_path / "text.txt"), "--out", str(tmp_path / "out")])
    assert "has no sentences with 3 different words" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_price_without_a_sparse_head_is_refused():
    with pytest.raises(ValueError, match=r"suppression=0.25 needs a sparse head"):
        recipe.Instructions(suppression=0.25)
