"""compare fits every head, spends a budget greedily, recommends a call that runs, and changes nothing."""

import itertools
import json
import random

import pytest
import torch

from hf_sparse import compare, is_sparse, plot_head_errors, sparse_config, sparsify
from hf_sparse.conversion._compare import greedy_order
from tests.conversion.data import loader
from tests.model.test_head import scored as by_hand
from tests.tiny_models import labelled, tiny_model


def output_divergence(name, sparse, batches):
    """KL(p || q) with a little uniform in both, of the sparse model's next-token softmax from the dense model's.

    A target of the last batch: the others are fitted on.
    """
    dense, values = tiny_model(name), []
    for batch in batches[-1:]:
        z, y = by_hand(name, sparse(**batch).logits, batch["labels"])
        z_dense, _ = by_hand(name, dense(**batch).logits, batch["labels"])
        log_q, log_p = (each[y != -100].double().log_softmax(-1) for each in (z, z_dense))
        q, p = (0.9999 * each.exp() + 1e-4 / z.shape[-1] for each in (log_q, log_p))
        values.append((p * (p / q).log()).sum(-1))
    return float(torch.cat(values).mean())


def run(call, model):
    """The model that a printed recommendation makes."""
    exec(call, {"model": model, "sparsify": sparsify})
    return model


@pytest.fixture(scope="module")
def gpt2():
    model = tiny_model("gpt2")
    return compare(model, loader(model), attn="sparsemax", head="entmax15", budget=0.02, progress=False)


@torch.no_grad()
def test_the_error_of_a_head_is_that_of_its_weights_where_scores_are_dense(gpt2):
    assert {(each.layer, each.head, each.alpha) for each in gpt2.heads} == set(
        itertools.product((0, 1), range(4), (1.25, 1.5, 2.0))
    )
    batches = loader(tiny_model("gpt2"))
    p = tiny_model("gpt2", attn_implementation="eager")(**batches[0], output_attentions=True).attentions[0].double()
    for each in [each for each in gpt2.heads if each.layer == 0][::3]:
        alphas, temperatures = [1.0] * 4, [1.0] * 4
        alphas[each.head], temperatures[each.head] = each.alpha, each.temperature
        layers = [None, None]
        layers[each.layer] = {"name": "entmax", "alpha": alphas, "temperature": temperatures}
        model = sparsify(tiny_model("gpt2"), attn={"decoder": layers})
        q = model(**batches[0], output_attentions=True).attentions[0][:, each.head].double()
        lengths = p[:, each.head].square().sum(-1)
        error = (q - p[:, each.head]).square().sum(-1)
        assert each.error == pytest.approx(float(error.mean() / lengths.mean()), rel=1e-2, abs=1e-6)
        support = (q > 0).sum(-1).double().mean()
        assert each.zeros == pytest.approx(4 - float(support), abs=1e-4)  # of 4 visible keys on average


@torch.no_grad()
def test_the_recommendation_runs_as_printed_and_keeps_the_budget(gpt2):
    model = run(gpt2.call, tiny_model("gpt2"))
    assert output_divergence("gpt2", model, loader(model)) <= 0.02
    assert gpt2.asked["attention, recommended"].divergence == pytest.approx(
        output_divergence("gpt2", model, loader(model)), rel=1e-2, abs=1e-6
    )
    assert sparse_config(model).head.to_dict() == gpt2.recommendation["head"]
    assert gpt2.call in str(gpt2)


def test_a_larger_budget_buys_more_and_none_buys_nothing():
    model, alphas, calls = tiny_model("gpt2"), [], []
    for budget in (0.0, 0.002, 100.0):
        found = compare(model, loader(model), attn="entmax15", budget=budget, progress=False)
        layers = (found.recommendation["attn"] or {"decoder": []})["decoder"]
        alphas.append(sum(alpha - 1 for layer in layers if layer for alpha in layer["alpha"]))
        calls.append(found.call)
        assert found.recommended.divergence <= budget + 1e-6
    assert alphas[0] == 0 < alphas[1] < alphas[2] == 8 * 0.5
    assert calls[0] == "# nothing sparse fits the budget"
    assert calls[1].startswith("sparsify(\n    model,\n    attn={'decoder'")


@pytest.mark.parametrize("name", ["bart", "t5"])
@torch.no_grad()
def test_kinds_are_kept_apart_and_the_model_is_left_alone(name):
    model = tiny_model(name).train()
    before, config = model.state_dict(), model.config.to_dict()
    expected = model.eval()(**labelled(model)).logits
    model.train()
    asked = {"cross": "entmax15", "encoder": ["softmax", {"name": "entmax", "alpha": 1.3}]}
    found = compare(model, loader(model, 1), attn=asked, budget=0.05, progress=False)
    assert found.kinds == ["encoder", "cross"]
    assert {(each.kind, each.layer, each.alpha) for each in found.heads} == {
        ("encoder", 1, 1.25),
        ("encoder", 1, 1.3),
        *itertools.product(["cross"], (0, 1), (1.25, 1.5)),
    }
    assert found.errors("cross").shape == (2, 4)
    assert found.errors("encoder", 1.25)[0].isnan().all()
    assert torch.equal(found.errors("encoder")[1], found.errors("encoder", 1.3)[1])
    assert torch.equal(found.errors("cross"), found.errors("cross", 1.5))
    assert "relative error of each encoder head's weights" in str(found)
    drawn = [axes.get_title() for axes in plot_head_errors(found).axes]
    assert drawn[:2] == ["encoder", "cross"]
    assert not is_sparse(model)
    assert model.training
    assert model.config.to_dict() == config
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(model.eval()(**labelled(model)).logits, expected)
    run(found.call, model)


def test_a_head_alone_is_compared_and_recommended_with_fitted_settings():
    model = tiny_model("gpt2")
    found = compare(model, loader(model), head="alpha_relu", progress=False)
    assert not found.heads
    assert list(found.asked) == ["head", "head, fitted"]
    assert found.recommended == found.asked["head, fitted"]
    assert found.recommended.eps_perplexity < found.asked["head"].eps_perplexity
    assert sparse_config(run(found.call, model)).head.to_dict() == found.recommendation["head"]
    with pytest.raises(ValueError, match="the comparison is without attention heads"):
        plot_head_errors(found)


def test_the_comparison_can_be_read_and_stored(gpt2):
    text = str(gpt2)
    for part in (
        "GPT2LMHeadModel on 16 targets",
        "attention, fitted",
        "head, fitted",
        "relative error of each decoder head's weights",
    ):
        assert part in text
    assert f"{float(gpt2.errors('decoder')[1, 3]):8.5f}" in text
    assert json.loads(json.dumps(gpt2.to_dict()))["budget"] == 0.02
    with pytest.raises(ValueError, match="no head of kind 'cross' was tried at alpha"):
        gpt2.errors("cross")


def test_the_picture_shows_the_errors(gpt2, tmp_path):
    path = tmp_path / "heads.png"
    figure = plot_head_errors(gpt2, alpha=1.5, title="t", path=path)
    (image,) = figure.axes[0].images
    expected = gpt2.errors("decoder", 1.5).T
    drawn = torch.as_tensor(image.get_array())
    assert drawn.shape == (4, 2)
    torch.testing.assert_close(drawn, expected.clamp(min=float(expected.max()) * 1e-4))
    assert [axis.get_label_text() for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis)] == ["layer", "head"]
    assert path.read_bytes()[:4] == b"\x89PNG"


def total(table, choice):
    return sum(row[level - 1] for row, level in zip(table, choice) if level)


@pytest.mark.parametrize("seed", range(20))
def test_greedy_steps_are_the_best_that_enumeration_finds_for_what_they_cost(seed):
    """With costs that rise faster than gains, at every step no other choice gains more for at most the same cost."""
    random.seed(seed)
    costs, gains = [], []
    for _ in range(4):
        slopes = sorted(random.uniform(0.1, 5) for _ in range(3))
        steps = [random.uniform(0.1, 2) for _ in range(3)]
        gains.append(list(itertools.accumulate(steps)))
        costs.append(list(itertools.accumulate(slope * step for slope, step in zip(slopes, steps))))
    levels = [0] * 4
    for item, level in greedy_order(costs, gains):
        levels[item] = level
        cost, gain = total(costs, levels), total(gains, levels)
        rivals = (choice for choice in itertools.product(range(4), repeat=4) if total(costs, choice) <= cost + 1e-9)
        assert gain >= max(total(gains, choice) for choice in rivals) - 1e-9
    assert levels == [3] * 4


def test_greedy_skips_levels_that_gain_nothing_and_takes_what_costs_nothing_first():
    assert greedy_order([[1.0, 2.0]], [[1.0, 1.0]]) == [(0, 1)]
    assert greedy_order([[2.0, 1.0]], [[1.0, 2.0]]) == [(0, 2)]
    assert greedy_order([[1.0], [-1e-9]], [[5.0], [1.0]]) == [(1, 1), (0, 1)]
    assert greedy_order([[1.0]], [[0.0]]) == []
    assert greedy_order([], []) == []


BAD = [
    ({}, "nothing to make sparse"),
    ({"attn": "sparsegen_lin"}, "compare chooses an alpha for each head; give attn a map of the entmax family"),
    ({"attn": {"name": "entmax", "alpha": [1.0, 1.2, 1.5, 2.0]}}, "compare chooses an alpha for each head"),
    ({"attn": {"name": "entmax", "alpha": "learned"}}, "compare chooses an alpha for each head"),
    ({"attn": {"cross": "entmax15"}}, "has no cross attention"),
    ({"attn": "entmax15", "budget": -1}, "budget must be >= 0, was -1"),
    ({"attn": "entmax15", "budget": float("nan")}, "budget must be >= 0, was nan"),
    ({"attn": "entmax15", "uniform_share": 0}, r"uniform_share must be in \(0, 1\), was 0"),
    ({"attn": "entmax15", "measure": "kl"}, "measure must be one of 'auto', 'eps_kl', 'js', 'states', was 'kl'"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=str)
def test_bad_requests_are_refused_and_the_model_stays_dense(arguments, message):
    model = tiny_model("gpt2")
    names = set(model.state_dict())
    with pytest.raises(ValueError, match=message):
        compare(model, loader(model), **arguments, progress=False)
    assert not is_sparse(model)
    assert set(model.state_dict()) == names


def test_sparse_models_are_refused():
    model = sparsify(tiny_model("gpt2"), attn="entmax15")
    with pytest.raises(ValueError, match="is sparse already"):
        compare(model, loader(model), attn="entmax15", progress=False)
    assert is_sparse(model)
