"""From softmax to sparse on the user's data: what it costs, and the settings at which it costs least."""

from ._calibrate import calibrate
from ._compare import compare
from ._measure import LayerQuality, Quality
from ._results import CalibratedLayer, Calibration, Comparison, SparseHead
from ._tau import estimate_tau_from_data

__all__ = [
    "CalibratedLayer",
    "Calibration",
    "Comparison",
    "LayerQuality",
    "Quality",
    "SparseHead",
    "calibrate",
    "compare",
    "estimate_tau_from_data",
]
