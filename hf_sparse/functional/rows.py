"""Rows, the form all maps work on: the mapped axis last, in a precision that is safe to sum in."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..tracing import in_graph, is_compiled

# Elements per thread and chunk: few enough to stay in cache from pass to pass, many enough to hide the overhead of an
# operation, mostly that of starting threads. Attention maps of 128 and 512 keys take 5 to 33 % less time than with
# 2^19, on one thread and on two, and as long at alpha 1.5; losses of long rows take as long.
_CHUNK = 1 << 17


def accumulation_dtype(*tensors: Tensor) -> torch.dtype:
    """The dtype to compute in: float64 if one of the tensors is float64, else float32."""
    return torch.float64 if torch.float64 in [x.dtype for x in tensors] else torch.float32


def upcast(x: Tensor) -> Tensor:
    """``x`` in ``accumulation_dtype(x)``; ``x`` itself where it is of that dtype."""
    return x.to(accumulation_dtype(x))


def lowest_visible(dtype: torch.dtype) -> float:
    """The number above which a score, or what a mask adds to it, is visible.

    At or below it, in the lower half of the range of ``dtype``, it counts as masked: models write the smallest finite
    number where they hide a key.
    """
    return float(torch.finfo(dtype).min / 2)


def check_scores(z: Tensor, dim: int) -> None:
    """Raise unless ``z`` is a tensor of scores with at least one entry along ``dim``.

    Raises:
        TypeError: ``z`` is not a floating-point tensor, or ``dim`` no whole number.
        IndexError: ``dim`` is out of range.
        ValueError: there is no axis, or the mapped one has no entries.
    """
    if not torch.is_tensor(z) or not z.is_floating_point():
        raise TypeError(f"scores must be a floating-point tensor, was {z.dtype if torch.is_tensor(z) else type(z)}")
    if type(dim) is not int:
        raise TypeError(f"dim must be a whole number, was {dim!r}")
    if z.dim() == 0:
        raise ValueError(f"scores must have an axis to be mapped, was one number, {z}")
    if not -z.dim() <= dim < z.dim():
        raise IndexError(f"dim must be in [{-z.dim()}, {z.dim() - 1}] for scores of shape {tuple(z.shape)}, was {dim}")
    if z.shape[dim] == 0:
        raise ValueError(
            f"the mapped axis must have at least one entry, was of shape {tuple(z.shape)} along dim {dim}"
        )


def map_rows(rows: Callable[[Tensor], Tensor], z: Tensor, dim: int) -> Tensor:
    """Apply ``rows``, which maps the last axis of a float32 or float64 tensor, along ``dim`` of ``z``.

    Half-precision scores are mapped in float32; the weights come back in the dtype of ``z``.

    Raises:
        TypeError, IndexError, ValueError: see ``check_scores``.
    """
    check_scores(z, dim)
    return rows(upcast(z.movedim(dim, -1))).to(z.dtype).movedim(-1, dim)


def per_row(name: str, setting: Tensor, z: Tensor, dim: int) -> Tensor:
    """A setting given per row of ``z``, aligned with rows whose mapped axis is last.

    Raises:
        TypeError: not a floating-point tensor of at most the dimensions of ``z``.
        ValueError: it does not broadcast over the rows, or is not of size 1 along ``dim``.
    """
    if setting.dim() > z.dim() or not setting.is_floating_point():
        raise TypeError(
            f"{name} must be a floating-point tensor of at most {z.dim()} dimensions, was {setting.dtype} of shape "
            f"{tuple(setting.shape)}"
        )
    aligned = setting[(None,) * (z.dim() - setting.dim())]
    fits = all(size in (1, wanted) for size, wanted in zip(aligned.shape, z.shape))
    if aligned.shape[dim] != 1 or not fits:
        raise ValueError(
            f"{name} must broadcast over the rows of the scores, with size 1 along dim {dim}; its shape "
            f"was {tuple(setting.shape)} for scores of shape {tuple(z.shape)}"
        )
    return aligned.movedim(dim, -1)


def unmasked(x: Tensor, value: float) -> Tensor:
    """``x`` with ``value`` in the place of ``-inf``; any other score, NaN and inf too, stays.

    By arithmetic, like ``hidden`` and ``masked_as``: on a CPU torch takes ten to thirty times as long to fill by a
    mask, the longer the less of a pattern it has.
    """
    return x.nan_to_num(nan=torch.nan, posinf=torch.inf, neginf=value)


def hidden(x: Tensor) -> Tensor:
    """1 where ``x`` is ``-inf``, 0 at finite scores, NaN elsewhere; a constant."""
    return _out_of_range(x).clamp(max=1)


def masked_as(x: Tensor, y: Tensor) -> Tensor:
    """``y`` with ``-inf`` where ``x`` has it; NaN where x is inf."""
    return y - _out_of_range(x)


def _out_of_range(x: Tensor) -> Tensor:
    """inf where ``x`` is ``-inf``, 0 at finite scores, NaN elsewhere."""
    x = x.detach()
    return x.clamp(min=torch.finfo(x.dtype).min) - x


def num_visible(x: Tensor) -> Tensor:
    """The number of scores of each row that are not masked, (..., 1), at least 1, in the dtype of ``x``.

    >>> num_visible(torch.tensor([[0.5, -1.0, -torch.inf]]))
    tensor([[2.]])
    """
    return (x != -torch.inf).sum(-1, keepdim=True).clamp(min=1).to(x.dtype)


def is_mapped(*tensors: Tensor) -> bool:
    """Whether the older vmap maps over one of the tensors: that of ``is_grads_batched`` and ``autograd.functional``.

    It hands its tensors to whatever it calls, and follows operations that return new ones. ``torch.func.vmap`` asks
    functions how they are mapped instead. Never in a graph.
    """
    return not in_graph() and any(map(torch._C._functorch.is_legacy_batchedtensor, tensors))


def is_final(grad: Tensor) -> bool:
    """Whether a backward pass is for one gradient, not for many at once, nor differentiated again."""
    return not torch.is_grad_enabled() and not is_mapped(grad)


def row_by_row(*tensors: Tensor) -> bool:
    """Whether to work in place on chunks of rows, which is faster on a CPU, and opaque to compilers and to vmap."""
    return tensors[0].device.type == "cpu" and not in_graph() and not is_mapped(*tensors)


def writes_rows(*tensors: Tensor) -> bool:
    """Whether a result may be written ``by_chunks``: nothing differentiates the tensors, and ``row_by_row``."""
    differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return row_by_row(*tensors) and not differentiated and not is_transformed(*tensors)


def by_chunks(write: Callable[..., None], *tensors: Tensor, out: Tensor | None = None, size: int = _CHUNK) -> Tensor:
    """``write(*tensors, out)`` for a cache-sized number of rows at a time; out, shaped as the first tensor if None.

    ``size`` is the number of elements per thread.
    """
    flat = [tensor.reshape(-1, tensor.shape[-1]) for tensor in tensors]
    written = torch.empty_like(flat[0], memory_format=torch.contiguous_format) if out is None else out
    num_rows = max(1, size * torch.get_num_threads() // flat[0].shape[-1])
    for start in range(0, len(written), num_rows):
        chunk = slice(start, start + num_rows)
        write(*(tensor[chunk] for tensor in flat), written[chunk])
    return written.view(tensors[0].shape) if out is None else out


def is_readable(x: Tensor) -> bool:
    """Whether a step may depend on the values of ``x``.

    Not in a graph, nor where vmap, ``torch.func``'s or the older one, maps over it, nor on the meta device, which has
    no values.
    """
    if in_graph() or x.is_meta or is_mapped(x):
        return False
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            return False
        x = functorch.get_unwrapped(x)
    return True


def is_transformed(*tensors: Tensor) -> bool:
    """Whether a transform of ``torch.func`` is at work, or one of the tensors has a tangent (forward mode).

    Both follow only operations, and functions that say how they are transformed. Never in compiled code.
    """
    return not is_compiled() and (torch._C._are_functorch_transforms_active() or any(map(has_tangent, tensors)))


def has_tangent(x: Tensor) -> bool:
    """Whether ``x`` is differentiated in forward mode; without a level of it nothing is, and asking takes longer."""
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None
