"""Corpora of the translation recipe in either direction, whole or in part."""

from __future__ import annotations

import functools

from ..translation.data import Corpus, Pair, read_named
from ..translation.model import Task, prepared


@functools.lru_cache(maxsize=2)
def read_task(data: str, source: str, target: str, test: str, reverse: bool, train_rows: int, vocabulary: int) -> Task:
    """Read and encode a corpus.

    Args:
        data: see ``read_named``.
        source: source language, for a folder or a data set.
        target: target language.
        test: name of the test set in a folder or data set; empty for the first there is.
        reverse: swap source and target.
        train_rows: number of training pairs; 0 for all.
        vocabulary: largest number of tokens.
    """
    corpus = read_named(data, source, target, test)
    if reverse:
        corpus = Corpus(*([Pair(pair.target, pair.source) for pair in part] for part in corpus))
    if train_rows:
        corpus = corpus._replace(train=corpus.train[:train_rows])
    return prepared(corpus, vocabulary)
