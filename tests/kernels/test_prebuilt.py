"""Kernels that came with the package: taken where they load, built here where not, and never when damaged."""

import shutil
import sys

import pytest
import torch

from hf_sparse.kernels import KernelUnavailable, _build
from hf_sparse.kernels._build import build, is_built, prebuilt
from hf_sparse.kernels._library import _load
from hf_sparse.kernels._recipe import INSTRUCTIONS, SOURCES, flags, key_of, library_name, prebuild

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is built there")
COMPILER = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The folder of a package's kernels, on a machine without a compiler and with an empty cache."""
    folder = tmp_path / "prebuilt"
    folder.mkdir()
    monkeypatch.setattr(_build, "PREBUILT", folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    return folder


def put(folder, content, capability=None):
    name = library_name(key_of(capability or torch.backends.cpu.get_cpu_capability()), content)
    (folder / name).write_bytes(content)
    return folder / name


@pytest.fixture(scope="module")
def library():
    """The content of the kernel, as this machine builds it."""
    if COMPILER is None:
        pytest.skip("no C++ compiler is installed")
    return build().read_bytes()


def test_it_is_loaded_without_a_compiler(library, package):
    assert not is_built()
    path = put(package, library)
    assert is_built()
    assert _load()._name == str(path)
    assert not (package.parent / "cache").exists()


def test_one_for_another_cpu_is_not_taken(package, monkeypatch):
    put(package, b"AVX512", "AVX512")
    portable = put(package, b"any", "DEFAULT")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert prebuilt() is None
    for other in ("DEFAULT", "ZVECTOR"):  # what is not listed takes the portable one
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda other=other: other)
        assert prebuilt() == portable


def test_a_damaged_one_is_not_given_to_the_loader(library, package):
    path = put(package, library)
    path.write_bytes(library[: len(library) // 2])
    assert prebuilt() is None
    with pytest.raises(KernelUnavailable, match=r"no C\+\+ compiler was found"):
        _load()


def test_where_it_does_not_load_one_is_built_here(package, monkeypatch):
    put(package, b"for another C library")
    with pytest.raises(
        KernelUnavailable, match=r"the package's own: .* does not load: .*; one for this machine: no C"
    ):
        _load()
    built = package.parent / "built.so"
    monkeypatch.setattr("hf_sparse.kernels._library.build", lambda: built)
    with pytest.raises(KernelUnavailable, match=f"one for this machine: .*{built}"):
        _load()


def compiler_for(target, folder):
    """A compiler that writes what it was told, and what the objects say that it links."""
    path = folder / target
    path.write_text(
        f'#!/bin/sh\n[ "$1" = -dumpmachine ] && echo {target} && exit\nfor last; do :; done\n'
        'case "$*" in *-shared*) cat *.o;; esac > "$last"\necho "$@" >> "$last"\n'
    )
    path.chmod(0o700)
    return [str(path)]


def test_a_wheel_has_one_for_each_instruction_set_of_the_machine_it_is_for(tmp_path, monkeypatch):
    built = prebuild(compiler_for("x86_64-linux-gnu", tmp_path), tmp_path)
    assert len(built) == len(INSTRUCTIONS) + 1
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    for path, capability in zip(built, [*INSTRUCTIONS, "DEFAULT"]):
        assert path.name.startswith(f"entmax-{key_of(capability)}-")
        assert set(flags(capability)) | set(map(str, SOURCES)) < set(path.read_text().split())
    (portable,) = prebuild(compiler_for("aarch64-linux-gnu", tmp_path), tmp_path)
    assert "-mavx2" not in portable.read_text()
    assert not portable.name.startswith(f"entmax-{key_of('DEFAULT')}-")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert portable.name.startswith(f"entmax-{key_of('DEFAULT')}-")
