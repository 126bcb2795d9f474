"""Perplexity by the formula of evaluate's metric, which is downloaded at run time and so cannot be called here."""

import math

import pytest
import torch
from torch import nn

import hf_sparse
from tests.tiny_models import tiny_model, tokens


@torch.no_grad()
def perplexity(model, ids, mask):
    """One number a text: exp of the mean over its tokens of the cross-entropy of ``output.logits``."""
    logits = model(ids, attention_mask=mask).logits[:, :-1]
    losses = nn.CrossEntropyLoss(reduction="none")(logits.transpose(1, 2), ids[:, 1:]) * mask[:, 1:]
    return torch.exp(losses.sum(1) / mask[:, 1:].sum(1))


def test_perplexity_is_that_of_the_sparse_distribution_and_infinite_where_a_token_is_impossible():
    model = hf_sparse.sparsify(tiny_model("llama"), attn="entmax15", head="entmax15")
    torch.manual_seed(0)
    drawn = model.generate(
        torch.tensor([[5], [9]]), do_sample=True, max_new_tokens=6, top_k=0, suppress_tokens=[0, 1, 2]
    )
    ids = torch.cat([drawn, tokens(1)])
    mask = torch.ones_like(ids)
    ids[1, 5:], mask[1, 5:] = 0, 0
    found = perplexity(model, ids, mask)
    for row, length in ((0, 7), (1, 5)):
        with torch.no_grad(), hf_sparse.raw_scores(model):
            p = hf_sparse.probabilities(model, model(ids[row : row + 1, :length]).logits[0, :-1])
        of_tokens = p.gather(-1, ids[row, 1:length, None])
        assert float(found[row]) == pytest.approx(float((-of_tokens.log().mean()).exp()), rel=1e-5)
    assert math.isinf(found[2])
