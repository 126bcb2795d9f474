"""One step of a screened head: when it is put off, what its logits go through, the choice and the cut."""

import math
import threading

import pytest
import torch
from torch import nn

from hf_sparse import probabilities, set_head_impl, sparsify
from hf_sparse.config import MapConfig
from hf_sparse.functional import entmax_threshold
from hf_sparse.functional.cut import has_cut, score_cut
from hf_sparse.kernels import KernelUnavailable
from hf_sparse.model import head_impl, screening
from hf_sparse.model.find import sparse_state
from hf_sparse.model.lazy_logits import LinearLogits
from hf_sparse.model.screening import MOST_ROWS, HeadScreen
from tests.model.screened_models import VOCAB, generated, needs_compiler, sparse
from tests.tiny_models import tiny_model, tokens

pytestmark = needs_compiler


@pytest.fixture
def one_head():
    """A head, its map, and a screen that is told to take it."""
    torch.manual_seed(0)
    with torch.no_grad():
        yield nn.Linear(32, 500).requires_grad_(False), MapConfig.parse("entmax15", "head"), HeadScreen("screened")


def step(one_head, hidden, change=lambda lazy: lazy):
    """Logits of one step inside ``HeadScreen.run``."""
    head, config, screen = one_head
    with screen.put_off(head, config):
        lazy = change(head(hidden))
    return lazy if isinstance(lazy, torch.Tensor) else screen.logits(lazy, config)


def test_a_step_that_is_not_screened_is_not_completed_from_the_one_before(one_head):
    _, config, screen = one_head
    with screen.run():
        step(one_head, torch.randn(2, 1, 32))
        assert screen.complete(config, 2).shape == (2, 500)
        assert screen.complete(config, 3) is None
        step(one_head, torch.randn(2, 4, 32))
        assert screen.complete(config, 2) is None


@pytest.mark.parametrize("shape", [(MOST_ROWS + 1, 1, 32), (1, 2, 32), (1, 32), (0, 1, 32)], ids=str)
def test_only_a_few_rows_of_one_position_are_put_off(shape, one_head):
    head, config, screen = one_head
    with screen.run(), screen.put_off(head, config):
        assert type(head(torch.randn(shape))) is torch.Tensor
        assert type(head(torch.randn(MOST_ROWS, 1, 32))) is LinearLogits


def test_hidden_states_of_another_precision_are_refused_as_by_the_layer(one_head):
    head, config, screen = one_head
    with screen.run(), screen.put_off(head, config), pytest.raises(RuntimeError, match="dtype"):
        head(torch.randn(1, 1, 32, dtype=torch.float64))


def test_the_head_is_put_off_for_the_thread_of_the_step_alone(one_head):
    head, config, screen = one_head
    found = []
    with screen.run(), screen.put_off(head, config):
        other = threading.Thread(target=lambda: found.append(head(torch.randn(1, 1, 32))))
        other.start()
        other.join()
    assert type(found[0]) is torch.Tensor


def test_a_step_with_gradients_has_them():
    model = sparse()
    with sparse_state(model).generating(model):
        assert model(tokens(1, 1)).logits.requires_grad


def written(lazy):
    lazy[..., 7] = 30.0
    return lazy


CHANGES = {
    "written to": written,
    "negative": lambda lazy: -2.0 * lazy,
    "soft-capped and negative": lambda lazy: -2.0 * torch.tanh(lazy),
    "zero": lambda lazy: 0.0 * lazy,
    "soft-capped at zero": lambda lazy: 0.0 * torch.tanh(lazy),
    "soft-capped below what the map cuts off": lambda lazy: 0.01 * torch.tanh(lazy / 0.01),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_a_model_does_with_its_logits_is_done(change, one_head):
    head, config, screen = one_head
    hidden = 3 * torch.randn(2, 1, 32)
    with screen.run():
        found = step(one_head, hidden, change)
    torch.testing.assert_close(config(found), config(change(head(hidden))))


def test_a_choice_is_that_of_the_parts_too():
    model = sparsify(tiny_model("llama"), attn="entmax15", head="entmax15")
    set_head_impl(model, "full")
    assert [part.screen.impl for part in sparse_state(model).parts] == ["full"]


def test_what_cannot_be_screened_is_refused_by_name(monkeypatch):
    model = sparse()
    with pytest.raises(ValueError, match="impl must be one of 'auto', 'screened', 'full', was 'int8'"):
        set_head_impl(model, "int8")
    with pytest.raises(ValueError, match="the head of this model is dense; make it sparse first"):
        set_head_impl(sparsify(tiny_model("llama"), attn="entmax15"), "full")
    for head in ("softmax", "sparsegen_lin", {"name": "alpha_relu", "tau": 0.5, "centered": True}):
        with pytest.raises(ValueError, match='impl="screened" takes heads of alpha_relu that are not centered, and'):
            sparse(head=head)
    with pytest.raises(ValueError, match=r"takes weights on the CPU of one of .*, was torch.float64 on cpu"):
        set_head_impl(sparse().double(), "screened")
    transposed = sparse()
    transposed.lm_head.weight = nn.Parameter(torch.randn(32, VOCAB).T)
    with pytest.raises(ValueError, match=r"takes contiguous weights, was of strides \(1, 3000\)"):
        set_head_impl(transposed, "screened")
    for change in (
        lambda head: head.register_forward_hook(lambda *_: None),
        lambda head: head.register_forward_pre_hook(lambda *_: None),
        lambda head: setattr(head, "forward", head.forward),
    ):
        changed = sparse()
        change(changed.lm_head)
        with pytest.raises(ValueError, match="takes a head without hooks, and without a forward of its own"):
            set_head_impl(changed, "screened")

    def missing():
        raise KernelUnavailable("no C++ compiler was found")

    monkeypatch.setattr(head_impl, "require_cpp", missing)
    with pytest.raises(KernelUnavailable, match="no C"):
        set_head_impl(model, "screened")


def test_the_cut_is_below_the_threshold_of_the_row_and_close_to_it():
    torch.manual_seed(0)
    for name, alpha, settings in (("entmax15", 1.5, {}), ("sparsemax", 2.0, {}), ("entmax", 1.2, {"alpha": 1.2})):
        assert has_cut(name, settings)
        z = 3 * torch.randn(5000, dtype=torch.float64)
        lowest = float(entmax_threshold(z, alpha)) / (alpha - 1)
        assert score_cut(name, settings, z.topk(4).values.tolist()) < lowest
        assert lowest - 1e-3 < score_cut(name, settings, z.topk(1000).values.tolist()) < lowest
    assert not has_cut("entmax", {"alpha": 2.5})
    assert not has_cut("softmax", {})
    assert score_cut("entmax15", {}, [1.0, math.nan]) == -math.inf
    assert score_cut("entmax15", {}, [1.0, math.inf]) == -math.inf
    assert score_cut("alpha_relu", {"alpha": 1.5, "tau": 2.0}, [9.0]) == pytest.approx(4.0, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("cap", [None, 0.9, 2.5, 30.0])
def test_every_output_of_the_layer_that_has_weight_is_above_the_cut(cap, dtype):
    torch.manual_seed(0)
    config = MapConfig.parse("sparsemax", "head")
    for scale in (0.3, 1.7, 9.0):
        lazy = LinearLogits(torch.empty(1, 8, dtype=dtype), torch.empty(4000, 8), scale=scale, outer=cap)
        for shift in (-3.0, 0.0, 3.0):
            outputs = 2 * torch.rand(4000) + shift
            z = lazy.finished(outputs.to(dtype)).float()
            cut = screening._linear_cut(lazy, config, z.topk(screening.NUM_EXACT).values.tolist())
            assert cut <= float(outputs[config(z) > 0].min())


def test_log_probabilities_of_screened_steps_are_a_distribution():
    model = sparse()
    _, scores = generated(model)
    p = probabilities(model, scores)
    torch.testing.assert_close(p.sum(-1), torch.ones(scores.shape[:-1]))
