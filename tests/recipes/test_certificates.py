"""The recipe of certificates: every one is tried again, a false one is counted, and small runs of it."""

import pytest
import torch
from transformers import TrainerCallback

import hf_sparse
from hf_sparse import DeletionCertificate
from recipes.certificates import frames, tasks
from recipes.certificates import run as recipe
from recipes.certificates.proofs import Tally, certified, changes
from recipes.certificates.report import draw_example, report
from recipes.certificates.systems import first_layers
from tests.tiny_models import tiny_model
from tests.tiny_whisper import tiny_whisper
from tests.word_tokenizer import word_tokenizer

SHARP = {"name": "sparsemax", "temperature": 0.03}
WORDS = " ".join(f"w{number}" for number in range(3, 23))


def sharp(name):
    model = hf_sparse.sparsify(tiny_model(name, seed=2).double(), attn=SHARP)
    ids = torch.tensor([[5, 9, 3, 7, 11, 4, 8, 6]])
    sequence = model.generate(input_ids=ids, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    return model, ids, sequence


@pytest.mark.parametrize("name", ["llama", "marian"])
def test_a_certificate_is_tried_for_each_output_and_a_false_one_is_counted(name):
    model, ids, sequence = sharp(name)
    (found,) = hf_sparse.certify(model, {"input_ids": ids}, sequence)
    tried = changes(model, ids, sequence, found)
    some = sum(bool(found.deletable_for(output)) for output in found.needed)
    own = 1 + (found.change_removed is not None)
    assert len(tried) == some + (1 + own if found.deletable else 0)
    assert max(tried, default=0.0) < 1e-9
    false = DeletionCertificate(found.tokens, {output: [7] for output in found.needed}, 0.0, None)
    tally = Tally()
    tally.add(false.share, [7 / 8] * 3, changes(model, ids, sequence, false))
    assert tally.failures > 0
    assert tally.figures()["change"] > 1e-5


def test_what_certify_takes_back_is_a_failure(monkeypatch):
    def refuted(*arguments):
        raise RuntimeError("no certificate: scores change")

    model, ids, sequence = sharp("llama")
    assert certified(model, [({"input_ids": ids}, sequence)]).failures == 0
    monkeypatch.setattr(hf_sparse, "certify", refuted)
    assert certified(model, [({"input_ids": ids}, sequence)]).failures == 1


def test_encoder_states_without_weight_can_go_and_others_cannot(monkeypatch):
    model, inputs = tiny_whisper(attn=SHARP)
    model.double()
    states = model.get_encoder()(inputs["input_features"].double()).last_hidden_state[:1]
    sequence = torch.tensor([[1, 5, 7, 4]])
    for depth in (1, len(model.get_decoder().layers)):
        found = frames.certified_frames(first_layers(model, depth), [states], [sequence], 1).figures()
        assert (found["outputs"], found["failures"]) == (3, 0)
        assert found["tried"] > 0
    monkeypatch.setattr(frames, "needed_frames", lambda cross: torch.eye(4, states.shape[1]).bool())
    assert frames.certified_frames(first_layers(model, 2), [states], [sequence], 1).failures > 0


def test_a_small_run_of_the_translators_draws_a_certificate(tmp_path):
    arguments = ["--quick", "--only", "translation-1", "--out", str(tmp_path)]
    (run,) = recipe.main(recipe.STUDY, [*arguments, "--set", "width=16"])["runs"]
    assert len(run["figures"]["ways"]) == 4
    assert all(way["failures"] == 0 for way in run["figures"]["ways"])
    assert len(run["figures"]["example"]["needed"]) == len(run["figures"]["example"]["outputs"])
    assert (tmp_path / "certificate_translation-1.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "certificates.png").is_file()


def test_a_dense_translator_does_not_go_on_from_the_checkpoints_of_a_sparse_one(tmp_path, monkeypatch):
    class Interrupted(Exception):
        pass

    class AtTheThirdStep(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 2:
                raise Interrupted

    trained, train = [], tasks.train

    def recorded(model, *arguments, **options):
        train(model, *arguments, callbacks=[AtTheThirdStep()] if hf_sparse.is_sparse(model) else [], **options)
        trained.append([weight.clone() for weight in model.parameters()])
        if len(trained) == 2:
            raise Interrupted

    monkeypatch.setattr(tasks, "train", recorded)
    arguments = ["--quick", "--only", "translation-1", "--out", str(tmp_path), "--set", "width=16", "edges=()"]
    for _ in range(2):  # interrupted in the training of a sparse translator, and after that of the dense one
        with pytest.raises(Interrupted):
            recipe.main(recipe.STUDY, arguments)
    torch.testing.assert_close(*trained)


def test_a_language_model_of_ones_own_is_certified_by_depth(tmp_path, capsys):
    folder, path = tmp_path / "model", tmp_path / "text.txt"
    tiny_model("llama").save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    path.write_text(" ".join([WORDS] * 20), encoding="utf-8")
    arguments = ["--quick", "--data", str(path), "--only", "smollm2", "--out", str(tmp_path / "out")]
    (run,) = recipe.main(recipe.STUDY, [*arguments, "--set", f"source={folder}"])["runs"]
    assert {way["depth"] for way in run["figures"]["ways"]} == {1, 2}
    assert "deletions were run" in capsys.readouterr().out
    trained = tmp_path / "trained"
    hf_sparse.sparsify(tiny_model("llama", seed=1), attn=SHARP).save_pretrained(trained)
    changes = ["--set", f"source={folder}", f"trained={trained}", "--out", str(tmp_path / "again")]
    (again,) = recipe.main(recipe.STUDY, [*arguments, *changes])["runs"]
    ways = again["figures"]["ways"]
    assert ways[:-2] == run["figures"]["ways"]
    assert [way["way"] for way in ways[-2:]] == ["trained", "trained"]
    assert ways[-2]["alone"] > ways[-1]["alone"] >= 0
    assert ways[-1]["failures"] == 0


def test_a_trained_model_must_be_there(tmp_path, capsys):
    (tmp_path / "text.txt").write_text(WORDS, encoding="utf-8")
    arguments = ["--only", "smollm2", "--data", str(tmp_path / "text.txt"), "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit):
        recipe.main(recipe.STUDY, [*arguments, "--set", "trained=nowhere"])
    assert "trained must be the folder of a model of language or speech, was 'nowhere'" in capsys.readouterr().err


def test_pairs_that_cannot_be_read_are_refused_first(tmp_path, capsys):
    (tmp_path / "table.tsv").write_text("a\tb\tc\n", encoding="utf-8")
    arguments = ["--only", "translation-1", "--data", str(tmp_path / "table.tsv"), "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit):
        recipe.main(recipe.STUDY, arguments)
    assert "translation-1: " in (told := capsys.readouterr().err)
    assert "line 1: expected two fields" in told
    assert not (tmp_path / "out").exists()


def test_text_is_needed(tmp_path, capsys):
    with pytest.raises(SystemExit):
        recipe.main(recipe.STUDY, ["--quick", "--only", "whisper", "--out", str(tmp_path)])
    assert "--data must be a text file, was ''" in capsys.readouterr().err
    with pytest.raises(ValueError, match="part must be one of translation, language, speech, was 'x'"):
        recipe.Certificates(part="x")


def test_the_verdict_counts_failures(tmp_path, capsys):
    way = {"way": "w", "depth": 1, "quality": 0.5, "edges": 0.1, "together": 0.0, "alone": 0.25, "tried": 4}
    runs = [
        {
            "run": "translation-1",
            "settings": {"part": "translation", "source": ""},
            "figures": {"ways": [{**way, "failures": failures, "change": 0.5}], "dense": 0.5},
        }
        for failures in (0, 2)
    ]
    report({"runs": runs}, tmp_path)
    assert "8 deletions were run. The largest change of a raw score was 0.5, and 2 changed" in capsys.readouterr().out
    runs[0]["figures"]["ways"][0]["tried"] = 0
    report({"runs": runs[:1]}, tmp_path)
    assert "No deletion was run: nothing could be certified." in capsys.readouterr().out
    example = {"inputs": ["a", "b"], "outputs": ["x"], "tokens": [0, 1], "needed": {"0": [1]}, "change": 0.0}
    draw_example(example, tmp_path / "one.png")
    assert (tmp_path / "one.png").is_file()
