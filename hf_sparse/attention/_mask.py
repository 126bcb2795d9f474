"""Masks that are known by their pattern and written down only where somebody looks at them.

Transformers has the mask of a call built once for all layers, a matrix of all queries by all keys. Attention that
never writes its scores down has no use for one: it needs to know that later keys are hidden, which keys are padding,
and how far a query sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    eager_mask,
    prepare_padding_mask,
)
from transformers.utils.import_utils import is_tracing

_aten = torch.ops.aten


class PatternMask(Tensor):
    """A mask (batch, 1, queries, keys), 0 where a key is visible and the lowest number of its dtype elsewhere.

    A tensor to whoever computes with it: any operation has it written down, once, and works on that. From then on it
    is the tensor and nothing else, since somebody may have changed it. Only shape, dtype and device are told for free.

    Attributes:
        causal: whether each query sees the keys up to its own, which is the last key for the last query.
        window: the keys a query sees, its own and those before it; None for all. Only where it is causal.
        padding: (batch, 1, 1, keys), False where a key is hidden from all queries; None where none is.
    """

    # Else torch would make one of these of every result.
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(
        cls, write: Callable[[], Tensor], shape: tuple[int, ...], dtype: torch.dtype, device: Any, **pattern: Any
    ) -> PatternMask:
        """A tensor without memory."""
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)

    def __init__(
        self,
        write: Callable[[], Tensor],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: Any,
        *,
        causal: bool,
        window: int | None,
        padding: Tensor | None,
    ) -> None:
        """Args: ``write`` gives the whole mask; the others are the attributes."""
        self.causal, self.window, self.padding = causal, window, padding
        self._write = write
        self._written: Tensor | None = None

    @property
    def is_written(self) -> bool:
        """Whether somebody has looked."""
        return self._written is not None

    def is_known_for(self, query: Tensor, key: Tensor) -> bool:
        """Whether the attributes say all about attention of these (batch, heads, length, head_dim)."""
        return not self.is_written and self.shape[2] == query.shape[2] and self.shape[3] == key.shape[2]

    def written(self) -> Tensor:
        """The mask as a plain tensor."""
        if self._written is None:
            self._written = self._write()
        return self._written

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Without writing it down."""
        return f"PatternMask({tuple(self.shape)}, causal={self.causal}, window={self.window})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Any operation, on what is written down; a copy of another dtype or elsewhere keeps the pattern."""
        kwargs = kwargs or {}
        if func is _aten._to_copy.default and not args[0].is_written:
            return args[0]._copied(**kwargs)
        args, kwargs = tree_map_only(PatternMask, PatternMask.written, (args, kwargs))
        return func(*args, **kwargs)

    def _copied(self, dtype: torch.dtype | None = None, device: Any = None, **others: Any) -> PatternMask:
        to = self.device if device is None else device
        padding = None if self.padding is None else self.padding.to(to)
        return PatternMask(
            lambda: self._write().to(dtype=dtype, device=to), tuple(self.shape), dtype or self.dtype, to,
            causal=self.causal, window=self.window, padding=padding,
        )  # fmt: skip


def pattern_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    allow_is_causal_skip: bool = True,
    local_size: int | None = None,
    device: torch.device | str = "cpu",
    **others: Any,
) -> Tensor | None:
    """The mask that Transformers asks for: known by its pattern where it has one, else ``eager_mask``'s.

    Args:
        batch_size: sequences.
        q_length: queries.
        kv_length: keys.
        q_offset: position of the first query; a tensor under a cache of fixed length.
        kv_offset: position of the first key.
        mask_function: what of (batch, head, query, key) is visible.
        attention_mask: (batch, positions so far), False for padding.
        dtype: of the mask.
        allow_is_causal_skip: False where Transformers has put something on top of ``mask_function``'s usual pattern.
        local_size: of the sliding window or the chunks that ``mask_function`` makes; None for neither.
        device: of the mask.
        **others: what else ``eager_mask`` takes.

    Returns:
        (batch, 1, queries, keys) in ``dtype``; None where ``eager_mask`` gives none.
    """

    def write() -> Tensor:
        return eager_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, dtype,
            local_size=local_size, device=device, **others,
        )  # fmt: skip

    # One row is no matrix. A compiler follows plain tensors only, and cannot look at the values of some.
    if q_length == 1 or isinstance(q_offset, Tensor) or is_tracing(attention_mask) or _in_a_transform():
        return write()
    slides = local_size is not None and allow_is_causal_skip and _slides(mask_function, local_size, device)
    causal = slides or mask_function is causal_mask_function
    if not causal and mask_function is not bidirectional_mask_function:
        return write()
    if causal and q_offset + q_length != kv_offset + kv_length:
        return write()
    padding = _visible_keys(attention_mask, kv_length, kv_offset)
    if padding is None and not causal and others.get("allow_is_bidirectional_skip"):
        return None
    return PatternMask(
        write, (batch_size, 1, q_length, kv_length), dtype, device,
        causal=causal, window=local_size if slides else None, padding=padding,
    )  # fmt: skip


def _in_a_transform() -> bool:
    """Inside ``torch.func``'s transforms, where a tensor may stand for many."""
    return torch._C._functorch.maybe_current_level() is not None


def _slides(mask_function: Callable[..., Any], size: int, device: Any) -> bool:
    """Whether the function, of a sliding window or of chunks of this size, is that of the window.

    A window shows the key ``size - 1`` before it to every query; chunks show it to the last query of each.
    """
    first = torch.zeros((), dtype=torch.long, device=device)
    query = torch.tensor([size, size + 1], device=device)
    return bool(mask_function(first, first, query, query - size + 1).all())


def _visible_keys(attention_mask: Tensor | None, kv_length: int, kv_offset: int) -> Tensor | None:
    """(batch, 1, 1, keys), False where a key is hidden from all queries; None where none is."""
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is None:
        return None
    visible = padding[:, None, None, kv_offset : kv_offset + kv_length].bool()
    return None if bool(visible.all()) else visible
