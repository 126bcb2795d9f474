"""Triton kernels for NVIDIA GPUs, as operators that torch.compile keeps whole.

Importing this folder imports triton: the rest of the package does so through ``kernels.triton_rows`` and the like, when
a kernel has been chosen.
"""
