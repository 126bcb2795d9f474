"""Tensors that the package creates name their dtype and their device: torch's defaults are the user's."""

import ast
from pathlib import Path

import pytest

import hf_sparse

PACKAGE = Path(hf_sparse.__file__).parent
# Functions of torch that make numbers that are not given: their dtype is the default where it is not named.
NUMBERS = {"empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randn", "zeros"}
# They and these make a tensor out of no other: it is on the default device where none is named.
OTHERS = {"arange", "as_tensor", "asarray", "normal", "randint", "randperm", "scalar_tensor", "tensor"}
OTHERS |= {"tril_indices", "triu_indices"}


@pytest.mark.parametrize(("functions", "named"), [(NUMBERS, "dtype"), (NUMBERS | OTHERS, "device")])
def test_no_tensor_is_created_by_a_default(functions, named):
    calls = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if is_call and ast.unparse(node.func.value) == "torch" and node.func.attr in functions:
                calls.append((f"{path.relative_to(PACKAGE)}:{node.lineno} {ast.unparse(node)}", node))
    assert calls
    assert [text for text, call in calls if all(keyword.arg != named for keyword in call.keywords)] == []
