"""Tokens without weight at a screened step: their order, and processors that see them."""

import ast
import inspect
import textwrap

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, SynthIDTextWatermarkingConfig
from transformers.generation import logits_process

from hf_sparse import set_head_impl
from hf_sparse.functional.log_zero import on_floor
from hf_sparse.model import kept_support, screening
from tests.model.screened_models import VOCAB, check_same, generated, needs_compiler, num_screened, sparse

pytestmark = needs_compiler


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
