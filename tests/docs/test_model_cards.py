"""Model cards: those of the headline models are committed, and each says where softmax was better."""

from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from hf_sparse import SparseConfig
from recipes.headlines import HEADLINES, headline_cards
from recipes.lib.card import Card, Measure, alike

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = {"hf_sparse": "1", "transformers": "5", "torch": "2"}
RECORD = {
    "versions": VERSIONS,
    "hardware": {"device": "CPU", "torch_threads": 1},
    "commit": None,
    "command": "python -m x",
    "weights": "out/x",
}
MEASURES = (
    Measure("accuracy", "right", ".0%", "higher"),
    Measure("loss", "loss", ".1f", "lower"),
    Measure("candidates", "support", ".1f"),
)


def card(dense="softmax", **own):
    rows = {"softmax": {"right": 0.5, "loss": 2.0, "support": 9.0}, "mine": {"right": 0.5, "loss": 2.0} | own}
    config = SparseConfig.parse(head="entmax15").to_dict()
    return Card("n", "T", "translation", "What.", "Data: rows.", MEASURES, rows, "mine", dense, "Limits.", RECORD,
                config, {"head_support": 3.0})  # fmt: skip


def test_the_headline_models_have_cards_and_no_others():
    names = [made.name for made in headline_cards()]
    assert len(names) == len(set(names))
    assert {path.stem for path in (ROOT / "model_cards").glob("*.md")} == {*names, "README"}


@pytest.mark.parametrize("headline", HEADLINES, ids=lambda headline: headline.run)
def test_a_headline_has_a_reason(headline):
    assert len(headline.reason.split()) >= 4


@pytest.mark.parametrize(
    ("own", "lost"),
    [
        ({"support": 1.0}, ["Not in accuracy, loss, beside `softmax`."]),
        ({"support": 10.0, "right": 0.6, "loss": 1.0}, ["Not in accuracy, loss, beside `softmax`."]),
        ({"support": 1.0, "right": 0.4}, ["- accuracy: 40%, `softmax` 50%"]),
        ({"support": 1.0, "loss": 2.5, "right": 0.6}, ["- loss: 2.5, `softmax` 2.0"]),
        ({"support": 1.0, "loss": 3.0, "right": 0.0}, ["- accuracy: 0%, `softmax` 50%", "- loss: 3.0, `softmax` 2.0"]),
    ],
)
def test_a_card_names_what_softmax_did_better(own, lost):
    section = card(**own).text().split("## Where softmax was better\n\n")[1].split("\n\n##")[0]
    assert section.splitlines() == lost


@pytest.mark.parametrize("dense", ["mine", "no such row"])
def test_a_card_without_softmax_beside_it_makes_no_comparison(dense):
    assert "Where softmax was better" not in card(dense, support=3.0).text()


def test_a_figure_that_was_not_measured_is_a_dash():
    text = card(support=3.0, loss=None).text()
    assert "| **mine** | **50%** | **-** | **3.0** |" in text
    assert [entry.metric_type for entry in ModelCard(text).data.eval_results] == ["right"]


def test_a_card_has_metadata_figures_and_the_section_on_maps():
    text = card(support=3.0).text()
    read = ModelCard(text)
    assert read.data.library_name == "transformers"
    assert read.data.tags == ["hf_sparse", "entmax15"]
    assert [(entry.metric_type, entry.metric_value) for entry in read.data.eval_results] == [
        ("right", 0.5),
        ("loss", 2),
    ]
    assert "| **mine** | **50%** | **2.0** | **3.0** |" in text
    assert "| head | entmax15 |" in text
    assert "- classes of nonzero probability, mean a token: 3" in text
    assert 'from_pretrained("out/x")' in text
    assert "leaves it in `out/x`:\n\n    python -m x\n" in text


def test_runs_are_alike_that_differ_in_nothing_but_what_is_varied():
    runs = [{"settings": {"head": head, "seed": seed}} for head in ("a", "b") for seed in (0, 1)]
    assert alike(runs[0], runs, "head") == [runs[0], runs[2]]
    assert alike(runs[0], runs, "head", "seed") == runs
