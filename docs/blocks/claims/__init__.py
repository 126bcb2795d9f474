"""The tables of docs/claims.md: what each paper claims (docs/claims.toml), and whether it held here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from recipes.lib import markdown
from recipes.lib.blocks import BLOCKS, ROOT

from ._outcome import NotRun, Outcome

VERDICTS = {True: "same", False: "**different**", None: "not tested here"}


@dataclass(frozen=True)
class Claim:
    """One claim of a paper.

    Attributes:
        claim: in our words.
        place: table, figure or section of the paper.
        there: the paper's figures.
        here: module and function of this package that computes ours; empty where the claim is not tested.
        given: arguments of the function.
        remark: why the outcome may differ, or what was left out.
    """

    claim: str
    place: str
    there: str
    here: str = ""
    given: dict[str, Any] = field(default_factory=dict)
    remark: str = ""

    def measure(self) -> Callable[..., Outcome]:
        """The function that computes our figures."""
        module, _, name = self.here.partition(".")
        return getattr(import_module(f".{module}", __name__), name)

    def row(self) -> list[str]:
        """The claim as a row of the table, in cells."""
        figures, holds, remark = "", None, self.remark
        if self.here:
            try:
                figures, holds = self.measure()(**self.given)
            except NotRun as error:
                remark = f"no run `{error}` so far"
        return [self.claim, self.place, self.there, figures, VERDICTS[holds], remark]


def papers() -> dict[str, list[Claim]]:
    """The claims of docs/claims.toml by paper."""
    text = (ROOT / "docs" / "claims.toml").read_text(encoding="utf-8")
    return {paper: [Claim(**claim) for claim in claims] for paper, claims in tomllib.loads(text).items()}


def table(claims: list[Claim]) -> str:
    """The claims of one paper."""
    return markdown.table(["claim", "place", "there", "here", "", "remark"], [claim.row() for claim in claims])


for paper, claims in papers().items():
    BLOCKS[f"claims_{paper}"] = partial(table, claims)
