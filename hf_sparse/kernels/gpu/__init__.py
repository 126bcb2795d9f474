"""Triton kernels for NVIDIA GPUs, as operators that torch.compile keeps whole.

Importing this folder imports triton. The functions of ``kernels`` whose names begin with ``triton_`` do it when called.
"""
