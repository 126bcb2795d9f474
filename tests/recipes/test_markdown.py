"""Tables in Markdown: a heading, a rule and rows of as many cells."""

import pytest

from recipes.lib import markdown


def test_a_table_is_its_heading_a_rule_and_its_rows():
    rows = (cells for cells in [["softmax", "0%"], ("entmax15", "97%")])
    assert markdown.table(["attention", "zeros"], rows).splitlines() == [
        "| attention | zeros |",
        "|---|---|",
        "| softmax | 0% |",
        "| entmax15 | 97% |",
    ]


def test_a_table_without_rows_is_its_heading_and_a_rule():
    assert markdown.table(("map",), []) == "| map |\n|---|"


def test_headings_and_cells_may_be_empty():
    assert markdown.table(["", "a", "", ""], [["", "1", "", ""]]).splitlines() == [
        "|  | a |  |  |",
        "|---|---|---|---|",
        "|  | 1 |  |  |",
    ]


def test_a_bar_in_a_heading_or_a_cell_makes_no_column():
    assert markdown.table(["|z|", "p"], [["a|b", "1"]]) == "| \\|z\\| | p |\n|---|---|\n| a\\|b | 1 |"


@pytest.mark.parametrize("row", [["entmax15"], ["entmax15", "97%", "yes"], []])
def test_a_row_of_another_number_of_cells_is_refused_by_name(row):
    told = f"a row must have a cell for each of the 2 columns ['map', 'zeros'], was {row}, which has {len(row)}"
    with pytest.raises(ValueError) as error:
        markdown.table(["map", "zeros"], [["softmax", "0%"], row])
    assert str(error.value) == told
