"""All recipes, found by their folders: each has its four files, and tasks share no more than data and models."""

import ast
import importlib
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from recipes.lib.blocks import read
from recipes.lib.study import Study, main

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
NAMES = sorted(path.parent.name for path in RECIPES.glob("*/run.py"))
WITH_WEIGHTS = [
    path
    for path in sorted(RECIPES.glob("*/results/*.json"))
    if any("weights" in record for record in read(path.relative_to(RECIPES.parent).as_posix()).get("runs", []))
]
FILES = sorted(path for path in RECIPES.rglob("*.py") if "lib" not in path.parts and path.name != "headlines.py")


def test_recipes_are_found():
    assert {"inflection", "translation"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_has_its_four_files_and_a_sentence(name):
    assert {"run.py", "data.py", "report.py", "README.md"} <= {path.name for path in (RECIPES / name).iterdir()}
    assert importlib.import_module(f"recipes.{name}").__doc__.strip().endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_a_study_named_like_its_folder(name, capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("sacrebleu")
    study = importlib.import_module(f"recipes.{name}.run").STUDY
    assert isinstance(study, Study)
    assert study.name == name
    assert f"python -m recipes.{name}.run" in study.description
    main(study, ["--list", "--quick"])
    assert [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]


@pytest.mark.parametrize("path", WITH_WEIGHTS, ids=lambda path: str(path.relative_to(RECIPES)))
def test_every_run_with_weights_has_a_card(path):
    report = importlib.import_module(f"recipes.{path.parent.parent.name}.report")
    records = read(path.relative_to(RECIPES.parent).as_posix())["runs"]
    for record in records:
        if "weights" in record:
            made = report.card(record, records)
            text = made.text()
            assert ModelCard(text).data.model_name == made.name
            assert record["command"] in text
            assert made.rows[made.own]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(RECIPES)))
def test_a_recipe_imports_no_run_and_no_report_of_another(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 2 and not node.module.startswith(("lib", "data")):
            assert node.module.split(".")[1] not in ("run", "report"), f"{path.name} imports {node.module}"


@pytest.mark.parametrize("path", sorted((RECIPES / "lib").glob("*.py")), ids=lambda path: path.name)
def test_the_machinery_knows_no_recipe(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        assert not (isinstance(node, ast.ImportFrom) and node.level > 1), f"{path.name} imports {node.module}"
