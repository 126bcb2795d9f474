"""The group ``more``: tests with other people's packages and real models, which ``make test-more`` installs and runs.

Every test in this folder belongs to it. A run that leaves the group out does not import its files: they need packages
that are not there, or take seconds to import.
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(config):
    return "not more" in config.getoption("markexpr") or None


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("more")
            for category in ("DeprecationWarning", "FutureWarning"):  # others still ask for what goes away
                item.add_marker(pytest.mark.filterwarnings(f"default::{category}:transformers"))
