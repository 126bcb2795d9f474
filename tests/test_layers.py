"""The import rules of the house, read off the source text: a module imports only from layers below its own."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "hf_sparse"

# Top-level module or folder -> layer. Everything in the package must be listed, or the first test fails.
LAYERS = {
    "_version": 0,
    "kernels": 0,
    "functional": 1,
    "map_config": 2,
    "config": 2,
    "losses": 2,
    "metrics": 2,
    "fertility": 2,
    "attention": 3,
    "card": 3,
    "distribution": 3,
    "adapter_settings": 3,
    "kept_support": 3,
    "stock_trainer": 3,
    "head": 3,
    "head_loss": 3,
    "linear_logits": 3,
    "own_forward": 3,
    "visible_loss": 3,
    "fertility_predictor": 3,
    "source_fertility": 3,
    "attachment": 4,
    "audit": 4,
    "example": 4,
    "calibration": 4,
    "marking": 4,
    "patching": 4,
    "settings": 4,
    "generation": 4,
    "annealing": 5,
    "diagnosis": 5,
    "conversion": 5,
    "distillation": 5,
    "hooks": 5,
    "hub": 5,
    "trainer": 5,
    "plots": 5,
    "report": 5,
    "evaluation": 5,
    "__init__": 6,
}
FILES = sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path: Path) -> list[str]:
    """Absolute dotted names of everything the file imports, relative imports resolved."""
    package = ["hf_sparse", *path.relative_to(PACKAGE).parent.parts]
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names += [f"{stem}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_imports_only_lower_layers(path):
    assert part_of(path) in LAYERS, f"{part_of(path)} has no layer"
    own = part_of(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "hf_sparse" or len(parts) == 1 or parts[1] == own:
            continue
        other = parts[1] if parts[1] in LAYERS else "__init__"
        if own != "__init__":
            assert LAYERS[other] <= LAYERS[own], f"{own} (layer {LAYERS[own]}) imports {name}"
            assert other != "__init__", f"{own} imports {name} through the package root"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_kernels_import_triton_and_only_upper_layers_import_transformers(path):
    roots = {name.split(".")[0] for name in imports(path)}
    if part_of(path) != "kernels":
        assert "triton" not in roots
    if LAYERS[part_of(path)] < 3:
        assert not roots & {"transformers", "peft", "accelerate", "datasets"}


def test_no_module_is_named_after_a_heap():
    assert not [path for path in FILES if path.stem in {"utils", "util", "helpers", "helper", "common", "misc"}]


def test_no_import_cycles_between_files():
    def module(path: Path) -> str:
        return ".".join(["hf_sparse", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")

    graph = {}
    for path in FILES:
        known = {module(other) for other in FILES}
        # `from .x import y` names x.y: keep the longest prefix that is a module, and never the package itself.
        targets = set()
        for name in imports(path):
            while name not in known and "." in name:
                name = name.rpartition(".")[0]
            targets.add(name)
        graph[module(path)] = targets & known - {module(path), "hf_sparse"}
    visiting, done = [], set()

    def visit(name: str) -> None:
        assert name not in visiting, f"import cycle: {' -> '.join([*visiting, name])}"
        if name not in done:
            visiting.append(name)
            for other in sorted(graph[name]):
                visit(other)
            done.add(visiting.pop())

    for name in graph:
        visit(name)
