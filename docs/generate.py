"""Fill the generated blocks of every page and write the model cards: `python docs/generate.py`.

`--check` only compares.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from blocks import BLOCKS, CARDS, ROOT

PAGES = sorted(page for folder in (".", "benchmarks", "docs", "recipes") for page in (ROOT / folder).glob("*.md"))
BLOCK = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def filled(text: str) -> str:
    """Regenerate every block of ``text`` between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``."""
    return BLOCK.sub(lambda match: f"{match[1]}{BLOCKS[match[2]]().strip()}\n{match[3]}", text)


def generated() -> dict[Path, str]:
    """Expected content of every generated file."""
    pages = {path: filled(path.read_text(encoding="utf-8")) for path in PAGES}
    return pages | {ROOT / "model_cards" / f"{card.name}.md": card.text() for make in CARDS for card in make()}


def main(arguments: list[str]) -> int:
    """Write all pages and cards; with ``--check`` only report those that are out of date."""
    stale = []
    for path, made in generated().items():
        if not path.is_file() or path.read_text(encoding="utf-8") != made:
            stale.append(str(path.relative_to(ROOT)))
            if arguments != ["--check"]:
                path.write_text(made, encoding="utf-8")
    if arguments == ["--check"] and stale:
        print(f"out of date: {', '.join(stale)}; run python docs/generate.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
