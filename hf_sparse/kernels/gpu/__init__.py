"""Triton kernels for NVIDIA GPUs and their launches. Experimental: one GPU has run them.

All but ``scores`` and ``listing`` import triton; the operators of ``kernels`` import them when they are first called.
"""
