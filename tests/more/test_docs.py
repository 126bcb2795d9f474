"""Pages whose examples need other people's packages."""

import pytest

from tests.docs.pages import check, pages


@pytest.mark.parametrize("page", pages(others=True), ids=lambda page: page.name)
def test_examples_run_as_printed(page):
    check(page)
