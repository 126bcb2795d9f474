"""Importing and using the package loads no other package than the dense model or the stock ``Trainer`` loads."""

import subprocess
import sys

import pytest

LOADED = "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
MODEL = """
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=9, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0))
"""
SPARSE = """
from hf_sparse import probabilities, sparsify
sparsify(model, attn="entmax15", head="entmax15")
"""
USE = """
ids = torch.arange(3, 8)[None]
model(ids, labels=ids).loss.backward()
model.eval().generate(ids, max_new_tokens=2, num_beams=2)
"""
TRAINER = """
import sys
from transformers import Trainer
"""
# The metrics in metrics/evaluate/*/ are scripts of the evaluate library, loaded by it alone.
ALL_MODULES = """
import importlib, pkgutil
import hf_sparse
for info in pkgutil.walk_packages(hf_sparse.__path__, "hf_sparse."):
    if ".kernels" not in info.name and info.name.count(".") < 4:
        importlib.import_module(info.name)
"""


def loaded_by(*code: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after the code, without the standard library's."""
    command = [sys.executable, "-c", "".join([*code, LOADED])]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    ("with_it", "without"),
    [
        pytest.param((MODEL, SPARSE, USE), (MODEL, USE), id="sparsify, loss, generate"),
        pytest.param((TRAINER, ALL_MODULES), (TRAINER,), id="all modules beside Trainer"),
    ],
)
def test_no_package_is_loaded_that_transformers_does_not_load(with_it, without):
    assert loaded_by(*with_it) - loaded_by(*without) == {"hf_sparse"}


def test_optional_packages_are_not_loaded_for_a_model():
    assert not loaded_by(MODEL, SPARSE, USE) & {"datasets", "evaluate", "matplotlib", "peft"}
