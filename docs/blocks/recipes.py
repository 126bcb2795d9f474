"""The recipes and their headline models."""

from __future__ import annotations

import ast

from recipes.headlines import HEADLINES, headline_card
from recipes.lib import markdown
from recipes.lib.blocks import ROOT, block


@block
def recipes() -> str:
    """Every recipe with a link to its page and its command; the sentence is that of the folder's ``__init__.py``."""
    rows = []
    for run in sorted((ROOT / "recipes").glob("*/run.py")):
        name = run.parent.name
        sentence = ast.get_docstring(ast.parse((run.parent / "__init__.py").read_text(encoding="utf-8")))
        rows.append([f"[{name}]({name}/README.md): {sentence}", f"`python -m recipes.{name}.run`"])
    return markdown.table(["recipe", "command"], rows)


@block
def headlines() -> str:
    """The headline models, each with the reason why it is one."""
    reasons = {headline_card(headline).name: headline.reason for headline in HEADLINES}
    return markdown.table(["model", "reason"], [[f"[{name}]({name}.md)", why] for name, why in reasons.items()])
