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
from hf_sparse import sparsify
sparsify(model, attn="entmax15", head="entmax15")
"""
USE = """
ids = torch.arange(3, 8)[None]
model(ids, labels=ids).loss.backward()
model.eval().generate(ids, max_new_tokens=2, num_beams=2)
"""
ROOMS = """
import importlib, pkgutil
import hf_sparse
import hf_sparse.metrics.evaluate
for info in pkgutil.iter_modules(hf_sparse.__path__, "hf_sparse."):
    if info.name != "hf_sparse.training":
        importlib.import_module(info.name)
"""
TOKENIZER = """
from transformers import AutoTokenizer  # which the command line takes
"""
TRAINER = """
import sys
from transformers import Trainer
"""
TRAINING = """
from hf_sparse import SparseTrainer
"""
CASES = {
    "sparsify, loss, generate": ((MODEL, SPARSE, USE), (MODEL, USE)),
    "every room but training": ((MODEL, ROOMS), (MODEL, TOKENIZER)),
    "training": ((TRAINER, TRAINING), (TRAINER,)),
}


def loaded_by(*code: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after the code, without the standard library's."""
    command = [sys.executable, "-c", "".join([*code, LOADED])]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize(("ours", "theirs"), CASES.values(), ids=CASES)
def test_no_package_is_loaded_that_transformers_does_not_load(ours, theirs):
    loaded = loaded_by(*theirs)
    assert not loaded & {"evaluate", "matplotlib"}
    assert loaded_by(*ours) - loaded == {"hf_sparse"}
