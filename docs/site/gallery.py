"""The gallery: every picture of the documentation, with its caption and the page that explains it."""

from __future__ import annotations

import os
import re

from pages import ROOT, target

PICTURE = re.compile(r"!\[([^]]*)\]\(([^)\s]+)\)")
FOLDER = "docs/pictures"


def gallery_page(pages: dict[str, str]) -> str:
    """Cards of all pictures, in the order of the pages that show them.

    Args:
        pages: texts by path.

    Raises:
        ValueError: a picture that no page shows.
    """
    shown: dict[str, tuple[str, str]] = {}
    for page, text in pages.items():
        for caption, link in PICTURE.findall(text):
            shown.setdefault(target(page, link), (caption, page))
    hidden = {f"{FOLDER}/{path.name}" for path in (ROOT / FOLDER).iterdir()} - shown.keys()
    if hidden:
        raise ValueError(f"no page shows {', '.join(sorted(hidden))}; show it, or delete it")
    cards = [card(picture, *shown[picture], pages) for picture in shown if picture.startswith(FOLDER)]
    return (
        '---\nhide: [navigation, toc]\n---\n\n# Gallery\n\n<div class="gallery" markdown>\n\n'
        + "\n".join(cards)
        + "\n</div>\n"
    )


def card(picture: str, caption: str, page: str, pages: dict[str, str]) -> str:
    """One picture, its caption, and a link to its page."""
    title = next(line for line in pages[page].splitlines() if line.startswith("# "))[2:]
    link = os.path.relpath(page, "docs")
    caption = caption[:1].upper() + caption[1:]
    return (
        f"<figure markdown>\n[![{caption}]({os.path.relpath(picture, 'docs')}){{ loading=lazy }}]({link})\n"
        f"<figcaption markdown>{caption}. [{title}]({link})</figcaption>\n</figure>\n"
    )
