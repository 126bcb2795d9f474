"""Sparse copies of a dense model, by a swap or calibrated to a share of the edges; and models of fewer layers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

import hf_sparse
from hf_sparse.attention.soft_edges import soft_edges

MAPS: dict[str, Any] = {
    "alpha 1.25": {"name": "entmax", "alpha": 1.25},
    "entmax15": "entmax15",
    "sparsemax": "sparsemax",
}


def sparse_copies(
    dense: PreTrainedModel,
    fit: Sequence[Mapping[str, Tensor]],
    edges: Sequence[float],
    kinds: Sequence[str] = (),
    swapped: Sequence[str] = tuple(MAPS),
) -> Iterator[tuple[str, PreTrainedModel]]:
    """Sparse models by what was done to the dense one.

    Args:
        dense: stays as it is.
        fit: batches to calibrate on.
        edges: goals of the calibrated models.
        kinds: of attention that become sparse; all where none is named.
        swapped: the maps that take the place of softmax and nothing else, of ``MAPS``.
    """
    for name in swapped:
        yield f"{name}, swapped", _sparse(dense, MAPS[name], kinds, fit[0])
    for goal in edges:
        model = _sparse(dense, "entmax15", kinds, fit[0])
        hf_sparse.calibrate(model, fit, edges=goal, progress=False)
        yield f"calibrated to {goal:.0%} of the edges", model


def _sparse(dense: PreTrainedModel, attn: Any, kinds: Sequence[str], batch: Mapping[str, Tensor]) -> PreTrainedModel:
    wanted = dict.fromkeys(kinds, attn) if kinds else attn
    return hf_sparse.sparsify(copy.deepcopy(dense), attn=wanted, example=batch)


def first_layers(model: PreTrainedModel, count: int) -> PreTrainedModel:
    """A copy in float64 whose decoder ends after its first layers.

    A copy, because Transformers collects attention weights of the layers that a model has when it is first asked.
    """
    decoder = model.get_decoder()
    layers = decoder.layers
    decoder.layers = layers[:count]
    try:
        return copy.deepcopy(model).double()
    finally:
        decoder.layers = layers


def edges_of(model: PreTrainedModel, batches: Sequence[Mapping[str, Tensor]]) -> float:
    """The share of the edges of attention that a model keeps over some batches."""
    with soft_edges(model) as edges:
        for batch in batches:
            model(**batch)
    return edges.kept / edges.visible
