"""Tables in Markdown, as the documentation, model cards and reports have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown.

    Args:
        columns: headings in Markdown, which may be empty.
        rows: one cell in Markdown for each column. A ``|`` is escaped, here and in headings.

    Returns:
        Lines of the heading, the rule below it and the rows, without a newline at the end.

    Raises:
        ValueError: if a row has another number of cells than there are columns.

    >>> print(table(["attention", "zeros"], [["softmax", "0%"], ["entmax15", "97%"]]))
    | attention | zeros |
    |---|---|
    | softmax | 0% |
    | entmax15 | 97% |
    """
    lines = [_row(columns), "|---" * len(columns) + "|"]
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(
                f"a row must have a cell for each of the {len(columns)} columns {list(columns)}, "
                f"was {list(row)}, which has {len(row)}"
            )
        lines.append(_row(row))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"
