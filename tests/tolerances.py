"""How close to the truth a result must be, by the dtype it is returned in: the same on every machine."""

import torch

# Absolute error of a weight. Half precision is computed in float32 and rounded once.
WEIGHT = {
    torch.float64: 1e-12,
    torch.float32: 1e-6,
    torch.bfloat16: 2**-9,
    torch.float16: 2**-12,
}
# Absolute error of a row's mass.
MASS = {torch.float64: 1e-12, torch.float32: 1e-6}
# Absolute error of a gradient of order one. In half precision it is computed from rounded weights, and rounded itself.
GRADIENT = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
