"""Tests run Triton kernels in Triton's interpreter, which has to be asked for before triton is first imported.

``TRITON_INTERPRET=0 python -m pytest tests/kernels`` runs the same tests on a GPU.
"""

import os
from importlib.util import find_spec

os.environ.setdefault("TRITON_INTERPRET", "1")
collect_ignore_glob = [] if find_spec("triton") else ["hf_sparse/kernels/gpu/*"]
