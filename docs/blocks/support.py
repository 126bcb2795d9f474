"""The table of README on architectures."""

from __future__ import annotations

from collections import Counter

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
    lines = [f"| mapping | works | {' | '.join(other)} |", "|---" * (2 + len(other)) + "|"]
    large = {mapping: count for mapping, count in counts.items() if count.total() >= _LARGE}
    small = [count for mapping, count in counts.items() if mapping not in large]
    rows = large | {f"{len(small)} smaller ones": sum(small, Counter())}
    for mapping, count in rows.items():
        cells = [sum(count[name] for name in works), *(count[name] for name in other)]
        lines.append(f"| {mapping} | {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, "", f"transformers {result['transformers']}, torch {result['torch']}, random weights."])
