"""A cache of keys and values of which a decoding step reads few, and proves that the others have weight zero."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

from ..functional.arguments import check_type
from ..kernels import CodedKeys, RowsRead, code_keys_, coding_problem, require_cpp

# What is left unused of a layer's memory at most, so that few steps copy what is there: a part, or so many positions.
_SPARE_PART, _SPARE = 4, 256
_HALF = 2  # bytes of a number in half precision
_LAYER = "_screened_layer"


@dataclass
class CacheReads:
    """What steps of at most 16 queries read of the layers of a ``ScreenedCache`` while they held so many keys.

    Every output is that of entmax over all keys, to the rounding of a dot product: a step that could not prove it read
    all of them, and is counted as such.

    Attributes:
        keys: positions in the cache.
        calls: attention calls, one for each layer and step.
        whole: why calls read all keys and values, with their number.
        coded_bytes: of keys in 8 bits.
        exact_bytes: of keys and values as they are, in the dtype of the cache.
        half_bytes: what all keys and values take in half precision. All bytes are counted once for the queries and
            heads that share them.
    """

    keys: int
    calls: int = 0
    whole: Counter[str] = field(default_factory=Counter)
    coded_bytes: int = 0
    exact_bytes: int = 0
    half_bytes: int = 0

    @property
    def proved(self) -> int:
        """Calls in which all keys that were not read were proved to have weight zero."""
        return self.calls - self.whole.total()

    @property
    def share(self) -> float:
        """Bytes read as a share of all keys and values in half precision."""
        return (self.coded_bytes + self.exact_bytes) / self.half_bytes if self.half_bytes else 0.0

    def add(self, other: CacheReads) -> None:
        """Count the calls of another layer."""
        self.calls += other.calls
        self.whole.update(other.whole)
        self.coded_bytes += other.coded_bytes
        self.exact_bytes += other.exact_bytes
        self.half_bytes += other.half_bytes


class ScreenedLayer(DynamicLayer):
    """One layer of a ``ScreenedCache``: its tensors have room for more positions than they show.

    Attributes:
        keys: (batch, heads, length, head_dim), a view.
        values: (batch, heads, length, value_dim), a view.
        reads: by the number of keys.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: dict[int, CacheReads] = {}
        self._forget()

    def _forget(self) -> None:
        self._room: tuple[Tensor, Tensor, CodedKeys] | None = None
        self._shown: Tensor | None = None
        self._version = 0
        self._finite = True
        self._updates = self._met = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values (batch, heads, new, width); returns all of them.

        Raises:
            ValueError: not plain tensors on the CPU in float32, bfloat16 or float16.
            RuntimeError: a gradient is wanted.
        """
        problem = coding_problem(key_states, value_states)
        if problem is not None:
            raise ValueError(f"ScreenedCache {problem}; use the usual cache")
        if torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad):
            raise RuntimeError("ScreenedCache is for decoding, and a gradient is wanted: use torch.no_grad()")
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._updates += 1
        first, length = self.get_seq_length(), self.get_seq_length() + key_states.shape[2]
        if self._room is None or not self._is_ours() or length > self._room[0].shape[2]:
            first = self._make_room(key_states, value_states, length)
        assert self._room is not None
        keys, values, coded = self._room
        keys[:, :, length - key_states.shape[2] : length] = key_states
        values[:, :, length - key_states.shape[2] : length] = value_states
        self._finite = code_keys_(coded, keys[:, :, :length], first) and (self._finite or first == 0)
        self._show(length)
        return self.keys, self.values

    def _is_ours(self) -> bool:
        """Whether the keys are those that were coded: nobody has replaced or changed them."""
        shown = self._shown
        return shown is not None and self.keys is shown and (shown.is_inference() or shown._version == self._version)

    def _make_room(self, key_states: Tensor, value_states: Tensor, length: int) -> int:
        """Move what is there to where there is room for more; returns the first position that is to be coded."""
        held = self.get_seq_length()
        room = length + max(length // _SPARE_PART, _SPARE)
        keys, values = (x.new_empty(*x.shape[:2], room, x.shape[3]) for x in (key_states, value_states))
        if held:
            keys[:, :, :held], values[:, :, :held] = self.keys, self.values
        coded, first = CodedKeys.empty(keys), 0
        if self._room is not None and self._is_ours():
            first = held
            for new, old in zip(coded, self._room[2]):
                new[:, :, : old.shape[2]] = old
        self._room = keys, values, coded
        return first

    def _show(self, length: int) -> None:
        assert self._room is not None
        keys, values, _ = self._room
        self.keys, self.values = self._shown, _ = keys[:, :, :length], values[:, :, :length]
        self._version = 0 if self.keys.is_inference() else self.keys._version
        setattr(self.keys, _LAYER, weakref.ref(self))  # no cycle, which would hold large tensors until it is found

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        if self._is_ours():
            state |= {"keys": None, "values": None, "_shown": None, "length": self.get_seq_length()}
        elif torch.is_tensor(self.keys):
            state |= {"keys": self.keys.detach(), "_shown": None}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        length = state.pop("length", None)
        self.__dict__.update(state)
        if length is not None:
            self._show(length)

    def crop(self, tokens_to_remove: int) -> None:
        """Remove positions from the end: a negative number of them, or 0."""
        ours = self._is_ours()
        super().crop(tokens_to_remove)
        if ours:
            self._show(self.get_seq_length())

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Put the rows of the batch into another order, some of them perhaps more than once."""
        if self.get_seq_length() and not torch.equal(beam_idx.cpu(), torch.arange(len(self.keys), device="cpu")):
            self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows of the batch."""
        if self._room is None or not self._is_ours():
            return super().batch_select_indices(indices)
        keys, values, coded = self._room
        self._room = keys[indices], values[indices], CodedKeys(*(x[indices] for x in coded))
        self._show(self.get_seq_length())
        return None

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch."""
        if self.get_seq_length():
            self.batch_select_indices(torch.arange(len(self.keys), device="cpu").repeat_interleave(repeats))

    def reset(self) -> None:
        """Forget all positions, and what was counted."""
        super().reset()
        self.reads = {}
        self._forget()

    def coded_keys(self, values: Tensor) -> CodedKeys | str:
        """The bytes of the keys, or why they are not to be used.

        Args:
            values: what came beside the keys.
        """
        self._met += 1
        if not self._is_ours() or values is not self.values:
            return "keys or values were changed outside of the cache"
        assert self._room is not None
        return self._room[2] if self._finite else "a key is not finite, or huge"

    def record(self, read: RowsRead | str) -> None:
        """Count a call: what it read, or why it read everything."""
        keys, values = self.keys, self.values
        batch, heads, length, head_dim = keys.shape
        counted = self.reads.setdefault(length, CacheReads(length))
        counted.calls += 1
        numbers = batch * heads * length * (head_dim + values.shape[3])
        counted.half_bytes += _HALF * numbers
        if isinstance(read, str):
            counted.whole[read] += 1
            counted.exact_bytes += numbers * keys.element_size()
            return
        assert self._room is not None
        counted.coded_bytes += read.coded * self._room[2].bytes_of_key
        counted.exact_bytes += (read.keys * head_dim + read.values * values.shape[3]) * keys.element_size()

    @property
    def passed_by(self) -> int:
        """Updates whose keys did not reach sparse attention as they were returned."""
        return max(0, self._updates - self._met)


class ScreenedCache(DynamicCache):
    """Keys and values for decoding with sparse attention, of which a step reads few; the result is exact.

    Keys are kept as they are and once more in 8 bits, with a bound on what rounding lost. The 8 bits bound every score
    from below and above. The threshold of the lower ends is at most that of the scores, since a threshold never falls
    when a score rises; so a key whose upper end is below it has weight zero. Only the other keys are read, and of the
    values those whose weight is not zero.

    Assumptions: attention of the entmax family with alpha in [1.02, 2] on a CPU with the C++ kernel, no gradients,
    steps of at most 16 queries; keys that nobody changes where torch does not count it (``.data``, inference mode).
    Other calls read everything. The copy takes 1.0625 bytes for each number of a key.

    Layers with a sliding window, and layers that are no attention, are those of ``DynamicCache``: they are short
    anyway, and not counted in ``reads``.

    Args:
        config: of the model, for its sliding windows; None for a model without them.

    Raises:
        KernelUnavailable: the C++ kernel cannot be built here.

    Source: the threshold's order is Peters et al. 2019, Proposition 1 (the weights sum to one, and each rises with its
    score and falls with the threshold); the bound is Cauchy and Schwarz's.

    >>> import torch
    >>> from hf_sparse import sparsify
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    >>> model = sparsify(LlamaForCausalLM(LlamaConfig(vocab_size=20, eos_token_id=None, **sizes)), attn="entmax15")
    >>> cache = ScreenedCache(config=model.config)
    >>> ids = model.generate(torch.tensor([[1, 5, 6, 7]]), cache=cache, max_new_tokens=3, do_sample=False)
    >>> [(step.keys, step.calls, step.proved) for step in cache.reads]
    [(4, 1, 1), (5, 1, 1), (6, 1, 1)]
    """

    def __init__(self, config: PreTrainedConfig | None = None) -> None:
        require_cpp()
        if config is not None:
            check_type("config", config, PreTrainedConfig, "model.config")
        super().__init__(config=config)
        layers: list[Any] = vars(self)["layers"]
        self.layers = [ScreenedLayer() if type(layer) is DynamicLayer else layer for layer in layers]
        if not layers:  # one layer after another is made as it is met
            self.layer_class_to_replicate = ScreenedLayer

    @property
    def is_screened(self) -> bool:
        """Whether a layer is not that of ``DynamicCache``."""
        return self.layer_class_to_replicate is ScreenedLayer or any(self._screened_layers())

    def _screened_layers(self) -> Iterator[ScreenedLayer]:
        return (layer for layer in self.layers if isinstance(layer, ScreenedLayer))

    @property
    def reads(self) -> list[CacheReads]:
        """What was read, over all layers, by the number of keys: one entry for each step of ``generate``.

        Raises:
            RuntimeError: keys did not reach sparse attention as the cache returned them: what was read is unknown.
        """
        total: dict[int, CacheReads] = {}
        for layer in self._screened_layers():
            if layer.passed_by:
                raise RuntimeError(
                    "this model does not hand its keys from the cache to sparse attention as they are: all of them "
                    "were read, uncounted; use the usual cache"
                )
            for keys, counted in layer.reads.items():
                total.setdefault(keys, CacheReads(keys)).add(counted)
        return [total[keys] for keys in sorted(total)]


def layer_of(keys: Tensor) -> ScreenedLayer | None:
    """The layer of a ``ScreenedCache`` whose keys these are, or None."""
    layer = getattr(keys, _LAYER, None)
    return None if layer is None else layer()
