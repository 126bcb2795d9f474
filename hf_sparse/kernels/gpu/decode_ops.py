"""The two products of decoding as operators of torch, with what a compiler needs to know of their results."""

from __future__ import annotations

import torch
from torch import Tensor

from ._attention import unit
from ._decode import decode_scores, decode_values


@torch.library.custom_op("hf_sparse::decode_scores", mutates_args=())
def scores_of_one_query(query: Tensor, key: Tensor, scaling: float) -> Tensor:
    """See ``decode_scores``; any strides."""
    return decode_scores(unit(query), unit(key), scaling)


@scores_of_one_query.register_fake
def _(query: Tensor, key: Tensor, scaling: float) -> Tensor:
    return query.new_empty((*query.shape[:3], key.shape[2]), dtype=torch.float32)


@torch.library.custom_op("hf_sparse::decode_values", mutates_args=())
def values_of_one_query(weights: Tensor, value: Tensor) -> Tensor:
    """See ``decode_values``; any strides."""
    return decode_values(weights.contiguous(), unit(value))


@values_of_one_query.register_fake
def _(weights: Tensor, value: Tensor) -> Tensor:
    return value.new_empty((*weights.shape[:3], value.shape[3]))
