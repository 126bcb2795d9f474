"""Sequences that Accelerate divides among processes."""

from types import SimpleNamespace

import pytest
from accelerate import Accelerator
from accelerate.parallelism_config import ParallelismConfig

from hf_sparse import sparsify
from hf_sparse.model.divided_sequences import OF_ACCELERATE
from tests.tiny_models import tiny_model

(PATCH,) = OF_ACCELERATE


def prepared(model, **sizes):
    """What goes on to ``Accelerator.prepare`` of one that divides sequences so; one process cannot make it."""
    accelerator = SimpleNamespace(parallelism_config=ParallelismConfig(**sizes) if sizes else None)
    return PATCH.replacement(lambda self, *models: models, accelerator, model)


def test_sparse_attention_over_divided_sequences_is_refused():
    model = sparsify(tiny_model("llama"), attn="entmax15")
    with pytest.raises(ValueError, match=r"^cp_size=2 divides .*LlamaForCausalLM would see one part of them; leave"):
        prepared(model, cp_size=2)


@pytest.mark.skipif("sp_size" not in vars(ParallelismConfig), reason="this accelerate has no sequence parallelism")
def test_so_is_sequence_parallelism():
    model = sparsify(tiny_model("llama"), attn="entmax15")
    with pytest.raises(ValueError, match=r"^sp_size=4 divides"):
        prepared(model, sp_size=4, sp_backend="deepspeed")


@pytest.mark.parametrize("maps", [None, {"head": "entmax15"}])
def test_models_without_sparse_attention_are_prepared_as_ever(maps):
    model = tiny_model("llama") if maps is None else sparsify(tiny_model("llama"), **maps)
    assert prepared(model, cp_size=2) == (model,)


@pytest.mark.parametrize("sizes", [{}, {"tp_size": 2}])
def test_whole_sequences_are_prepared_as_ever(sizes):
    model = sparsify(tiny_model("llama"), attn="entmax15")
    assert prepared(model, **sizes) == (model,)


def test_the_accelerator_asks():
    assert Accelerator.prepare.__wrapped__.__module__ == "accelerate.accelerator"
