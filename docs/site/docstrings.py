"""Docstrings as Markdown: examples become code, and the lines that name sources and costs stand out."""

from __future__ import annotations

import re

EXAMPLE = re.compile(r"^(?:>>> .*|>>>)(?:\n(?!\s*$).*)*", re.MULTILINE)
REMARK = re.compile(r"^(Source|Cost|Shape): ", re.MULTILINE)


def as_markdown(text: str) -> str:
    """A docstring, without its indentation, with fenced examples.

    >>> as_markdown("Twice.\\n>>> 1 + 1\\n2")
    'Twice.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```\\n'
    """
    text = EXAMPLE.sub(lambda example: f"\n```pycon\n{example[0]}\n```\n", text)
    return REMARK.sub(r"\n**\1:** ", text)
