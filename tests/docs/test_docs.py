"""What the documents say is what the code does."""

import importlib
import inspect
import pkgutil
import re
import string
import subprocess
import sys

import pytest
import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import hf_sparse
from tests.docs.pages import ROOT, check, pages, scripts

MODULES = [
    info.name for info in pkgutil.walk_packages(hf_sparse.__path__, "hf_sparse.") if ".kernels" not in info.name
]


@pytest.mark.parametrize("page", pages(others=False), ids=lambda page: page.name)
def test_examples_run_as_printed(page):
    check(page)


@pytest.fixture
def language_model(tmp_path, monkeypatch):
    """The folder of a tiny model and its tokenizer, under the name in README: a folder comes before the Hub."""
    monkeypatch.chdir(tmp_path)
    letters = Tokenizer(WordLevel({letter: index for index, letter in enumerate(string.printable)}, unk_token="0"))
    letters.pre_tokenizer = Split(Regex("."), "isolated")
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=100, initializer_range=1.0, **shape))
    folder = "HuggingFaceTB/SmolLM2-135M-Instruct"
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=letters).save_pretrained(folder)
    return folder


def test_scripts_of_readme_run_as_printed_each_with_names_of_its_own(language_model):
    quick, load, train = scripts(ROOT / "README.md")
    assert f'"{language_model}"' in quick
    for script in (quick, load, train):  # the second one loads what the first one saves
        exec(compile(script, "README.md", "exec"), {"__name__": "__main__"})


def test_the_numerics_contract_names_tests_that_exist():
    page = (ROOT / "docs" / "numerics.md").read_text()
    contract = (ROOT / "tests" / "test_numerics_contract.py").read_text()
    promises = re.findall(r"^\| (?!promise|---)(.+) \| (.+) \|$", page, re.MULTILINE)
    assert len(promises) >= 13
    assert all(re.fullmatch(r"`test_\w+`(, `test_\w+`)*", tests) for _, tests in promises)
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) >= 15
    assert named <= set(re.findall(r"def (test_\w+)", contract))
    assert "(../tests/test_numerics_contract.py)" in page
    assert "(docs/numerics.md)" in (ROOT / "README.md").read_text()


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
