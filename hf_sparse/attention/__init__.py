"""Sparse attention: through Transformers' attention interface, or inside modules that compute their own softmax."""

from ._checkpoint import keep_thresholds
from .backends import flex_entmax_attention, set_impl
from .sequential import constrained_attention
from .site import AttentionSite, attention_sites, observe
from .support_count import SupportCount

__all__ = [
    "AttentionSite",
    "SupportCount",
    "attention_sites",
    "constrained_attention",
    "flex_entmax_attention",
    "keep_thresholds",
    "observe",
    "set_impl",
]
