"""The settings of a sparse model while it is in use: replaced by others, or set aside for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ..attention import attention_sites, divert, restore
from ..config import SparseConfig
from .saved_config import mark, tags
from .sparsify import sparse_config, transformers_model


def change_settings(model: nn.Module, config: SparseConfig) -> None:
    """Give a sparse model other maps where it has maps already; its configuration, and what is saved, follow.

    Args:
        model: a sparse model. Changed in place.
        config: sparse where the model is, with a fused loss and learned settings where the model has them.

    Raises:
        ValueError: the model is not sparse.
    """
    sparse_config(model)
    sparse: Any = transformers_model(model)
    for _, site in attention_sites(sparse):
        site.map_config = config.attention(site.kind, site.layer)
    sparse._sparse_config = config
    sparse.model_tags = tags(sparse._dense_tags, config)
    mark(sparse, config.to_dict())


@contextmanager
def densely(model: nn.Module) -> Iterator[None]:
    """Run the block with the softmax attention a sparse model had before, on the same weights and modules.

    Logits inside are bit-equal to those of ``unsparsify(model)``. The head's map stays: logits are raw scores
    before and after, and only losses and decoding read them through it.

    Args:
        model: a sparse model. It is sparse again afterwards.

    Raises:
        ValueError: the model is not sparse.
    """
    sparse_config(model)
    sparse: Any = transformers_model(model)
    parts = sparse._attention_of
    restore(sparse)
    try:
        sparse._attention_of = [(config, before, before) for config, before, _ in parts]
        for config, before, _ in parts:
            config._attn_implementation_internal = before
        yield
    finally:
        for config, _, now in parts:
            config._attn_implementation_internal = now
        sparse._attention_of = parts
        divert(sparse)
