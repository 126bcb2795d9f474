"""Fertility: how much attention a source word may receive, and attention that keeps to it."""

from ._constrained_attention import constrained_attention

__all__ = ["constrained_attention"]
