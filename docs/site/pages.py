"""The pages of the site that the repository has: its Markdown at the same places, so that links stay as they are."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (".", "benchmarks", "docs", "model_cards", "recipes", "recipes/*")
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
FENCES = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^```python\n(?=>>> )", re.MULTILINE)
BLOCK_MARK = re.compile(r"^<!-- (?:begin|end) \w+ -->\n?", re.MULTILINE)
LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml", ".json": "json"}


def written_pages() -> dict[str, str]:
    """Every page of the repository by its path, notebooks as Markdown."""
    paths = sorted({path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.md")})
    pages = {name_of(path): prepared(path.read_text(encoding="utf-8")) for path in paths}
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        pages[name_of(path.with_suffix(".md"))] = notebook_page(path.read_text(encoding="utf-8"))
    return pages


def name_of(path: Path) -> str:
    """The path of a file below the repository's root."""
    return path.relative_to(ROOT).as_posix()


def prepared(text: str) -> str:
    """Examples are sessions of Python; the marks around generated blocks are left out.

    >>> prepared("<!-- begin maps -->\\n```python\\n>>> 1\\n1\\n```")
    '```pycon\\n>>> 1\\n1\\n```'
    """
    return EXAMPLE.sub("```pycon\n", BLOCK_MARK.sub("", text))


def notebook_page(text: str) -> str:
    """A notebook as Markdown: its text, and its code in fences.

    >>> print(notebook_page('{"cells": [{"cell_type": "code", "source": ["1 + 1"]}]}'))
    ```python
    1 + 1
    ```
    <BLANKLINE>
    """
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
    return "\n\n".join(f"```python\n{body}\n```" if kind == "code" else body for kind, body in cells) + "\n"


def links(text: str) -> list[str]:
    """Where the links and pictures of a page lead, without code and without addresses of other sites.

    >>> links("[a](b.md#c) ![d](e.png) [f](https://g.org) [h](#i)")
    ['b.md', 'e.png']
    """
    return LINK.findall(FENCES.sub("", text))


def target(page: str, link: str) -> str:
    """The path that a link of a page leads to, below the repository's root.

    >>> target("docs/maps.md", "../README.md")
    'README.md'
    """
    return os.path.normpath(PurePosixPath(page).parent / link).replace(os.sep, "/")


def with_sources(pages: dict[str, str]) -> dict[str, str]:
    """The pages, with one more for each file of the repository that they link to: its text.

    A link to a notebook leads to its page. Pictures and other pages stay as they are.
    """
    sources: dict[str, str] = {}

    def relinked(page: str, link: str) -> str:
        name = target(page, link)
        path = ROOT / name
        if path.suffix == ".ipynb":
            return str(PurePosixPath(link).with_suffix(".md"))
        if path.suffix not in LANGUAGES or not path.is_file():
            return link
        sources[f"{name}.md"] = f"# {name}\n\n```{LANGUAGES[path.suffix]}\n{path.read_text(encoding='utf-8')}\n```\n"
        return f"{link}.md"

    linked = {
        page: LINK.sub(lambda match, page=page: relinked(page, match[1]), text)  # type: ignore[misc]
        for page, text in pages.items()
    }
    return linked | sources
