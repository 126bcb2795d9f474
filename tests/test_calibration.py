"""tau from weights: the moment equation against closed forms, Monte Carlo, SciPy and the values of the paper."""

import math

import pytest
import torch
from scipy.special import gamma, pbdv
from torch import nn

import hf_sparse.functional as F
from hf_sparse import sparse_config, sparsify
from hf_sparse.calibration import estimate_tau, estimate_tau_from_head, positive_part_moment
from tests.tiny_models import tiny_model


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0, 3.3])
@pytest.mark.parametrize("t", [-3.0, 0.0, 1.5, 4.0])
def test_moment_equals_the_parabolic_cylinder_function(t, beta):
    expected = gamma(beta + 1) / math.sqrt(2 * math.pi) * math.exp(-(t**2) / 4) * pbdv(-beta - 1, t)[0]
    assert positive_part_moment(t, beta) == pytest.approx(expected, rel=1e-5)


# name: (V, standard deviation of the logits at initialization, tau at alpha 1.5)
INITIALIZATIONS = {
    "GPT-2": (50257, 0.554, 0.813),
    "BERT-base": (30522, 0.554, 0.776),
    "Marian": (58101, 0.453, 0.648),
    "tied T5": (32128, 1.0, 1.564),
    "Llama, 4096 dimensions": (32000, 1.28, 2.082),
}


@pytest.mark.parametrize("name", INITIALIZATIONS)
def test_known_initializations(name):
    vocab_size, std, tau = INITIALIZATIONS[name]
    estimate = estimate_tau(1.5, vocab_size, std)
    assert estimate == pytest.approx(tau, abs=0.002)
    # entmax finds its own threshold for every row: x_1 - p_1^(alpha - 1). The estimate is close to their mean.
    z = std * torch.randn(60, vocab_size, generator=torch.Generator().manual_seed(0))
    thresholds = z.amax(-1) / 2 - F.entmax15(z).amax(-1).sqrt()
    assert estimate == pytest.approx(float(thresholds.mean()), abs=0.02)


@pytest.mark.parametrize(("alpha", "std"), [(1.2, 0.5), (1.5, 1.0), (2.0, 0.7), (2.5, 1.0)])
def test_weights_sum_to_one_on_average_at_the_estimate(alpha, std):
    generator = torch.Generator().manual_seed(0)
    z = std * torch.randn(400, 5000, generator=generator) + 0.3
    tau = estimate_tau(alpha, 5000, std, mean=0.3)
    assert float(F.alpha_relu(z, alpha, tau).sum(-1).mean()) == pytest.approx(1, abs=0.08)


def test_the_mean_shifts_tau_and_hidden_size_scales_it():
    assert estimate_tau(1.5, 100, 1.0, mean=2.0) == pytest.approx(estimate_tau(1.5, 100, 1.0) + 1.0)
    head = nn.Linear(64, 1000, bias=False)
    nn.init.normal_(head.weight, std=0.05)
    std = 0.05 * 8
    assert estimate_tau_from_head(head, 1.5) == pytest.approx(estimate_tau(1.5, 1000, std), abs=0.02)
    assert estimate_tau_from_head(head, 1.5, hidden_rms=3.0) == pytest.approx(
        estimate_tau(1.5, 1000, 3 * std), abs=0.05
    )
    biased = nn.Linear(64, 1000)
    biased.weight = head.weight
    nn.init.constant_(biased.bias, 5.0)
    assert estimate_tau_from_head(biased, 1.5) == pytest.approx(estimate_tau_from_head(head, 1.5) + 2.5, abs=1e-4)


@pytest.mark.parametrize(
    "bad", [{"alpha": 1.0}, {"vocab_size": 0}, {"std": 0.0}, {"std": math.nan}, {"mean": math.inf}]
)
def test_bad_arguments_are_named(bad):
    arguments = {"alpha": 1.5, "vocab_size": 10, "std": 1.0, "mean": 0.0} | bad
    name, value = next(iter(bad.items()))
    with pytest.raises(ValueError, match=f"estimate_tau needs alpha > 1.*{name}={value}"):
        estimate_tau(**arguments)


@pytest.mark.parametrize("name", ["gpt2", "t5", "bart", "bert"])
@torch.no_grad()
def test_auto_gives_a_head_whose_weights_sum_to_about_one(name):
    """T5 scales hidden states before its head and BERT adds a bias: both are seen."""
    model = tiny_model(name, vocab_size=400)
    sparsify(model, head={"name": "alpha_relu", "alpha": 1.5, "tau": "auto"})
    settings = dict(sparse_config(model).head.settings)
    assert isinstance(settings["tau"], float)
    ids = torch.randint(3, 400, (8, 20), generator=torch.Generator().manual_seed(0))
    extra = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    mass = F.alpha_relu(model(input_ids=ids, **extra).logits, **settings).sum(-1)
    assert 0.3 < float(mass.median()) < 4
