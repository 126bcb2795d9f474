"""REP-score: repetitions in translations that their references do not have."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from ..functional.arguments import check_count, check_number, check_pairs, check_sentences


def rep_score(
    predictions: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    *,
    n: int = 2,
    ngram_weight: float = 1.0,
    word_weight: float = 2.0,
    strict: bool = True,
) -> float:
    """``100 * sum of sigma over sentences / reference words``, with

    ``sigma = ngram_weight * sum_{s: t(s) >= 2} max(0, t(s) - r(s)) + word_weight * sum_w max(0, t(ww) - r(ww))``

    where ``t`` and ``r`` count n-grams in the prediction and its reference, and ``ww`` is a word twice in a row.

    Args:
        predictions: sentences, each a sequence of words, or of ids.
        references: one per prediction.
        n: words in an n-gram.
        ngram_weight: lambda_1 of the paper, at least 0.
        word_weight: lambda_2 of the paper, at least 0.
        strict: raise where the score is undefined, because no reference has a word; otherwise give NaN.

    Returns:
        The score of the corpus, at least 0, repetitions per hundred reference words; lower is better.

    Raises:
        ValueError: sentences that do not pair up, no reference words (``strict``), n below 1, or a weight below 0 or
            not finite.
        TypeError: a sentence that is one string or a tensor, n that is no whole number, or a weight that is no number.

    Source: Malaviya et al. 2018, Section 5, REP-score.

    >>> rep_score(["the the the cat sat".split()], ["the cat sat".split()])
    200.0
    """
    check_count("n", n)
    for name, weight in (("ngram_weight", ngram_weight), ("word_weight", word_weight)):
        check_number(name, weight, "a finite number >= 0", lambda number: 0 <= number < math.inf)
    _check_corpora(predictions, references)
    words = sum(map(len, references))
    if words == 0 and strict:
        raise ValueError("the references have no words, so REP is undefined; strict=False gives NaN")
    if words == 0:
        return float("nan")
    sigma = 0.0
    for prediction, reference in zip(predictions, references):
        sigma += ngram_weight * _excess_ngrams(prediction, reference, n)
        sigma += word_weight * _excess_doubled_words(prediction, reference)
    return 100 * sigma / words


def _check_corpora(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> None:
    """Refuse corpora of different length, and sentences that are no words."""
    check_pairs("predictions", predictions, "references", references)
    check_sentences("predictions", predictions)
    check_sentences("references", references)


def _excess_ngrams(prediction: Sequence[str], reference: Sequence[str], n: int) -> int:
    """``sum_{s: t(s) >= 2} max(0, t(s) - r(s))`` over the n-grams s of the prediction."""
    t, r = _ngrams(prediction, n), _ngrams(reference, n)
    return sum(max(0, count - r[ngram]) for ngram, count in t.items() if count >= 2)


def _excess_doubled_words(prediction: Sequence[str], reference: Sequence[str]) -> int:
    """``sum_w max(0, t(ww) - r(ww))``."""
    t, r = _ngrams(prediction, 2), _ngrams(reference, 2)
    return sum(max(0, count - r[pair]) for pair, count in t.items() if pair[0] == pair[1])


def _ngrams(sentence: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(sentence[i : i + n]) for i in range(len(sentence) - n + 1))
