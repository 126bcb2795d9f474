"""Generated model cards: every one is committed, none is left over, and each says where softmax was better."""

import importlib
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from hf_sparse import SparseConfig

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = {"hf_sparse": "1", "transformers": "5", "torch": "2"}
RESULT = {"versions": VERSIONS, "hardware": {"device": "CPU", "torch_threads": 1}, "commit": None}


@pytest.fixture(scope="module")
def blocks():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return importlib.import_module("blocks")
    finally:
        sys.path.remove(str(ROOT / "docs"))


@pytest.fixture
def card(blocks):
    made = sys.modules["blocks._cards"]
    measures = (
        made.Measure("accuracy", "right", ".0%", "higher"),
        made.Measure("loss", "loss", ".1f", "lower"),
        made.Measure("candidates", "support", ".1f"),
    )

    def make(**own):
        rows = {"softmax": {"right": 0.5, "loss": 2.0, "support": 9.0}, "mine": {"right": 0.5, "loss": 2.0} | own}
        config = SparseConfig.parse(head="entmax15").to_dict()
        return made.Card("n", "T", "translation", "What.", "Data: rows.", measures, rows, "mine", "softmax",
                         "python x.py", "out/x", "Limits.", RESULT, config, {"head_support": 3.0})  # fmt: skip

    return make


def test_every_card_is_made_from_results(blocks):
    names = [card.name for make in blocks.CARDS for card in make()]
    assert len(names) == len(set(names))
    assert {path.stem for path in (ROOT / "model_cards").glob("*.md")} == set(names)


@pytest.mark.parametrize(
    ("own", "lost"),
    [
        ({"support": 1.0}, ["In none of these figures."]),
        ({"support": 10.0, "right": 0.6, "loss": 1.0}, ["In none of these figures."]),
        ({"support": 1.0, "right": 0.4}, ["- accuracy: 40%, `softmax` 50%"]),
        ({"support": 1.0, "loss": 2.5, "right": 0.6}, ["- loss: 2.5, `softmax` 2.0"]),
        ({"support": 1.0, "loss": 3.0, "right": 0.0}, ["- accuracy: 0%, `softmax` 50%", "- loss: 3.0, `softmax` 2.0"]),
    ],
)
def test_a_card_names_what_softmax_did_better(card, own, lost):
    section = card(**own).text().split("## Where softmax was better\n\n")[1].split("\n\n##")[0]
    assert section.splitlines() == lost


def test_a_card_has_metadata_figures_and_the_section_on_maps(card):
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
