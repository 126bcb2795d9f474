"""Word alignments: what a link is, and the text form it has in files."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TypeAlias

Links: TypeAlias = Collection[tuple[int, int]]

_LINK = re.compile(r"(\d+)([-?])(\d+)")


def parse_links(line: str) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Read one sentence's links from text: ``0-0 2-1 2?2``, source position first, from 0; ``?`` marks possible ones.

    Args:
        line: links between spaces, as fast_align writes them; empty for none.

    Returns:
        Sure links, and possible links that are not sure.

    Raises:
        ValueError: anything else.

    >>> parse_links("0-0 2?1")
    ({(0, 0)}, {(2, 1)})
    """
    links: dict[str, set[tuple[int, int]]] = {"-": set(), "?": set()}
    for piece in line.split():
        match = _LINK.fullmatch(piece)
        if match is None:
            raise ValueError(f"expected links such as '0-0' (sure) or '0?0' (possible), was {piece!r} in {line!r}")
        links[match[2]].add((int(match[1]), int(match[3])))
    return links["-"], links["?"] - links["-"]


def check_pairs(predictions: Sequence[Links], references: Sequence[Links]) -> None:
    """Refuse corpora of different length, and negative positions."""
    if len(predictions) != len(references):
        raise ValueError(f"predictions and references must pair up, were {len(predictions)} and {len(references)}")
    for name, corpus in (("prediction", predictions), ("reference", references)):
        for number, links in enumerate(corpus):
            wrong = next((link for link in links if min(link) < 0), None)
            if wrong is not None:
                raise ValueError(f"{name} {number} has the link {wrong}; positions are counted from 0")
