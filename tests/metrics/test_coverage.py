"""REP, DROP, alignment error rate and attended words: known values, edge cases, and loops that follow the formulas."""

import math
from pathlib import Path

import evaluate
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_sparse.metrics import alignment_error_rate, attended_words, drop_score, parse_links, rep_score
from hf_sparse.metrics.evaluate import NAMES, load

FOLDER = Path(__file__).resolve().parents[2] / "hf_sparse" / "metrics" / "evaluate"

sentences = st.lists(st.sampled_from("ab"), max_size=8)
links = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6)


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
    assert load("rep").compute(predictions=[prediction], references=[reference])["rep"] == pytest.approx(score)


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


@pytest.mark.parametrize(
    ("predictions", "references", "score"),
    [
        (["0-0"], ["0-0 2-1"], 50.0),
        (["0-0 1-1"], ["0-1"], 0.0),  # what only the prediction translates does not count
        (["0-0 0-1", ""], ["0-0 0-2", "1-0 1-1 0-2"], 200 / 3),  # words, not links
        (["", "0-0"], ["", "0-0"], 0.0),  # an empty line is no dropped word
    ],
)
def test_drop_of_known_alignments(predictions, references, score):
    parsed = ([parse_links(line)[0] for line in lines] for lines in (predictions, references))
    assert drop_score(*parsed) == pytest.approx(score)
    assert load("drop").compute(predictions=predictions, references=references)["drop"] == pytest.approx(score)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(links, links), min_size=1, max_size=3))
def test_drop_is_the_share_of_reference_words_without_a_link(pairs):
    expected = [
        (k, j) for k, (_, reference) in enumerate(pairs) for j in range(4) if any(s == j for s, _ in reference)
    ]
    dropped = [(k, j) for k, j in expected if not any(s == j for s, _ in pairs[k][0])]
    score = drop_score(*zip(*pairs), strict=False)
    assert score == pytest.approx(100 * len(dropped) / len(expected)) if expected else math.isnan(score)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(links, links, links), min_size=1, max_size=3))
def test_alignment_error_rate_is_zero_between_sure_and_possible_and_follows_its_formula(corpus):
    found, sure, possible = zip(*corpus)
    both = [s | p for s, p in zip(sure, possible)]
    if any(sure):
        assert alignment_error_rate(sure, sure, possible) == 0
        assert alignment_error_rate(both, sure, possible) == 0
    in_sure = sum(link in s for a, s in zip(found, sure) for link in a)
    in_possible = sum(link in p for a, p in zip(found, both) for link in a)
    total = sum(map(len, found)) + sum(map(len, sure))
    rate = alignment_error_rate(found, sure, possible, strict=False)
    assert rate == pytest.approx(1 - (in_sure + in_possible) / total) if total else math.isnan(rate)
    assert alignment_error_rate(found, sure, both, strict=False) == pytest.approx(rate, nan_ok=True)
    text = [" ".join([f"{j}-{i}" for j, i in s] + [f"{j}?{i}" for j, i in p]) for s, p in zip(sure, possible)]
    assert parse_links(text[0]) == (sure[0], possible[0] - sure[0])


def test_alignment_error_rate_without_possible_links_is_one_minus_f1():
    assert alignment_error_rate([[(0, 0), (1, 1)]], [[(0, 0), (2, 2), (3, 3)]]) == pytest.approx(1 - 2 / 5)
    assert load("aer").compute(predictions=["0-0 1-1"], references=["0-0 2-2 3-3"])["aer"] == pytest.approx(1 - 2 / 5)


def test_attended_words_are_those_with_weight_at_a_step_that_counts():
    weights = torch.tensor([[[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]])
    assert attended_words(weights).tolist() == [3, 1]
    assert attended_words(weights, torch.tensor([[1, 0], [1, 1]])).tolist() == [2, 1]


@pytest.mark.parametrize("name", ["rep", "drop", "aer"])
def test_metrics_load_from_the_folder_by_path(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert name in NAMES
    metric = evaluate.load(str(FOLDER / name))
    lines = ["0-0 1-1"]
    assert metric.compute(predictions=lines, references=lines) == {name: 0.0}
    metric.add_batch(predictions=lines, references=lines)
    metric.add(prediction="0-0", reference="0-0")
    assert metric.compute() == {name: 0.0}


def test_undefined_scores_are_refused_or_nan():
    with pytest.raises(ValueError, match="references have no words, so REP is undefined; strict=False gives NaN"):
        rep_score([["a"]], [[]])
    with pytest.raises(ValueError, match="references have no links, so DROP is undefined"):
        drop_score([[(0, 0)]], [[]])
    with pytest.raises(ValueError, match="no links, so the alignment error rate is undefined"):
        alignment_error_rate([[]], [[]])
    assert math.isnan(load("rep").compute(predictions=["a"], references=[""], strict=False)["rep"])
    assert math.isnan(load("drop").compute(predictions=["0-0"], references=[""], strict=False)["drop"])
    assert math.isnan(load("aer").compute(predictions=[""], references=[""], strict=False)["aer"])


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match="must pair up, were 1 and 2"):
        rep_score([["a"]], [["a"], ["b"]])
    with pytest.raises(ValueError, match="must pair up, were 1 and 2"):
        drop_score([[]], [[(0, 0)], []])
    with pytest.raises(ValueError, match="must pair up, were 1 and 2"):
        alignment_error_rate([[]], [[(0, 0)]], [[], []])
    with pytest.raises(TypeError, match=r"predictions\[0\] must be a sequence of words, was the string 'a a'"):
        rep_score(["a a"], [["a"]])
    with pytest.raises(ValueError, match="n must be at least 1, was 0"):
        rep_score([["a"]], [["a"]], n=0)
    with pytest.raises(ValueError, match=r"reference 0 has the link \(-1, 0\); positions are counted from 0"):
        drop_score([[]], [[(-1, 0)]])
    for line in ("0-", "0:0", "-1-0", "0-0,1-1"):
        with pytest.raises(ValueError, match="expected links such as '0-0'"):
            parse_links(line)
    with pytest.raises(ValueError, match="Mismatch in the number of predictions"):
        load("drop").compute(predictions=["0-0"], references=["0-0", "1-1"])
    with pytest.raises(ValueError, match="unknown metric 'bleu'; choose one of 'aer', 'drop', 'rep'"):
        load("bleu")
