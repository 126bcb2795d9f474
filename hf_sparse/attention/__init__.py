"""Sparse attention: through Transformers' attention interface, or inside modules that do without it."""

from ._checkpoint import keep_thresholds
from ._constrained import constrained_attention
from ._credit import check_fertility, credit_refusal, follow_cache
from ._find import find_sites, inspected_functions, named_attention, through_interface
from ._inline import attention_call, divert, is_softmax, refusal, restore
from ._interface import NAME, sparse_attention
from ._scores import attention_scores
from ._site import (
    SITE,
    AttentionSite,
    SupportCount,
    add_learned,
    attention_sites,
    observe,
    remove_learned,
    trial,
    weights_under,
)
from ._spent import SpentLayer
from .backends import set_impl
from .backends._flex import flex_entmax_attention

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
    "constrained_attention",
    "credit_refusal",
    "divert",
    "find_sites",
    "flex_entmax_attention",
    "follow_cache",
    "inspected_functions",
    "is_softmax",
    "keep_thresholds",
    "named_attention",
    "observe",
    "refusal",
    "remove_learned",
    "restore",
    "set_impl",
    "sparse_attention",
    "through_interface",
    "trial",
    "weights_under",
]
