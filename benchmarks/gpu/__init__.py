"""The Triton kernels on a GPU: ``python -m benchmarks.gpu``."""
