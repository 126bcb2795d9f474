"""What all tests share."""

import gc
import os
import sys

import pytest

KEPT_COMPILER = """#!{python}
# Runs {compiler}, the same only once.
import hashlib, os, pathlib, shutil, subprocess, sys, tempfile
*arguments, out = sys.argv[1:]
kept = pathlib.Path(__file__).with_name(hashlib.sha256(repr(arguments).encode()).hexdigest() + ".so")
if not kept.exists():
    made = tempfile.mkdtemp(dir=kept.parent) + "/made.so"
    subprocess.run([*{compiler}, *arguments, made], check=True)
    os.replace(made, kept)
shutil.copyfile(kept, out)
"""


def pytest_collection_finish():
    """Leave what is there by now out of garbage collections: Trainer and others ask for one at every call."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def kept_compiler(tmp_path_factory):
    """For ``CXX``: the compiler of the C++ kernel, which takes half a minute, once for all tests that build it."""
    from hf_sparse.kernels import KernelUnavailable
    from hf_sparse.kernels._build import compiler

    try:
        words = compiler()
    except KernelUnavailable as problem:
        pytest.skip(str(problem))
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kept_compiler"
    folder.mkdir(exist_ok=True)
    script = folder / "compiler"
    if not script.exists():
        own = tmp_path_factory.mktemp("script") / "compiler"
        own.write_text(KEPT_COMPILER.format(python=sys.executable, compiler=words))
        own.chmod(0o700)
        own.replace(script)
    return str(script)
