"""Tests run Triton kernels in Triton's interpreter, which has to be asked for before triton is first imported.

``TRITON_INTERPRET=0 python -m pytest tests/kernels`` runs the same tests on a GPU. The C++ kernel is built before the
first test: ``auto`` takes it for short rows only where it is there already, and tests compare processes.
"""

import os
from importlib.util import find_spec

os.environ.setdefault("TRITON_INTERPRET", "1")
collect_ignore_glob = [] if find_spec("triton") else ["hf_sparse/kernels/gpu/*"]


def pytest_sessionstart() -> None:
    """Build the C++ kernel, where it can be built."""
    from hf_sparse.kernels._library import available

    available(build=True)
