"""The recipe of pretrained models: its data, its prediction sets, and small runs on models made here."""

import copy
import dataclasses
import gzip
import json
import re
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, FalconConfig, MistralConfig

import hf_sparse
from hf_sparse.functional import entmax
from recipes.certificates import run as certificates
from recipes.conditioning import run as conditioning
from recipes.lib.blocks import read
from recipes.pretrained import data, encoders, language, promises, sentences, sets, speech, whisper
from recipes.pretrained import run as recipe
from recipes.pretrained.parts import PARTS, part_of
from recipes.pretrained.reactions import masked_batches
from recipes.pretrained.report import RESULT, card, table
from recipes.pretrained.sentences import recall
from recipes.pretrained.sources import load
from recipes.pretrained.trained import adapted, merged
from tests.tiny_models import DECODER, TOKENS, tiny_model
from tests.word_tokenizer import word_tokenizer

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")), reason="no C++ compiler is installed"
)
WORDS = " ".join(f"w{number}" for number in range(3, 23))
TINY = {**TOKENS, **DECODER, "vocab_size": 23}


@pytest.fixture
def logits():
    return 2 * torch.randn(300, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def target(logits):
    return torch.multinomial(logits.softmax(-1), 1, generator=torch.Generator().manual_seed(1))[:, 0]


def test_windows_of_the_two_halves_of_a_text_do_not_meet(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(" ".join([WORDS] * 4), encoding="utf-8")
    fit, test = data.windows(word_tokenizer(), path, 10, 3)
    ids = word_tokenizer()(path.read_text(encoding="utf-8")).input_ids
    assert fit.tolist() == [ids[0:10], ids[10:20], ids[30:40]]
    assert test.tolist() == [ids[40:50], ids[50:60], ids[70:80]]
    with pytest.raises(ValueError, match="two windows of 80 are needed"):
        data.windows(word_tokenizer(), path, 80, 1)


def test_captions_keep_some_words_in_their_order(tmp_path):
    path = tmp_path / "captions.txt"
    path.write_text(f"too short\n{WORDS}\na b c\n", encoding="utf-8")
    (some, whole), (few, _) = data.captions(path, 5)
    assert whole == WORDS
    assert len(some.split()) == round(0.35 * 20)
    assert [word for word in WORDS.split() if word in some.split()] == some.split()
    assert len(few.split()) == 2


def test_a_paragraph_is_cut_in_the_middle(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(f"heading\n\n{' '.join([WORDS] * 4)}\n" * 2, encoding="utf-8")
    (first, second), again = data.paragraphs(path, 9)
    assert again == (first, second)
    assert f"{first} {second}" == " ".join([WORDS] * 4)
    assert len(first.split()) == len(second.split())


def test_a_row_for_each_token_that_is_masked():
    tokenizer = word_tokenizer(mask_token="[MASK]")
    (batch,) = masked_batches(tokenizer, ["w5 w6 w7 w8"])
    ids = tokenizer("w5 w6 w7 w8").input_ids
    restored = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
    assert restored.tolist() == [ids] * (len(ids) - 2)
    assert (batch["input_ids"] == tokenizer.mask_token_id).sum(-1).tolist() == [1] * (len(ids) - 2)


def test_nucleus_is_the_largest_with_as_many_classes(logits):
    p, mass = sets.Nucleus(logits)(4.0)
    for row, kept in zip(logits.softmax(-1), p):
        ordered = row.sort(descending=True).values
        smallest = int((ordered.cumsum(-1) - ordered <= mass).sum())
        assert int((kept > 0).sum()) == smallest
        assert torch.equal(kept.topk(smallest).indices, row.topk(smallest).indices)
    torch.testing.assert_close(p.sum(-1), torch.ones(300, dtype=p.dtype))
    assert 3.9 < sets.mean_support(p) <= 4.0


def test_a_cut_keeps_the_likeliest_of_all_classes_of_all_rows(logits):
    p, least = sets.Cut(logits)(4.0)
    dense = logits.softmax(-1)
    assert torch.equal(p > 0, dense >= least)
    torch.testing.assert_close(p.sum(-1), torch.ones(300, dtype=p.dtype))
    torch.testing.assert_close(p[p > 0], (dense / dense.where(p > 0, 0.0).sum(-1, keepdim=True))[p > 0])
    assert 3.9 < sets.mean_support(p) <= 4.0
    none, _ = sets.Cut(logits)(0.01)
    assert sets.mean_support(none) <= 0.01
    assert bool((none.sum(-1) == 0).any())


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
def test_a_class_enters_the_support_at_its_temperature(alpha, logits, target):
    entries = promises.entry_temperature(logits, target, alpha)
    below, above = (entmax(logits / (entries * by)[:, None], alpha).gather(-1, target[:, None]) for by in (0.99, 1.01))
    later = entries > 0
    assert 50 < int(later.sum()) < 300
    assert not (below[later] > 0).any()
    assert (above[later] > 0).all()


def test_supports_are_counted_between_temperatures_and_not_above_them(logits, target):
    entries = promises.entry_temperature(logits, target, 1.5)
    supports = promises.Supports(logits, 1.5, entries)
    for temperature in (1.0, 1.7, 3.0):
        found = (entmax(logits / temperature, 1.5) > 0).sum(-1).double()
        assert float(supports(temperature).mean()) == pytest.approx(float(found.mean()), rel=0.05)
    assert supports(float("inf")).unique().tolist() == [12]


def test_sets_hold_what_was_asked_on_average_and_are_those_of_their_definitions(logits, target):
    settings = recipe.Pretrained(alphas=(1.2, 1.5), penalties=(0.01,))
    ways = promises.ways_of(logits, target, settings)
    (lac,) = ways["lac"]
    for limit in (-0.3, -0.05):
        assert torch.equal(lac.sizes(limit), (logits.softmax(-1) >= -limit).sum(-1).double())
    assert torch.equal(lac.of_targets, -logits.softmax(-1).gather(-1, target[:, None])[:, 0])
    (aps,), (raps,) = ways["aps"], ways["raps"]
    likelier = (logits > logits.gather(-1, target[:, None])).sum(-1)
    torch.testing.assert_close(raps.of_targets - aps.of_targets, 0.01 * likelier.double())
    found = promises.coverage(target, [0.8, 0.95], ways, 40)
    for asked, each in found.items():
        for name, pair in each.items():
            assert pair["coverage"] == pytest.approx(float(asked), abs=0.02), name
            assert 1 < pair["size"] < 12
    assert promises.quantile(torch.arange(9.0), 0.95) == float("inf")
    assert promises.quantile(torch.arange(19.0), 0.95) == 18


def test_recall_is_the_share_of_nearest_that_are_ones_own():
    assert recall(torch.eye(4), torch.eye(4)[[0, 1, 3, 2]]) == 0.5


@pytest.fixture
def language_model(tmp_path):
    folder = tmp_path / "model"
    tiny_model("llama").save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


def test_a_model_of_ones_own_is_measured_in_attention_and_at_its_head(tmp_path, language_model):
    (tmp_path / "text.txt").write_text(" ".join([WORDS] * 40), encoding="utf-8")
    given = ["--quick", "--data", str(tmp_path / "text.txt"), "--out", str(tmp_path / "out")]
    changes = {"attention": ["edges=0.7"], "head": ["classes=(4,)"], "coverage": []}
    for name, own in changes.items():
        arguments = [*given, "--only", f"smollm2-{name}", "--set", f"source={language_model}", *own]
        runs = recipe.main(recipe.STUDY, arguments)["runs"]
    attention, head, coverage = (run["figures"] for run in runs)
    assert attention["edges"] <= 0.8
    assert attention["own_report"]["after"] <= attention["own_report"]["before"]
    assert head["sizes"]["4"]["support"] == pytest.approx(4, rel=0.5)
    assert 0.5 < coverage["found"] <= 1
    assert [card(run, runs) is None for run in runs] == [False, True, False]
    for run in runs:
        assert "loss" in table([run]).splitlines()[-1]
    json.dumps(runs)


def test_keys_outside_a_window_are_no_zeros_of_the_map():
    ids = torch.randint(3, 20, (2, 12), generator=torch.Generator().manual_seed(0))
    causal = hf_sparse.sparsify(tiny_model("gemma2"), attn="softmax")  # a window of 4 in one of its layers
    assert language.loss_and_edges(causal, ids)[1] == 1
    masked = hf_sparse.sparsify(tiny_model("modernbert", local_attention=4), attn="softmax")
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    batch["attention_mask"][1, 8:] = 0
    assert encoders.zeros_of(masked, [batch]) == 0


@needs_compiler
def test_a_screened_head_is_compared_with_the_whole_product(tmp_path, language_model):
    (tmp_path / "text.txt").write_text(" ".join([WORDS] * 40), encoding="utf-8")
    arguments = ["--quick", "--data", str(tmp_path / "text.txt"), "--only", "smollm2-head-screened"]
    changes = ["--out", str(tmp_path / "out"), "--set", f"source={language_model}"]
    (run,) = recipe.main(recipe.STUDY, [*arguments, *changes])["runs"]
    assert run["figures"]["steps"] == 4 * 32
    for found in run["figures"]["maps"].values():
        assert found["differing"] == 0
        assert found["furthest"] < 1e-5
        assert 1 < found["support"] <= 23


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_decoding_over_a_cache_is_compared_with_reading_all_of_it(dtype, tmp_path, language_model):
    (tmp_path / "text.txt").write_text(" ".join([WORDS] * 40), encoding="utf-8")
    arguments = ["--quick", "--data", str(tmp_path / "text.txt"), "--only", "smollm2-cache"]
    changes = ["--out", str(tmp_path / "out"), "--set", f"source={language_model}", "edges=0.7", f"dtype={dtype}"]
    (run,) = recipe.main(recipe.STUDY, [*arguments, *changes])["runs"]
    assert list(run["figures"]["contexts"]) == ["32", "64"]
    for found in run["figures"]["contexts"].values():
        assert (found["proved"], found["whole"], found["tokens"]) == (1, {}, 2)
        assert found["exact_share"] < found["share"]
        assert found["furthest"] < (1e-5 if dtype == "float32" else 0.05)
    assert card(run, [run]) is None


@needs_compiler
def test_decoding_over_a_cache_knows_layers_with_a_sliding_window(tmp_path):
    """They forget, so that a cache cannot be taken back to an earlier context."""
    folder = tmp_path / "model"
    tiny_model("gemma2").save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    (tmp_path / "text.txt").write_text(" ".join([WORDS] * 40), encoding="utf-8")
    arguments = ["--quick", "--data", str(tmp_path / "text.txt"), "--only", "smollm2-cache"]
    changes = ["--out", str(tmp_path / "out"), "--set", f"source={folder}", "edges=0.7"]
    (run,) = recipe.main(recipe.STUDY, [*arguments, *changes])["runs"]
    for found in run["figures"]["contexts"].values():
        assert (found["proved"], found["differing"]) == (1, 0)
        assert found["furthest"] < 1e-5


@needs_compiler
@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MistralConfig(sliding_window=8, num_key_value_heads=2, **TINY), "every layer has a sliding window"),
        (FalconConfig(**TINY), "does not hand its keys from the cache to sparse attention as they are"),
    ],
)
def test_models_that_cannot_be_screened_are_named_before_anything_long_is_run(config, message, tmp_path, capsys):
    folder = tmp_path / "model"
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    (tmp_path / "text.txt").write_text(" ".join([WORDS] * 40), encoding="utf-8")
    arguments = ["--quick", "--data", str(tmp_path / "text.txt"), "--only", "smollm2-cache"]
    with pytest.raises(SystemExit):
        recipe.main(recipe.STUDY, [*arguments, "--out", str(tmp_path / "out"), "--set", f"source={folder}"])
    assert message in capsys.readouterr().err


def test_adapters_are_in_all_layers_of_a_model_of_other_names():
    model = tiny_model("gpt2")
    found = adapted(model, recipe.Pretrained(part="trained", rank=2))
    places = {name.split(".lora")[0].rpartition(".")[2] for name, _ in found.named_parameters() if ".lora" in name}
    assert places == {"c_attn", "c_proj", "c_fc"}
    assert merged(found) is model


@pytest.mark.parametrize("rank", [0, 2])
def test_a_model_is_trained_beside_a_dense_one(rank, tmp_path, language_model):
    (tmp_path / "text.txt").write_text(" ".join([WORDS] * 40), encoding="utf-8")
    arguments = ["--quick", "--data", str(tmp_path / "text.txt"), "--only", "smollm2-trained"]
    changes = ["--out", str(tmp_path / "out"), "--set", f"source={language_model}", "edges=0.7", f"rank={rank}"]
    (run,) = recipe.main(recipe.STUDY, [*arguments, *changes])["runs"]
    figures = run["figures"]
    assert len(figures["curve"]) == 2
    assert figures["curve"][0]["edge_price"] != 1
    assert (figures["continued"] == figures["dense"]) == (rank == 0)
    assert figures["trained"] != figures["calibrated"]
    assert 0 < figures["edges"] < 1
    own = card(run, [run])
    assert own.rows["trained"]["zeros"] == 1 - figures["edges"]
    assert "after 2 steps" in table([run])
    loaded = hf_sparse.from_pretrained(tmp_path / "out" / "runs" / "smollm2-trained-0" / "model")
    assert {rule.map.name for rule in hf_sparse.sparse_config(loaded).attn} == {"entmax"}
    assert loaded.model.layers[0].self_attn.sparse_temperature.value.shape == (4,)


def test_a_head_is_trained_for_few_classes_beside_a_dense_one(tmp_path, language_model):
    (tmp_path / "text.txt").write_text(" ".join([WORDS] * 40), encoding="utf-8")
    arguments = ["--quick", "--data", str(tmp_path / "text.txt"), "--only", "smollm2-head-trained"]
    changes = ["--out", str(tmp_path / "out"), "--set", f"source={language_model}", "few_classes=8"]
    (run,) = recipe.main(recipe.STUDY, [*arguments, *changes])["runs"]
    figures = run["figures"]
    assert figures["trained"]["loss"] != figures["calibrated"]["loss"]
    assert figures["continued"]["loss"] != figures["dense"]["loss"]
    for way in ("calibrated", "trained", "cut"):
        assert figures[way]["support"] == pytest.approx(8, rel=0.3)
        assert 0 < figures[way]["found"] < 1
    assert "possible, after 2 steps" in table([run])
    assert card(run, [run]).rows["trained"] == figures["trained"]
    ((aim, found, _),) = PARTS["trained_head"].verdicts([run])
    assert "at most 8 classes" in aim
    assert "best cut" in found


def test_the_encoder_of_an_encoder_decoder_reads_texts(tmp_path):
    tiny_model("t5").save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    model, tokenizer = load(str(tmp_path), "encoder")
    assert model(**tokenizer("w5 w6", return_tensors="pt")).last_hidden_state.shape == (1, 2, 32)


@pytest.mark.parametrize("part", ["captions", "paragraphs"])
def test_an_encoder_is_distilled_from_texts_that_it_is_not_judged_on(part, tmp_path):
    folder, path = tmp_path / "model", tmp_path / "text.txt"
    tiny_model("bert").save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    lines = [" ".join(f"w{n}" for n in torch.randint(3, 23, (60,), generator=generator).tolist()) for _ in range(40)]
    path.write_text("\n".join(lines), encoding="utf-8")
    arguments = ["--quick", "--data", str(path), "--only", f"minilm-{part}-distilled", "--out", str(tmp_path / "out")]
    changes = ["--set", f"source={folder}", "edges=0.3", "steps=20"]
    (run,) = recipe.main(recipe.STUDY, [*arguments, *changes])["runs"]
    figures = run["figures"]
    assert figures["distilled"]["spearman"] != figures["calibrated"]["spearman"]
    assert "after 20 steps of distillation" in table([run])
    assert card(run, [run]).rows["distilled"] == figures["distilled"]
    ((aim, found, _),) = PARTS[part].verdicts([run])
    assert "distilled" in aim
    assert f"{figures['distilled']['spearman']:.3f}" in found

    settings = recipe.Pretrained(
        part=part, data=str(path), distil=True, steps=100, distil_batch=16, learning_rate=1e-3
    )
    judged = sentences.PAIRS[part](path, 16)[1::2]
    texts = sentences.texts_beside(judged, settings)
    assert len(texts) == 2 * (40 - len(judged))
    assert not set(texts).intersection(side for pair in judged for side in pair)
    dense = tiny_model("bert").bert.eval()
    (batch,) = data.batches_of(word_tokenizer(), texts, len(texts))
    model = hf_sparse.sparsify(copy.deepcopy(dense), attn="entmax15", example=batch)
    wanted = encoders.embeddings(dense, [batch])
    before = (encoders.embeddings(model, [batch]) - wanted).square().sum()
    sentences.distil(model, dense, word_tokenizer(), texts, settings)
    assert (encoders.embeddings(model, [batch]) - wanted).square().sum() < before / 4


def test_words_are_counted_wrong_case_and_punctuation_aside():
    heard = [speech.Clip("The old man, he walked.", torch.zeros(0)), speech.Clip("To the harbor.", torch.zeros(0))]
    assert whisper.error_rate(["the old man he walked", "to the harbor"], heard) == 0
    assert whisper.error_rate(["the man he walks", "to the the harbor"], heard) == 3 / 8


@pytest.mark.parametrize(("fit_rows", "rows"), [(4, 30), (8, 300), (40, 30), (16, 16)])
def test_no_sentence_is_fitted_and_judged_on(fit_rows, rows, monkeypatch, tmp_path):
    monkeypatch.setattr(whisper, "spoken_clips", lambda processor, sentences, *how: sentences)
    sentences = [f"this is the sentence with number {number}" for number in range(97)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join([*sentences, *sentences[:3]]), encoding="utf-8")
    settings = dataclasses.replace(recipe.RUNS["whisper-decoder"], data=str(path), rows=rows)
    fit, test = whisper.fit_and_test(settings, None, fit_rows)
    assert test == speech.sentences_of(path, rows, 1)
    assert fit
    assert not set(fit) & set(test)


def test_a_text_of_one_sentence_has_none_to_fit_on(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("one and the same sentence\n" * 4, encoding="utf-8")
    settings = dataclasses.replace(recipe.RUNS["whisper-decoder"], data=str(path))
    with pytest.raises(ValueError, match="has no sentences but those to judge on"):
        whisper.fit_and_test(settings, None, 8)


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng, which speaks the sentence")
def test_speech_is_at_the_rate_that_models_hear():
    sound = speech.spoken("Two young men are outside near many bushes.", "en-us")
    assert 1.5 < len(sound) / speech.RATE < 5
    assert sound.dtype == np.float32
    assert 0.05 < np.abs(sound).max() <= 1


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng, which knows its voices")
def test_voices_that_are_not_there_are_refused():
    speech.check_voices(recipe.Pretrained().voices, recipe.Pretrained().fit_voices)
    for wrong in ("en-zz", "en-us+nobody"):
        with pytest.raises(ValueError, match=f"espeak-ng has no voice '{re.escape(wrong)}'"):
            speech.check_voices(("en-us", wrong))


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng, which speaks the sentence")
def test_a_sentence_may_begin_with_a_dash():
    assert len(speech.spoken("-- and then they left", "en-us")) > speech.RATE / 2


def test_speech_without_its_program_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for refused in (speech.check_voices, lambda voices: speech.spoken_clips(None, ["a sentence"], voices, 0.0, 0)):
        with pytest.raises(ValueError, match="espeak-ng, which is not installed"):
            refused(("en-us",))


SPEAKING = [
    *((recipe.STUDY, run) for run in ("whisper-decoder", "whisper-trained", "whisper-times", "whisper-head")),
    (certificates.STUDY, "whisper"),
    (conditioning.STUDY, "commands"),
]


@pytest.fixture(params=SPEAKING, ids=lambda param: f"{param[0].name}-{param[1]}")
def refusal(request, tmp_path, capsys):
    """What a run that speaks says with some changes; nothing is begun."""
    study, run = request.param
    (tmp_path / "text.txt").write_text("this is a sentence of words\n" * 4, encoding="utf-8")
    data = [] if study is conditioning.STUDY else ["--data", str(tmp_path / "text.txt")]

    def told(*changes):
        with pytest.raises(SystemExit):
            recipe.main(study, ["--only", run, "--out", str(tmp_path / "out"), *data, *changes])
        assert not (tmp_path / "out").exists()
        return capsys.readouterr().err.partition(f"error: {run}: ")[2]

    return told


def test_the_program_that_speaks_is_looked_for_before_anything_is_run(refusal, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refusal().startswith("speech is made by espeak-ng, which is not installed")


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng, which knows its voices")
def test_voices_are_looked_for_before_anything_is_run(refusal):
    assert refusal("--set", "fit_voices=()").startswith("speech needs at least one voice")
    for voices in ("voices", "fit_voices"):
        assert refusal("--set", f"{voices}=('en-zz',)").startswith("espeak-ng has no voice 'en-zz'")


def test_texts_without_what_is_needed_are_refused(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("two words\nand two\n", encoding="utf-8")
    with pytest.raises(ValueError, match="has 0 lines of 60 to 200 words"):
        data.paragraphs(path, 4)
    with pytest.raises(ValueError, match="has 0 lines of three words or more"):
        data.captions(path, 4)
    with pytest.raises(ValueError, match="has 0 lines of 5 to 20 words"):
        speech.sentences_of(path, 1, 0)


def test_a_text_may_be_compressed(tmp_path):
    text = " ".join([WORDS] * 4)
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(text.encode()))
    plain, compressed = (
        data.windows(word_tokenizer(), tmp_path / name, 10, 3) for name in ("text.txt", "text.txt.gz")
    )
    assert torch.equal(torch.stack(plain), torch.stack(compressed))


def test_a_run_without_its_text_is_refused():
    with pytest.raises(ValueError, match="--data must be a text file, was ''"):
        recipe.check(recipe.RUNS["smollm2-head"])
    with pytest.raises(ValueError, match=r"part must be one of attention, .* was 'tail'"):
        recipe.Pretrained(part="tail")


@pytest.mark.parametrize("record", read(RESULT)["runs"], ids=lambda record: record["run"])
def test_what_a_part_says_of_a_committed_run_fills_its_tables(record):
    part, figures = part_of(record), record["figures"]
    if part.cells is not None:
        assert len(part.cells(record["settings"], figures)) == 6
    assert (part.description is None) == ("config" not in figures)
    if part.description is not None:
        for row in part.description.ways(figures).values():
            assert all(measure.text(row) for measure in part.description.measures)


def test_a_card_tells_a_bound_of_half_a_percent():
    records = read(RESULT)["runs"]
    (record,) = [each for each in records if each["run"] == "smollm2-settings"]
    made = card(record | {"weights": "model", "command": "the command"}, records)
    assert "at a loss at most 0.5 % above the dense model's" in made.text()
