"""What the translation recipe reports: the comparison, the example, and the picture of both ways to attend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from translation_corpus import Pair, words

import hf_sparse
from hf_sparse.metrics import rep_score

LONGEST_PICTURED = 20  # words
WORST = 5  # sentences


def data_text(data: dict[str, int]) -> str:
    """What is trained and evaluated on, as text."""
    return (
        f"{data['train_rows']:,} pairs to train on, {data['dev_rows']:,} to tune penalties on, "
        f"{data['test_rows']:,} to test on; {data['vocabulary']:,} subwords"
    )


def comparison(rows: Sequence[dict[str, Any]]) -> str:
    """The comparison, one line a system."""
    lines = ["system                 BLEU   chrF    REP   DROP   tokens/step   tokens attended   training   decoding"]
    for row in rows:
        lines.append(
            f"{row['system']:<21}{row['bleu']:>6.2f} {row['chrf']:>6.2f} {row['rep']:>6.2f} {row['drop']:>6.2f} "
            f"{row['attended_at_a_step']:>13.2f} {row['attended_share']:>17.1%} {row['training_seconds']:>9.0f}s "
            f"{row['decoding_seconds']:>9.0f}s"
        )
    return "\n".join(lines)


def repetitions(translation: str, reference: str) -> float:
    """How much one translation repeats: its part of the REP-score, not divided by anything."""
    reference_words = words(reference)
    return rep_score([words(translation)], [reference_words], strict=False) * len(reference_words) / 100


def rep_without_worst(pairs: Sequence[Pair], texts: Sequence[str]) -> float:
    """The REP-score without the ``WORST`` sentences that repeat most: a few endless repetitions can make it up."""
    kept = sorted(repetitions(text, pair.target) for pair, text in zip(pairs, texts))[:-WORST]
    return 100 * sum(kept) / sum(len(words(pair.target)) for pair in pairs)


def most_repeated(pairs: Sequence[Pair], dense: Sequence[str], constrained: Sequence[str]) -> int:
    """The sentence in which the first system repeats most beyond the second; of equal ones the shortest.

    Only those of which no translation is longer than ``LONGEST_PICTURED``, if there are any: endless repetition, which
    is where the largest excess is, makes no picture.
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


def example_text(example: dict[str, Any]) -> str:
    """The example as text."""
    lines = [f"source      {example['source']}", f"reference   {example['reference']}"]
    return "\n".join([*lines, *(f"{name:<11} {text}" for name, text in example["translations"].items())])


def draw(weights: Tensor, tokenizer: Any, source: str, translation: str, system: str, path: Path) -> None:
    """Save a picture of a system's attention while it writes its translation."""
    keys, queries = (tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids) for text in (source, translation))
    hf_sparse.plot_attention(weights, keys, queries, title=system, path=path)
