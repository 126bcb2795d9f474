"""Text and pairs for the two models of the conversion recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..inflection.data import held_out, read_verbs
from ..language_modelling.data import Text, read_text
from ..translation.data import Pair, read_named

VERBS = "English verbs, one in ten held out"


def text_lines(data: str) -> Text:
    """Texts for training and held out; see ``read_text``. By default English verbs, one line per verb."""
    if data:
        return read_text(data)
    forms: dict[str, list[str]] = {}
    for row in read_verbs():
        forms.setdefault(row["lemma"], []).append(row["form"])
    return Text(*_by_lemma([(lemma, " ".join(all_forms)) for lemma, all_forms in forms.items()]), VERBS)


def line_pairs(data: str, source: str, target: str) -> tuple[list[Pair], list[Pair], str]:
    """Pairs for training and held out, and the name of the data.

    Args:
        data: see ``read_named``; the development part is held out, the test part is not used. By default English
            verbs: lemma and tags are the source, the form is the target.
        source: source language, for a folder or a data set.
        target: target language.
    """
    if data:
        corpus = read_named(data, source, target)
        return corpus.train, corpus.dev, Path(data).name if Path(data).exists() else data
    rows = [(row["lemma"], Pair(f"{row['lemma']} {row['tags']}", row["form"])) for row in read_verbs()]
    return *_by_lemma(rows), VERBS


def _by_lemma(rows: list[tuple[str, Any]]) -> tuple[list, list]:
    return [row for lemma, row in rows if not held_out(lemma)], [row for lemma, row in rows if held_out(lemma)]
