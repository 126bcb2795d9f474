"""Saving is all or nothing, and what else is in the folder stays."""

import tempfile

import pytest
import torch
from peft import LoraConfig
from transformers import (
    LlamaConfig,
    PreTrainedModel,
)

from hf_sparse import (
    from_pretrained,
    is_sparse,
    save_pretrained,
    sparsify,
)
from tests.tiny_models import (
    tiny_model,
    tokens,
)


def test_saving_is_all_or_nothing(tmp_path, monkeypatch):
    model = sparsify(tiny_model("llama"), head="sparsemax")
    save_pretrained(model, tmp_path / "model")
    before = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}

    def half(self, folder, **kwargs):
        (folder / "config.json").write_text("{")
        raise OSError("disk full")

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", half)
    with pytest.raises(OSError, match="disk full"):
        save_pretrained(model, tmp_path / "model")
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    with pytest.raises(ValueError, match="is not sparse"):
        save_pretrained(tiny_model("llama"), tmp_path / "dense")


def test_saving_deletes_nothing_but_the_weights_it_replaces(tmp_path):
    folder = tmp_path / "output"
    (folder / "checkpoint-1").mkdir(parents=True)
    for name in ("notes.txt", "checkpoint-1/model.safetensors", "other-00001-of-00002.safetensors", "trainer.json"):
        (folder / name).write_text(name)
    model = sparsify(tiny_model("llama"), head="sparsemax")
    others = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    (folder / "link.txt").symlink_to(folder / "notes.txt")
    for options in ({"max_shard_size": "20KB"}, {}, {"max_shard_size": "30KB"}):
        save_pretrained(model, folder, **options)
        assert all(path.read_bytes() == before for path, before in others.items())
        assert (folder / "link.txt").is_symlink()
        shards = list(folder.glob("model-*"))
        assert len(shards) == (int(shards[0].stem[-5:]) if shards else 0)
        assert (folder / "model.safetensors").exists() == (not shards)
        assert (folder / "model.safetensors.index.json").exists() == bool(shards)
        assert torch.equal(from_pretrained(folder)(tokens()).logits, model(tokens()).logits)
    assert [path.name for path in tmp_path.iterdir()] == ["output"]


def test_a_folder_may_be_a_disk_of_its_own(tmp_path, monkeypatch):
    """Files are moved into place, which takes a copy on the same disk: next to a folder may be another one."""
    folders = []

    class Recorded(tempfile.TemporaryDirectory):
        def __init__(self, **kwargs):
            folders.append(kwargs["dir"])
            super().__init__(**kwargs)

    monkeypatch.setattr(tempfile, "TemporaryDirectory", Recorded)
    model = sparsify(tiny_model("llama"), head="sparsemax")
    save_pretrained(model, tmp_path / "new")
    save_pretrained(model, tmp_path / "new")
    assert folders[0] == tmp_path
    assert folders[-1] == tmp_path / "new"
    assert not list(tmp_path.rglob(".*"))


def test_saving_to_a_file_is_refused_and_a_link_to_a_folder_followed(tmp_path):
    model = sparsify(tiny_model("llama"), head="sparsemax")
    file, link, folder = tmp_path / "file", tmp_path / "link", tmp_path / "elsewhere" / "folder"
    file.write_text("mine")
    with pytest.raises(ValueError, match="file is a file; give the path of a folder"):
        save_pretrained(model, file)
    assert file.read_text() == "mine"
    folder.mkdir(parents=True)
    link.symlink_to(folder)
    save_pretrained(model, link)
    assert link.is_symlink()
    assert is_sparse(from_pretrained(folder))
    save_pretrained(model, tmp_path / "new" / "folders")
    assert is_sparse(from_pretrained(tmp_path / "new" / "folders"))


def test_a_process_that_is_not_the_main_one_writes_nothing(tmp_path):
    model = sparsify(tiny_model("llama"), head="sparsemax")
    save_pretrained(model, tmp_path / "model", is_main_process=False)
    assert not list(tmp_path.rglob("*.*"))


def test_configurations_are_written_and_read_by_the_names_of_arguments(tmp_path):
    file = str(tmp_path / "config.json")
    LlamaConfig(vocab_size=23).to_json_file(json_file_path=file)
    assert LlamaConfig.from_json_file(json_file=file).vocab_size == 23
    LoraConfig(r=3).save_pretrained(tmp_path)
    assert LoraConfig.from_json_file(path_json_file=str(tmp_path / "adapter_config.json"))["r"] == 3
