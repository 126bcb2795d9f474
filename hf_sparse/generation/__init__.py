"""What only sparse outputs allow: finite sets of candidates."""

from ._ensemble import Ensemble
from ._enumerate import SupportSet, enumerate_support

__all__ = ["Ensemble", "SupportSet", "enumerate_support"]
