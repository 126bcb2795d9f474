"""The table of README on architectures."""

from __future__ import annotations

from collections import Counter

from recipes.lib import markdown
from recipes.lib.blocks import block, read

_LARGE = 30  # classes of a mapping that has a row of its own


@block
def support() -> str:
    """Architectures by mapping, and whether they can be made sparse."""
    result = read("docs/support.json")
    counts: dict[str, Counter[str]] = {}
    for entry in result["entries"]:
        counts.setdefault(entry["mapping"], Counter())[entry["result"]] += 1
    works = ("interface", "inline", "mixed")
    other = sorted({name for count in counts.values() for name in count} - set(works))
    large = {mapping: count for mapping, count in counts.items() if count.total() >= _LARGE}
    small = [count for mapping, count in counts.items() if mapping not in large]
    shown = large | {f"{len(small)} smaller ones": sum(small, Counter())}
    rows = [
        [mapping, str(sum(count[name] for name in works)), *(str(count[name]) for name in other)]
        for mapping, count in shown.items()
    ]
    return (
        f"{markdown.table(['mapping', 'works', *other], rows)}\n\n"
        f"transformers {result['transformers']}, torch {result['torch']}, random weights."
    )
