"""Processors: a dense model decodes as the sparse model with the same logits would."""

import math

import pytest
import torch

from hf_sparse import (
    AlphaReluLogitsProcessor,
    EntmaxLogitsProcessor,
    SparseLogitsProcessor,
    TopHLogitsProcessor,
    exact_search,
    sparsify,
)
from tests.enumeration import VOCAB, model_and_inputs
from tests.tiny_models import tiny_model

RELU = {"name": "alpha_relu", "alpha": 1.5, "tau": 0.4}


def dense_and_sparse(name, head):
    """The same model twice, once with a sparse head."""
    dense, inputs = model_and_inputs(name, None)
    sparse, _ = model_and_inputs(name, None)
    return dense, sparsify(sparse, head=head), inputs


@pytest.mark.parametrize(
    ("processor", "head"),
    [
        (EntmaxLogitsProcessor(), "entmax15"),
        (EntmaxLogitsProcessor(2), "sparsemax"),
        (EntmaxLogitsProcessor(1.25), {"name": "entmax", "alpha": 1.25}),
        (SparseLogitsProcessor("sparsegen_lin"), "sparsegen_lin"),
        (AlphaReluLogitsProcessor(0.4), RELU),
    ],
    ids=["entmax15", "sparsemax", "entmax1.25", "sparsegen", "alpha_relu"],
)
@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_a_dense_model_decodes_like_the_sparse_one(name, processor, head):
    dense, sparse, inputs = dense_and_sparse(name, head)
    modes = [{"do_sample": False}, {"do_sample": True, "temperature": 0.7, "top_k": 4}]
    if head is not RELU:
        modes += [{"do_sample": False, "num_beams": 3, "num_return_sequences": 2}]
    for mode in modes:
        options = {"max_new_tokens": 4, "return_dict_in_generate": True, "output_scores": True, **mode}
        torch.manual_seed(0)
        got = dense.generate(**inputs, **options, logits_processor=[processor])
        torch.manual_seed(0)
        expected = sparse.generate(**inputs, **options)
        assert torch.equal(got.sequences, expected.sequences)
        for ours, theirs in zip(got.scores, expected.scores):
            assert torch.equal(ours.exp() == 0, theirs.exp() == 0)
            torch.testing.assert_close(ours.exp(), theirs.exp(), atol=1e-5, rtol=1e-4)
        assert any((scores.exp() == 0).any() for scores in got.scores)


def test_exact_search_reads_the_processor_too():
    dense, sparse, inputs = dense_and_sparse("t5", "entmax15")
    (got,) = exact_search(dense, inputs, 3, max_new_tokens=4, logits_processor=[EntmaxLogitsProcessor()])
    (expected,) = exact_search(sparse, inputs, 3, max_new_tokens=4)
    assert [h.tokens for h in got.hypotheses] == [h.tokens for h in expected.hypotheses]
    assert got.left_mass == pytest.approx(expected.left_mass, abs=1e-4)


def test_alpha_relu_is_refused_where_it_gets_log_probabilities():
    dense, _, inputs = dense_and_sparse("gpt2", RELU)
    with pytest.raises(ValueError, match=r"alpha_relu needs the logits themselves.*sparsify\(model, head="):
        dense.generate(**inputs, num_beams=2, max_new_tokens=2, logits_processor=[AlphaReluLogitsProcessor(0.4)])
    with pytest.raises(ValueError, match="needs the logits themselves"):
        exact_search(dense, inputs, logits_processor=[AlphaReluLogitsProcessor(0.4)])


@pytest.mark.parametrize("tau", [0.4, -0.4])
@pytest.mark.parametrize(
    "forced", [{"forced_bos_token_id": 3}, {"forced_eos_token_id": 4, "min_new_tokens": 3}], ids=str
)
def test_alpha_relu_keeps_tokens_that_are_forced(forced, tau):
    dense, sparse, inputs = dense_and_sparse("bart", {**RELU, "tau": tau})
    options = {"max_new_tokens": 3, "do_sample": False, **forced}
    got = dense.generate(**inputs, **options, logits_processor=[AlphaReluLogitsProcessor(tau)])
    assert torch.equal(got, sparse.generate(**inputs, **options))
    assert got[0, 1 if "forced_bos_token_id" in forced else 3] == next(iter(forced.values()))


def test_a_row_forced_to_one_token_does_not_tell_what_others_are():
    scores = torch.tensor([[1.4, 0.9, 0.1], [0.0, -torch.inf, -torch.inf], [0.0, *[torch.finfo().min] * 2]])
    processor = AlphaReluLogitsProcessor(0.4, alpha=2)
    kept = torch.tensor([[1.0, 0.0, 0.0]])
    expected = torch.cat([torch.tensor([[1 / 1.5, 0.5 / 1.5, 0.0]]), kept, kept])
    torch.testing.assert_close(processor(None, scores).exp(), expected)
    torch.testing.assert_close(processor(None, scores[1:]).exp(), expected[1:])
    log_p = torch.cat([scores[:1].log_softmax(-1), scores[1:]])
    with pytest.raises(ValueError, match="needs the logits themselves"):
        processor(None, log_p)


def test_alpha_relu_weighs_what_is_above_its_threshold():
    weights = AlphaReluLogitsProcessor(0.4, alpha=2)(None, torch.tensor([[1.4, 0.9, 0.1]])).exp()
    torch.testing.assert_close(weights, torch.tensor([[1 / 1.5, 0.5 / 1.5, 0.0]]))


def test_logits_of_one_row_may_sum_to_one_after_exp():
    scores = torch.tensor([[0.4, -0.1, -1.2], [math.log(0.5), math.log(0.3), math.log(0.2)]])
    weights = AlphaReluLogitsProcessor(-1.0, alpha=2)(None, scores).exp()
    torch.testing.assert_close(weights, torch.tensor([[1.4 / 2.3, 0.9 / 2.3, 0.0], [1.0, 0.0, 0.0]]))


def test_tokens_that_another_processor_forbade_do_not_make_a_model_sparse():
    log_p = torch.tensor([[2.0, 1.9, -1.0, 1.8]]).log_softmax(-1)
    for processor in (EntmaxLogitsProcessor(), SparseLogitsProcessor("sparsemax")):
        expected = processor(None, log_p[:, :3])
        for forbidden in (-torch.inf, torch.finfo(torch.float32).min):
            scores = torch.cat([log_p[:, :3].log_softmax(-1), torch.full((1, 1), forbidden)], -1)
            torch.testing.assert_close(processor(None, scores)[:, :3], expected)


def test_a_sparse_model_is_not_made_sparse_twice():
    _, sparse, inputs = dense_and_sparse("gpt2", "entmax15")
    with pytest.raises(ValueError, match="head is sparse already"):
        sparse.generate(**inputs, max_new_tokens=2, logits_processor=[EntmaxLogitsProcessor()])


def test_settings_and_scores_are_checked():
    with pytest.raises(ValueError, match=r"alpha must be a number from 1 to 64, was 0\.5"):
        EntmaxLogitsProcessor(0.5)
    with pytest.raises(ValueError, match='tau must be a number, was "auto"'):
        SparseLogitsProcessor("alpha_relu")
    with pytest.raises(ValueError, match="restricts the sign or the sum of its scores"):
        SparseLogitsProcessor("sum_normalization")
    nan = torch.tensor([[0.0, math.nan]])
    for processor in (EntmaxLogitsProcessor(), TopHLogitsProcessor()):
        with pytest.raises(ValueError, match="NaN"):
            processor(None, nan)
    for alpha in (0.0, 1.5):
        with pytest.raises(ValueError, match=r"alpha must be in \(0, 1\]"):
            TopHLogitsProcessor(alpha)


@pytest.mark.parametrize("alpha", [0.05, 0.4, 0.8, 1.0])
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_top_h_keeps_the_most_tokens_within_the_entropy(alpha, scale):
    torch.manual_seed(0)
    scores = torch.randn(20, 150) * scale
    kept = TopHLogitsProcessor(alpha)(None, scores).isfinite()
    for row, mask in zip(scores.double().softmax(-1), kept):

        def entropy(p):
            q = p / p.sum()
            return -float((q * q.log()).sum())

        ordered = row.sort(descending=True).values
        fitting = [k for k in range(1, 151) if entropy(ordered[:k]) <= alpha * entropy(row) + 1e-12]
        count = max(fitting, default=1)
        assert int(mask.sum()) == count
        assert fitting == list(range(1, count + 1)) or fitting == []  # entropy grows with every token
        assert set(row.topk(count).indices.tolist()) == set(mask.nonzero().flatten().tolist())


def test_top_h_keeps_what_constraints_left_and_works_in_generate():
    scores = torch.tensor([[1.0, -torch.inf, 0.9, 0.8]])
    kept = TopHLogitsProcessor(1.0)(None, scores)
    assert torch.equal(kept, scores)
    model = tiny_model("gpt2", VOCAB)
    ids = torch.tensor([[3, 4]])
    torch.manual_seed(0)
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": 3, "return_dict_in_generate": True}
    output = model.generate(ids, **options, output_scores=True, logits_processor=[TopHLogitsProcessor(0.5)])
    assert all(scores.isneginf().any() for scores in output.scores)
