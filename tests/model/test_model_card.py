"""The model card's section on sparsity: what was set and measured, and nobody else's text touched."""

import types
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

from hf_sparse import SparseTrainer, calibrate, save_pretrained, sparse_config, sparsify, unsparsify
from hf_sparse.config import SparseConfig
from hf_sparse.model.attach import change_settings
from hf_sparse.model.model_card import sparsity_section, update_card
from tests.conversion.data import loader
from tests.tiny_models import tiny_model
from tests.training.runs import arguments, rows_of_uneven_length

MINE = "---\nlicense: mit\ntags:\n- mine\n---\n# My model\n\nMy own words.\n"
BOTH = {"attn": "entmax15", "head": {"name": "alpha_relu", "tau": 0.25}}


def card_in(folder):
    return ModelCard((folder / "README.md").read_text(encoding="utf-8"))


PLACES = [
    ({"attn": "entmax15"}, ["| attention | entmax15 |"]),
    (BOTH, ["| attention | entmax15 |", "| head | alpha_relu (alpha 1.5, tau 0.25) |"]),
    (
        {"attn": {"cross": "sparsemax", "decoder": [None, {"name": "entmax", "alpha": "learned"}]}},
        ["| decoder attention, layer 1 | entmax (alpha learned for each head) |", "| cross attention | sparsemax |"],
    ),
    ({"attn": {"name": "entmax", "alpha": [1, 1.25]}}, ["| attention | entmax (alpha of each head 1, 1.25) |"]),
]


@pytest.mark.parametrize(("settings", "rows"), PLACES, ids=[str(settings) for settings, _ in PLACES])
def test_every_map_has_its_row_and_nothing_else(settings, rows):
    section = sparsity_section(SparseConfig.parse(**settings))
    assert [line for line in section.splitlines() if line.startswith("|")][2:] == rows
    assert "zero" not in section


def test_saving_makes_a_card_with_tags_and_a_snippet_that_runs(tmp_path):
    model = sparsify(tiny_model("llama"), **BOTH)
    model.save_pretrained(tmp_path)
    card = card_in(tmp_path)
    assert card.data.library_name == "transformers"
    assert card.data.tags == ["hf_sparse", "alpha_relu", "entmax15"]
    update_card(tmp_path, sparse_config(model), load_from=tmp_path.as_posix())
    code = card_in(tmp_path).text.partition("```python\n")[2].partition("```")[0]
    found = {}
    exec(code, found)
    assert torch.equal(found["model"].lm_head.weight, model.lm_head.weight)


@pytest.mark.parametrize("save", [lambda model, path: model.save_pretrained(path), save_pretrained])
def test_a_card_that_is_there_keeps_its_words_and_gets_one_section(save, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "README.md").write_text(MINE, encoding="utf-8")
    model = sparsify(tiny_model("llama"), attn="sparsemax")
    save(model, folder)
    save(sparsify(unsparsify(model), **BOTH), folder)
    card = card_in(folder)
    assert card.data.license == "mit"
    assert card.data.tags[:2] == ["mine", "hf_sparse"]
    assert card.text.startswith("# My model\n\nMy own words.\n")
    assert card.text.count("## Sparse maps") == 1
    assert "sparsemax" not in card.text
    after = (folder / "README.md").read_text(encoding="utf-8") + "\nMore of mine.\n"
    (folder / "README.md").write_text(after, encoding="utf-8")
    save(model, folder)
    assert (folder / "README.md").read_text(encoding="utf-8") == after


def test_figures_are_those_of_the_last_evaluation_or_the_users_and_never_invented(tmp_path):
    model = sparsify(tiny_model("t5"), **BOTH)
    trainer = SparseTrainer(model, arguments(tmp_path / "run"), eval_dataset=rows_of_uneven_length())
    trainer.create_model_card(model_name="mine")
    assert "zero" not in card_in(tmp_path / "run").text.partition("begin hf_sparse")[2]
    metrics = trainer.evaluate()
    trainer.create_model_card(model_name="mine")
    card = card_in(tmp_path / "run")
    assert {"hf_sparse", "alpha_relu", "generated_from_trainer"} <= set(card.data.tags)
    rate, support = metrics["eval_head_zero_rate"], metrics["eval_attention_support"]
    assert f"- classes of exactly zero probability: {rate:.1%}" in card.text
    assert f"- keys with weight, mean a query: {support:.4g}" in card.text
    save_pretrained(model, tmp_path / "model")
    assert f"{rate:.1%}" in card_in(tmp_path / "model").text
    save_pretrained(model, tmp_path / "model", metrics={"eval_head_zero_rate": 0.5, "my_measure": 3})
    text = card_in(tmp_path / "model").text
    assert "- classes of exactly zero probability: 50.0%\n- my_measure: 3\n" in text
    assert f"{support:.4g}" not in text


@pytest.mark.parametrize("adapted", [False, True])
def test_the_card_of_a_stock_trainer_says_how_to_load_the_model(adapted, tmp_path):
    model = sparsify(tiny_model("llama"), **BOTH)
    if adapted:
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM"))
    trainer = Trainer(model, TrainingArguments(str(tmp_path), report_to=[], use_cpu=True))
    trainer.save_model(str(tmp_path))
    trainer.create_model_card(model_name="mine")
    text = card_in(tmp_path).text
    assert text.count("## Sparse maps") == 1
    assert "hf_sparse.from_pretrained" in text
    assert ("This is an adapter." in text) == adapted


def test_what_calibration_promised_stays_until_training(tmp_path):
    model = sparsify(tiny_model("gpt2"), head="entmax15")
    calibrate(model, loader(model), coverage=0.9, progress=False)
    data = rows_of_uneven_length()
    trainer = SparseTrainer(model, arguments(tmp_path), train_dataset=data, eval_dataset=data)
    trainer.evaluate()
    section = sparsity_section(sparse_config(model), model._sparse_state.metrics)
    assert "with those of the calibration: 90.0%" in section
    assert "classes of exactly zero probability" in section
    trainer.train()
    trainer.evaluate()
    assert "calibration" not in sparsity_section(sparse_config(model), model._sparse_state.metrics)


def test_a_pushed_card_names_its_repository(tmp_path, monkeypatch):
    pushed = {}

    class Hub:
        def create_repo(self, repo_id, **_):
            return types.SimpleNamespace(repo_id=repo_id)

        def create_commit(self, operations, **_):
            pushed.update({op.path_in_repo: Path(op.path_or_fileobj).read_bytes() for op in operations})

    monkeypatch.setattr(transformers.utils.hub, "hf_api", Hub)
    monkeypatch.setattr(ModelCard, "load", lambda *_, **__: ModelCard(MINE))
    sparsify(tiny_model("llama"), **BOTH).push_to_hub("someone/model")
    text = pushed["README.md"].decode()
    assert "My own words." in text
    assert 'hf_sparse.from_pretrained("someone/model")' in text


def test_an_adapter_has_the_section_too(tmp_path):
    tiny_model("llama").save_pretrained(tmp_path / "base")
    base = sparsify(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base"), **BOTH)
    save_pretrained(get_peft_model(base, LoraConfig(target_modules=["q_proj"])), tmp_path / "adapter")
    card = card_in(tmp_path / "adapter")
    assert card.data.library_name == "peft"
    assert "| attention | entmax15 |" in card.text


def test_a_process_that_is_not_the_first_writes_no_card(tmp_path, monkeypatch):
    model = sparsify(tiny_model("llama"), attn="entmax15")
    trainer = Trainer(model, TrainingArguments(str(tmp_path), report_to=[], use_cpu=True))
    monkeypatch.setattr(trainer, "is_world_process_zero", lambda: False)
    trainer.create_model_card(model_name="mine")
    assert not (tmp_path / "README.md").exists()


def test_tags_that_were_added_since_stay():
    model = sparsify(tiny_model("llama"), attn="entmax15")
    model.add_model_tags("mine")
    change_settings(model, SparseConfig.parse(attn="sparsemax"))
    assert model.model_tags == ["hf_sparse", "sparsemax", "mine"]
    assert unsparsify(model).model_tags == ["mine"]
