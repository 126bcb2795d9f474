"""What the documents say is what the code does."""

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys

import pytest

import hf_sparse
from tests.docs.pages import ROOT, check, pages

MODULES = [
    info.name for info in pkgutil.walk_packages(hf_sparse.__path__, "hf_sparse.") if ".kernels" not in info.name
]


@pytest.mark.parametrize("page", pages(others=False), ids=lambda page: page.name)
def test_examples_run_as_printed(page):
    check(page)


def test_the_numerics_contract_names_tests_that_exist():
    page = (ROOT / "docs" / "numerics.md").read_text()
    contract = (ROOT / "tests" / "test_numerics_contract.py").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) >= 15
    assert named <= set(re.findall(r"def (test_\w+)", contract))


def test_versions_on_pages_are_those_that_are_tested():
    pinned = dict(re.findall(r"^([\w.-]+)==([\d.]+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    text = "".join((ROOT / "docs" / page).read_text() for page in ("using.md", "trl.md"))
    told = {name: version for name, version in re.findall(r"\b([\w-]+) (\d+\.\d+\.\d+)\b", text) if name in pinned}
    assert told.keys() >= {"transformers", "trl", "lm_eval", "sentence-transformers", "onnxruntime", "torch", "peft"}
    assert told == {name: pinned[name] for name in told}


def test_generated_tables_are_up_to_date():
    run = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("name", ["hf_sparse", *MODULES])
def test_every_public_name_is_documented(name):
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    for public in getattr(module, "__all__", ()):
        value = getattr(module, public)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert inspect.getdoc(value), f"{name}.{public} has no docstring"


@pytest.mark.parametrize("part", ["functional", "losses"])
def test_docstrings_of_the_mathematics_say_what_they_must(part):
    module, seen = importlib.import_module(f"hf_sparse.{part}"), 0
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isfunction(value) and {"z", "logits", "hidden"} & inspect.signature(value).parameters.keys():
            text, seen = inspect.getdoc(value), seen + 1
            elsewhere = "as there" in text or "errors as in ``" in text  # the same arguments as another function
            for section in (">>>",) if elsewhere else ("Args:", "Returns:", ">>>"):
                assert section in text, f"{part}.{name}: no {section!r} in its docstring"
    assert seen >= 10
