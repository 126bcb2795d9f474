"""The translation sweep: its runs, its data, and its figures against others counted by hand."""

from __future__ import annotations

import dataclasses
import json
import math
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

import hf_sparse
from recipes.lib.batches import padding_collator
from recipes.lib.study import main
from recipes.translation.data import read_named
from recipes.translation_sweep import measures, report, times
from recipes.translation_sweep import run as recipe
from recipes.translation_sweep.data import read_task


@pytest.fixture(scope="module")
def made() -> SimpleNamespace:
    corpus, tokenizer, rows = read_task("", "de", "en", "", False, 100, 150)

    def build(**maps):
        model = recipe.build_model(tokenizer, 0)
        return (hf_sparse.sparsify(model, **maps) if maps else model).eval()

    return SimpleNamespace(corpus=corpus, tokenizer=tokenizer, rows=rows, build=build)


def test_runs_cover_what_the_papers_compare():
    runs = recipe.runs()
    assert runs["softmax"].head is runs["softmax"].attention is None
    maps = {
        name: tuple(given and given["name"] for given in (settings.head, settings.attention))
        for name, settings in runs.items()
        if not name.startswith("cross")
    }
    assert maps["entmax15"] == ("entmax15", "entmax15")
    assert maps["output-alpha_relu"] == ("alpha_relu", None)
    assert maps["output-1"] == (None, "entmax15")
    assert maps["attention-2"] == ("entmax15", "sparsemax")
    assert runs["cross-sparsegen_lin--1"].attention == {"cross": {"name": "sparsegen_lin", "lam": -1.0}}
    assert runs["en-de-sparsemax"].reverse
    assert runs["entmax15-smoothed"].label_smoothing > 0
    assert runs["output-alpha_relu-tau-5"].head["tau"] == 5
    assert runs["attention-learned"].attention["alpha"] == "learned"
    assert [name for name, settings in runs.items() if not settings.tied] == [
        "softmax-untied",
        "output-alpha_relu-untied",
    ]
    assert len({json.dumps(dataclasses.asdict(settings)) for settings in runs.values()}) == len(runs)


def test_heads_from_scratch_have_the_temperature_of_the_package():
    runs = recipe.runs()
    assert {s.head["temperature"] for s in runs.values() if s.head and not s.head_from} == {"auto"}
    temperatures = {name: runs[name].attention["temperature"] for name in ("entmax15", "sparsemax", "attention-1.33")}
    assert temperatures["sparsemax"] == pytest.approx(temperatures["entmax15"] ** 2)
    assert 1 < temperatures["attention-1.33"] < temperatures["entmax15"]
    entmax15, softmax = (recipe.tempered(runs[name].head, 0.5, 4096) for name in ("entmax15", "softmax-tempered"))
    assert (entmax15["temperature"], softmax["temperature"]) == (4, 0.5)
    assert recipe.tempered({"name": "entmax15", "temperature": 3.0}, 0.5, 4096)["temperature"] == 3
    assert recipe.tempered(None, 0.5, 4096) is None


def test_trials_are_shared_evenly_and_see_no_test_rows():
    trials = recipe.trials()
    assert {settings.part for settings in trials.values()} == {"dev"}
    softmax = [name for name in trials if name.startswith("trial-softmax")]
    assert len(trials) == 2 * len(softmax) == 10


def test_five_heads_have_the_same_learning_rates_to_choose_from():
    found = recipe.rates()
    assert {(settings.part, settings.beams, settings.steps) for settings in found.values()} == {("dev", 1, 3400)}
    rates = {}
    for settings in found.values():
        rates.setdefault(str(settings.head), []).append(settings.lr)
    assert list(rates.values()) == [[1e-3, 2e-3, 3e-3]] * 5


def test_temperatures_are_compared_on_dev_rows():
    found = recipe.temperatures()
    assert {(settings.part, settings.beams) for settings in found.values()} == {("dev", 1)}
    heads = {(settings.head or {}).get("name", "softmax") for settings in found.values()}
    assert heads == {"softmax", "entmax", "entmax15", "sparsemax"}
    assert found["temperature-8"].head_from is None
    moved = found["temperature-31.6-to-4"]
    assert (moved.over, moved.head_from) == (0.8, {"temperature": 31.6})


def test_models_are_timed_in_turns_on_the_same_batches(tmp_path, monkeypatch):
    seen, folders, trained = {}, set(), times.train
    monkeypatch.setattr(times, "TURNS", 2)
    monkeypatch.setattr(times, "SYSTEMS", ("softmax", "entmax15"))

    def train(model, tokenizer, rows, folder, *, collator, **options):
        folders.add(folder)

        def collated(rows):
            seen.setdefault(hf_sparse.is_sparse(model), []).append(batch := collator(rows))
            return batch

        return trained(model, tokenizer, rows, folder, collator=collated, **options)

    monkeypatch.setattr(times, "train", train)
    arguments = ["--quick", "--out", str(tmp_path), "--set", "steps=2", "train_rows=40", "vocabulary=150"]
    ((run,), *_) = main(times.STUDY, arguments).values()
    seconds = run["figures"]["step_cpu_seconds"]
    assert {name: len(turns) for name, turns in seconds.items()} == {"softmax": 2, "entmax15": 2}
    assert all(each > 0 for turns in seconds.values() for each in turns)
    dense, sparse = ([batch["labels"].tolist() for batch in seen[kind]] for kind in (False, True))
    assert dense == sparse
    assert dense[:2] != dense[2:]  # other rows in each turn
    assert len(folders) == 4  # an interrupted one leaves no checkpoint for another model


def test_settings_that_timing_does_not_read_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(times.STUDY, ["--quick", "--out", str(tmp_path), "--set", "label_smoothing=0.1"])
    assert "no run asked for reads label_smoothing" in capsys.readouterr().err


def test_speeds_are_steps_a_second_beside_those_of_softmax():
    figures = {"step_cpu_seconds": {"softmax": [3.0, 1.0, 1.0, 1.0], "entmax15": [4.0, 2.0, 2.0, 4.0]}}
    assert report.training_speeds(figures) == {"softmax": [1.0] * 4, "entmax15": [0.75, 0.5, 0.5, 0.25]}
    shown = "| entmax15 | 3.00 (2.00 to 4.00) | 0.75 | 0.38 (0.25 to 0.50) |"
    assert report.speeds(figures).splitlines()[-1] == shown


def test_a_run_that_is_interrupted_while_it_is_measured_is_not_trained_again(tmp_path, monkeypatch):
    study = dataclasses.replace(recipe.STUDY, runs={"entmax15": recipe.runs()["entmax15"]})
    arguments = ["--quick", "--out", str(tmp_path), "--set", "steps=2", "test_rows=3"]

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recipe, "decode_normalized", interrupted)
        with pytest.raises(KeyboardInterrupt):
            main(study, arguments)
    (model,) = tmp_path.rglob("model.safetensors")
    weights = model.read_bytes()
    monkeypatch.setattr(recipe, "train", interrupted)
    ((run,), *_) = main(study, arguments).values()
    assert [point["step"] for point in run["figures"]["curve"]] == [0, 1, 2]
    assert run["figures"]["tokens_per_cpu_second"] > 0
    assert model.read_bytes() == weights


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("part=train", "part must be one of test, dev, was 'train'"),
        ("metric=meteor", "metric must be one of bleu, rouge, was 'meteor'"),
        ("steps=0", "steps must be above 0, was 0"),
        ("beams=0", "beams must be above 0, was 0"),
        ("train_rows=-1", "train_rows must be above 0, or 0 for all, was -1"),
        ("label_smoothing=1", "label_smoothing must be at least 0 and below 1, was 1"),
        ("head=entmx15", "unknown sparse map 'entmx15'"),
        ("attention=entmx15", "unknown sparse map 'entmx15'"),
    ],
)
def test_wrong_settings_are_named_before_anything_is_trained(change, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(recipe.STUDY, ["--only", "softmax", "--set", change, "--out", str(tmp_path / "out")])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_every_kind_of_data_gives_a_corpus(tmp_path):
    named = read_named
    lines = [f"s{index}\tt{index}\n" for index in range(20)]
    (tmp_path / "table.tsv").write_text("".join(lines), encoding="utf-8")
    table = named(str(tmp_path / "table.tsv"), "de", "en")
    assert [pair.source for pair in table.dev] == ["s3", "s13"]
    assert [pair.source for pair in table.test] == ["s7", "s17"]
    assert len(table.train) == 16
    for part in ("train", "val", "test"):
        for language in ("de", "en"):
            (tmp_path / f"{part}.{language}").write_text(f"{part} {language}\n", encoding="utf-8")
    assert named(str(tmp_path), "en", "de").test == [("test en", "test de")]
    for part in ("train", "validation", "test"):
        (tmp_path / "set").mkdir(exist_ok=True)
        (tmp_path / "set" / f"{part}.jsonl").write_text('{"de": "a", "en": "b"}\n', encoding="utf-8")
    assert named(str(tmp_path / "set"), "de", "en").dev == [("a", "b")]
    assert len(named("", "de", "en").train) == 2400


def test_a_reversed_corpus_has_its_sides_exchanged(made):
    turned, _, rows = read_task("", "de", "en", "", True, 100, 150)
    assert turned.test[0] == made.corpus.test[0][::-1]
    assert rows[0]["labels"][-1] == made.tokenizer.eos_token_id
    assert len(turned.train) == len(made.corpus.train) == 100


def test_alphas_are_those_that_each_head_has_learned(made):
    model = made.build(attn={"name": "entmax", "alpha": {"learned": 1.3}})
    cross = model.model.decoder.layers[1].encoder_attn.sparse_alpha
    with torch.no_grad():
        cross.value.copy_(torch.logit(torch.tensor([0.25, 0.5, 0.75, 0.125])))
    found = measures.alphas(model)["alphas"]
    assert found == {
        "encoder": [[1.3] * 4] * 2,
        "decoder": [[1.3] * 4] * 2,
        "cross": [[1.3] * 4, [1.25, 1.5, 1.75, 1.125]],
    }
    cross_alone = made.build(attn={"encoder": "entmax15", "cross": {"name": "entmax", "alpha": {"learned": 1.3}}})
    assert measures.alphas(cross_alone) == {"alphas": {"cross": [[1.3] * 4] * 2}}
    assert measures.alphas(made.build(attn="entmax15")) == measures.alphas(made.build()) == {}


def test_a_model_is_untied_where_asked(made):
    tied, untied = (recipe.build_model(made.tokenizer, 0, tied=tied) for tied in (True, False))
    tables = [
        untied.lm_head.weight,
        untied.model.encoder.embed_tokens.weight,
        untied.model.decoder.embed_tokens.weight,
    ]
    assert len({table.data_ptr() for table in tables}) == 3
    assert untied.num_parameters() == tied.num_parameters() + 2 * tables[0].numel()


@pytest.mark.parametrize(
    "maps",
    [{}, {"attn": {"cross": "sparsemax"}}, {"attn": "entmax15", "head": "entmax15"}, {"head": "alpha_relu"}],
    ids=["dense", "cross", "both", "alpha_relu"],
)
def test_supports_are_those_of_the_single_forward_passes(made, maps):
    model, pairs = made.build(**maps), made.corpus.test[:3]
    figures = measures.forced_figures(model, made.tokenizer, pairs)
    if "attn" not in maps:
        model.set_attn_implementation("eager")
    supports, sums, attended, right, missed = [], [], [], [], []
    for source, target in pairs:
        inputs = made.tokenizer(source, return_tensors="pt")
        labels = made.tokenizer(target, return_tensors="pt").input_ids
        with torch.no_grad():
            output = model(**inputs, labels=labels, output_attentions=True)
        z = output.logits[0].double()
        if maps.get("head") == "alpha_relu":
            p = (z / 2 - hf_sparse.sparse_config(model).to_dict()["head"]["tau"]).clamp(min=0) ** 2
        else:
            p = hf_sparse.probabilities(model, z) if maps else z.softmax(-1)
        for row, label in enumerate(labels[0].tolist()):
            right.append(int(p[row].argmax()) == label)
            missed.append(float(p[row, label]) == 0)
        supports += (p > 0).sum(-1).tolist()
        sums += p.sum(-1).tolist()
        for weights in output.cross_attentions:
            attended += (weights > 0).sum(-1).flatten().tolist()
    assert figures["accuracy"] == sum(right) / len(right)
    assert figures["missed"] == sum(missed) / len(missed)
    assert figures["head_support"] == pytest.approx(sum(supports) / len(supports), rel=1e-3)
    assert sum(figures["head_support_histogram"].values()) == len(supports)
    assert figures["head_support_histogram"].get("1", 0) == supports.count(1)
    assert figures["head_sum"]["mean"] == pytest.approx(sum(sums) / len(sums), rel=1e-4)
    assert figures["attended"] == pytest.approx(sum(attended) / len(attended), rel=1e-4)
    assert (figures["attended_share"] == 1) == ("attn" not in maps)


def test_texts_longer_than_the_model_reads_are_cut(made):
    pair = (made.corpus.test[0].source * 50, made.corpus.test[0].target * 50)
    model, pairs = made.build(), [type(made.corpus.test[0])(*pair)]
    model.generation_config.max_new_tokens = 3
    assert len(made.tokenizer(pair[0]).input_ids) > model.config.max_position_embeddings
    assert measures.forced_figures(model, made.tokenizer, pairs)["attended"] <= model.config.max_position_embeddings
    assert len(measures.decode(model, made.tokenizer, [pair[0]], beams=2)[0]) == 1
    shown = measures.example(model, made.tokenizer, pairs)
    assert (len(shown["weights"]), len(shown["weights"][0])) == (len(shown["queries"]), len(shown["keys"]))


def test_the_empty_string_is_counted_where_it_is_likelier_than_the_translation(made):
    model, sources = made.build(), [pair.source for pair in made.corpus.test[:3]]
    end = made.tokenizer.eos_token_id
    with torch.no_grad():
        model.final_logits_bias[0, end] = 50.0
    texts, empty = measures.decode(model, made.tokenizer, sources, beams=2)
    assert (texts, empty) == ([""] * 3, {"empty_preferred": 0.0, "empty_found": 1.0})
    with torch.no_grad():
        model.final_logits_bias[0, end] = -50.0
    texts, empty = measures.decode(model, made.tokenizer, sources, beams=2)
    assert all(texts)
    assert empty["empty_found"] == 0


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_curves_hold_the_threshold_that_makes_entmax_sum_to_one(made, temperature):
    model = made.build(head={"name": "entmax15", "temperature": temperature})
    collator = padding_collator(made.tokenizer, model)
    state, batch = SimpleNamespace(global_step=0, log_history=[]), collator(list(made.rows.select(range(4))))
    measures.Curve(batch, every=2).on_train_begin(None, state, None, model=model)
    (point,) = state.log_history
    assert model.training
    with torch.no_grad():
        raw = model.eval()(**batch).logits[batch["labels"] != -100].double()
    z = raw / temperature
    low, high = z.amax(-1) / 2 - 1, z.amax(-1) / 2
    for _ in range(60):
        middle = (low + high) / 2
        above = ((z / 2 - middle[:, None]).clamp(min=0) ** 2).sum(-1) > 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    assert point["threshold"] == pytest.approx(float(low.mean()), rel=1e-4)
    assert point["logit_norm"] == pytest.approx(float(raw.norm(dim=-1).mean()), rel=1e-4)
    assert point["head_support"] == pytest.approx(float((z / 2 > low[:, None]).sum(-1).double().mean()), rel=1e-2)


def test_metrics():
    pytest.importorskip("sacrebleu")
    pytest.importorskip("rouge_score")
    assert measures.scores("bleu", ["the cat sat on it"], ["the cat sat on it"])["bleu"] == pytest.approx(100)
    one_of_two = measures.scores("bleu", ["a b c d e f", "k"] * 20, ["a b c d e f", "g h i j k l"] * 20)
    assert 0 < one_of_two["bleu_interval"] < 20
    chinese = ["一个女人在厨房里做饭。"], ["一个男人在厨房里做饭。"]
    assert measures.scores("bleu", *chinese, "zh")["bleu"] > 60 > 20 > measures.scores("bleu", *chinese)["bleu"]
    assert recipe.written(recipe.Sweep(source="zh", reverse=True)) == recipe.written(recipe.Sweep(target="zh")) == "zh"
    assert measures.scores("bleu", ["a b c d e"] * 9, ["a b c d e"] * 9)["bleu_interval"] == 0
    rouge = measures.scores("rouge", ["the cat", "dogs"], ["the cat sat down", "dogs"])
    assert rouge["rouge1"] == pytest.approx(100 * (2 / 3 + 1) / 2)
    assert rouge["rouge2"] == pytest.approx(100 * (2 * 1 / 3 / (4 / 3)) / 2)
    with pytest.raises(ValueError, match="metric must be bleu or rouge, was 'meteor'"):
        measures.scores("meteor", ["a"], ["a"])


@pytest.mark.slow
def test_a_quick_run_gives_figures_and_pictures(tmp_path):
    pytest.importorskip("rouge_score")
    runs = {name: recipe.runs()[name] for name in ("softmax", "output-alpha_relu", "cross-sparsegen_lin-0.5")}
    arguments = ["--quick", "--out", str(tmp_path), "--set", "metric=rouge", "steps=2", "test_rows=3"]
    results = main(dataclasses.replace(recipe.STUDY, runs=runs), arguments)
    for record in results["runs"]:
        figures = record["figures"]
        assert 0 <= figures["rouge1"] <= 100
        assert figures["tokens_per_cpu_second"] > 0
        assert [point["step"] for point in figures["curve"]] == [0, 1, 2]
        assert all(math.isclose(sum(row), 1, abs_tol=0.01) for row in figures["example"]["weights"])
        assert len(figures["example"]["weights"]) == len(figures["example"]["queries"])
        folder = tmp_path / "runs" / f"{record['run']}-0" / "model"
        config = record["figures"]["config"]
        model = AutoModelForSeq2SeqLM.from_pretrained(folder)
        assert (hf_sparse.sparse_config(model).to_dict() if hf_sparse.is_sparse(model) else None) == config
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "sweep_training.png", "sweep_accuracy.png", "sweep_supports.png", "sweep_attention.png",
    }  # fmt: skip
