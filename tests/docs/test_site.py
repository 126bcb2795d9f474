"""What the site is built from: pages in an order, links that lead somewhere, entries for all public names."""

import doctest
import importlib
import inspect

import pytest

import hf_sparse
from tests.docs.pages import ROOT


@pytest.fixture
def part(monkeypatch):
    """A file of docs/site as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    return importlib.import_module


@pytest.mark.parametrize("name", ["docstrings", "pages"])
def test_examples_run_as_printed(part, name):
    result = doctest.testmod(part(name))
    assert result.attempted >= 1
    assert result.failed == 0


def test_every_link_of_every_page_leads_to_a_file(part):
    module = part("pages")
    pages = module.written_pages()
    assert {"README.md", "docs/using.md", "recipes/inflection/README.md", "benchmarks/README.md"} <= pages.keys()
    found = [(page, module.target(page, link)) for page, text in pages.items() for link in module.links(text)]
    assert len(found) > 100
    assert not [(page, name) for page, name in found if not (ROOT / name).is_file()]


def test_every_guide_is_in_the_order_once(part):
    build = part("build")
    named = [f"docs/{name}.md" for names in build.GUIDES.values() for name in names]
    listed = [*named, *(name for name in build.PROJECT if name.startswith("docs/"))]
    assert sorted(listed) == sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md"))


def test_a_source_file_that_a_page_links_to_has_a_page_with_its_text(part):
    pages = {"docs/a.md": "[test](../tests/test_layers.py#L1) and [page](../README.md)\n"}
    found = part("pages").with_sources(pages)
    assert found["docs/a.md"] == "[test](../tests/test_layers.py.md#L1) and [page](../README.md)\n"
    assert (ROOT / "tests" / "test_layers.py").read_text() in found["tests/test_layers.py.md"]


def test_the_gallery_has_every_picture_and_refuses_one_that_no_page_shows(part):
    pages = part("pages").written_pages()
    gallery = part("gallery").gallery_page(pages)
    for picture in (ROOT / "docs" / "pictures").iterdir():
        assert gallery.count(f"](pictures/{picture.name})") == 1
    without = {page: text for page, text in pages.items() if page != "docs/conversion.md"}
    without["docs/annealing.md"] = "# Annealing\n"
    with pytest.raises(ValueError, match=r"no page shows docs/pictures/conversion\.png; show it, or delete it"):
        part("gallery").gallery_page(without)


def test_every_public_name_has_an_entry(part):
    text = "\n".join(part("reference").reference_pages().values())
    for name in hf_sparse.__all__:
        value = getattr(hf_sparse, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert f".{name}\n" in text, name
