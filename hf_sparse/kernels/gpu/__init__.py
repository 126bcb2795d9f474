"""Triton kernels for NVIDIA GPUs, as operators that torch.compile keeps whole.

Importing this folder imports triton. The ``triton_`` functions of ``kernels`` do so when they are called.
"""
