"""Fused losses of a layer whose classes are divided over processes: a few numbers a row are exchanged, never logits.

Every process has the hidden states of all rows and some rows of W. Exchanged are the maximum of each row, the two sums
of each Newton step, the logit of the target, and in the backward pass the gradient of h. The rest is local.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ...functional import alpha_relu
from ...functional.newton import dtype_for, exponent_of, is_softmax, power
from ...functional.rows import accumulation_dtype, upcast
from .._alpha_relu_support import relu_loss, relu_mass
from ._function import RowLosses, refuse_second_derivative
from ._tiles import TILE, LinearHead

_MAX_STEPS = 100


def is_divided(weight: object) -> bool:
    """Whether a tensor is divided over processes (a ``DTensor``)."""
    return hasattr(weight, "device_mesh")


def local_part(tensor: Any) -> Tensor:
    """What this process holds of a tensor, with its gradient."""
    part: Tensor = tensor.to_local() if is_divided(tensor) else tensor
    return part


@dataclass(frozen=True)
class ClassShard:
    """The classes of this process.

    Attributes:
        group: the processes that have the others.
        start: number of the first class.
        stop: number after the last class.
        num_classes: of all processes together.
    """

    group: Any
    start: int
    stop: int
    num_classes: int

    @staticmethod
    def of(weight: Any) -> ClassShard:
        """The shard of W (V, D), divided by rows over one axis of processes.

        Raises:
            ValueError: divided otherwise.
        """
        mesh, placements = weight.device_mesh, weight.placements
        if mesh.ndim != 1 or not placements[0].is_shard(0):
            raise ValueError(
                "a weight that is divided over processes must be divided by rows over one axis of them (tensor "
                f"parallelism by classes), had {placements} on a mesh of {mesh.ndim} axes; pass weight.full_tensor()"
            )
        group, rank = mesh.get_group(), mesh.get_local_rank()
        sizes = torch.zeros(mesh.size(), dtype=torch.int64, device=weight.device)
        sizes[rank] = len(local_part(weight))
        dist.all_reduce(sizes, group=group)
        stop = int(sizes[: rank + 1].sum())
        return ClassShard(group, stop - int(sizes[rank]), stop, int(sizes.sum()))

    def total(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Sums of tensors of one shape over the processes, which all get the same bits."""
        sums = torch.stack(parts)
        dist.all_reduce(sums, group=self.group)
        return sums.unbind()

    def largest(self, values: Tensor) -> Tensor:
        """Maxima over the processes."""
        values = values.clone()
        dist.all_reduce(values, dist.ReduceOp.MAX, group=self.group)
        return values

    def check_rows(self, y: Tensor) -> None:
        """Refuse targets that differ between processes.

        Raises:
            ValueError: they do, as where each process has rows of its own.
        """
        place = torch.arange(1, len(y) + 1, device=y.device)
        own = torch.stack([place.sum(), (y * (place % 1009)).sum()])
        if not torch.equal(self.largest(own), -self.largest(-own)):
            raise ValueError(
                "every process that has some of the classes must be given the same rows, but their targets differ; a "
                "weight divided by FSDP is gathered first: weight.full_tensor()"
            )


class DividedMap(NamedTuple):
    """A map of logits whose classes are divided.

    Attributes:
        losses: ``losses(z (n, m), gold (n,), shard) -> ((n,), (n, k))``: the losses of rows from this process's logits
            and those of the targets, and what the weights need.
        weights: ``weights(z (n, m), kept (n, k)) -> (n, m)``: this process's weights, without an exchange.
    """

    losses: Callable[[Tensor, Tensor, ClassShard], tuple[Tensor, Tensor]]
    weights: Callable[[Tensor, Tensor], Tensor]


def divided_entmax(alpha: float) -> DividedMap:
    """alpha-entmax, softmax at alpha = 1.

    Raises:
        ValueError: alpha above 2.
    """
    if alpha > 2:
        raise ValueError(
            f"alpha must be at most 2 where the weight is divided over processes, was {alpha:g}; pass "
            "weight.full_tensor()"
        )
    if is_softmax(alpha):
        return DividedMap(_softmax_losses, _softmax_weights)
    return DividedMap(partial(_entmax_losses, alpha=alpha), partial(_entmax_weights, alpha=alpha))


def divided_alpha_relu(alpha: float, tau: float) -> DividedMap:
    """alpha-ReLU, whose loss needs one sum a row."""

    def losses(z: Tensor, gold: Tensor, shard: ClassShard) -> tuple[Tensor, Tensor]:
        (mass,) = shard.total(relu_mass(z, alpha, tau).sum(-1, dtype=torch.float64))
        return relu_loss(mass, gold, alpha, tau), z.new_empty(len(z), 0)

    return DividedMap(losses, lambda z, kept: alpha_relu(z, alpha, tau))


def _top(z: Tensor, shard: ClassShard) -> Tensor:
    """The largest logit of each row (n, 1) over all processes; 0 where all are masked."""
    own = z.amax(-1, keepdim=True) if z.shape[1] else z.new_full((len(z), 1), -torch.inf)
    top = shard.largest(own)
    return top.masked_fill(top == -torch.inf, 0.0)


def _softmax_losses(z: Tensor, gold: Tensor, shard: ClassShard) -> tuple[Tensor, Tensor]:
    top = _top(z, shard)
    (mass,) = shard.total((z - top).exp().sum(-1, keepdim=True))
    return (mass.log() - (gold[:, None] - top))[:, 0], torch.cat([top, mass], -1)


def _softmax_weights(z: Tensor, kept: Tensor) -> Tensor:
    top, mass = kept.split(1, -1)
    return (z - top).exp() / mass


def _excess(z: Tensor, top: Tensor, risen: Tensor, alpha: float) -> Tensor:
    """``u = [(alpha - 1) (z - top) + 1 - risen]_+``, where the threshold has risen from its lowest possible value."""
    return ((z.to(risen.dtype) - top) * (alpha - 1)).add_(1 - risen).clamp_(min=0)


def _entmax_losses(z: Tensor, gold: Tensor, shard: ClassShard, alpha: float) -> tuple[Tensor, Tensor]:
    """Newton's method as in ``functional.newton``, with sums over the processes."""
    exponent, dtype = exponent_of(alpha), dtype_for(alpha, z)
    top = _top(z, shard).to(dtype)
    risen = torch.zeros_like(top)
    tolerance = 3 * torch.finfo(dtype).eps * max(2.0, exponent)
    for _ in range(_MAX_STEPS):
        u = _excess(z, top, risen, alpha)
        powers = u.sign() if exponent == 1 else power(u, exponent - 1)
        slopes, masses = powers.sum(-1, keepdim=True), (powers * u).sum(-1, keepdim=True)
        slope, mass, energy = shard.total(slopes, masses, (powers * u * u).sum(-1, keepdim=True))
        # The mass has the same bits in every process, so all of them stop after the same step.
        if not bool((mass > 1 + tolerance).any()):
            break
        step = (mass - mass.pow(1 - 1 / exponent)).clamp_(min=0)
        risen = risen + step / slope.clamp_(min=torch.finfo(dtype).tiny)
    conjugate = ((1 - 1 / alpha) * (energy - 1) + risen) / (alpha - 1)
    loss = conjugate.masked_fill(mass == 0, 0.0) - (gold[:, None] - top)
    return loss[:, 0], torch.cat([top, risen, mass], -1)


def _entmax_weights(z: Tensor, kept: Tensor, alpha: float) -> Tensor:
    top, risen, mass = kept.split(1, -1)
    return power(_excess(z, top, risen, alpha), exponent_of(alpha)) / torch.where(mass == 0, 1.0, mass)


class _DividedRows(torch.autograd.Function):
    """The losses of rows, with label smoothing ``eps`` but without its constant."""

    @staticmethod
    def forward(
        ctx,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        y: Tensor,
        scale: float,
        softcap: float | None,
        eps: float,
        divided_map: DividedMap,
        shard: ClassShard,
        chunk_size: int | None,
    ) -> Tensor:
        head = LinearHead(weight, bias, scale, softcap)
        ctx.height = chunk_size or max(1, TILE // max(1, len(weight)))
        losses, kept = [], []
        for rows, z in _chunks(hidden, head, ctx.height):
            own, column = _own_targets(y[rows], shard)
            gold = z.new_zeros(len(z))
            gold[own] = z[own, column]
            gold, summed = shard.total(gold, z.sum(-1))
            loss, needed = divided_map.losses(z, gold, shard)
            losses.append(loss + eps * (gold - summed / shard.num_classes) if eps > 0 else loss)
            kept.append(needed)
        ctx.scale, ctx.softcap, ctx.eps, ctx.divided_map, ctx.shard = scale, softcap, eps, divided_map, shard
        ctx.save_for_backward(hidden, weight, bias, y, torch.cat(kept))
        return torch.cat(losses).to(accumulation_dtype(weight))

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        hidden, weight, bias, y, kept = ctx.saved_tensors
        head = LinearHead(weight, bias, ctx.scale, ctx.softcap)
        for_hidden, for_weight = (torch.zeros_like(side, dtype=grad.dtype) for side in (hidden, weight))
        for_bias = grad.new_zeros(len(weight), dtype=torch.float64)
        for rows, z in _chunks(hidden, head, ctx.height):
            own, column = _own_targets(y[rows], ctx.shard)
            slopes = ctx.divided_map.weights(z, kept[rows]).to(grad.dtype) - ctx.eps / ctx.shard.num_classes
            slopes[own, column] -= 1 - ctx.eps
            given = grad[rows, None]
            slopes = head.chain(torch.where(given == 0, 0.0, slopes * given), z)
            rounded = slopes.to(hidden.dtype)
            for_hidden[rows] = (rounded @ weight).to(grad.dtype)
            if ctx.needs_input_grad[1]:
                for_weight += rounded.t() @ hidden[rows]
            for_bias += slopes.sum(0, dtype=torch.float64)
        (for_hidden,) = ctx.shard.total(for_hidden)
        gradients = (for_hidden.to(hidden.dtype), for_weight.to(weight.dtype), for_bias.to(weight.dtype))
        wanted = (gradient if needed else None for gradient, needed in zip(gradients, ctx.needs_input_grad))
        return *wanted, *(None for _ in range(7))


def _chunks(hidden: Tensor, head: LinearHead, height: int) -> Iterator[tuple[slice, Tensor]]:
    """Slices of rows with this process's logits of them (n, m), float32 or float64; the last are overwritten."""
    buffer = hidden.new_empty(min(height, len(hidden)) * len(head.weight))
    for start in range(0, len(hidden), height):
        rows = slice(start, min(start + height, len(hidden)))
        yield rows, upcast(head.logits(hidden[rows], slice(0, len(head.weight)), buffer))


def _own_targets(y: Tensor, shard: ClassShard) -> tuple[Tensor, Tensor]:
    """The rows (k,) whose target is one of this process's classes, and that class's place (k,) among them."""
    own = ((y >= shard.start) & (y < shard.stop)).nonzero()[:, 0]
    return own, y[own] - shard.start


def divided_rows(weight: Tensor, divided_map: DividedMap, chunk_size: int | None) -> RowLosses:
    """The losses of rows from this process's part of W, by all processes that share the classes.

    Args:
        weight: W (V, D), a ``DTensor``.
        divided_map: the map with its settings.
        chunk_size: rows whose logits are held at a time, or None.

    Raises:
        ValueError: a weight that is divided otherwise than by rows; later, targets that differ between the processes.
    """
    shard = ClassShard.of(weight)

    def losses(hidden: Tensor, part: Tensor, bias: Tensor | None, y: Tensor, *options: Any) -> Tensor:
        shard.check_rows(y)
        return _DividedRows.apply(hidden, part, bias, y, *options, divided_map, shard, chunk_size)

    return losses
