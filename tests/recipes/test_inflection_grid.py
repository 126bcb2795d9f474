"""The inflection grid: its rows, its certificates against enumeration, its ensembles."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from matplotlib.axes import Axes

import hf_sparse
from recipes.inflection.model import source_text
from recipes.inflection_grid import data, measures
from recipes.inflection_grid import run as recipe
from recipes.inflection_grid.pictures import draw
from recipes.inflection_grid.report import card, map_name, output_name
from recipes.lib.records import CannotRun, write_json
from recipes.lib.study import main

LINES = {
    "german-train-medium": "gehen\tging\tV;PST\nsehen\tsah\tV;PST\n",
    "german-dev": "stehen\tstand\tV;PST\nlesen\tlas\tV;PST\ngeben\tgab\tV;PST\n",
    "turkish-train-medium": "ev\tevler\tN;PL\n",
    "turkish-dev": "el\teller\tN;PL\n",
    "german-test": "nehmen\tnahm\tV;PST\n",
}


@pytest.fixture(scope="module")
def sigmorphon(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sigmorphon")
    for name, text in LINES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def task(sigmorphon):
    return data.prepared(str(sigmorphon), "german,turkish", "medium", 2)


def test_the_language_is_a_token_before_the_tags(task):
    assert [source_text(row["lemma"], row["tags"]) for row in task.train][::2] == [
        "gehen<german><V><PST>",
        "ev<turkish><N><PL>",
    ]
    assert [row["form"] for row in task.dev] == ["stand", "las", "eller"]
    assert "<turkish>" in task.tokenizer.get_vocab()


def test_test_sets_are_evaluated_on_where_they_are_asked_for(sigmorphon):
    task = data.prepared(str(sigmorphon), "german", "medium", 2, "test")
    assert (task.dev["form"][:], task.train["form"][:]) == (["nahm"], ["ging", "sah"])


def test_the_grid_is_that_of_the_paper_and_one_more():
    trained = {
        name: (map_name(run.head), map_name(run.attention)) for name, run in recipe.runs().items() if not run.members
    }
    maps = ("softmax (1)", "entmax (1.5)", "sparsemax (2)")
    assert set(trained.values()) == {(a, b) for a in maps for b in maps} | {("alpha_relu", "entmax (1.5)")}
    assert {run.members for run in recipe.runs().values()} - {""} == set(trained)


def test_sparsemax_may_begin_as_entmax15(sigmorphon, tmp_path, monkeypatch):
    quick = {**recipe.QUICK, "data": str(sigmorphon), "languages": "german,turkish"}
    settings = dataclasses.replace(recipe.runs()["output-2-from-1.5-attention-1"], **quick)
    assert output_name(dataclasses.asdict(settings)) == "sparsemax (2) from alpha 1.5"
    seen, train = [], recipe.train

    def watched(model, *arguments, **options):
        def look(*_):
            if model.training and torch.is_grad_enabled():
                seen.append(hf_sparse.sparse_config(model).head)

        hook = model.register_forward_pre_hook(look)
        log = train(model, *arguments, **options)
        hook.remove()
        return log

    monkeypatch.setattr(recipe, "train", watched)
    recipe.perform(settings, tmp_path)
    assert [head.spelled_out.map_settings["alpha"] for head in seen] == [1.5, 1.75, 2.0, 2.0]
    assert {head.temperature for head in seen} == {4.0}


@pytest.mark.parametrize("name", ["output-1-attention-1", "output-1.5-attention-1"])
def test_the_learning_rate_is_halved_where_the_loss_on_further_rows_does_not_fall(
    sigmorphon, tmp_path, monkeypatch, name
):
    changes = {"schedule": "halved", "steps": 30, "lr": 0.02, "dev_rows": 1, "beams": 2, "languages": "german"}
    settings = dataclasses.replace(recipe.runs()[name], data=str(sigmorphon), **changes)
    assert recipe.held_rows(settings)["form"][:] == ["las"]
    logs, train = [], recipe.train
    monkeypatch.setattr(recipe, "train", lambda *given, **options: logs.append(train(*given, **options)) or logs[0])
    recipe.perform(settings, tmp_path)
    rates, losses = ([entry[key] for entry in logs[0] if key in entry] for key in ("learning_rate", "eval_loss"))
    lowest, expected = float("inf"), [settings.lr]
    for loss in losses:
        expected.append(expected[-1] if loss < lowest else expected[-1] / 2)
        lowest = min(lowest, loss)
    assert rates == pytest.approx(expected[: len(rates)], abs=2e-8)  # torch halves none of 1e-8
    assert rates[-1] < settings.lr


def test_rows_may_begin_further_on(sigmorphon):
    rows = data.prepared(str(sigmorphon), "german", "medium", 5).dev
    later = data.prepared(str(sigmorphon), "german", "medium", 5, dev_from=1).dev
    assert later["form"] == rows["form"][1:]
    with pytest.raises(ValueError, match=f"dev_from must leave rows of german, which has {len(rows)}, .* begin at 99"):
        data.prepared(str(sigmorphon), "german", "medium", 5, dev_from=99)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("dev_rows=0", "dev_rows must be above 0, was 0"),
        ("dev_from=-1", "dev_from must be at least 0, was -1"),
        ("steps=0", "steps must be above 0, was 0"),
        ("model=gru", "model must be one of transformer, lstm, was 'gru'"),
        ("schedule=linear", "schedule must be one of cosine, halved, was 'linear'"),
        ("beams=1", "beams must be at least 2, was 1"),
        ("head=foo", "unknown sparse map 'foo'"),
        ("over=0.0", "over must be"),
        ("attention=foo", "unknown sparse map 'foo'"),
    ],
)
def test_wrong_settings_are_named_before_anything_is_trained(change, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(recipe.STUDY, ["--only", "output-1-attention-1", "--set", change, "--out", str(tmp_path / "out")])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_beam_search_proves_is_what_enumeration_finds(task):
    seen = []
    for ends in (1.2, 2.2, 2.3, 2.5):  # the more readily strings end, the fewer there are
        model = recipe.build_model(task.tokenizer, 3, seed=0)
        model.generation_config.max_new_tokens = 6
        with torch.no_grad():
            model.final_logits_bias[0, [0, 1, 3]] = -50.0
            model.final_logits_bias[0, task.tokenizer.eos_token_id] = ends
        model = hf_sparse.sparsify(model, head="sparsemax").eval()
        found = measures.search(model, task.tokenizer, task.dev, beams=60)
        for index, row in enumerate(task.dev):
            inputs = task.tokenizer(source_text(row["lemma"], row["tags"]), return_tensors="pt")
            forms = hf_sparse.enumerate_support(model, inputs, 5000, 6)
            if found["exhausted"][index]:
                assert forms.complete
                assert found["counts"][index] == len(forms.sequences)
            if found["certified"][index]:
                best = task.tokenizer.decode(forms.sequences[0], skip_special_tokens=True)
                assert found["forms"][index] == best
            seen.append((found["exhausted"][index], found["certified"][index]))
    assert set(seen) == {(True, True), (False, True), (False, False)}


def test_a_softmax_model_never_sees_every_form(task):
    model = recipe.build_model(task.tokenizer, 3, seed=0)
    found = measures.search(model, task.tokenizer, task.dev, beams=3)
    assert not any(found["exhausted"])
    assert len(found["forms"]) == 3


def test_accuracy_is_averaged_over_languages(task, monkeypatch):
    searched = {"forms": ["stand", "x", "eller"], "exhausted": [True, True, False], "counts": [1, 2, 1],
                "certified": [True, True, True]}  # fmt: skip
    monkeypatch.setattr(measures, "search", lambda *arguments: searched)
    model = recipe.build_model(task.tokenizer, 3, seed=0)
    figures = measures.measured(model, task, 2)
    assert figures["accuracy_by_language"] == {"german": 0.5, "turkish": 1.0}
    assert figures["accuracy"] == 0.75
    assert (figures["one_form"], figures["all_forms_seen"], figures["certified"]) == (1 / 3, 2 / 3, 1)


@pytest.mark.parametrize("model", ["transformer", "lstm"])
def test_quick_runs_and_their_ensemble(sigmorphon, tmp_path, capsys, model):
    runs = {name: recipe.runs()[name] for name in ("output-1.5-attention-1.5", "ensemble-output-1.5-attention-1.5")}
    arguments = ["--quick", "--out", str(tmp_path), "--data", str(sigmorphon)]
    arguments += ["--set", "languages=german,turkish", "member_seeds=2", "steps=2", f"model={model}"]

    def go(*more):
        return main(dataclasses.replace(recipe.STUDY, runs=runs), [*arguments, *more])

    with pytest.raises(SystemExit):
        go("--only", "ensemble*")
    assert "an ensemble needs its members; do --only output" in capsys.readouterr().err
    go("--seeds", "2")
    results = go("--only", "ensemble*")
    assert [(record["run"], record["settings"]["seed"]) for record in results["runs"]] == [
        ("output-1.5-attention-1.5", 0),
        ("output-1.5-attention-1.5", 1),
        ("ensemble-output-1.5-attention-1.5", 0),
    ]
    assert set(results["runs"][2]["figures"]["accuracy_by_language"]) == {"german", "turkish"}
    assert results["runs"][0]["figures"]["class"].startswith({"transformer": "Bart", "lstm": "LSTM"}[model])
    assert (tmp_path / "inflection_grid.png").is_file()
    card = (tmp_path / "runs" / "output-1.5-attention-1.5-0" / "model" / "README.md").read_text(encoding="utf-8")
    assert ("import `recipes.inflection.lstm` before you load it" in card) is (model == "lstm")


def test_every_language_is_drawn_where_runs_have_it(tmp_path, monkeypatch):
    labels = []
    plot = Axes.plot
    monkeypatch.setattr(
        Axes, "plot", lambda axes, *points, **how: labels.append(how["label"]) or plot(axes, *points, **how)
    )
    names = [f"language{number}" for number in range(12)]
    shares = {"all_forms_seen": 0.5, "one_form": 0.5}
    records = [
        {"run": run, "figures": {"accuracy_by_language": dict.fromkeys(some, 0.5), **shares}}
        for run, some in (("a", names[:5]), ("b", names))
    ]
    draw(records, tmp_path / "grid.png")
    assert labels == names


def test_a_card_names_the_folder_of_the_data():
    figures = {"accuracy_by_language": {"finnish": 0.5}, "rows": {"train": 10, "dev": 5, "vocabulary": 9}}
    figures |= {"config": None, "parameters": 100}
    for data_, told in (
        ("", "English verbs"),
        ("/a/sigmorphon2018", "SIGMORPHON 2018, `low`"),
        ("my/words/", "words, `low`"),
    ):
        settings = dataclasses.asdict(recipe.Grid(data=data_, size="low"))
        record = {"run": "output-1-attention-1", "settings": settings, "figures": figures}
        assert card(record, [record]).data.startswith(f"{told}")


def test_an_ensemble_of_dense_models_is_one(task, tmp_path):
    settings = recipe.Grid(members="softmax", member_seeds=2)
    for seed in range(2):
        recipe.build_model(task.tokenizer, 3, seed).save_pretrained(tmp_path / f"softmax-{seed}" / "model")
        write_json(tmp_path / f"softmax-{seed}" / "result.json", {"settings": dataclasses.asdict(recipe.Grid())})
    made = recipe.ensemble(settings, tmp_path / "ensemble")
    assert len(made.members) == 2
    assert len(measures.search(made, task.tokenizer, task.dev, beams=2)["forms"]) == 3
    with pytest.raises(CannotRun, match=r"softmax-0 was trained with other settings \({'steps': 2400}\)"):
        recipe.ensemble(dataclasses.replace(settings, steps=3200), tmp_path / "ensemble")
