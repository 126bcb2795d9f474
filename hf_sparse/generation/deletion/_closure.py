"""The input tokens that outputs need: closures of the graph of nonzero weights."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ._record import SiteCall


def needed_inputs(calls: list[SiteCall], first: int, num_outputs: int, is_encoder_decoder: bool) -> Tensor:
    """The input tokens that each output needs.

    Args:
        calls: all calls of one pass, in order.
        first: the position whose logits are the first output; output s has those of position ``first + s``.
        num_outputs: S.
        is_encoder_decoder: whether inputs are the encoder's, or all positions up to ``first``.

    Returns:
        (rows, S, inputs) booleans.
    """
    outputs = torch.arange(num_outputs, device=calls[0].attended.device) + first
    if is_encoder_decoder:
        return _needed_sources(calls, outputs)
    *lower, last = [call.attended for call in calls]
    places = torch.arange(last.shape[1], device=last.device)
    # The output's own position, and those generated on the way: they stay, so that their states must.
    start = (places == outputs[:, None]) | ((places > first) & (places <= outputs[:, None]))
    needed = closure(last[:, outputs] | start, union(lower, like=last))
    return needed[..., : first + 1]


def _needed_sources(calls: list[SiteCall], outputs: Tensor) -> Tensor:
    """The needed encoder positions: the states of all target positions up to an output's stay as they are."""
    last_own = max(place for place, call in enumerate(calls) if call.kind == "decoder")
    like = next(call.attended for call in calls if call.kind == "cross")
    below, top = union(_attended(calls[:last_own], "cross"), like), union(_attended(calls[last_own:], "cross"), like)
    start = (below.cumsum(1) > 0)[:, outputs] | top[:, outputs]
    own = like.new_zeros(like.shape[0], like.shape[2], like.shape[2])
    return closure(start, union(_attended(calls, "encoder"), own))


def _attended(calls: list[SiteCall], kind: str) -> list[Tensor]:
    """The supports of the calls of one kind."""
    return [call.attended for call in calls if call.kind == kind]


def union(graphs: Iterable[Tensor], like: Tensor) -> Tensor:
    """Edges of any of some graphs; none where there is no graph."""
    edges = torch.zeros_like(like)
    for graph in graphs:
        edges = edges | graph
    return edges


def closure(start: Tensor, edges: Tensor) -> Tensor:
    """The nodes that can be reached.

    Args:
        start: (rows, S, nodes) booleans: S sets of nodes.
        edges: (rows, nodes, nodes) whether a step leads from the first node to the second.

    Returns:
        (rows, S, nodes): the sets with all that is reached from them.

    >>> chain = torch.tensor([[[0, 0, 0], [1, 0, 0], [0, 1, 0]]]).bool()
    >>> closure(torch.tensor([[[False, True, False]]]), chain).tolist()
    [[[True, True, False]]]
    """
    steps = edges.float()
    while True:
        reached = start | (start.float() @ steps > 0)
        if torch.equal(reached, start):
            return reached
        start = reached
