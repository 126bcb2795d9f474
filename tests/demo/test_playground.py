"""What the page shows is what the model computes under the maps that were set."""

import copy

import pytest
import torch
from tokenizers.normalizers import Replace

import hf_sparse
from hf_sparse.demo import Maps, Playground
from tests.tiny_inline_models import tiny_inline_model
from tests.tiny_models import tiny_model
from tests.word_tokenizer import word_tokenizer

TEXT, IDS = "w5 w6 w7", torch.tensor([[5, 6, 7]])
MAPS = Maps(attention_alpha=2.0, head_alpha=1.5, attention_temperature=1.0, head_temperature=2.0)


@pytest.fixture(scope="module")
def llama():
    return Playground(tiny_model("llama"), word_tokenizer())


@pytest.fixture(scope="module")
def bart():
    return Playground(tiny_model("bart"), word_tokenizer())


@pytest.fixture(scope="module")
def sparse():
    head = {"name": "entmax", "alpha": 1.5, "temperature": 2.0}
    return hf_sparse.sparsify(tiny_model("llama"), "sparsemax", head)


@torch.no_grad()
def test_next_tokens_are_those_of_the_sparse_model(llama, sparse):
    found = llama.next_tokens(TEXT, MAPS, most=3)
    p = hf_sparse.probabilities(sparse, sparse(IDS).logits[0, -1])
    best = p.topk(min(3, int((p > 0).sum())))
    assert found.labels == [f"w{token}" if token > 2 else found.labels[i] for i, token in enumerate(best.indices)]
    torch.testing.assert_close(torch.tensor(found.probabilities), best.values)
    assert (found.support, found.vocabulary) == (int((p > 0).sum()), 23)
    assert found.support < 23


def test_a_dense_model_has_every_token_and_no_zero_within_its_mask(llama):
    assert llama.next_tokens(TEXT, Maps()).support == 23
    found = llama.attention(TEXT, Maps(), 0, 0)
    assert (found.zeros, found.possible) == (0.0, 6)


@pytest.mark.parametrize("name", ["gemma2", "bloom", "gptj", "falcon_alibi"])
def test_what_a_mask_hides_is_no_zero_of_the_map(name):
    model = tiny_model(name, sliding_window=2) if name == "gemma2" else tiny_inline_model(name)
    page = Playground(model, word_tokenizer())
    for layer in (0, 1):
        found = page.attention(TEXT, Maps(), layer, 0, kind=page.kinds[-1])
        assert found.zeros == 0
    shown = page.attention(TEXT, Maps(), 0, 0)
    assert name != "gemma2" or shown.possible == 5  # the first of two layers has a window


def test_a_model_that_looks_ahead_has_no_more_weights_than_are_possible():
    found = Playground(tiny_inline_model("xlnet"), word_tokenizer()).attention(TEXT, Maps(), 0, 0)
    assert int((found.weights > 0).sum()) == found.possible == 9
    assert found.zeros == 0.0


def test_a_question_of_one_word_may_come_first():
    assert Playground(tiny_model("llama"), word_tokenizer()).next_tokens("w5", MAPS).support < 23


def test_an_encoder_decoder_may_ask_for_its_decoders_tokens():
    page = Playground(tiny_model("t5"), word_tokenizer())
    assert page.next_tokens(TEXT, MAPS).support < 23
    assert page.attention(TEXT, MAPS, 0, 0, max_new_tokens=4).keys == ["w5", "w6", "w7"]


@torch.no_grad()
def test_attention_is_that_of_the_layer_and_head(llama, sparse):
    output = sparse(IDS, output_attentions=True)
    for layer, head in ((0, 0), (1, 0), (0, 1)):
        found = llama.attention(TEXT, MAPS, layer, head)
        torch.testing.assert_close(found.weights, output.attentions[layer][0, head])
        assert found.queries == found.keys == ["w5", "w6", "w7"]


def test_an_encoder_decoder_has_three_kinds_of_attention(bart):
    shapes = {kind: bart.attention(TEXT, MAPS, 0, 0, kind=kind, max_new_tokens=4) for kind in bart.kinds}
    assert {kind: len(found.keys) for kind, found in shapes.items()} == {
        "encoder_attentions": 3,
        "decoder_attentions": 4,
        "cross_attentions": 3,
    }
    assert [len(shapes[kind].queries) for kind in ("encoder_attentions", "cross_attentions")] == [3, 4]
    assert all(found.weights.shape == (len(found.queries), len(found.keys)) for found in shapes.values())


def test_hypotheses_are_those_of_exact_search(llama, sparse):
    found = llama.hypotheses(TEXT, MAPS, num_hypotheses=4, max_new_tokens=4, max_seconds=600)
    (expected,) = hf_sparse.exact_search(
        sparse, {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}, 4, max_new_tokens=4
    )
    assert [one.tokens for one in found.result.hypotheses] == [one.tokens for one in expected.hypotheses]
    assert found.result.certificate == expected.certificate
    assert len(found.texts) == len(expected.hypotheses) == found.tree.leaves
    assert len(llama.hypotheses(TEXT, MAPS, num_hypotheses=1, max_new_tokens=4).texts) == 1


def test_the_model_stays_as_it_is_and_its_copies_share_its_weights():
    model = tiny_model("llama")
    before = model(IDS).logits
    playground = Playground(model, word_tokenizer())
    first = playground.next_tokens(TEXT, MAPS)
    playground.next_tokens(TEXT, Maps())
    assert playground.next_tokens(TEXT, Maps(head_alpha=2.0)) != first
    with pytest.raises(ValueError, match="from 0 to 1, was 7"):
        playground.attention(TEXT, MAPS, 7, 0)
    assert playground.next_tokens(TEXT, MAPS) == first
    assert not hf_sparse.is_sparse(model)
    assert torch.equal(model(IDS).logits, before)
    model.lm_head.weight.data.neg_()
    assert playground.next_tokens(TEXT, MAPS) != first


def test_after_a_setting_that_is_refused_the_next_question_is_answered(llama):
    with pytest.raises(ValueError, match="alpha must be"):
        llama.next_tokens(TEXT, Maps(head_alpha=0.5))
    assert llama.next_tokens(TEXT, MAPS).support < 23


def test_a_question_to_a_chat_model_goes_through_its_template(llama):
    tokenizer = word_tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] }} w9 w10"
    playground = Playground(llama.model, tokenizer)
    assert (playground.chat, llama.chat) == (True, False)
    assert playground.next_tokens("w5", MAPS, chat=True) == llama.next_tokens("w5 w9 w10", MAPS)
    with pytest.raises(ValueError, match="chat=True needs a decoder whose tokenizer has a chat template"):
        llama.next_tokens("w5", MAPS, chat=True)


def deaf(playground):
    """A page whose tokenizer leaves out question marks."""
    tokenizer = copy.deepcopy(playground.tokenizer)
    tokenizer.backend_tokenizer.normalizer = Replace("?", "")
    return Playground(tiny_model("llama"), tokenizer)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda p: p.next_tokens(" ", MAPS), "the text is empty: give at least one word"),
        (lambda p: deaf(p).next_tokens("?", MAPS), "the text has no token to go on from: give at least one word"),
        (lambda p: p.next_tokens(TEXT, MAPS, most=0), "most must be at least 1, was 0"),
        (lambda p: p.next_tokens(TEXT, Maps(head_alpha=0.5)), "alpha must be"),
        (lambda p: p.attention(TEXT, MAPS, 0, -1), "head must be from 0 to"),
        (lambda p: p.attention(TEXT, MAPS, 0, 0, kind="cross"), "kind must be one of attentions, was 'cross'"),
        (lambda p: p.hypotheses(TEXT, MAPS, num_hypotheses=0), "num_hypotheses must be at least 1"),
        (lambda p: p.hypotheses(TEXT, MAPS, max_new_tokens=0), "max_new_tokens must be at least 1"),
        (lambda p: p.hypotheses(TEXT, MAPS, max_seconds=0), "max_seconds must be above 0, was 0"),
        (
            lambda p: Playground(hf_sparse.sparsify(tiny_model("llama"), "entmax15"), p.tokenizer),
            "puts its own maps into a dense model; call unsparsify",
        ),
        (lambda p: Playground(tiny_model("bert").bert, p.tokenizer), "BertModel cannot generate"),
    ],
)
def test_what_cannot_be_shown_is_refused_by_name(llama, ask, message):
    with pytest.raises(ValueError, match=message):
        ask(llama)
