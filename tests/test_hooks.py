"""What this package changes in other libraries: all of it is listed, and can be undone."""

import functools
import subprocess
import sys
from dataclasses import replace

import pytest
from transformers import AttentionInterface, LlamaForCausalLM, PreTrainedModel

import hf_sparse
from hf_sparse.hooks import install, uninstall
from hf_sparse.model.patch import Patch, forget_imports, install_all
from tests.tiny_models import tiny_model


def test_the_hook_on_transformers_is_installed_once_and_can_be_removed():
    hooked = PreTrainedModel.post_init
    install()
    assert PreTrainedModel.post_init is hooked
    try:
        uninstall()
        assert PreTrainedModel.post_init is not hooked
        assert not hasattr(PreTrainedModel.post_init, "__wrapped__")
    finally:
        install()
    assert hf_sparse.__version__


def test_a_wrapper_that_others_put_around_a_hook_stays_theirs(monkeypatch):
    config, ours, seen = hf_sparse.sparsify(tiny_model("llama"), head="entmax15").config, PreTrainedModel.post_init, []

    @functools.wraps(ours)
    def theirs(self):
        seen.append(type(self).__name__)
        ours(self)

    monkeypatch.setattr(PreTrainedModel, "post_init", theirs)
    try:
        uninstall()
        assert PreTrainedModel.post_init is theirs
        assert not hf_sparse.is_sparse(LlamaForCausalLM(config))
    finally:
        install()
    assert PreTrainedModel.post_init is theirs
    assert hf_sparse.is_sparse(LlamaForCausalLM(config))
    assert seen == ["LlamaModel", "LlamaForCausalLM"] * 2


EVERY_CHANGE = """
import copy, sys, torch, transformers, peft.utils.hotswap
from types import FunctionType
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, FillMaskPipeline

LIBRARIES = ("transformers", "accelerate", "peft", "torch")

def snapshot():
    found = {}
    modules = {name: module for name, module in sys.modules.items() if name.split(".")[0] in LIBRARIES}
    for name, module in modules.items():
        functions = {key: id(value) for key, value in vars(module).items() if isinstance(value, FunctionType)}
        found |= {(name, key): value for key, value in functions.items()}
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == name:
                methods = {key: id(value) for key, value in vars(cls).items() if not isinstance(value, int | dict)}
                found |= {(name, cls.__qualname__, key): value for key, value in methods.items()}
    for registry in (transformers.AttentionInterface, transformers.AttentionMaskInterface):
        found |= {(registry.__name__, key): id(value) for key, value in registry._global_mapping.items()}
    return found

def changes():
    now = snapshot()
    added = {key for key in set(now) - set(before) if key[:-1] in owners}  # not those of modules imported since
    return sorted(added | {key for key, value in before.items() if now.get(key) != value})

shape = dict(vocab_size=23, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
model = copy.deepcopy(LlamaForCausalLM(LlamaConfig(**shape)))  # building and copying leave traces of their own
before = snapshot()
owners = {key[:-1] for key in before} - {(module,) for module in sys.modules}  # modules find functions late
import hf_sparse
from hf_sparse.hooks import PATCHES, uninstall
hf_sparse.sparsify(model, attn="entmax15", head="sparsemax")
trainer = Trainer(model, TrainingArguments(sys.argv[1], use_cpu=True, report_to=[]))
model.generate(torch.tensor([[3]]), max_new_tokens=2, num_beams=2)
expected = {patch.name for patch in PATCHES if patch.owner.partition(":")[0] in sys.modules}  # imported here
assert {key[-1] for key in changes()} == expected, changes()
uninstall()
print(changes())
"""


@pytest.mark.slow
def test_everything_changed_in_other_libraries_is_in_the_table_and_undone(tmp_path):
    run = subprocess.run([sys.executable, "-c", EVERY_CHANGE, str(tmp_path)], capture_output=True, text=True)
    assert run.stdout.strip().splitlines()[-1:] == ["[]"], run.stdout + run.stderr


LATER_TRAINER = """
import sys
from dataclasses import replace
import torch
import hf_sparse
from datasets import Dataset
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

shape = dict(vocab_size=23, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
sparse = hf_sparse.sparsify(LlamaForCausalLM(LlamaConfig(**shape)), attn="entmax15", head="entmax15")

class Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.config = sparse, sparse.config

    def forward(self, input_ids, labels=None):
        output = self.inner(input_ids, labels=labels)
        return {"loss": output.loss, "logits": output.logits}

from transformers import Trainer, TrainingArguments  # only now

rows = Dataset.from_dict({"input_ids": [[3, 4, 5]] * 2, "labels": [[3, 4, 5]] * 2})
trainer = Trainer(Wrapper(), TrainingArguments(sys.argv[1], use_cpu=True, report_to=[]))
masses = torch.tensor(trainer.predict(rows).predictions).exp().sum(-1)
torch.testing.assert_close(masses, torch.ones_like(masses))
print("guarded")
"""


@pytest.mark.slow
def test_a_trainer_that_is_imported_last_is_guarded(tmp_path):
    run = subprocess.run([sys.executable, "-c", LATER_TRAINER, str(tmp_path)], capture_output=True, text=True)
    assert run.stdout.strip().endswith("guarded"), run.stdout + run.stderr


def test_a_package_that_is_hidden_is_not_imported():
    code = "import sys; sys.modules['peft'] = None; import hf_sparse; print('imported')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == "imported", run.stderr


def test_an_unknown_version_of_another_package_is_refused_by_name(tmp_path, monkeypatch):
    (tmp_path / "some_trainer.py").write_text("class Trainer:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    patch = Patch("some_trainer:Trainer", "train", lambda original: None, reason="It is dense.", after="some_trainer")
    install_all([patch])
    refusal = r"does not know this version of some_trainer \(.*train.*: It is dense\. Install another version"
    with pytest.raises(ImportError, match=refusal):
        import some_trainer
    forget_imports()
    import some_trainer

    with pytest.raises(ImportError, match=refusal):
        install_all([patch])  # as where the package was imported first
    patch.uninstall()
    assert some_trainer.Trainer
    for owner in ("some_trainer:Trainer", "some_trainer:OfLaterVersions"):
        unneeded = replace(patch, owner=owner, needed=False)
        install_all([unneeded])
        unneeded.uninstall()
    assert not hasattr(some_trainer.Trainer, "train")


def test_every_patch_of_a_module_is_installed_at_its_import_however_often_it_was_awaited(tmp_path, monkeypatch):
    (tmp_path / "late_tool.py").write_text("def one():\n    return 1\n\n\ndef two():\n    return 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    tenfold = [
        Patch("late_tool", name, lambda original: 10 * original(), reason="It is small.", after="late_tool")
        for name in ("one", "two")
    ]
    install_all(tenfold)
    finders = len(sys.meta_path)
    install_all(tenfold)
    assert len(sys.meta_path) == finders
    import late_tool

    assert (late_tool.one(), late_tool.two()) == (10, 20)
    for patch in tenfold:
        patch.uninstall()
    assert (late_tool.one(), late_tool.two()) == (1, 2)


def test_a_folder_that_is_called_as_an_awaited_module_can_be_imported(tmp_path, monkeypatch):
    (tmp_path / "late_folder").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    install_all([Patch("late_folder", "run", lambda original: None, reason="It is dense.", after="late_folder")])
    import late_folder

    assert late_folder.__file__ is None


def test_hooks_may_be_removed_twice():
    try:
        uninstall()
        assert "hf_sparse" not in AttentionInterface._global_mapping
        uninstall()
    finally:
        install()
    assert "hf_sparse" in AttentionInterface._global_mapping
