"""What ``output.logits`` of a sparse head are: log-probabilities without labels, raw scores with them."""

import inspect

import pytest
import torch
from torch.autograd import forward_ad

import hf_sparse.functional as F
from hf_sparse import log_probabilities, probabilities, raw_scores, sparsify
from hf_sparse.config import MapConfig
from hf_sparse.functional import log_zero
from hf_sparse.functional.log_zero import LOG_ZERO, log_or_floor_, on_floor
from hf_sparse.losses import entmax15_loss, fenchel_young_loss
from hf_sparse.model.distribution import distribution, log_distribution
from tests.tiny_models import ARCHITECTURES, labelled, tiny_model, tokens

HEADS = ["entmax15", "sparsemax", {"name": "entmax", "alpha": 1.2}, {"name": "alpha_relu", "tau": 0.3}]


def without_labels(model):
    """Inputs of one call without labels; a decoder's inputs stay."""
    inputs = labelled(model)
    labels = inputs.pop("labels")
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = labels.clamp(min=0)
    return inputs


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_softmax_of_the_logits_is_the_distribution_that_is_decoded(name, training):
    model = sparsify(tiny_model(name), head="entmax15").train(training)
    inputs = without_labels(model)
    torch.manual_seed(0)  # of dropout
    logits = model(**inputs).logits
    torch.manual_seed(0)
    with raw_scores(model):
        p = F.entmax15(model(**inputs).logits)
    torch.testing.assert_close(logits.softmax(-1), p, atol=1e-6, rtol=1e-5)
    assert torch.equal(logits.softmax(-1) == 0, p == 0)
    torch.testing.assert_close(logits.log_softmax(-1), logits, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(probabilities(model, logits), p, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_zeros_are_finite_in_every_dtype_and_exactly_zero_after_exp(head, dtype):
    scores = 4 * torch.randn(20, 60, generator=torch.Generator().manual_seed(0))
    scores[:, 3], scores[:, 4] = -torch.inf, torch.finfo(torch.float32).min
    map_config = MapConfig.parse(head, "head")
    p = distribution(map_config, scores)
    log_p = log_distribution(map_config, scores).to(dtype)
    assert log_p.isfinite().all()
    assert (log_p.exp()[p == 0] == 0).all()
    assert torch.equal(on_floor(log_p), p == 0)
    assert float(log_p.min()) >= 2 * LOG_ZERO


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_rows_that_vmap_maps_over_have_the_log_probabilities_of_a_batch(head):
    model = sparsify(tiny_model("llama", num_hidden_layers=1), attn="entmax15", head=head)
    mapped = torch.func.vmap(lambda row: model(row[None]).logits[0])(tokens())
    expected = model(tokens()).logits
    torch.testing.assert_close(mapped.exp(), expected.exp(), atol=1e-5, rtol=1e-4)
    assert torch.equal(mapped.exp() == 0, expected.exp() == 0)


@pytest.mark.parametrize("head", HEADS)
def test_gradients_are_those_of_the_log_probability(head):
    map_config = MapConfig.parse(head, "head")
    z = torch.randn(4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    chosen = z.argmax(-1, keepdim=True)
    assert torch.autograd.gradcheck(lambda z: log_distribution(map_config, z).gather(-1, chosen), z)
    ours = torch.autograd.grad(log_distribution(map_config, z).log_softmax(-1).gather(-1, chosen).sum(), z)[0]
    expected = torch.autograd.grad(distribution(map_config, z).gather(-1, chosen).log().sum(), z)[0]
    torch.testing.assert_close(ours, expected, atol=1e-10, rtol=1e-8)


def test_the_floor_raises_an_impossible_token_against_the_likeliest_one():
    z = torch.tensor([[3.0, 0.0, 1.0]], requires_grad=True)
    log_distribution(MapConfig("sparsemax"), z)[0, 1].backward()
    assert z.grad.tolist() == [[-1.0, 1.0, 0.0]]


@pytest.mark.parametrize("name", ["llama", "bart", "bert"])
def test_labels_arguments_and_the_block_say_which_of_the_two(name):
    model = sparsify(tiny_model(name), head="entmax15")
    with_labels, without = labelled(model), without_labels(model)
    raw = model(**with_labels, log_probs=False).logits
    assert torch.equal(model(**with_labels).logits, raw)
    torch.testing.assert_close(model(**with_labels, log_probs=True).logits.exp(), F.entmax15(raw))
    scores = model(**without, log_probs=False).logits
    assert not torch.allclose(model(**without).logits, scores)
    with raw_scores(model):
        assert torch.equal(model(**without).logits, scores)
        torch.testing.assert_close(model(**without, log_probs=True).logits.exp(), F.entmax15(scores))
    assert not torch.allclose(model(**without).logits, scores)


def test_positional_arguments_are_no_labels():
    model = sparsify(tiny_model("llama"), head="entmax15")
    ids = tokens()
    logits = model(ids, torch.ones_like(ids)).logits
    torch.testing.assert_close(logits, model(ids, attention_mask=torch.ones_like(ids)).logits)
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(ids.shape))


def test_labels_may_be_positional():
    model, ids = sparsify(tiny_model("llama"), head="entmax15"), tokens()
    place = list(inspect.signature(model.forward).parameters).index("labels")
    output, named = model(ids, *[None] * (place - 1), ids), model(ids, labels=ids)
    assert torch.equal(output.loss, named.loss)
    assert torch.equal(output.logits, named.logits)


@pytest.mark.parametrize("head", ["entmax15", None])
def test_smoothing_without_labels_is_refused(head):
    model = sparsify(tiny_model("llama"), attn="entmax15", head=head)
    with pytest.raises(ValueError, match=r"label_smoothing=0.1 came without labels.*pass labels"):
        model(tokens(), label_smoothing=0.1)


def test_a_tuple_holds_the_same_logits():
    model = sparsify(tiny_model("llama"), head="entmax15")
    ids = tokens()
    assert torch.equal(model(ids, return_dict=False)[0], model(ids).logits)


def test_probabilities_take_both_kinds():
    model = sparsify(tiny_model("llama"), head={"name": "alpha_relu", "tau": 0.3})
    scores = 3 * torch.randn(6, 30)
    expected = distribution(MapConfig.parse({"name": "alpha_relu", "tau": 0.3}, "head"), scores)
    torch.testing.assert_close(probabilities(model, scores), expected)
    log_p = log_distribution(MapConfig.parse({"name": "alpha_relu", "tau": 0.3}, "head"), scores)
    torch.testing.assert_close(probabilities(model, log_p), expected)
    torch.testing.assert_close(probabilities(model, log_p.bfloat16()), expected, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(probabilities(model, log_p[0]), expected[0])


def test_nan_in_a_row_leaves_the_probabilities_of_the_others():
    model = sparsify(tiny_model("llama"), head="sparsemax")
    logits = model(tokens()).logits[0].detach()
    expected = probabilities(model, logits)
    logits[0] = torch.nan
    p = probabilities(model, logits)
    assert p[0].isnan().all()
    assert torch.equal(p[1:], expected[1:])


def test_probabilities_of_rows_that_are_mixed_are_asked_for_by_name():
    model = sparsify(tiny_model("llama"), head="sparsemax")
    logits = model(tokens()).logits[0].detach()
    masked = logits.clone()
    masked[0, masked[0].argmax()] = -torch.inf
    with pytest.raises(ValueError, match=f"{len(logits) - 1} of {len(logits)} rows of logits are log-probabilities"):
        probabilities(model, masked)
    p = probabilities(model, masked, log_probs=True)
    assert torch.equal(p[1:], logits[1:].softmax(-1))
    torch.testing.assert_close(p.sum(-1), torch.ones(len(p)))
    with raw_scores(model):
        scores = model(tokens()).logits[0]
    torch.testing.assert_close(probabilities(model, scores, log_probs=False), logits.exp())


def test_masked_rows_of_a_dense_head_are_scores_like_others():
    model = sparsify(tiny_model("llama"), attn="entmax15")
    logits = model(tokens()).logits[0].detach().log_softmax(-1)
    logits[0, :5] = -torch.inf
    torch.testing.assert_close(probabilities(model, logits), logits.softmax(-1))


def test_half_precision_without_zeros_is_read_as_it_is_called():
    model = sparsify(tiny_model("llama"), head={"name": "entmax15", "temperature": 1000.0})
    log_p = model(tokens()).logits.bfloat16()
    assert (log_p.exp() > 0).all()
    p = probabilities(model, log_p, log_probs=True)
    torch.testing.assert_close(p, log_p.float().softmax(-1))


def test_losses_refuse_log_probabilities_with_zeros_and_take_those_of_softmax():
    model = sparsify(tiny_model("llama"), head="entmax15")
    ids = tokens()
    for dtype in (torch.float32, torch.bfloat16):
        logits = model(ids).logits[:, :-1].to(dtype)
        with pytest.raises(ValueError, match=r"log-probabilities of a sparse distribution, .*raw_scores\(model\)"):
            entmax15_loss(logits, ids[:, 1:])
        with pytest.raises(ValueError, match="log-probabilities of a sparse distribution"):
            fenchel_young_loss(logits, ids[:, 1:], "sparsemax", num_items=3)
    with raw_scores(model):
        scores = model(ids).logits[:, :-1]
    expected = model(ids, labels=ids).loss
    torch.testing.assert_close(entmax15_loss(scores, ids[:, 1:]), expected)
    torch.testing.assert_close(
        entmax15_loss(scores.log_softmax(-1), ids[:, 1:]), expected
    )  # a constant changes nothing


@pytest.mark.parametrize("lowest", [LOG_ZERO, -torch.inf, torch.finfo(torch.float32).min])
def test_losses_take_scores_of_which_some_are_masked(lowest):
    z, y = torch.randn(3, 9, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 5])
    z[:, 6:] = lowest
    expected = entmax15_loss(z[:, :6], y)
    torch.testing.assert_close(entmax15_loss(z, y), expected)
    if lowest != LOG_ZERO:  # of which the exponentials sum to one, too
        torch.testing.assert_close(entmax15_loss(z.log_softmax(-1), y), expected)


def test_generate_inside_raw_scores_is_refused():
    model = sparsify(tiny_model("llama"), head="entmax15")
    with (
        raw_scores(model),
        pytest.raises(RuntimeError, match=r"generate inside raw_scores\(model\) would decode from"),
    ):
        model.generate(tokens(), max_new_tokens=1)
    expected = model.generate(tokens(), max_new_tokens=1)
    assert expected.shape[1] == tokens().shape[1] + 1
    with log_probabilities(model):
        assert torch.equal(model.generate(tokens(), max_new_tokens=1), expected)
    attention = sparsify(tiny_model("llama"), attn="entmax15")
    with raw_scores(attention):
        attention.generate(tokens(), max_new_tokens=1)


def test_raw_scores_of_a_dense_model_are_refused():
    with pytest.raises(ValueError, match="is not sparse"), raw_scores(tiny_model("llama")):
        pass


@pytest.mark.parametrize("head", HEADS)
def test_gradients_in_float32_are_those_of_float64(head):
    """The kernel writes the logarithms over a copy of the weights, which the gradient needs."""
    map_config = MapConfig.parse(head, "head")
    z = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    weights = torch.linspace(-1, 1, 200).view(4, 50)
    leaf, exact = z.clone().requires_grad_(), z.double().requires_grad_()
    for x in (leaf, exact):
        (weights * log_distribution(map_config, x)).sum().backward()
    torch.testing.assert_close(leaf.grad.double(), exact.grad, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_logarithms_are_transformed_by_torch_func_and_in_forward_mode():
    z = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(1))
    log_p = lambda z: log_distribution(MapConfig("entmax15"), z)  # noqa: E731
    torch.testing.assert_close(torch.func.vmap(log_p)(z), log_p(z))
    exact, slope = torch.func.jvp(log_p, (z.double(),), (z.double().cos(),))
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(log_p(forward_ad.make_dual(z, z.cos())))
    torch.testing.assert_close(dual.primal.double(), exact, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(dual.tangent.double(), slope, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("impl", ["auto", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.01, 1.0, 7.0, 100.0, 3000.0])
def test_logarithms_that_nothing_differentiates_are_the_same(scale, dtype, impl, monkeypatch):
    if impl == "torch":
        monkeypatch.setattr(log_zero, "chosen", lambda *_: impl)
    z = scale * torch.randn(20, 300, generator=torch.Generator().manual_seed(0), dtype=dtype)
    z[3, 5:] = -torch.inf
    for p in (F.entmax15(z), z.softmax(-1)):
        expected = log_or_floor_(p.clone().requires_grad_(), z).detach()
        strided = p.mT.contiguous().mT
        assert torch.equal(log_or_floor_(strided, z), expected)
        assert torch.equal(log_or_floor_(p, z), expected)


def test_one_row_of_raw_scores_whose_exponentials_sum_to_one_leaves_all_of_them_raw_scores():
    model = sparsify(tiny_model("llama"), head="sparsemax")
    z = torch.randn(3, 23, generator=torch.Generator().manual_seed(0))
    z[1] -= z[1].logsumexp(-1)
    torch.testing.assert_close(probabilities(model, z), F.sparsemax(z))
