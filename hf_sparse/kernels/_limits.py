"""The scores and exponents that the kernels take."""

from __future__ import annotations

import torch

# The C++ kernel knows these by their place.
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Outside, float32 sums of powers are too coarse (below), or there is no norm for Newton's method (above).
LOWEST_ALPHA, HIGHEST_ALPHA = 1.1, 2.0
# Nearer to softmax, float32 has too few digits for the gradient of alpha, which divides by (alpha - 1)^2.
LOWEST_ATTENTION_ALPHA = 1.02
