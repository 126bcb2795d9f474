"""The recipes and their headline models."""

from __future__ import annotations

import ast

from recipes.headlines import HEADLINES, headline_card
from recipes.lib.blocks import ROOT, block


@block
def recipes() -> str:
    """Every recipe with a link to its page and its command; the sentence is that of the folder's ``__init__.py``."""
    lines = ["| recipe | command |", "|---|---|"]
    for run in sorted((ROOT / "recipes").glob("*/run.py")):
        name = run.parent.name
        sentence = ast.get_docstring(ast.parse((run.parent / "__init__.py").read_text(encoding="utf-8")))
        lines.append(f"| [{name}]({name}/README.md): {sentence} | `python -m recipes.{name}.run` |")
    return "\n".join(lines)


@block
def headlines() -> str:
    """The headline models, each with the reason why it is one."""
    lines = ["| model | reason |", "|---|---|"]
    for headline in HEADLINES:
        name = headline_card(headline).name
        lines.append(f"| [{name}]({name}.md) | {headline.reason} |")
    return "\n".join(lines)
