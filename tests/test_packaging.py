"""What a release says of itself agrees with the package: version, dependencies, files."""

import re
from pathlib import Path

try:
    import tomllib
except ImportError:
    import tomli as tomllib

import hf_sparse

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# What a model card or a training script of Transformers' world has installed anyway, and nothing else.
INSTALLED = {"accelerate", "datasets", "evaluate", "peft", "torch", "transformers"}


def field(name):
    return re.search(rf"^{name}: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]


def test_the_citation_is_of_this_version():
    assert field("version") == hf_sparse.__version__
    assert field("title") == PROJECT["project"]["name"]
    assert field("license") == PROJECT["project"]["license"]
    assert f"## {hf_sparse.__version__} " in (ROOT / "CHANGELOG.md").read_text()


def test_installing_it_brings_the_six_and_no_more():
    named = [re.match(r"\w+", requirement)[0] for requirement in PROJECT["project"]["dependencies"]]
    assert sorted(named) == sorted(INSTALLED)


def test_the_oldest_versions_are_those_that_the_pages_name():
    oldest = dict(re.match(r"(\w+)>=(\S+)", text).groups() for text in PROJECT["project"]["dependencies"])
    page = (ROOT / "docs" / "releasing.md").read_text()
    for name, version in oldest.items():
        assert f"| {name} | {version} |" in page
    pinned = dict(re.findall(r"^(\w+)==(\S+)$", (ROOT / "constraints-oldest.txt").read_text(), re.MULTILINE))
    assert pinned.keys() == oldest.keys()
    for name, version in oldest.items():
        assert (pinned[name] + ".").startswith(version + ".")


def test_the_versions_of_ci_are_those_that_the_page_says():
    pinned = dict(re.findall(r"^(\w+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    page = (ROOT / "docs" / "releasing.md").read_text()
    for name in INSTALLED:
        assert re.search(rf"^\| {name} \| \S+ \| {re.escape(pinned[name])} \|", page, re.MULTILINE)


def test_it_says_that_it_has_types():
    assert (Path(hf_sparse.__file__).parent / "py.typed").is_file()
