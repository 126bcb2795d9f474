"""Fill the generated blocks of every page and write the model cards: `python docs/generate.py`.

`--check` only compares.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # Python itself puts the folder of this script there, and `recipes` is beside it

from blocks import BLOCKS  # noqa: E402

from recipes.headlines import headline_cards  # noqa: E402

FOLDERS = (".", "benchmarks", "docs", "model_cards", "recipes", "recipes/*")
BLOCK = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def filled(text: str) -> str:
    """Regenerate every block of ``text`` between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``."""
    return BLOCK.sub(lambda match: f"{match[1]}{BLOCKS[match[2]]().strip()}\n{match[3]}", text)


def generated() -> dict[Path, str]:
    """Expected content of every generated file."""
    cards = {ROOT / "model_cards" / f"{card.name}.md": card.text() for card in headline_cards()}
    pages = {path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.md")} - set(cards)
    return {path: filled(path.read_text(encoding="utf-8")) for path in sorted(pages)} | cards


def main(arguments: list[str]) -> int:
    """Write all pages and cards; with ``--check`` only report those that are out of date."""
    parser = argparse.ArgumentParser(prog="python docs/generate.py", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where a page is out of date")
    check = parser.parse_args(arguments).check
    stale = []
    for path, text in generated().items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(text, encoding="utf-8")
    if check and stale:
        print(f"out of date: {', '.join(stale)}; run python docs/generate.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
