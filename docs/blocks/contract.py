"""The numerics contract, with a link to the tests of each promise."""

from __future__ import annotations

import re

from recipes.lib.blocks import ROOT, block

TESTS = "tests/test_numerics_contract.py"


@block
def contract() -> str:
    """The table of docs/numerics.md; each test's name links to its file, so an edit there leaves the page as it is."""
    page = (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")
    table = re.search(r"^\| promise \| test \|\n(?:\|.*\n)+", page, re.MULTILINE)
    return re.sub(r"`test_\w+`", rf"[\g<0>]({TESTS})", table[0].replace("`, `", "`<br>`"))
