"""Word alignment by IBM Model 2 with a prior that favours the diagonal."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..functional.arguments import between, check_count, check_number, check_pairs, check_sentences
from ._expectation import TENSIONS, Dictionary, best_tension, expectation
from ._links import CandidateLinks

Word: TypeAlias = str | int
Links: TypeAlias = list[tuple[int, int]]

_UNSEEN = 1e-9  # translation probability of words that never met in training
_SETTINGS, _TABLE = "word_aligner.json", "word_aligner.safetensors"


@dataclass(frozen=True)
class WordAligner:
    """``p(target | source)`` in which every target word is translated from one source word, or from none (null).

    ``p(f_i, a_i = j | e) = prior(j | i, m, n) * p(f_i | e_j)`` for target position i of m and source position j of n;
    ``prior = null`` for no source word, and ``(1 - null) exp(-tension |i/m - j/n|) / Z`` otherwise. Made by ``train``.

    Attributes:
        source_words: number of each source word; 0 is null.
        target_words: number of each target word.
        pairs: (pairs,) ``source * len(target_words) + target`` of all words that met in training, ascending.
        probabilities: (pairs,) their translation probabilities, float64.
        tension: strength of the preference for the diagonal; 0 is IBM Model 1, up to null.
        null: probability of no source word.
        objective: value of the training objective after each iteration; see ``train``.

    Source: Dyer, Chahuneau and Smith 2013, "A Simple, Fast, and Effective Reparameterization of IBM Model 2" (the
    model of their program fast_align); Brown et al. 1993 for Model 2 and the name fertility.

    >>> aligner = WordAligner.train([["das", "Haus"], ["das", "Buch"]], [["the", "house"], ["the", "book"]])
    >>> aligner.align([["das", "Buch"]], [["the", "book"]])
    [[(0, 0), (1, 1)]]
    """

    source_words: dict[Word, int] = field(repr=False)
    target_words: dict[Word, int] = field(repr=False)
    pairs: Tensor = field(repr=False)
    probabilities: Tensor = field(repr=False)
    tension: float
    null: float
    objective: tuple[float, ...]

    @classmethod
    def train(
        cls,
        sources: Sequence[Sequence[Word]],
        targets: Sequence[Sequence[Word]],
        *,
        iterations: int = 5,
        null: float = 0.08,
        tension: float = 4.0,
        learn_tension: bool = True,
        concentration: float = 0.01,
    ) -> WordAligner:
        """Fit translation probabilities and tension by expectation-maximization.

        With ``concentration`` 0 this is maximum likelihood, and ``objective`` holds the log-likelihood (nats, whole
        corpus) after each iteration. Above 0, translation probabilities have a symmetric Dirichlet prior over the
        words that a source word ever met, which keeps rare source words from attracting everything; they are then
        fitted by variational Bayes, and ``objective`` holds its lower bound on the log marginal likelihood. Neither
        ever decreases. The tension is fitted exactly: the expected log-likelihood is concave in it.

        Args:
            sources: sentences, each a sequence of words: strings, or integers such as a tokenizer's ids. May be empty.
            targets: their translations, in the same order.
            iterations: number of iterations, at least 1.
            null: probability that a target word has no source word, in (0, 1); not fitted.
            tension: initial tension, in [0.1, 14].
            learn_tension: whether the tension is fitted, within that interval.
            concentration: of the Dirichlet prior, at least 0; fast_align recommends 0.01.

        Raises:
            ValueError: sentences that do not pair up, none at all, or a setting out of range.
            TypeError: a sentence that is a string or a tensor, or ``iterations`` that is no whole number.

        Cost: per iteration linear in the number of word pairs that share a sentence pair; about 200 bytes per pair.
        """
        _check_sentences(sources, targets, "train on")
        _check_settings(iterations, null, tension, concentration)
        source_words, target_words = _vocabulary(sources, 1), _vocabulary(targets, 0)
        if not source_words or not target_words:
            raise ValueError("nothing to train on: every source or every target sentence is empty")
        links = CandidateLinks.of(
            [[source_words[word] for word in sentence] for sentence in sources],
            [[target_words[word] for word in sentence] for sentence in targets],
        )
        pairs, pair = torch.unique(links.source * len(target_words) + links.target, return_inverse=True)
        dictionary = Dictionary(pairs // len(target_words), concentration)
        probabilities, objective = dictionary.uniform(), []
        joint, evidence = expectation(links, tension, null, probabilities[pair])
        for _ in range(iterations):
            posterior = joint / evidence[links.row]
            counts = posterior.new_zeros(len(pairs)).index_add(0, pair, posterior)
            if learn_tension:
                tension = best_tension(links, posterior, null)
            probabilities = dictionary.fit(counts)
            joint, evidence = expectation(links, tension, null, probabilities[pair])
            objective.append(float(evidence.log().sum() - dictionary.divergence(counts)))
        return cls(source_words, target_words, pairs, probabilities, tension, null, tuple(objective))

    def align(self, sources: Sequence[Sequence[Word]], targets: Sequence[Sequence[Word]]) -> list[Links]:
        """The likeliest source word of every target word.

        Args:
            sources: sentences, words as in training; unknown words are allowed.
            targets: their translations.

        Returns:
            For every sentence pair its links ``(source position, target position)``, both from 0, in the order of the
            target; a word translated from null has no link.

        Raises:
            ValueError: sentences that do not pair up, or none at all.
            TypeError: a sentence that is a string or a tensor.
        """
        _check_sentences(sources, targets, "align")
        unknown_source, unknown_target = len(self.source_words) + 1, len(self.target_words)
        links = CandidateLinks.of(
            [[self.source_words.get(word, unknown_source) for word in sentence] for sentence in sources],
            [[self.target_words.get(word, unknown_target) for word in sentence] for sentence in targets],
        )
        known = (links.source != unknown_source) & (links.target != unknown_target)
        key = torch.where(known, links.source * len(self.target_words) + links.target, -1)
        found = torch.searchsorted(self.pairs, key).clamp(max=len(self.pairs) - 1)
        translation = torch.where(self.pairs[found] == key, self.probabilities[found], _UNSEEN)
        best = links.best(links.prior(self.tension, self.null)[links.place] * translation)
        position = iter(links.position[best].tolist())
        return [[(j - 1, i) for i, j in enumerate(next(position) for _ in sentence) if j] for sentence in targets]

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the aligner into ``folder``, which may hold other files, such as the model that it serves."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "source_words": list(self.source_words),
            "target_words": list(self.target_words),
            "tension": self.tension,
            "null": self.null,
            "objective": self.objective,
        }
        (folder / _SETTINGS).write_text(json.dumps(settings, ensure_ascii=False) + "\n", encoding="utf-8")
        save_file({"pairs": self.pairs, "probabilities": self.probabilities}, folder / _TABLE)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> WordAligner:
        """Read the aligner that ``save_pretrained`` wrote.

        Raises:
            ValueError: no aligner was saved there.
        """
        folder = Path(folder)
        if not (folder / _SETTINGS).is_file() or not (folder / _TABLE).is_file():
            raise ValueError(f"{folder} holds no word aligner: {_SETTINGS} and {_TABLE} are needed")
        settings = json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))
        return cls(
            {word: number for number, word in enumerate(settings["source_words"], 1)},
            {word: number for number, word in enumerate(settings["target_words"])},
            **load_file(folder / _TABLE),
            tension=settings["tension"],
            null=settings["null"],
            objective=tuple(settings["objective"]),
        )


def _vocabulary(sentences: Iterable[Iterable[Word]], start: int) -> dict[Word, int]:
    """Numbers from ``start`` for all words, in order of appearance; ids of any kind of integer as Python's own."""
    words = dict.fromkeys(word for sentence in sentences for word in sentence)
    return {
        word if isinstance(word, str) else operator.index(word): number for number, word in enumerate(words, start)
    }


def _check_sentences(sources: Sequence[Sequence[Word]], targets: Sequence[Sequence[Word]], verb: str) -> None:
    """Raise unless the sentences pair up and are split into words; ``verb`` completes "no sentences to"."""
    check_pairs("sources", sources, "targets", targets)
    if len(sources) == 0:
        raise ValueError(f"no sentences to {verb}")
    check_sentences("sources", sources)
    check_sentences("targets", targets)


def _check_settings(iterations: int, null: float, tension: float, concentration: float) -> None:
    check_count("iterations", iterations)
    check_number("null", null, "in (0, 1)", lambda null: 0 < null < 1)
    check_number("tension", tension, *between(*TENSIONS))
    check_number("concentration", concentration, "a finite number >= 0", lambda number: 0 <= number < math.inf)
