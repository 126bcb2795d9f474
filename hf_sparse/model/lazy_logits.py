"""Logits that are not computed unless somebody looks: what a fused loss needs instead of them."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..config import MapConfig
from ..functional.head_weight import is_coded
from ..functional.rows import upcast
from ..losses import linear_fenchel_young_loss
from ..losses.linear.divided import is_divided
from .partitioned import is_freed, is_partitioned, whole

# Logits that are computed at a time where all of them would be too many.
LOGITS_AT_A_TIME = 1 << 24
# Of those that are there, so many per thread are read fastest.
_IN_CACHE = 1 << 19


def gathered(tensor: Any) -> Tensor:
    """The whole of a tensor that may be divided over processes (a ``DTensor``), with its gradient."""
    full: Tensor = tensor.full_tensor() if is_divided(tensor) else tensor
    return full


@dataclass(frozen=True, eq=False)
class LinearLogits:
    """``outer * tanh(scale (h W^T + b))``, or without ``outer`` just ``scale (h W^T + b)``, kept as its parts.

    It takes part in what models do between their head and their loss: changes of shape, precision and scale, a
    constant bias, a soft cap. Anything else computes the logits after all and goes on with them. What is written into
    them is not in the parts, so that there is no loss of these any more.

    Attributes:
        hidden: h (..., D).
        weight: W (V, D).
        bias: b (V,) or None.
        scale: factor on the linear layer's output.
        outer: None, or the factor on the tanh.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    outer: float | None = None
    _computed: list[Tensor] = field(default_factory=list, repr=False)

    def compute(self) -> Tensor:
        """The logits themselves.

        Raises:
            RuntimeError, NotImplementedError: see ``loss``.
        """
        if not self._computed:
            self._check_weights()
            z = self.hidden @ gathered(self.weight).mT  # not nn.functional.linear, which may be put off once more
            self._computed.append(self.finished(z if self.bias is None else z + gathered(self.bias)))
        return self._computed[0]

    def finished(self, z: Tensor) -> Tensor:
        """What becomes of outputs of the linear layer, any of them: the scale and the soft cap."""
        z = z if self.scale == 1 else z * self.scale
        return z if self.outer is None else self.outer * torch.tanh(z)

    @property
    def computed(self) -> bool:
        """Whether somebody looked."""
        return bool(self._computed)

    def loss(self, map_config: MapConfig, target: Tensor, **options: Any) -> Tensor:
        """The fused loss of a map; ``options`` as for ``linear_fenchel_young_loss``.

        Raises:
            ValueError: a map that centers logits with a soft cap.
            RuntimeError: the weights are gone, as FSDP frees those of a head that it divides for itself, and ZeRO-3
                those of all modules that are not running.
            NotImplementedError: weights that are coded, as where the head was quantized; logits that were written to.
        """
        self._check_weights()
        z = (self.centered() if map_config.centered else self) / map_config.temperature
        return linear_fenchel_young_loss(
            z.hidden,
            z.weight,
            target,
            map_config.name,
            bias=z.bias,
            # outer tanh(scale z) is the soft cap at `outer` of logits scaled by outer * scale.
            scale=z.scale if z.outer is None else z.scale * z.outer,
            softcap=z.outer,
            **map_config.map_settings,
            **options,
        )

    def weighted_sum(self, classes: Tensor, weights: Tensor) -> Tensor:
        """``sum_k weights_k z_k`` over some classes of each row, from their rows of W alone.

        Args:
            classes: (N, K).
            weights: (N, K), without a gradient.

        Returns:
            (N,) in float32, or float64 for float64 states.

        Raises:
            ValueError: logits with a soft cap, which are not linear.
            RuntimeError, NotImplementedError: see ``loss``.
        """
        self._check_weights()
        if self.outer is not None:
            raise ValueError("soft-capped logits are not linear in the rows of the head; pass fused_loss=False")
        hidden, weight = upcast(self.hidden), upcast(gathered(self.weight))
        weights = weights.to(weight.dtype)
        rows = nn.functional.embedding_bag(classes, weight, mode="sum", per_sample_weights=weights)
        z = (hidden * rows).sum(-1)
        if self.bias is not None:
            z = z + (upcast(gathered(self.bias))[classes] * weights).sum(-1)
        return self.scale * z

    def _check_weights(self) -> None:
        if is_coded(self.weight):
            raise NotImplementedError(
                f"the head was quantized after sparsify (its weight is of class {type(self.weight).__name__}), and a "
                "fused loss multiplies with its weight; leave the head out where the model is quantized, or pass "
                "fused_loss=False"
            )
        if _is_emptied(self.weight) or is_freed(self.weight):
            raise RuntimeError(
                "the head's weights were freed before its fused loss, or its logits, were computed; under FSDP keep "
                "them: fully_shard(head, reshard_after_forward=False), or leave the head to the whole model's "
                "fully_shard; under ZeRO-3 pass fused_loss=False where more than the loss is read from the logits"
            )

    def _check_unwritten(self) -> None:
        if any(not z.is_inference() and z._version > 0 for z in self._computed):
            raise NotImplementedError(
                "the model writes into its logits before its loss, which a fused loss does not see; pass "
                "fused_loss=False"
            )

    def centered(self) -> LinearLogits:
        """The logits less their mean over the classes: the head less its mean row, and the bias less its mean."""
        if self.outer is not None:
            raise ValueError("the mean of soft-capped logits needs all of them; pass fused_loss=False")
        weight, bias = upcast(self.weight), self.bias
        weight = (weight - weight.mean(0)).to(self.weight.dtype)
        return self._with(weight=weight, bias=None if bias is None else bias - bias.mean())

    def _with(self, **parts: Any) -> LinearLogits:
        self._check_unwritten()
        return replace(self, _computed=[], **parts)

    @property
    def shape(self) -> torch.Size:
        """(..., V)."""
        weight: Any = self.weight
        shape = weight.ds_shape if is_partitioned(weight) else weight.shape
        return torch.Size((*self.hidden.shape[:-1], shape[0]))

    @property
    def device(self) -> torch.device:
        """The device of the hidden states."""
        return self.hidden.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision the logits would have."""
        return self.hidden.dtype

    def size(self, dim: int | None = None) -> Any:
        """As of a tensor."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """As of a tensor."""
        return self.hidden.dim()

    def view(self, *shape: Any) -> Any:
        """Reshape the leading axes; a view of the vocabulary axis computes the logits."""
        sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        rest = self.shape.numel() // max(math.prod(size for size in sizes if size != -1), 1)
        sizes = tuple(rest if size == -1 else size for size in sizes)
        if not sizes or sizes[-1] != self.shape[-1]:
            return self.compute().reshape(sizes)
        return self._with(hidden=self.hidden.reshape(*sizes[:-1], self.hidden.shape[-1]))

    reshape = view

    def float(self) -> LinearLogits:
        """Itself: a fused loss adds up in float32 whatever it is given."""
        return self

    def contiguous(self) -> LinearLogits:
        """Itself."""
        return self

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Itself on the same device in a floating-point precision."""
        given = [*args, *kwargs.values()]
        devices = [each.device if torch.is_tensor(each) else torch.device(each) for each in given if _is_place(each)]
        return self if all(device == self.device for device in devices) else self.compute().to(*args, **kwargs)

    def __getitem__(self, index: Any) -> Any:
        keys = index if isinstance(index, tuple) else (index,)
        leading = sum(map(_axes_of, keys)) < self.dim()
        if leading or (len(keys) > 1 and isinstance(keys[-1], slice) and keys[-1] == slice(None)):
            return self._with(hidden=self.hidden[index])
        return self.compute()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.compute()[index] = value

    def __mul__(self, factor: Any) -> Any:
        if not isinstance(factor, numbers.Real):
            return self.compute() * factor
        return self._with(scale=self.scale * factor) if self.outer is None else self._with(outer=self.outer * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> Any:
        return self * (1 / divisor) if isinstance(divisor, numbers.Real) else self.compute() / divisor

    def __add__(self, other: Any) -> Any:
        is_row = torch.is_tensor(other) and other.numel() == self.shape[-1] and other.shape[-1:] == self.shape[-1:]
        if not is_row or other.dim() > self.dim() or self.outer is not None:
            return self.compute() + other
        bias = other.reshape(-1) / self.scale
        return self._with(bias=bias if self.bias is None else self.bias + bias)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.compute(), name)

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """tanh is the first half of a soft cap; every other function gets the computed logits."""
        if func is torch.tanh and isinstance(args[0], cls) and args[0].outer is None:
            return args[0]._with(outer=1.0)
        return func(*map(_looked_at, args), **{key: _looked_at(arg) for key, arg in (kwargs or {}).items()})


def _is_place(argument: object) -> bool:
    """Whether an argument of ``Tensor.to`` says where to: a device, its name or number, or a tensor that is there."""
    if isinstance(argument, bool):
        return False
    return torch.is_tensor(argument) or isinstance(argument, torch.device | str | int)


def _axes_of(key: object) -> float:
    """How many axes a part of an index takes up; infinitely many of an ellipsis, or a mask that is no tensor."""
    if key is None:
        return 0
    if not torch.is_tensor(key):
        return 1 if isinstance(key, int | slice) else math.inf
    return key.dim() if key.dtype in (torch.bool, torch.uint8) else 1


def _is_emptied(weight: Tensor) -> bool:
    """Whether the memory of a weight is gone while its shape is there; ``torch.func`` shows no memory."""
    if is_divided(weight) or torch._C._functorch.is_functorch_wrapped_tensor(weight):
        return False
    return weight.untyped_storage().size() == 0 < weight.numel()


def _looked_at(argument: Any) -> Any:
    """An argument of a function, with logits for all that are put off, in lists of tensors too."""
    if isinstance(argument, LinearLogits):
        return argument.compute()
    return [_looked_at(each) for each in argument] if isinstance(argument, list | tuple) else argument


def _of_the_logits(name: str) -> Callable:
    """An operator that computes the logits."""
    return lambda self, *others: getattr(self.compute(), name)(*others)


# Python looks for operators on the class, so that ``__getattr__`` is not asked for them.
_ARITHMETIC = ("sub", "rsub", "neg", "abs", "radd", "rtruediv", "floordiv", "mod", "pow", "rpow", "matmul", "rmatmul")
for _operator in (*_ARITHMETIC, "eq", "ne", "lt", "le", "gt", "ge", "len"):
    setattr(LinearLogits, f"__{_operator}__", _of_the_logits(f"__{_operator}__"))


def computed_rows(logits: Tensor | LinearLogits, chosen: Tensor) -> Iterator[Tensor]:
    """The chosen rows of logits, some (n, V) at a time: never all held together, on a CPU few enough for its cache.

    Args:
        logits: (..., V).
        chosen: (...) bool.
    """
    classes, on_cpu = logits.shape[-1], logits.device.type == "cpu"
    most = max(1, LOGITS_AT_A_TIME // classes)
    few = min(most, max(1, _IN_CACHE * torch.get_num_threads() // classes)) if on_cpu else most
    size = most if isinstance(logits, LinearLogits) else few
    with whole((logits.weight, logits.bias) if isinstance(logits, LinearLogits) else ()):
        places = chosen.nonzero()
        for start in range(0, len(places), size):  # of no rows, nothing
            z = logits[places[start : start + size].unbind(-1)]
            yield from (z.compute() if isinstance(z, LinearLogits) else z).split(few)
