"""Wheels with compiled kernels: with ``HF_SPARSE_PREBUILT=1`` the C++ kernel is compiled when the wheel is built."""

from __future__ import annotations

import os
import platform
import runpy
import shlex
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RECIPE = Path("hf_sparse", "kernels", "_recipe.py")


class PrebuiltKernels(BuildHookInterface):
    """Adds a library for each instruction set of the compiler's target, and that platform to the wheel's tag."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile with ``$CXX``, or g++, unless nobody asked for it or the install is editable."""
        if os.environ.get("HF_SPARSE_PREBUILT") != "1" or version == "editable":
            return
        recipe = runpy.run_path(str(Path(self.root) / RECIPE))
        self._folder = tempfile.TemporaryDirectory()
        compiler = shlex.split(os.environ.get("CXX", "g++"))
        for path in recipe["prebuild"](compiler, Path(self._folder.name)):
            build_data["force_include"][str(path)] = f"hf_sparse/kernels/prebuilt/{path.name}"
        build_data["pure_python"] = False
        target = sysconfig.get_platform().replace(platform.machine(), recipe["target_of"](compiler))
        build_data["tag"] = f"py3-none-{target.replace('-', '_').replace('.', '_')}"
