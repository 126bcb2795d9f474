"""The threshold tau of an alpha-ReLU head before anything is known but its weights."""

from ._moment import positive_part_moment
from ._tau import estimate_tau, estimate_tau_from_head

__all__ = ["estimate_tau", "estimate_tau_from_head", "positive_part_moment"]
