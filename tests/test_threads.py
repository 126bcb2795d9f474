"""Threads that use one sparse model at the same time, as servers do: each gets what it would get alone."""

import copy
import pickle
import sys
from itertools import combinations_with_replacement
from threading import Event, Thread

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from hf_sparse import (
    beam_certificate,
    certify,
    exact_search,
    log_probabilities,
    raw_scores,
    score_sequences,
    sparsify,
    step_supports,
)
from hf_sparse.attention import attention_sites, observe
from hf_sparse.attention.backends import computed_by
from hf_sparse.attention.site import trial
from hf_sparse.model.dense_blocks import dense_head
from hf_sparse.model.dry_run import quiet_evaluation, watch
from tests.tiny_models import tiny_model, tokens

BOTH = {"attn": "entmax15", "head": "entmax15"}
BOUNDED = {"attn": {"cross": {"name": "csparsemax", "fertility": 2.0}}, "head": "entmax15"}
REPEATS = 3


def uses(model, ids):
    """What people do with a model, by name: functions that return something to compare."""
    prompt, labels = {"input_ids": ids[:1]}, ids[:, :4].contiguous()
    weights = "cross_attentions" if model.config.is_encoder_decoder else "attentions"
    forward = {"decoder_input_ids": labels} if model.config.is_encoder_decoder else {}

    def scores():
        with raw_scores(model):
            return model(ids, **forward).logits

    def supports():
        with observe(model) as counts:
            model(ids, **forward)
        return [(count.calls, count.nonzero) for count in counts.values()]

    def beams():
        return model.generate(
            ids, max_new_tokens=3, num_beams=2, return_dict_in_generate=True, output_scores=True, do_sample=False
        )

    return {
        "forward": lambda: model(ids, **forward).logits,
        "loss": lambda: model(ids, labels=labels if forward else ids).loss,
        "weights": lambda: list(model(ids, **forward, output_attentions=True)[weights]),
        "raw_scores": scores,
        "observe": supports,
        "greedy": lambda: model.generate(ids, max_new_tokens=3, do_sample=False),
        "beams": lambda: beams().sequences,
        "beam_certificate": lambda: beam_certificate(model, beams(), 2),
        "screened": lambda: model.generate(ids, max_new_tokens=3, do_sample=False, cache_implementation="screened"),
        "score_sequences": lambda: score_sequences(model, prompt, beams().sequences[:1]),
        "exact_search": lambda: exact_search(model, prompt, max_new_tokens=3),
        "step_supports": lambda: step_supports(model, prompt, [4, 5]),
        "certify": lambda: certify(model, prompt, beams().sequences[:1]),
    }


def alike(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return str(one) == str(other)


@pytest.fixture
def hasty():
    """Threads that take turns after microseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


CASES = [
    ("llama", BOTH, []),
    ("bart", BOTH, []),
    ("bart", BOUNDED, ["screened", "certify", "exact_search"]),  # refused
]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("name", "maps", "left_out"), CASES, ids=["decoder", "encoder-decoder", "bounded"])
@torch.no_grad()
def test_every_pair_of_uses_goes_side_by_side(name, maps, left_out):
    model = sparsify(tiny_model(name), **maps)
    every = {use: run for use, run in uses(model, tokens()).items() if use not in left_out}
    alone = {use: run() for use, run in every.items()}
    found = []

    def work(use):
        with torch.no_grad():  # of this thread
            for _ in range(REPEATS):
                try:
                    found.append((use, alike(alone[use], every[use]())))
                except Exception as error:  # noqa: BLE001
                    found.append((use, error))

    for pair in combinations_with_replacement(every, 2):
        threads = [Thread(target=work, args=(use,)) for use in pair]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [(use, result) for use, result in found if result is not True] == [], pair
        assert len(found) == 2 * REPEATS
        found.clear()


def in_another_thread(run):
    results = []
    thread = Thread(target=lambda: results.append(run()))
    thread.start()
    thread.join()
    return results[0]


@torch.no_grad()
def test_blocks_hold_for_the_thread_that_runs_them_alone():
    model, ids, seen = sparsify(tiny_model("llama"), **BOTH), tokens(), []
    logits = model(ids).logits
    generated = model.generate(ids, max_new_tokens=2, do_sample=False)
    run = torch.no_grad()(lambda: model(ids, labels=ids).logits)
    scores = run()
    with raw_scores(model), dense_head(model), observe(model) as counts:
        with trial(model, {}, lambda site, module, scores: seen.append(site.path)):
            assert torch.equal(in_another_thread(torch.no_grad()(lambda: model(ids).logits)), logits)
            assert torch.equal(
                in_another_thread(lambda: model.generate(ids, max_new_tokens=2, do_sample=False)), generated
            )
        with log_probabilities(model):
            assert torch.equal(in_another_thread(run), scores)
    (_, site), *_ = attention_sites(model)
    with computed_by(model, "torch"):
        assert (site.impls.innermost(model), in_another_thread(lambda: site.impls.innermost(model))) == ("torch", None)
    assert site.impls.innermost(model) is None
    assert seen == []
    assert {count.calls for count in counts.values()} == {0}


@torch.no_grad()
def test_a_forward_call_of_another_thread_outlives_a_block_that_watches_the_model():
    model, ids = sparsify(tiny_model("llama"), **BOTH), tokens()
    logits, entered, ended, found = model(ids).logits, Event(), Event(), []

    def wait_between_hooks(*_):
        entered.set()
        ended.wait(60)

    handle = model.lm_head.register_forward_pre_hook(wait_between_hooks)
    thread = Thread(target=torch.no_grad()(lambda: found.append(model(ids).logits)))
    with watch(model):
        thread.start()
        assert entered.wait(60)
    ended.set()
    thread.join()
    handle.remove()
    assert torch.equal(found[0], logits)


def replica_of(module):
    """A copy as ``nn.DataParallel`` makes one for each GPU, to be called in a thread of its own."""
    replica = module._replicate_for_data_parallel()
    for name, parameter in module._parameters.items():
        setattr(replica, name, parameter)
    replica._modules = {name: replica_of(child) for name, child in module.named_children()}
    return replica


@pytest.mark.parametrize("blocks", [(raw_scores, log_probabilities), (dense_head, dense_head), (observe, observe)])
@torch.no_grad()
def test_blocks_may_end_in_the_order_in_which_they_began(blocks):
    model, ids = sparsify(tiny_model("llama"), **BOTH), tokens()
    logits = model(ids).logits
    first, second = (block(model) for block in blocks)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert torch.equal(model(ids).logits, logits)
    assert not any(site.observers.of(module) for module, site in attention_sites(model))


@pytest.mark.parametrize("block", [raw_scores, log_probabilities, dense_head])
@torch.no_grad()
def test_a_block_that_is_entered_again_is_not_compiled_again(block):
    model, counter = sparsify(tiny_model("llama"), **BOTH), CompileCounter()
    torch.compiler.reset()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for _ in range(3):
        with block(model):
            compiled(tokens())
    assert counter.frame_count == 1


@torch.no_grad()
def test_replicas_of_data_parallel_follow_the_thread_that_made_them():
    model, ids = sparsify(tiny_model("llama"), **BOTH), tokens()
    replica = replica_of(model)
    run = torch.no_grad()(lambda: replica(ids).logits)
    with raw_scores(model), observe(model) as counts:
        scores = in_another_thread(run)
    assert {count.calls for count in counts.values()} == {1}
    with raw_scores(model):
        assert torch.equal(scores, model(ids).logits)
    assert torch.equal(in_another_thread(run), model(ids).logits)


@torch.no_grad()
def test_copies_that_are_made_inside_a_block_are_outside_of_it():
    model, ids = sparsify(tiny_model("llama"), **BOTH), tokens()
    logits = model(ids).logits
    with raw_scores(model), observe(model):
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for each in copies:
        assert torch.equal(each(ids).logits, logits)
        assert not any(site.observers.of(module) for module, site in attention_sites(each))


@torch.no_grad()
def test_a_thread_that_waits_inside_a_block_leaves_it_to_itself():
    model, ids = sparsify(tiny_model("llama"), **BOTH), tokens()
    entered, done = Event(), Event()

    def hold():
        with raw_scores(model):
            entered.set()
            done.wait(60)

    logits = model(ids).logits
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    thread = Thread(target=hold)
    thread.start()
    try:
        assert entered.wait(60)
        assert torch.equal(model(ids).logits, logits)
        torch.testing.assert_close(compiled(ids).logits.exp(), logits.exp())
        with raw_scores(model):
            torch.testing.assert_close(compiled(ids).logits, model(ids).logits)
        assert model.generate(ids, max_new_tokens=1).shape[1] == ids.shape[1] + 1
    finally:
        done.set()
        thread.join()


def test_a_score_leaves_the_forward_alone_that_the_generation_of_another_thread_gives_a_head():
    model = sparsify(tiny_model("llama"), head="entmax15")
    head = model.lm_head
    with quiet_evaluation(model):
        head.forward = put_off = type(head).forward.__get__(head)
    assert head.forward is put_off
    with quiet_evaluation(model):
        del head.forward
    assert "forward" not in vars(head)
