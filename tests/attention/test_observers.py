"""Who looks at attention, one inside another."""

import torch

from hf_sparse import sparsify
from hf_sparse.attention import attention_sites, observe
from hf_sparse.attention.site import trial
from hf_sparse.attention.soft_edges import soft_edges
from hf_sparse.attention.support_count import SupportCount
from tests.tiny_models import labelled, tiny_model


@torch.no_grad()
def test_an_inner_block_takes_nothing_from_the_outer_one():
    model = sparsify(tiny_model("llama"), attn="entmax15").eval()
    run = labelled(model)
    with observe(model) as outer:
        model(**run)
        with observe(model) as inner, soft_edges(model) as edges:
            with soft_edges(model) as again:
                model(**run)
            model(**run)
        model(**run)
    assert {count.calls for count in outer.values()} == {4}
    assert {count.calls for count in inner.values()} == {2}
    assert edges.visible == 2 * again.visible > 0
    assert not any(site.observers.of(module) for module, site in attention_sites(model))


@torch.no_grad()
def test_an_inner_trial_gives_the_scores_back_to_the_outer_one():
    model = sparsify(tiny_model("llama"), attn="entmax15").eval()
    run, outer, inner = labelled(model), [], []
    with trial(model, {}, lambda site, module, scores: outer.append(site.path)):
        with trial(model, {}, lambda site, module, scores: inner.append(site.path)):
            model(**run)
        model(**run)
    assert outer == inner == [site.path for _, site in attention_sites(model)]
    assert all(site.watches.innermost(module) is None for module, site in attention_sites(model))


def test_every_weight_is_counted_beyond_the_whole_numbers_of_float32():
    count = SupportCount()
    for keys in (2**24, 1):
        weights = torch.ones(1).expand(1, 1, 1, keys)
        count.add(torch.nn.Identity(), weights, weights)
    assert (count.nonzero, count.rows, count.keys) == (2**24 + 1, 2, 2**24 + 1)
