"""REP and DROP of translations, and the sentence that shows repetition best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_sparse import WordAligner
from hf_sparse.metrics import rep_score
from hf_sparse.metrics.evaluate import load

from .data import Pair, words

LONGEST_PICTURED = 20  # words
WORST = 5  # sentences


def bleu_of(language: str) -> Any:
    """BLEU as sacrebleu counts it in a language: by words, in Chinese by characters.

    Args:
        language: as sacrebleu names it, ``en`` or ``zh`` for instance; by words where it knows nothing else.

    Raises:
        ValueError: Japanese or Korean, and the package that finds their words is not installed.
    """
    from sacrebleu.metrics import BLEU

    try:
        return BLEU(trg_lang=language)
    except RuntimeError as error:
        raise ValueError(f"target={language}: {error}") from error


def coverage(pairs: Sequence[Pair], texts: Sequence[str], word_aligner: WordAligner) -> dict[str, float]:
    """REP and DROP, on lower-cased words."""
    sources, targets = ([words(pair[side]) for pair in pairs] for side in (0, 1))
    translations = [words(text) for text in texts]
    links = [
        [" ".join(f"{j}-{i}" for j, i in sentence) for sentence in word_aligner.align(sources, side)]
        for side in (translations, targets)
    ]
    joined = [[" ".join(sentence) for sentence in side] for side in (translations, targets)]
    rep = load("rep").compute(predictions=joined[0], references=joined[1])
    rep["rep_without_worst"] = rep_without_worst(pairs, texts)
    return {**rep, **load("drop").compute(predictions=links[0], references=links[1])}


def repetitions(translation: str, reference: str) -> float:
    """Repetitions in one translation: its term in the numerator of the REP-score."""
    reference_words = words(reference)
    return rep_score([words(translation)], [reference_words], strict=False) * len(reference_words) / 100


def rep_without_worst(pairs: Sequence[Pair], texts: Sequence[str]) -> float:
    """The REP-score without the ``WORST`` sentences: a few endless repetitions can dominate it."""
    kept = sorted(repetitions(text, pair.target) for pair, text in zip(pairs, texts))[:-WORST]
    return 100 * sum(kept) / sum(len(words(pair.target)) for pair in pairs)


def most_repeated(pairs: Sequence[Pair], dense: Sequence[str], constrained: Sequence[str]) -> int:
    """Index of the sentence in which the first system repeats most in excess of the second; ties go to the shortest.

    Sentences with a translation longer than ``LONGEST_PICTURED`` are left out unless all are so long: endless
    repetition has the largest excess and cannot be drawn.

    Args:
        pairs: sources and references.
        dense: translations of the first system.
        constrained: translations of the second system.
    """
    excess = [
        repetitions(a, pair.target) - repetitions(b, pair.target) for pair, a, b in zip(pairs, dense, constrained)
    ]
    short = [
        index
        for index, texts in enumerate(zip(dense, constrained))
        if max(map(len, map(words, texts))) <= LONGEST_PICTURED
    ]
    return max(short or range(len(pairs)), key=lambda index: (excess[index], -len(pairs[index].source)))
