"""The table of README on architectures."""

from __future__ import annotations

from collections import Counter

from recipes.lib.blocks import block, read


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
    for mapping, count in counts.items():
        cells = [sum(count[name] for name in works), *(count[name] for name in other)]
        lines.append(f"| {mapping} | {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, "", f"transformers {result['transformers']}, torch {result['torch']}, random weights."])
