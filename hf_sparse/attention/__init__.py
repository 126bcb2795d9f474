"""Sparse attention: through Transformers' attention interface, or inside modules that do without it."""

from ._credit import check_fertility, credit_refusal, follow_cache
from ._inline import attention_call, divert, is_softmax, refusal, restore
from ._interface import NAME, attention_scores, sparse_attention
from ._site import (
    SITE,
    AttentionSite,
    SupportCount,
    add_learned,
    attention_sites,
    find_sites,
    inspected_functions,
    named_attention,
    observe,
    remove_learned,
    through_interface,
)
from ._spent_layer import SpentLayer

__all__ = [
    "NAME",
    "SITE",
    "AttentionSite",
    "SpentLayer",
    "SupportCount",
    "add_learned",
    "attention_call",
    "attention_scores",
    "attention_sites",
    "check_fertility",
    "credit_refusal",
    "divert",
    "find_sites",
    "follow_cache",
    "inspected_functions",
    "is_softmax",
    "named_attention",
    "observe",
    "refusal",
    "remove_learned",
    "restore",
    "sparse_attention",
    "through_interface",
]
