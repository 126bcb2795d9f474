"""The import rules of the house, read off the source text; floors are derived from the folders, nothing is listed."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "hf_sparse"
FILES = sorted(PACKAGE.rglob("*.py"))
NAME_OF = {
    path: ".".join(["hf_sparse", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")
    for path in FILES
}
MODULES = set(NAME_OF.values())


def room_of(module: str) -> str:
    """The folder or file right below the package that a module is in; the package itself for its ``__init__``."""
    return [*module.split("."), "hf_sparse"][1]


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


def modules_imported(path: Path) -> set[str]:
    """The package's own modules that a file imports: ``from .x import y`` is y's module, or x where y is a name."""
    targets = set()
    for name in imports(path):
        while name not in MODULES and "." in name:
            name = name.rpartition(".")[0]
        targets.add(name)
    return targets & MODULES - {NAME_OF[path], "hf_sparse"}


def check_acyclic(graph: dict[str, set[str]]) -> None:
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


def test_no_import_cycles_between_files():
    check_acyclic({NAME_OF[path]: modules_imported(path) for path in FILES})


def test_no_import_cycles_between_rooms():
    graph = {}
    for path in FILES:
        room = room_of(NAME_OF[path])
        graph.setdefault(room, set()).update({room_of(module) for module in modules_imported(path)} - {room})
    check_acyclic(graph)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_is_imported_through_the_package_root(path):
    for name in imports(path):
        if name.startswith("hf_sparse.") and NAME_OF[path] != "hf_sparse":
            assert room_of(name) in map(room_of, MODULES - {"hf_sparse"}), f"{name} comes through the root"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_with_an_underscore_is_imported_only_inside_its_folder(path):
    for module in modules_imported(path):
        folder, _, stem = module.rpartition(".")
        if stem.startswith("_"):
            inside = NAME_OF[path] if path.name == "__init__.py" else NAME_OF[path].rpartition(".")[0]
            assert f"{inside}.".startswith(f"{folder}."), f"{NAME_OF[path]} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_mathematics_knows_no_models(path):
    roots = {name.split(".")[0] for name in imports(path)}
    room = room_of(NAME_OF[path])
    if room != "kernels":
        assert "triton" not in roots
    if room in {"kernels", "functional", "losses", "metrics", "config"} and "evaluate" not in path.parts:
        assert not roots & {"transformers", "peft", "accelerate", "datasets"}


def constants(path: Path) -> dict[str, str]:
    """The public constants of a file, by name, with the source of their values."""
    values = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign):
            names = [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            values |= {name: ast.unparse(node) for name in names if name.isupper() and not name.startswith("_")}
    return values


def test_a_public_constant_has_one_value_in_the_whole_package():
    found = {}
    for path in FILES:
        for name, value in constants(path).items() if "evaluate" not in path.parts else ():
            assert found.setdefault(name, value) == value, f"{name} has another value in {NAME_OF[path]}"


def test_one_function_decides_between_float32_and_float64():
    decision = re.compile(r"(==|!=|is|is not|in) torch\.float64|torch\.float64 (in|if)|promote_types")
    assert [NAME_OF[path] for path in FILES if decision.search(path.read_text())] == ["hf_sparse.functional.rows"]


def test_no_module_is_named_after_a_heap():
    assert not [path for path in FILES if path.stem in {"utils", "util", "helpers", "helper", "common", "misc"}]
