"""Scores of attention multiplied by ``delta + beta (log n) ** gamma``: what it is, how it is learned and kept."""

import math

import pytest
import torch
from torch import nn

from hf_sparse import SparseTrainer, compare, from_pretrained, sparse_config, sparsify
from hf_sparse.attention import attention_sites
from hf_sparse.cache_name import CACHE
from hf_sparse.config import MapConfig, SparseConfig
from hf_sparse.functional.score_transforms import length_scale
from tests.tiny_models import attentions, labelled, tiny_model, tokens
from tests.training.runs import arguments

ADAPTIVE = {"name": "entmax15", "delta": 0.7, "beta": {"learned": 0.4}, "gamma": {"learned": 1.3}}
# What messages say besides of a setting of attention.
_ALSO = ', a list with one for each head or "learned"'
SCALABLE_SOFTMAX = {"name": "softmax", "delta": 0.0, "beta": 0.8}


def scores():
    return torch.randn(2, 3, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_it_is_the_formula_of_the_visible_scores():
    z = scores()
    z[0, :, 1, 2:] = -torch.inf
    z[1, :, 0] = -torch.inf
    found = length_scale(z, 0.5, 2.0, -1.0)
    assert found.shape == (2, 3, 5, 1)
    assert float(found[0, 0, 0]) == pytest.approx(0.5 + 2 / math.log(7))
    assert float(found[0, 2, 1]) == pytest.approx(0.5 + 2 / math.log(3))
    assert found.isfinite().all()  # a row without keys has weights of zero, whatever the factor
    assert length_scale(z.bfloat16(), 0.5, 2.0, -1.0).dtype == torch.float32


def test_scalable_softmax_is_softmax_of_the_scores_times_s_log_n():
    z = scores()
    choice = MapConfig.parse(SCALABLE_SOFTMAX, "attn")
    torch.testing.assert_close(choice(z), torch.softmax(0.8 * math.log(7) * z, -1))


def test_each_head_and_row_has_its_own_and_a_temperature_divides_first():
    z = scores()
    z[:, :, 0, 1:] = -torch.inf
    choice = MapConfig.parse({"name": "entmax15", "beta": 0.5, "gamma": 2.0, "temperature": 1.5}, "attn")
    beta = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64).view(-1, 1, 1)
    plain = MapConfig.parse("entmax15", "attn")
    p = choice(z, beta=beta)
    for head, value in enumerate((0.1, 0.5, 2.0)):
        factor = 1 + value * math.log(7) ** 2
        torch.testing.assert_close(p[:, head, 1:], plain(z[:, head, 1:] * factor / 1.5))
    assert torch.equal(p[:, :, 0, 0], torch.ones(2, 3, dtype=torch.float64))


def test_without_a_factor_scores_are_left_alone_and_nothing_is_saved():
    choice = MapConfig.parse({"name": "entmax15", "delta": 1, "beta": 0, "gamma": 1}, "attn")
    assert choice == MapConfig.parse("entmax15", "attn")
    assert not choice.scaled_by_length
    z = scores()
    assert choice.scores(z) is z


def test_gradients_are_those_of_the_formula():
    z = (scores()[:1] / 3).requires_grad_()
    hidden = torch.ones(5, 6, dtype=torch.bool).triu(1)
    choice = MapConfig.parse({"name": "softmax", "beta": 0.5}, "attn")

    def weights(z, **settings):
        return choice(z.masked_fill(hidden, -torch.inf), **{name: s.view(-1, 1, 1) for name, s in settings.items()})

    three = [torch.tensor([0.3, 0.9, 1.4], dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(lambda z, d, b, g: weights(z, delta=d, beta=b, gamma=g), (z, *three))


@torch.no_grad()
@pytest.mark.parametrize("choice", [ADAPTIVE, SCALABLE_SOFTMAX], ids=["adaptive", "scalable softmax"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_decoding_with_a_cache_equals_one_call(name, choice):
    model = sparsify(tiny_model(name), attn=choice).eval()
    expected = model(tokens()).logits
    cache, steps = None, []
    for position in range(tokens().shape[1]):
        output = model(tokens()[:, position : position + 1], **{CACHE: cache}, use_cache=True)
        cache = output[CACHE]
        steps.append(output.logits)
    torch.testing.assert_close(torch.cat(steps, 1), expected, atol=1e-5, rtol=1e-4)
    static = {"do_sample": False, "max_new_tokens": 4}
    dynamic = model.generate(tokens(), **static)
    assert torch.equal(model.generate(tokens(), cache_implementation="static", **static), dynamic)


@torch.no_grad()
def test_padding_does_not_count():
    model = sparsify(tiny_model("llama"), attn={"name": "entmax15", "beta": 1.0}).eval()
    ids = tokens()
    padded = torch.cat([torch.zeros_like(ids[:, :3]), ids], 1)
    mask = torch.cat([torch.zeros_like(ids[:, :3]), torch.ones_like(ids)], 1)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(padded, attention_mask=mask, position_ids=positions).logits[:, 3:]
    torch.testing.assert_close(logits, model(ids).logits, atol=1e-5, rtol=1e-4)


def test_every_head_learns_and_a_checkpoint_brings_it_back(tmp_path):
    model = sparsify(tiny_model("llama"), attn={**ADAPTIVE, "delta": "learned"})
    model(**labelled(model)).loss.backward()
    for module, _ in attention_sites(model):
        for setting in ("delta", "beta", "gamma"):
            value = getattr(module, f"sparse_{setting}").value
            assert value.shape == (4,)
            assert (value.grad != 0).any()
    with torch.no_grad():
        model.model.layers[1].self_attn.sparse_gamma.value += 0.5
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path)
    assert sparse_config(loaded) == sparse_config(model)
    assert torch.equal(loaded(tokens()).logits, model.eval()(tokens()).logits)


def test_learning_starts_at_the_numbers_given():
    learned = sparsify(tiny_model("llama"), attn=ADAPTIVE)
    fixed = sparsify(tiny_model("llama"), attn={"name": "entmax15", "delta": 0.7, "beta": 0.4, "gamma": 1.3})
    torch.testing.assert_close(learned(tokens()).logits, fixed(tokens()).logits, atol=1e-5, rtol=1e-4)


def test_the_optimizer_of_the_trainer_has_them(tmp_path):
    model = sparsify(tiny_model("llama"), attn=ADAPTIVE)
    rows = [{"input_ids": row, "labels": row} for row in tokens(4)]
    trainer = SparseTrainer(model, arguments(tmp_path, max_steps=1, learning_rate=0.1), train_dataset=rows)
    before = model.model.layers[0].self_attn.sparse_beta.value.clone()
    trainer.train()
    assert not torch.equal(model.model.layers[0].self_attn.sparse_beta.value, before)


@torch.no_grad()
def test_cross_and_constrained_attention_take_it():
    credit = {"name": "csparsemax", "fertility": 1e6, "sink": False, "beta": 0.5}
    constrained = sparsify(tiny_model("bart").double(), attn={"cross": credit})
    plain = sparsify(tiny_model("bart").double(), attn={"cross": {"name": "sparsemax", "beta": 0.5}})
    without = sparsify(tiny_model("bart").double(), attn={"cross": "sparsemax"})
    logits = [model(**labelled(model)).logits for model in (constrained, plain, without)]
    torch.testing.assert_close(logits[0], logits[1])
    assert not torch.allclose(logits[1], logits[2])


@torch.no_grad()
def test_a_larger_factor_gives_a_smaller_support():
    def support(**settings):
        model = sparsify(tiny_model("llama"), attn={"name": "entmax15", **settings})
        return int((attentions(model, input_ids=tokens())[0] > 0).sum())

    assert support(beta=20.0) < support()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attn": {"name": "entmax15", "gamma": 1.5}}, "gamma is the power of a length that beta=0 leaves out"),
        ({"attn": {"name": "entmax15", "delta": 0}}, "delta and beta are both 0"),
        ({"attn": {"name": "entmax15", "beta": -1}}, f"attn: beta must be a number from 0 to 1000000{_ALSO}, was -1"),
        (
            {"attn": {"name": "entmax15", "beta": 1, "gamma": 3}},
            f"attn: gamma must be a number from -2 to 2{_ALSO}, was 3",
        ),
        (
            {"attn": {"name": "entmax15", "beta": "learned"}},
            r'attn: beta cannot start to be learned at 0\.0, .*; give \{"learned": start\} with a start inside it, a',
        ),
        ({"head": {"name": "entmax15", "beta": 1.0}}, "head: beta scale scores by the number of keys"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SparseConfig.parse(**settings)


def test_comparisons_refuse_a_factor():
    model = sparsify(tiny_model("llama"), attn={"name": "entmax15", "beta": 1.0})
    with pytest.raises(ValueError, match="compare fits no factor of length"):
        compare(tiny_model("llama"), [labelled(model)], attn={"name": "entmax15", "beta": 1.0})


def test_the_weight_of_the_best_key_stays_with_the_factor_and_falls_without():
    """What it is for: one key scores 1 above n - 1 others; scalable softmax keeps its weight as n grows."""
    kept = {}
    for name, choice in (("plain", "softmax"), ("scaled", {"name": "softmax", "delta": 0.0, "beta": 2.0})):
        choice = MapConfig.parse(choice, "attn")
        kept[name] = [float(choice(nn.functional.pad(torch.ones(1), (0, n - 1)))[0]) for n in (10, 1000)]
    assert kept["plain"][1] < 0.01 < kept["plain"][0]
    assert kept["scaled"][1] > 0.99
