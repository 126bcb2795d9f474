"""Masks kept as a pattern and materialized only on demand.

Transformers builds the mask of a call once for all layers, as a matrix of all queries by all keys. Attention that
never materializes its scores has no use for the matrix: it needs to know that later keys are hidden, which keys are
padding, and how far a query sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
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
    """A lazy mask (batch, 1, queries, keys): 0 where a key is visible, the lowest number of its dtype elsewhere.

    Any operation materializes it, once, and works on the matrix. From then on the attributes no longer count, since
    the matrix may have been changed. Shape, dtype and device are known without materializing.

    Attributes:
        causal: whether each query sees the keys up to its own, which is the last key for the last query.
        window: keys that a query sees, its own and those before it; None for all. Only where causal.
        padding: (batch, 1, 1, keys), False where a key is hidden from every query; None where none is.
    """

    # Otherwise torch would wrap every result in this class.
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(
        cls,
        materialize: Callable[[], Tensor],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        **pattern: object,
    ) -> PatternMask:
        """A tensor without storage."""
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)

    def __init__(
        self,
        materialize: Callable[[], Tensor],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        *,
        causal: bool,
        window: int | None,
        padding: Tensor | None,
    ) -> None:
        """Args: ``materialize`` computes the matrix; the others are the attributes."""
        self.causal, self.window, self.padding = causal, window, padding
        self._materialize = materialize
        self._matrix: Tensor | None = None
        self._handed_out = False

    @property
    def is_materialized(self) -> bool:
        """Whether an operation has had the matrix; ``materialized`` alone only reads it."""
        return self._handed_out

    def is_known_for(self, query: Tensor, key: Tensor) -> bool:
        """Whether the attributes describe attention of these (batch, heads, length, head_dim) completely."""
        return not self.is_materialized and self.shape[2] == query.shape[2] and self.shape[3] == key.shape[2]

    def hides_nothing_from(self, query: Tensor, key: Tensor) -> bool:
        """Whether every query of this attention sees every key: no padding, and not causal, or one query."""
        in_order = self.causal and (query.shape[2] > 1 or (self.window or key.shape[2]) < key.shape[2])
        return self.padding is None and not in_order and self.is_known_for(query, key)

    def materialized(self) -> Tensor:
        """The mask as a plain tensor, to be read only."""
        if torch.compiler.is_compiling() and not self._handed_out:
            return self._materialize()  # kept by the first of layers compiled one by one, it takes a second graph
        if self._matrix is None:
            self._matrix = self._materialize()
        return self._matrix

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        """The pattern; does not materialize."""
        return f"PatternMask({tuple(self.shape)}, causal={self.causal}, window={self.window})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        """Run any operation on the matrix; a copy to another dtype or device keeps the pattern."""
        kwargs = kwargs or {}
        if func is _aten._to_copy.default and not args[0].is_materialized:
            return args[0]._copied(**kwargs)
        args, kwargs = tree_map_only(PatternMask, PatternMask._hand_out, (args, kwargs))
        return func(*args, **kwargs)

    def _hand_out(self) -> Tensor:
        self._handed_out = True
        return self.materialized()

    def _copied(
        self, dtype: torch.dtype | None = None, device: torch.device | None = None, **others: object
    ) -> PatternMask:
        to = self.device if device is None else device
        padding = None if self.padding is None else self.padding.to(to)
        return PatternMask(
            lambda: self._materialize().to(dtype=dtype, device=to), tuple(self.shape), dtype or self.dtype, to,
            causal=self.causal, window=self.window, padding=padding,
        )  # fmt: skip


MaskFunction: TypeAlias = Callable[..., Tensor | bool]

# Models that read their masks themselves, by ``logical_not`` too: 0 would count as hidden, as it does in their eager
# attention, and what is hidden as visible.
_READ_AS_BOOLEAN = {"nemotron_asr_streaming_encoder"}


def pattern_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = causal_mask_function,
    attention_mask: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    allow_is_causal_skip: bool = True,
    local_size: int | None = None,
    device: torch.device | str = "cpu",
    **others: Any,
) -> Tensor | None:
    """The mask that Transformers asks for: a ``PatternMask`` where it has a pattern, else that of ``eager_mask``.

    Args:
        batch_size: number of sequences.
        q_length: number of queries.
        kv_length: number of keys.
        q_offset: position of the first query; a tensor under a cache of fixed length.
        kv_offset: position of the first key.
        mask_function: tells from (batch, head, query, key) whether the key is visible.
        attention_mask: (batch, positions so far), False for padding.
        dtype: of the mask; where it is one for integers, or the model reads masks so, the mask is boolean, True for a
            visible key.
        allow_is_causal_skip: False where Transformers has added something to the usual pattern of ``mask_function``.
        local_size: length of the sliding window or of the chunks of ``mask_function``; None for neither.
        device: of the mask.
        **others: further arguments of ``eager_mask``, and the ``config`` of the model that asks.

    Returns:
        (batch, 1, queries, keys) in ``dtype``; None where ``eager_mask`` returns None.
    """
    reader = getattr(others.get("config"), "model_type", None)
    # DiffusionGemma gives tokens in the place of their embeddings, and with them a dtype of integers.
    is_boolean = not dtype.is_floating_point or reader in _READ_AS_BOOLEAN

    def materialize() -> Tensor:
        mask: Tensor = eager_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
            torch.float32 if is_boolean else dtype, local_size=local_size, device=device, **others,
        )  # fmt: skip
        return mask == 0 if is_boolean and mask is not None else mask

    if isinstance(q_offset, Tensor) or _is_traced(attention_mask):
        return materialize()
    window = local_size if allow_is_causal_skip and _slides(mask_function, local_size, device) else None
    causal = window is not None or mask_function is causal_mask_function
    if not _has_pattern(mask_function, causal, q_offset + q_length == kv_offset + kv_length):
        return materialize()
    padding = _visible_keys(attention_mask, kv_length, kv_offset)
    if padding is None and not causal and others.get("allow_is_bidirectional_skip"):
        return None
    return PatternMask(
        materialize, (batch_size, 1, q_length, kv_length), torch.bool if is_boolean else dtype, torch.device(device),
        causal=causal, window=window, padding=padding,
    )  # fmt: skip


def _has_pattern(mask_function: MaskFunction, causal: bool, ends_together: bool) -> bool:
    """Whether the mask is causal with the last query at the last key, or hides nothing but padding."""
    return ends_together if causal else mask_function is bidirectional_mask_function


def _is_traced(attention_mask: Tensor | None) -> bool:
    """Whether a compiler runs, which follows plain tensors only, or a transform of ``torch.func`` hides values."""
    return is_tracing(attention_mask) or torch._C._functorch.maybe_current_level() is not None


def _slides(mask_function: MaskFunction, size: int | None, device: torch.device | str) -> bool:
    """Whether ``mask_function`` is that of a sliding window of this size, rather than of chunks.

    A window shows the key ``size - 1`` before it to every query; chunks show it only to their last query.
    """
    if size is None:
        return False
    first = torch.zeros((), dtype=torch.long, device=device)
    query = torch.tensor([size, size + 1], device=device)
    visible = mask_function(first, first, query, query - size + 1)
    return bool(torch.as_tensor(visible, device=device).all())


def _visible_keys(attention_mask: Tensor | None, kv_length: int, kv_offset: int) -> Tensor | None:
    """(batch, 1, 1, keys), False where a key is hidden from every query; None where none is."""
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is None:
        return None
    visible = padding[:, None, None, kv_offset : kv_offset + kv_length].bool()
    return None if bool(visible.all()) else visible
