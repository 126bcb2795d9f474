"""Dtypes and alphas that the kernels take."""

from __future__ import annotations

import torch

# The C++ kernel is given the index of a dtype.
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Below, float32 sums of powers are too coarse; above, Newton's method has no norm.
LOWEST_ALPHA, HIGHEST_ALPHA = 1.1, 2.0
# The C++ kernel takes logarithms of what is left to one, and so goes down to where entmax becomes softmax.
LOWEST_CPP_ALPHA = 1 + 1e-7
# Closer to softmax, float32 has too few digits for the gradient in alpha, which divides by (alpha - 1)^2.
LOWEST_ATTENTION_ALPHA = 1.02
