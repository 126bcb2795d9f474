"""A sparse model that is dense for a block: softmax in attention, or at the head, on the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from ..attention.inline import divert, restore
from .find import sparse_state, transformers_model
from .state import state_of


@contextmanager
def dense_attention(model: nn.Module) -> Iterator[None]:
    """Run the block with the softmax attention a sparse model had before, on the same weights and modules.

    Hidden states and raw scores inside are bit-equal to those of ``unsparsify(model)``. The head's map stays; see
    ``dense_head`` for it. The modules are changed for all threads.

    Args:
        model: a sparse model. It is sparse again afterwards.

    Raises:
        ValueError: the model is not sparse.
    """
    state, inner = sparse_state(model), transformers_model(model)
    restore(inner)
    try:
        for part in state.attention:
            part.name(part.dense)
        with state.replaced(attn=()):
            yield
    finally:
        for part in state.attention:
            part.name(part.sparse)
        divert(inner)


@contextmanager
def dense_head(model: nn.Module) -> Iterator[None]:
    """Run the block with softmax at the head of a model, in its loss as well; a dense head stays as it is."""
    state = state_of(transformers_model(model))
    if state is None:
        yield
        return
    with state.replaced(head=None):
        yield
