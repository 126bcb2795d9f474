"""Screened heads decode from the distribution of the full product: no token differs, whatever the weights are."""

import ast
import copy
import inspect
import math
import os
import pickle
import shutil
import textwrap
import threading

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from transformers import LogitsProcessor, LogitsProcessorList, SynthIDTextWatermarkingConfig
from transformers.generation import logits_process

from hf_sparse import probabilities, set_head_impl, sparsify
from hf_sparse.config import MapConfig
from hf_sparse.functional import entmax_threshold
from hf_sparse.functional.cut import has_cut, score_cut
from hf_sparse.functional.log_zero import on_floor
from hf_sparse.kernels import KernelUnavailable
from hf_sparse.model import head_impl, kept_support, screening
from hf_sparse.model.find import sparse_state
from hf_sparse.model.lazy_logits import LinearLogits
from hf_sparse.model.screening import MOST_ROWS, HeadScreen
from tests.tiny_models import tiny_model, tokens
from tests.tolerances import WEIGHT

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")), reason="no C++ compiler is installed"
)
VOCAB = 3000
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


# ---- The copy is that of the weights -----------------------------------------------------------------------------


def changes():
    def in_place(model):
        with torch.no_grad():
            model.lm_head.weight.mul_(-1)

    def through_data(model):
        model.lm_head.weight.data.neg_()

    def one_entry(model):
        p = generated(model, steps=1)[1][0, 0].exp()
        model.lm_head.weight.data[int(p.argmin())] = 3 * model.lm_head.weight.data[int(p.argmax())]

    def two_rows_exchanged(model):
        weight = model.lm_head.weight.data
        weight[:] = weight.flip(0)

    def loaded(model):
        state = {
            name: value.flip(0) if name == "lm_head.weight" else value for name, value in model.state_dict().items()
        }
        model.load_state_dict(state)

    def replaced(model):
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().flip(0))

    def trained(model):
        model.train()
        optimizer = torch.optim.SGD(model.lm_head.parameters(), lr=30.0)
        model(tokens(vocab_size=VOCAB), labels=tokens(vocab_size=VOCAB)).loss.backward()
        optimizer.step()
        model.eval()

    def moved(model):
        model.to(torch.bfloat16).to(torch.float32)

    def new_head(model):
        model.lm_head = nn.Linear(32, VOCAB)

    return [in_place, through_data, one_entry, two_rows_exchanged, loaded, replaced, trained, moved, new_head]


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.__name__)
def test_changed_weights_get_a_new_copy(change):
    model = sparse()
    before = generated(model)[1]
    change(model)
    after = generated(model)[1]
    assert not torch.equal(before, after)
    check_same(model)


def test_merged_adapters_get_a_new_copy():
    peft = pytest.importorskip("peft")
    model = sparse()
    generated(model)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["lm_head"], init_lora_weights=False))
    with pytest.raises(
        ValueError, match=r'impl="screened" takes a head that is one linear layer .*, was peft\..*; use set_head_impl'
    ):
        generated(adapted.get_base_model())
    merged = adapted.merge_and_unload()
    assert num_screened(merged)
    check_same(merged)


def test_a_pruned_head_is_refused_for_what_it_is():
    model = sparse()
    prune.l1_unstructured(model.lm_head, "weight", 0.3)
    with pytest.raises(ValueError, match="whose weight is a parameter, and this one is computed"):
        generated(model)


def test_weights_that_change_inside_a_call_are_noticed_where_they_are_read():
    for factor in (3.0, 0.3, -1.0):
        model = sparse()
        with torch.no_grad(), sparse_state(model).generating(model):
            model(tokens(1, 1))
            model.lm_head.weight.data.mul_(factor)
            screened = model(tokens(1, 1)).logits
            assert sparse_state(model).screen._copy is None
        with torch.no_grad():
            assert torch.equal(screened, model(tokens(1, 1)).logits)


def test_a_weight_written_in_place_inside_a_call_is_noticed():
    model = sparse()
    with torch.no_grad(), sparse_state(model).generating(model):
        weight, p = model.lm_head.weight, model(tokens(1, 1)).logits[0, 0].exp()
        weight[int(p.argmin())] = 3 * weight[int(p.argmax())]
        screened = model(tokens(1, 1)).logits
    with torch.no_grad():
        torch.testing.assert_close(screened.exp(), model(tokens(1, 1)).logits.exp())


def test_copies_and_pickles_of_a_model_carry_no_copy_of_its_weights():
    model = sparse()
    generated(model)
    sizes = [len(pickle.dumps(sparse_state(model).screen))]
    twin = copy.deepcopy(model)
    for other in (twin, pickle.loads(pickle.dumps(model))):
        assert sparse_state(other).screen._copy is None
        assert sparse_state(other).screen.impl == "screened"
        with torch.no_grad():
            other.lm_head.weight.mul_(2.0)
        check_same(other)
    assert sizes[0] < 1000
    check_same(model)


def test_another_choice_frees_the_copy():
    model = sparse()
    generated(model)
    assert sparse_state(model).screen._copy is not None
    set_head_impl(model, "full")
    assert sparse_state(model).screen._copy is None
    assert num_screened(model) == []


# ---- Tokens without weight ---------------------------------------------------------------------------------------


def test_constraints_that_leave_no_possible_token_see_the_exact_order():
    model = sparse(head={"name": "sparsemax", "temperature": 0.05})
    rest = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(0))[:1500].tolist()
    options = {"prefix_allowed_tokens_fn": lambda *_: rest}
    assert num_screened(model, **options)
    check_same(model, **options)
    check_same(model, num_beams=3, **options)


class Counter(LogitsProcessor):
    """Allows at its n-th call the n-th token of a list alone, as a parser that follows what is generated."""

    def __init__(self, allowed):
        self.allowed, self.calls = allowed, 0

    def __call__(self, input_ids, scores):
        token = self.allowed[self.calls]
        self.calls += 1
        return torch.full_like(scores, -torch.inf).index_copy_(1, torch.tensor([token]), scores[:, [token]])


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_processor_that_counts_its_calls_is_called_once_a_step(num_beams, monkeypatch):
    monkeypatch.setattr(screening, "LEAST_WEIGHTS", VOCAB * 32)
    model = sparse(head={"name": "sparsemax", "temperature": 0.05}, impl="auto")
    assert num_screened(model)
    counter = Counter([7, 8, 9, 10, 11, 12])
    assert num_screened(model, logits_processor=LogitsProcessorList([counter]), num_beams=num_beams) == []
    assert counter.calls == 6
    counter.calls = 0
    sequences, _ = generated(model, logits_processor=[counter], num_beams=num_beams)
    assert sequences[0, -6:].tolist() == counter.allowed
    assert num_screened(model)


def test_steps_of_a_watermark_that_keeps_state_are_not_screened():
    watermark = SynthIDTextWatermarkingConfig(keys=[6, 4, 8], ngram_len=2)
    assert num_screened(sparse(), watermarking_config=watermark) == []


def test_processors_of_transformers_that_keep_state_are_known():
    def counts(cls):
        source = textwrap.dedent(inspect.getsource(cls.__call__))
        changed = [node.target for node in ast.walk(ast.parse(source)) if isinstance(node, ast.AugAssign)]
        return any(ast.unparse(target).startswith("self.") for target in changed)

    classes = [cls for cls in vars(logits_process).values() if isinstance(cls, type)]
    processors = [cls for cls in classes if issubclass(cls, LogitsProcessor) and "__call__" in vars(cls)]
    assert {cls for cls in processors if counts(cls)} == set(kept_support._WITH_STATE)


def test_the_best_of_the_impossible_tokens_are_in_their_exact_order():
    model = sparse(head={"name": "sparsemax", "temperature": 0.01})
    screened = generated(model, steps=1)[1].topk(screening.NUM_EXACT)
    set_head_impl(model, "full")
    full = generated(model, steps=1)[1]
    assert int(on_floor(screened.values).sum()) == screening.NUM_EXACT - 1
    step = 2e-3  # between two float32 numbers on the floor
    torch.testing.assert_close(screened.values, full.gather(-1, screened.indices), atol=step, rtol=0)
    torch.testing.assert_close(screened.values, full.topk(screening.NUM_EXACT).values, atol=step, rtol=0)


# ---- When it is taken --------------------------------------------------------------------------------------------


def test_auto_screens_large_heads_after_the_first_step(monkeypatch):
    model = sparse(impl="auto")
    assert num_screened(model) == []
    monkeypatch.setattr(screening, "LEAST_WEIGHTS", VOCAB * 32)
    assert len(num_screened(model, steps=6)) == 5
    assert len(num_screened(model, steps=6)) == 6
    check_same(model)


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


# ---- Steps that are not screened ---------------------------------------------------------------------------------


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


# ---- The choice, and the cut -------------------------------------------------------------------------------------


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
