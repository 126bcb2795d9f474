"""A page about one input, for people without Python."""

from ._html_report import html_report

__all__ = ["html_report"]
