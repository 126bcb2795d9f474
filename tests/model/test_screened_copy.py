"""The copy that a screened head multiplies first is that of the weights, however they change."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from hf_sparse import set_head_impl
from hf_sparse.model.find import sparse_state
from tests.model.screened_models import VOCAB, check_same, generated, needs_compiler, num_screened, sparse
from tests.tiny_models import tokens

pytestmark = needs_compiler


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


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_weight_written_in_place_inside_a_call_is_noticed(elsewhere):
    model = sparse()
    with torch.no_grad(), sparse_state(model).generating(model):
        weight, p = model.lm_head.weight, model(tokens(1, 1)).logits[0, 0].exp()
        values = weight.data.clone() if elsewhere else weight
        values[int(p.argmin())] = 3 * values[int(p.argmax())]
        if elsewhere:
            weight.data = values
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
