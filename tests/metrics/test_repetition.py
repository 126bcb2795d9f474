"""REP-score: known values, edge cases, and a loop that follows the formula."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_sparse.metrics import rep_score

sentences = st.lists(st.sampled_from("ab"), max_size=8)


@pytest.mark.parametrize(
    ("prediction", "reference", "score"),
    [
        ("the the the cat sat", "the cat sat", 200.0),  # "the the": 2 more bigrams, and 2 more repetitions at weight 2
        ("a a", "a b c", 200 / 3),  # a bigram that occurs once counts only as a repetition
        ("a b a b", "a b c d", 25.0),  # "a b" twice, once in the reference; no word twice in a row
        ("a a", "a a", 0.0),
        ("", "a", 0.0),
        ("a", "a", 0.0),
    ],
)
def test_rep_of_known_sentences(prediction, reference, score):
    assert rep_score([prediction.split()], [reference.split()]) == pytest.approx(score)


def test_rep_sums_over_sentences_before_it_divides():
    assert rep_score([["a", "a"], ["b"]], [["a"], ["b", "c", "d"]]) == pytest.approx(100 * 2 / 4)
    assert rep_score([["a", "a"], []], [[], ["b"]]) == pytest.approx(200.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(sentences, sentences), min_size=1, max_size=3), st.integers(1, 3))
def test_rep_follows_its_formula(pairs, n):
    def count(ngram, sentence):
        return sum(sentence[i : i + len(ngram)] == ngram for i in range(len(sentence)))

    total = 0
    for t, r in pairs:
        ngrams = [list(ngram) for ngram in {tuple(t[i : i + n]) for i in range(len(t) - n + 1)}]
        total += 3 * sum(max(0, count(s, t) - count(s, r)) for s in ngrams if count(s, t) >= 2)
        total += 5 * sum(max(0, count([w, w], t) - count([w, w], r)) for w in "ab")
    words = sum(len(r) for _, r in pairs)
    score = rep_score(*zip(*pairs), n=n, ngram_weight=3, word_weight=5, strict=False)
    assert math.isnan(score) if words == 0 else score == pytest.approx(100 * total / words)


def test_words_may_be_ids():
    ids = torch.tensor([[3, 3, 3]])
    for sentences in (ids.tolist(), ids.numpy()):
        assert rep_score(sentences, [[3]]) == rep_score([["a", "a", "a"]], [["a"]])


def test_a_reference_without_words_is_refused_or_nan():
    with pytest.raises(ValueError, match="references have no words, so REP is undefined; strict=False gives NaN"):
        rep_score([["a"]], [[]])
    assert math.isnan(rep_score([["a"]], [[]], strict=False))


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match="must pair up, were 1 and 2"):
        rep_score([["a"]], [["a"], ["b"]])
    with pytest.raises(TypeError, match=r"predictions\[0\] must be a sequence of words, was the string 'a a'"):
        rep_score(["a a"], [["a"]])
    with pytest.raises(TypeError, match=r"references\[0\] must be a sequence of words, was the string 'a a'"):
        rep_score([["a"]], ["a a"])
    ids = torch.tensor([3, 3, 3])
    for sentences in ([ids], ids[None], [list(ids)]):
        with pytest.raises(TypeError, match=r"predictions\[0\] must be .* words or ids, was one of tensors"):
            rep_score(sentences, [[3]])
    with pytest.raises(ValueError, match="n must be at least 1, was 0"):
        rep_score([["a"]], [["a"]], n=0)
    for weight in (math.nan, -1.0):
        with pytest.raises(ValueError, match=rf"word_weight must be a finite number >= 0, was {weight}"):
            rep_score([["a"]], [["a"]], word_weight=weight)
    with pytest.raises(TypeError, match="ngram_weight must be a finite number >= 0, was '1'"):
        rep_score([["a"]], [["a"]], ngram_weight="1")
