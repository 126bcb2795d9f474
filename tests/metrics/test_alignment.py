"""DROP, alignment error rate, links and attended words: known values, edge cases, loops that follow the formulas."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_sparse.metrics import alignment_error_rate, attended_words, drop_score, parse_links

links = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6)


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


def test_attended_words_are_those_with_weight_at_a_step_that_counts():
    weights = torch.tensor([[[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]])
    assert attended_words(weights).tolist() == [3, 1]
    assert attended_words(weights, torch.tensor([[1, 0], [1, 1]])).tolist() == [2, 1]


def test_links_may_be_tensors_lists_and_iterators():
    weights = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])  # (sources, targets)
    pairs = [(0, 0), (0, 1), (1, 2)]
    found, sure = (weights > 0).nonzero(), (weights > 0.5).nonzero()
    for links in (found, found.numpy(), [list(pair) for pair in pairs], iter(pairs)):
        assert drop_score([links], [pairs]) == 0
    assert alignment_error_rate([found], [sure], [found]) == 0
    assert alignment_error_rate([found], [sure]) == pytest.approx(1 - 2 / 4)


@pytest.mark.parametrize("link", [(0.5, 0), (0, 0, 0), "0", 0])
def test_what_is_no_link_is_refused(link):
    for links in (([[link]], [[(0, 0)]]), ([[(0, 0)]], [[link]])):
        with pytest.raises(TypeError, match=r"must hold links, each .* in whole numbers, had"):
            drop_score(*links)
        with pytest.raises(TypeError, match=r"must hold links, each .* in whole numbers, had"):
            alignment_error_rate(*links)


def test_attended_words_take_a_mask_of_their_own_targets():
    weights = torch.ones(2, 2, 3, 4)  # (batch, heads, targets, sources)
    mask = torch.tensor([[1, 1, 1], [0, 0, 0]])
    assert attended_words(weights, mask[:, None]).tolist() == [[4, 4], [0, 0]]
    for wrong in (mask, mask[0], mask[:, None, :2]):
        with pytest.raises(ValueError, match=r"target_mask must be \(..., targets\), \(2, 2, 3\) or 1 in places"):
            attended_words(weights, wrong)
    with pytest.raises(ValueError, match=r"\(2, 2, 2\) or 1 in places, was \(2, 2\)"):  # heads, or sentences?
        attended_words(weights[:, :, :2], mask[:, :2])
    with pytest.raises(TypeError, match="weights must be a tensor, was"):
        attended_words(weights.tolist())
    with pytest.raises(ValueError, match=r"weights must be \(..., targets, sources\), was \(4,\)"):
        attended_words(torch.ones(4))


def test_undefined_scores_are_refused_or_nan():
    with pytest.raises(ValueError, match="references have no links, so DROP is undefined; strict=False gives NaN"):
        drop_score([[(0, 0)]], [[]])
    with pytest.raises(ValueError, match="no links, so the alignment error rate is undefined; strict=False gives NaN"):
        alignment_error_rate([[]], [[]])
    assert math.isnan(drop_score([[(0, 0)]], [[]], strict=False))
    assert math.isnan(alignment_error_rate([[]], [[]], strict=False))


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match="must pair up, were 1 and 2"):
        drop_score([[]], [[(0, 0)], []])
    with pytest.raises(ValueError, match="must pair up, were 1 and 2"):
        alignment_error_rate([[]], [[(0, 0)]], [[], []])
    with pytest.raises(ValueError, match=r"reference 0 has the link \(-1, 0\); positions are counted from 0"):
        drop_score([[]], [[(-1, 0)]])
    with pytest.raises(ValueError, match=r"prediction 0 has the link \(0, -1\)"):
        alignment_error_rate([[(0, -1)]], [[]])
    for line in ("0-", "0:0", "-1-0", "0-0,1-1"):
        with pytest.raises(ValueError, match="expected links such as '0-0'"):
            parse_links(line)


def test_links_are_read_from_text():
    with pytest.raises(TypeError, match="line must be a text, was None"):
        parse_links(None)
