"""The word aligner against a corpus solved by hand, and against loops that follow the definitions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_sparse.fertility import WordAligner
from hf_sparse.fertility._expectation import best_tension
from hf_sparse.fertility._links import CandidateLinks

HOUSES = ([["das", "Haus"], ["das", "Buch"]], [["the", "house"], ["the", "book"]])

sentence = st.lists(st.integers(0, 4), min_size=1, max_size=4)
corpora = st.lists(st.tuples(sentence, sentence), min_size=1, max_size=5).map(
    lambda pairs: tuple(map(list, zip(*pairs)))
)


def prior(i, j, m, n, tension, null):
    """``p(j | i, m, n)`` with j = 0 for null, by the definition."""
    if j == 0:
        return null
    weights = [math.exp(-tension * abs(i / m - k / n)) for k in range(1, n + 1)]
    return (1 - null) * weights[j - 1] / sum(weights)


def translation(aligner, source, target):
    """``p(target | source)``; source None is null."""
    number = 0 if source is None else aligner.source_words[source]
    key = number * len(aligner.target_words) + aligner.target_words[target]
    return float(aligner.probabilities[aligner.pairs == key])


def scores(aligner, source, target, i):
    """The joint probability of target word i (from 1) with null and with each source word."""
    return [
        prior(i, j, len(target), len(source), aligner.tension, aligner.null)
        * translation(aligner, source[j - 1] if j else None, target[i - 1])
        for j in range(len(source) + 1)
    ]


def test_one_iteration_equals_the_solution_by_hand():
    # exp(-tension / 2) = 1/3 makes the prior of the diagonal .6, off it .2, of null .2; words are uniform over what
    # they met. "the": null .2/3, das .6/3, Haus .2/2, so 2 : 6 : 3; "house": .2/3, .2/3, .6/2, so 2 : 2 : 9.
    aligner = WordAligner.train(
        *HOUSES, iterations=1, null=0.2, tension=2 * math.log(3), learn_tension=False, concentration=0
    )
    assert translation(aligner, "das", "the") == pytest.approx(156 / 200)
    assert translation(aligner, "das", "house") == pytest.approx(22 / 200)
    assert translation(aligner, "Haus", "house") == pytest.approx(99 / 138)
    assert translation(aligner, "Buch", "the") == pytest.approx(39 / 138)
    assert translation(aligner, None, "the") == pytest.approx(52 / 96)
    the = 0.2 * 52 / 96 + 0.6 * 156 / 200 + 0.2 * 39 / 138
    house = 0.2 * 22 / 96 + 0.2 * 22 / 200 + 0.6 * 99 / 138
    assert aligner.objective == pytest.approx([2 * math.log(the) + 2 * math.log(house)])


def test_swapped_words_are_aligned_across_the_diagonal():
    sources = [["a", "x"], ["a", "y"], ["b", "x"], ["b", "y"]]
    targets = [["X", "A"], ["Y", "A"], ["X", "B"], ["Y", "B"]]
    aligner = WordAligner.train(sources, targets, iterations=20, tension=0.1)
    assert aligner.align(sources, targets) == [[(1, 0), (0, 1)]] * 4
    assert aligner.tension == pytest.approx(0.1)


@settings(max_examples=40, deadline=None)
@given(corpora)
def test_objective_is_the_log_likelihood_and_never_falls(corpus):
    sources, targets = corpus
    aligner = WordAligner.train(sources, targets, iterations=6, null=0.3, tension=1.0, concentration=0)
    words = [
        math.log(sum(scores(aligner, source, target, i)))
        for source, target in zip(sources, targets)
        for i in range(1, len(target) + 1)
    ]
    assert aligner.objective[-1] == pytest.approx(sum(words), abs=1e-9)
    assert all(later >= earlier - 1e-9 for earlier, later in zip(aligner.objective, aligner.objective[1:]))
    of_null = sum(translation(aligner, None, word) for word in aligner.target_words)
    assert of_null == pytest.approx(1)


@settings(max_examples=40, deadline=None)
@given(corpora, st.sampled_from([0.01, 0.5, 3.0]))
def test_variational_bound_never_falls_and_stays_below_zero(corpus, concentration):
    aligner = WordAligner.train(*corpus, iterations=6, concentration=concentration)
    assert all(later >= earlier - 1e-9 for earlier, later in zip(aligner.objective, aligner.objective[1:]))
    assert aligner.objective[-1] <= 1e-9


def test_variational_bound_is_the_evidence_where_nothing_is_hidden():
    # One source word, no null to speak of: the evidence is that of a Dirichlet-multinomial, known in closed form.
    a, targets = 0.5, [["x"], ["x"], ["y"]]
    aligner = WordAligner.train([["s"]] * 3, targets, null=1e-12, concentration=a)
    evidence = (
        math.lgamma(2 * a) - math.lgamma(2 * a + 3) + math.lgamma(a + 2) + math.lgamma(a + 1) - 2 * math.lgamma(a)
    )
    assert aligner.objective[-1] == pytest.approx(evidence, abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(corpora)
def test_links_are_the_likeliest_source_words(corpus):
    sources, targets = corpus
    aligner = WordAligner.train(sources, targets, iterations=2, null=0.2, concentration=0)
    for source, target, links in zip(sources, targets, aligner.align(sources, targets)):
        linked = {i: j + 1 for j, i in links}
        for i in range(len(target)):
            joint = scores(aligner, source, target, i + 1)
            assert joint[linked.get(i, 0)] >= max(joint) * (1 - 1e-9)


def test_tension_maximizes_the_expected_log_likelihood():
    sources, targets = [["a", "b", "c"], ["c", "a"], ["b", "b", "a"]], [["A", "B", "C"], ["A", "C"], ["B", "A"]]
    start = {"null": 0.1, "tension": 2.0, "concentration": 0}
    before = WordAligner.train(sources, targets, iterations=3, learn_tension=False, **start)
    step = WordAligner.train(sources, targets, iterations=4, learn_tension=False, **start)

    def expected(tension):
        total = 0.0
        for source, target in zip(sources, targets):
            for i in range(1, len(target) + 1):
                joint = scores(before, source, target, i)
                for j in range(1, len(joint)):
                    total += joint[j] / sum(joint) * math.log(prior(i, j, len(target), len(source), tension, 0.1))
        return total

    best = max((0.1 + 0.01 * k for k in range(1391)), key=expected)
    links = CandidateLinks.of(
        [[before.source_words[w] for w in s] for s in sources], [[before.target_words[w] for w in s] for s in targets]
    )
    posterior = [
        score / sum(joint)
        for source, target in zip(sources, targets)
        for i in range(1, len(target) + 1)
        for joint in [scores(before, source, target, i)]
        for score in joint
    ]
    found = best_tension(links, torch.tensor(posterior, dtype=torch.float64), 0.1)
    assert 0.2 < best < 13.9
    assert found == pytest.approx(best, abs=0.011)
    assert step.tension == before.tension == 2.0


def test_every_setting_changes_the_result():
    corpus = ([["a", "b", "c"], ["b", "c"], ["a", "a", "c"]], [["A", "B"], ["B", "B", "C"], ["A", "C"]])
    base = WordAligner.train(*corpus)
    for changed in (
        {"iterations": 4},
        {"null": 0.3},
        {"tension": 1.0},
        {"learn_tension": False},
        {"concentration": 0},
    ):
        other = WordAligner.train(*corpus, **changed)
        assert not torch.equal(base.probabilities, other.probabilities), changed


def test_unknown_words_follow_the_diagonal_and_empty_sentences_have_no_links():
    aligner = WordAligner.train(*HOUSES)
    assert aligner.align([["p", "q", "r"]], [["u", "v", "w"]]) == [[(0, 0), (1, 1), (2, 2)]]
    assert aligner.align([[], ["das"]], [["the"], []]) == [[], []]
    assert WordAligner.train([*HOUSES[0], []], [*HOUSES[1], ["the"]]).align(*HOUSES)[1] == [(0, 0), (1, 1)]


@pytest.mark.parametrize("words", [str, int])
def test_saved_aligner_comes_back_the_same(tmp_path, words):
    number = {"das": 7, "Haus": 3, "Buch": 11, "the": 7, "house": 2, "book": 0}
    sources, targets = ([[w if words is str else number[w] for w in s] for s in side] for side in HOUSES)
    aligner = WordAligner.train(sources, targets)
    aligner.save_pretrained(tmp_path / "model")
    again = WordAligner.from_pretrained(tmp_path / "model")
    assert again.source_words == aligner.source_words
    assert again.target_words == aligner.target_words
    assert torch.equal(again.probabilities, aligner.probabilities)
    assert (again.tension, again.null, again.objective) == (aligner.tension, aligner.null, aligner.objective)
    assert again.align(sources, targets) == aligner.align(sources, targets)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (([["a"]], []), {}, ValueError, "sources and targets must pair up, were 1 and 0"),
        (([], []), {}, ValueError, "no sentences to train on"),
        (([[]], [["a"]]), {}, ValueError, "every source or every target sentence is empty"),
        ((["das Haus"], [["the"]]), {}, TypeError, r"sources\[0\] must be a sequence of words, was the string"),
        (([torch.tensor([5])], [["the"]]), {}, TypeError, r"sources\[0\] must be .* words or ids, was one of tensors"),
        ((*HOUSES,), {"iterations": 0}, ValueError, "iterations must be at least 1, was 0"),
        ((*HOUSES,), {"null": 1.0}, ValueError, r"null must be in \(0, 1\), was 1.0"),
        ((*HOUSES,), {"tension": 20.0}, ValueError, "tension must be a number from 0.1 to 14, was 20.0"),
        ((*HOUSES,), {"concentration": math.nan}, ValueError, "concentration must be a finite number >= 0, was nan"),
        ((*HOUSES,), {"concentration": math.inf}, ValueError, "concentration must be a finite number >= 0, was inf"),
    ],
)
def test_wrong_input_is_refused(arguments, options, error, message):
    with pytest.raises(error, match=message):
        WordAligner.train(*arguments, **options)


def test_a_folder_without_an_aligner_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no word aligner: .* are needed"):
        WordAligner.from_pretrained(tmp_path)


def test_ids_of_numpy_are_saved_as_numbers(tmp_path):
    sources, targets = [np.array([5, 6, 7])] * 2, [np.array([1, 2, 3])] * 2
    aligner = WordAligner.train(sources, targets)
    expected = WordAligner.train([row.tolist() for row in sources], [row.tolist() for row in targets])
    aligner.save_pretrained(tmp_path)
    for each in (aligner, WordAligner.from_pretrained(tmp_path)):
        assert each.align(sources, targets) == expected.align(sources, targets)
