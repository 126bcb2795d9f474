"""Tests run Triton kernels in Triton's interpreter, which has to be asked for before triton is first imported.

``TRITON_INTERPRET=0 python -m pytest tests/kernels`` runs the same tests on a GPU. The C++ kernel is built before the
first test: ``auto`` takes it for short rows only where it is there already, and tests compare processes.
"""

import os
from importlib.util import find_spec

os.environ.setdefault("TRITON_INTERPRET", "1")
OPTIONAL = {"triton": "hf_sparse/kernels/gpu/*", "llguidance": "hf_sparse/generation/conditioning/grammar.py"}
collect_ignore_glob = [files for package, files in OPTIONAL.items() if not find_spec(package)]


def pytest_sessionstart() -> None:
    """Build the C++ kernel, where it can be built."""
    from hf_sparse.kernels._library import available

    available(build=True)
