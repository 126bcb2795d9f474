"""Checkpoints saved before the redesign load as they did: same settings, same weights, same outputs.

``tests/data/checkpoints`` was made at commit 345959c by the script beside it, and is not made anew. Outputs that torch
computes are compared bit by bit where plain arithmetic rounds as on the machine that made them, and closely elsewhere;
the C++ kernel may round otherwise than the one of that commit did, whose outputs lie beside them (``.cpp``).
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from datasets import Dataset
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import PreTrainedConfig

import hf_sparse
from hf_sparse import AnnealingCallback, SparseTrainer, SparseTrainingArguments, save_pretrained, sparse_config

CHECKPOINTS = Path(__file__).resolve().parents[1] / "data" / "checkpoints"
MADE = {path.parent.name: json.loads(path.read_text()) for path in sorted(CHECKPOINTS.glob("*/made.json"))}
LOADERS = [(name, loader) for name, made in MADE.items() for loader in made.get("loaders", ())]
SETTINGS = ("hf_sparse", "hf_sparse_fertility", "attn_implementation")


@pytest.fixture(scope="module")
def bit_by_bit():
    """Whether plain arithmetic rounds on this machine as on the one that made the checkpoints."""
    saved = load_file(CHECKPOINTS / "arithmetic.safetensors")
    z = F.linear(saved["x"], saved["w"])
    return torch.equal(torch.cat([z, z.softmax(-1), z.exp(), F.gelu(z), F.silu(z)]), saved["y"])


def local_copy(name, folder):
    """A checkpoint as a folder of its own; an adapter finds its base wherever the tests are."""
    copy = Path(shutil.copytree(CHECKPOINTS / name, folder / name))
    adapter = copy / "adapter_config.json"
    if adapter.exists():
        config = json.loads(adapter.read_text())
        config["base_model_name_or_path"] = str(CHECKPOINTS / config["base_model_name_or_path"])
        adapter.write_text(json.dumps(config))
    return copy


def load(loader, folder):
    found = hf_sparse if loader == "hf_sparse" else getattr(transformers, loader)
    return found.from_pretrained(folder).eval()


def check_same(actual, expected, bit_by_bit):
    assert torch.equal(actual, expected) or not bit_by_bit
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:Version v4.12.0:FutureWarning")
@pytest.mark.parametrize(("name", "loader"), LOADERS)
@torch.no_grad()
def test_outputs_are_those_of_the_release_that_saved_it(name, loader, bit_by_bit, tmp_path, monkeypatch):
    prefix = f"{MADE[name]['loaders'][loader]}."
    saved = load_file(CHECKPOINTS / name / "expected.safetensors")
    own = {key.removeprefix(prefix): value for key, value in saved.items() if key.startswith(prefix)}
    inputs = {key.removeprefix("inputs."): value for key, value in own.items() if key.startswith("inputs.")}
    model = load(loader, local_copy(name, tmp_path))
    keys = [key for key in own if "." not in key]
    assert keys
    with monkeypatch.context() as patch:
        patch.setattr("hf_sparse.kernels._choice.available", lambda build: False)
        by_torch = model(**inputs)
    automatic = model(**inputs)
    # The order of a sum depends on how many numbers a vector holds: that machine had AVX-512.
    sums_alike = torch.backends.cpu.get_cpu_capability() == "AVX512"
    for key in keys:
        check_same(by_torch[key], own[key], bit_by_bit and (sums_alike or key != "loss"))
        torch.testing.assert_close(automatic[key], own[key], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name, loader in LOADERS if loader == "hf_sparse"])
def test_saved_again_it_has_the_same_settings_and_weights(name, tmp_path):
    before = local_copy(name, tmp_path)
    save_pretrained(load("hf_sparse", before), tmp_path / "again")
    names = {path.name for path in before.glob("*")} - {"README.md", "made.json", "expected.safetensors"}
    for file in sorted(names - {"trainer_state.json"}):
        old, new = before / file, tmp_path / "again" / file
        if file.endswith(".safetensors"):
            weights, found = load_file(old), load_file(new)
            assert weights.keys() == found.keys()
            assert all(torch.equal(value, found[key]) for key, value in weights.items())
        elif file.startswith("hf_sparse"):
            now, then = (without_version(json.loads(file.read_text())) for file in (new, old))
            assert {key: now[key] for key in then} == then
            assert now.keys() - then.keys() <= {"architecture", "id2label"}  # of adapters, which did not note them
        elif file == "config.json":
            assert settings_in(read(new)) == settings_in(read(old))


def without_version(found):
    """What is in a JSON file without the version of Transformers, which configurations of models note."""
    if not isinstance(found, dict):
        return found
    return {key: without_version(value) for key, value in found.items() if key != "transformers_version"}


def read(file):
    return without_version(PreTrainedConfig.get_config_dict(file.parent)[0])


def settings_in(config):
    """What this package wrote into a configuration, and into those of its parts."""
    own = {key: config[key] for key in SETTINGS if key in config}
    return own | {key: settings_in(part) for key, part in config.items() if key not in own and isinstance(part, dict)}


@pytest.mark.parametrize("name", ["fertility-predictor", "guided-fertility"])
def test_bounds_are_those_of_the_release_that_saved_them(name, bit_by_bit):
    saved = load_file(CHECKPOINTS / name / "expected.safetensors")
    bounds = getattr(hf_sparse, MADE[name]["reader"]).from_pretrained(CHECKPOINTS / name)
    check_same(bounds(saved["input_ids"], saved["attention_mask"]), saved["bounds"], bit_by_bit)


def test_an_aligner_gives_the_links_it_gave():
    made = MADE["word-aligner"]
    aligner = hf_sparse.WordAligner.from_pretrained(CHECKPOINTS / "word-aligner")
    links = [[list(link) for link in sentence] for sentence in aligner.align(made["sources"], made["targets"])]
    assert links == made["links"]


def test_annealing_goes_on_to_the_target_in_the_trainers_state(tmp_path):
    checkpoint = local_copy("annealing", tmp_path)
    arguments = SparseTrainingArguments(
        str(tmp_path / "run"), max_steps=4, save_strategy="no", report_to="none", use_cpu=True
    )
    rows = torch.arange(3, 17).view(2, 7).tolist()
    data = Dataset.from_dict({"input_ids": rows, "labels": rows})
    model = load("hf_sparse", checkpoint)
    trainer = SparseTrainer(model, arguments, train_dataset=data, callbacks=[AnnealingCallback(over=4)])
    assert sparse_config(model).to_dict()["head"] == {"name": "entmax", "alpha": 1.25}
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert trainer.state.global_step == 4
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    target = state["stateful_callbacks"]["AnnealingCallback"]["attributes"]["target"]
    assert sparse_config(model).to_dict() == target


def test_the_section_of_an_old_model_card_is_replaced(tmp_path):
    folder = local_copy("llama-saved-by-package", tmp_path)
    card = (folder / "README.md").read_text()
    assert card.count("<!-- begin hf_sparse -->") == 1
    (folder / "README.md").write_text(f"{card}\nWritten by hand.\n")
    save_pretrained(load("hf_sparse", folder), folder)
    again = (folder / "README.md").read_text()
    assert again.count("## Sparse maps") == again.count("<!-- end hf_sparse -->") == 1
    assert again.endswith("Written by hand.\n")
