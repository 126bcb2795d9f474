"""Screened heads decode from the distribution of the full product: no token differs, whatever the weights are."""

import os
import threading

import pytest
import torch
from torch import nn
from transformers import LogitsProcessorList

from hf_sparse import set_head_impl, sparsify
from hf_sparse.config import MapConfig
from hf_sparse.model import screening
from hf_sparse.model.find import sparse_state
from hf_sparse.model.lazy_logits import LinearLogits
from tests.model.screened_models import VOCAB, check_same, generated, needs_compiler, num_screened, sparse
from tests.tiny_models import tiny_model, tokens

pytestmark = needs_compiler

HEADS = {
    "entmax 1.5": "entmax15",
    "sparsemax, temperature": {"name": "sparsemax", "temperature": 0.7},
    "entmax 1.25": {"name": "entmax", "alpha": 1.25},
    "entmax near softmax": {"name": "entmax", "alpha": 1.01},
    "alpha-ReLU": {"name": "alpha_relu", "alpha": 1.5, "tau": 0.5},
    "alpha-ReLU without weights": {"name": "alpha_relu", "alpha": 1.5, "tau": 1e4},
}
MODES = {
    "greedy": {},
    "beams": {"num_beams": 4, "num_return_sequences": 4},
    "sampling": {"do_sample": True, "num_return_sequences": 3},
    "penalties": {"repetition_penalty": 1.3, "sequence_bias": [[[5], 3.0]], "min_new_tokens": 3},
    "no cache": {"use_cache": False},
    "prompt lookup": {"prompt_lookup_num_tokens": 2},
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_no_token_and_no_probability_differs_with_any_head(head):
    check_same(sparse(head=head), rows=2)


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
def test_no_token_differs_in_any_mode(options):
    check_same(sparse(), **options)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "bart", "t5", "marian"])
def test_tied_scaled_biased_and_soft_capped_heads(name):
    model = sparse(name)
    if name == "gemma2":
        model.config.final_logit_softcapping = 2.0
    for bias in (getattr(model, "final_logits_bias", None), getattr(model.get_output_embeddings(), "bias", None)):
        if bias is not None:
            bias.data.copy_(torch.randn_like(bias))
    assert num_screened(model)
    check_same(model, rows=3)


def test_a_bias_of_the_layer_and_forbidden_classes():
    model = sparse()
    head = model.get_output_embeddings()
    head.bias = nn.Parameter(torch.linspace(-2, 2, VOCAB), requires_grad=False)
    head.bias[100:VOCAB:2] = -torch.inf
    assert num_screened(model)
    check_same(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_differs_by_the_rounding_of_the_logits(dtype):
    model = sparse().to(dtype)
    assert num_screened(model)
    screened = generated(model, steps=2)[1]
    set_head_impl(model, "full")
    full = generated(model, steps=2)[1]
    torch.testing.assert_close(screened[:1].exp(), full[:1].exp(), atol=0.05, rtol=0)


def test_most_classes_are_never_multiplied():
    counts = num_screened(sparse(hidden_size=128))
    assert len(counts) == 6
    assert max(int(count.max()) for count in counts) < VOCAB / 4


ADVERSARIAL = (
    "ties", "all equal", "zeros", "one column", "one huge row", "one entry a group", "tiny", "close calls", "spread",
)  # fmt: skip


def adversarial(kind, weight):
    """Weights that are hard on a bound."""
    if kind == "ties":
        weight[1::2] = weight[::2]
    elif kind == "all equal":
        weight[:] = weight[0]
    elif kind == "zeros":
        weight.zero_()
    elif kind == "one column":
        weight[:, 3] *= 1e3
    elif kind == "one huge row":
        weight[7] *= 1e6
    elif kind == "one entry a group":
        weight.mul_(torch.rand_like(weight) < 0.05)
    elif kind == "tiny":
        weight.mul_(1e-25)
    elif kind == "close calls":
        weight[:] = weight[0] * (1 + 1e-6 * torch.randn(len(weight), 1))
    else:
        weight.mul_(10.0 ** torch.linspace(-20, 3, len(weight))[:, None])


@pytest.mark.parametrize(
    "kind",
    ["ties", "all equal", "zeros", "one column", "one huge row", "one entry a group", "tiny", "close calls", "spread"],
)
@torch.no_grad()
def test_probabilities_are_those_of_float64_for_adversarial_weights(kind):
    torch.manual_seed(1)
    head = nn.Linear(100, 2000, bias=False).requires_grad_(False)
    adversarial(kind, head.weight)
    hidden = torch.randn(5, 1, 100) * torch.tensor([1.0, 1e-30, 1e3, 30.0, 0.0]).view(5, 1, 1)
    config = sparse_state(sparse()).config.head
    screen = screening.HeadScreen("screened")
    with screen.run():
        with screen.put_off(head, config):
            lazy = head(hidden)
        z = screen.logits(lazy, config)
    exact = hidden.double() @ head.weight.double().T
    p, expected = config(z.double()), config(exact)
    # A logit is as exact as one dot product: its rounding is all that may be seen.
    rounding = 1e-5 * exact.abs().amax(-1, keepdim=True)
    assert bool(((p - expected).abs() <= rounding + 1e-6).all())


@torch.no_grad()
def test_nan_and_infinity_come_out_as_they_do_of_the_full_product():
    for bad in (torch.nan, torch.inf):
        model = sparse()
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
        model.lm_head.weight[5, 3] = bad
        assert num_screened(model) == []
    model = sparse()
    model.model.norm.weight[2] = torch.nan
    with torch.no_grad():
        assert num_screened(model) == []


def test_auto_screens_large_heads_after_the_first_step(monkeypatch):
    model = sparse(impl="auto")
    assert num_screened(model) == []
    monkeypatch.setattr(screening, "LEAST_WEIGHTS", VOCAB * 32)
    assert len(num_screened(model, steps=6)) == 5
    assert len(num_screened(model, steps=6)) == 6
    check_same(model)
    assert num_screened(sparse(impl="full")) == []


def test_a_head_with_few_classes_is_screened():
    model, found = sparsify(tiny_model("llama"), head="entmax15"), []
    options = {"max_new_tokens": 6, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    for impl in ("screened", "full"):
        set_head_impl(model, impl)
        found.append(torch.stack(model.generate(tokens(), **options).logits).softmax(-1))
        assert (sparse_state(model).screen._copy is not None) == (impl == "screened")
    torch.testing.assert_close(*found)


def test_auto_takes_the_full_product_where_the_head_cannot_be_screened(monkeypatch):
    monkeypatch.setattr(screening, "LEAST_WEIGHTS", 1)
    model = sparse(impl="auto", head={"name": "alpha_relu", "tau": 0.5, "centered": True})
    assert num_screened(model) == []
    monkeypatch.setattr(screening, "cpp_available", lambda build: False)
    assert num_screened(sparse(impl="auto")) == []


def test_many_rows_autocast_and_calls_outside_of_generate_take_the_full_product():
    model = sparse()
    assert num_screened(model, rows=screening.MOST_ROWS)
    assert num_screened(model, rows=screening.MOST_ROWS + 1) == []
    with torch.autocast("cpu", torch.bfloat16):
        assert num_screened(model) == []
    with torch.no_grad():
        model(tokens(1, 1))
    assert sparse_state(model).screen._runs == {}
    assert "forward" not in vars(model.lm_head)


def test_an_error_inside_a_step_leaves_the_head_as_it_was():
    model = sparse()

    def refuse(ids, scores):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        model.generate(tokens(1), logits_processor=[refuse], max_new_tokens=2)
    assert "forward" not in vars(model.lm_head)
    assert sparse_state(model).screen._runs == {}
    check_same(model)


def test_generate_inside_a_step_of_generate_leaves_the_outer_call_screened():
    model = sparse()
    expected, _ = generated(model)

    def generate(ids, scores):
        generated(model, steps=1)
        return scores

    counts = num_screened(model, logits_processor=None)
    inside = LogitsProcessorList([generate])
    assert torch.equal(generated(model, logits_processor=inside)[0], expected)
    assert len(counts) == 6


@torch.no_grad()
def test_a_call_inside_one_that_was_stopped_is_screened():
    screen, head = screening.HeadScreen("screened"), nn.Linear(8, VOCAB)
    sparsemax, hidden = MapConfig("sparsemax"), torch.ones(1, 1, 8)
    with screen.run():
        screen.stop()
        with screen.run(), screen.put_off(head, sparsemax):
            assert isinstance(head(hidden), LinearLogits)
        with screen.put_off(head, sparsemax):
            assert type(head(hidden)) is torch.Tensor


def test_threads_generate_side_by_side():
    model = sparse()
    expected = generated(model, num_beams=2)[0]
    found = []

    def work():
        for _ in range(3):
            found.append(model.generate(tokens(1, vocab_size=VOCAB), max_new_tokens=6, num_beams=2, eos_token_id=None))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 9
    assert all(torch.equal(sequences, expected) for sequences in found)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_process_generates_the_same():
    model = sparse()
    expected = generated(model)[0]
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(generated(model)[0], expected) else 1)
    assert os.waitpid(child, 0)[1] == 0
