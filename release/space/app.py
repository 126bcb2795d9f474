"""The page of ``python -m hf_sparse demo`` as a Space; the variable ``MODEL`` chooses another model."""

import os

from hf_sparse.__main__ import DEMO_MODEL, main

main(["demo", "--model", os.environ.get("MODEL", DEMO_MODEL)])
