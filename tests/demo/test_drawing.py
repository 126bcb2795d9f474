"""The pictures of the page say what the numbers say."""

import math
import re

import pytest
import torch

from hf_sparse import Hypothesis, SearchResult, hypothesis_tree
from hf_sparse.demo import HypothesesView, NextTokens, TokenAttention
from hf_sparse.demo.drawing import MOST_TOKENS, attention_html, hypotheses_html, next_tokens_html, proof_text
from tests.word_tokenizer import word_tokenizer


def found(*log_probabilities, finished, left, bound, ended_by=None):
    hypotheses = [Hypothesis([5 + i, 2], p) for i, p in enumerate(log_probabilities)]
    return SearchResult(hypotheses, finished, left, bound, 3, ended_by)


def test_bars_have_the_probabilities_and_the_size_of_the_support():
    html = next_tokens_html(NextTokens(["<b>", "w6"], [0.8, 0.2], 5, 1000))
    assert "5 of 1,000 tokens are possible." in html
    assert "The 2 likeliest are shown." in html
    assert "&lt;b&gt;" in html
    assert re.findall(r"width: ([\d.]+)%", html) == ["100.0", "25.0"]
    assert re.findall(r'class="p">([^<]+)', html) == ["80.00%", "20.00%"]
    assert "1 of 9 tokens is possible." in next_tokens_html(NextTokens(["a"], [1.0], 1, 9))
    assert "All 2 tokens are possible." in next_tokens_html(NextTokens(["a", "b"], [0.6, 0.4], 2, 2))


def test_a_zero_weight_has_no_colour():
    weights = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    html = attention_html(TokenAttention(weights, ["a", "<i>"], ["c", "d"], possible=4))
    assert (html.count('class="none"'), html.count('class="some"')) == (1, 3)
    assert "25% of the weights are exactly zero" in html
    assert "&lt;i&gt; → d: 0.750" in html


def test_wide_characters_have_room_for_two_letters_each():
    def size(label):
        html = attention_html(TokenAttention(torch.eye(1), [label], [label], possible=1))
        return re.search(r'width="(\d+)" height="(\d+)"', html).groups()

    assert size("漢字漢字漢字") == size("a" * 12)


def test_of_a_long_text_the_end_is_shown_and_zeros_are_counted_everywhere():
    number = MOST_TOKENS + 2
    labels = [f"t{i}" for i in range(number)]
    html = attention_html(TokenAttention(torch.eye(number), labels, labels, possible=number * (number + 1) // 2))
    assert html.count("<rect") == MOST_TOKENS**2
    assert ">t2<" in html
    assert ">t1<" not in html
    assert f"{1 - 2 / (number + 1):.0%} of the weights" in html


def test_the_tree_has_a_branch_for_each_choice():
    result = found(math.log(0.75), math.log(0.25), finished=1.0, left=0.0, bound=-math.inf)
    tree = hypothesis_tree([[5, 2], [6, 2]], [0.75, 0.25])
    html = hypotheses_html(HypothesesView(result, tree, ["w5", "w6"]), word_tokenizer())
    assert html.count("<li>") == 3
    assert html.index("75.00%</span><code") < html.index("25.00%</span><code")
    assert "<li>" not in hypotheses_html(HypothesesView(result, None, []), word_tokenizer())


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (found(-0.1, finished=1.0, left=0.0, bound=-math.inf), "Proved by exhaustion: every possible output"),
        (found(math.log(0.5), finished=0.5, left=0.3, bound=-0.1), "Proved by mass: the first output has 50.00%"),
        (
            found(math.log(0.4), finished=0.4, left=0.6, bound=math.log(0.2)),
            "none that was not looked at has more than 20.00%",
        ),
        (
            found(math.log(0.1), finished=0.1, left=0.9, bound=math.log(0.2), ended_by="max_seconds"),
            "Not proved: the first output has 10.00%, but the search ended (out of time)",
        ),
        (found(finished=0.0, left=1.0, bound=0.0, ended_by="max_new_tokens"), "No output was complete before"),
    ],
)
def test_a_certificate_in_words(result, text):
    assert text in proof_text(result)
