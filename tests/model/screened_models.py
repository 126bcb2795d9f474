"""Models with a large head that is screened, and what ``generate`` does with them."""

import shutil

import pytest
import torch

from hf_sparse import set_head_impl, sparsify
from hf_sparse.functional.log_zero import on_floor
from hf_sparse.model import screening
from tests.tiny_models import tiny_model, tokens
from tests.tolerances import WEIGHT

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")), reason="no C++ compiler is installed"
)
VOCAB = 3000


def sparse(name="llama", head="entmax15", impl="screened", **changes):
    model = sparsify(tiny_model(name, vocab_size=VOCAB, **changes), head=head)
    set_head_impl(model, impl)
    return model


def generated(model, rows=1, steps=6, **options):
    """Sequences and log-probabilities of every step."""
    torch.manual_seed(5)
    ids = tokens(rows, vocab_size=VOCAB)
    options = {"max_new_tokens": steps, "do_sample": False, "eos_token_id": None} | options
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), return_dict_in_generate=True, output_logits=True, **options
    )
    return output.sequences, torch.stack(output.logits)


def num_screened(model, **options):
    """How many steps of a call were screened, and the classes computed exactly in each row of them."""
    counts = []
    refine = screening.refine_

    def counted(*args):
        counts.append(refine(*args))
        return counts[-1]

    screening.refine_ = counted
    try:
        generated(model, **options)
    finally:
        screening.refine_ = refine
    return counts


def check_same(model, **options):
    """The same sequences and probabilities, screened and not."""
    screened = generated(model, **options)
    set_head_impl(model, "full")
    full = generated(model, **options)
    set_head_impl(model, "screened")
    assert torch.equal(screened[0], full[0])
    p, expected = screened[1].exp(), full[1].exp()
    torch.testing.assert_close(p, expected, atol=WEIGHT[torch.float32], rtol=1e-4)
    assert torch.equal(on_floor(screened[1]), p == 0)
