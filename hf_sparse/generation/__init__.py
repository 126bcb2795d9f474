"""What only sparse outputs allow: finite sets of candidates."""

from ._enumerate import SupportSet, enumerate_support

__all__ = ["SupportSet", "enumerate_support"]
