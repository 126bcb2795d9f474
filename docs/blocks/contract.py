"""The numerics contract, with a link to the line of each test."""

from __future__ import annotations

import re

from ._blocks import ROOT, block


@block
def contract() -> str:
    """The promises of docs/numerics.md, each with a link to the line of its test."""
    tests = "tests/test_numerics_contract.py"
    lines = (ROOT / tests).read_text(encoding="utf-8").splitlines()
    place = {line[4 : line.index("(")]: number for number, line in enumerate(lines, 1) if line.startswith("def test_")}
    page = (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ((?:`test_\w+`(?:, )?)+) \|$", page, re.MULTILINE)
    table = ["| promise | test |", "|---|---|"]
    for promise, names in rows:
        links = [f"[line {place[name]}]({tests}#L{place[name]})" for name in re.findall(r"`(\w+)`", names)]
        table.append(f"| {promise} | {', '.join(links)} |")
    return "\n".join(table)
