"""Heads that are not multiplied: a bound on every logit rules most classes out, and only the others are computed.

Softmax needs every logit; a sparse map needs those above its threshold. A copy of the head's weights in 8 bits gives
every logit to within a bound. The largest few of them, computed exactly, have a threshold that is at most that of the
row, and every class whose logit may reach it is computed exactly. The others have weight zero, whatever their logits
are: the distribution is that of the full product, to the rounding of a dot product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..config import MapConfig
from ..functional.cut import has_cut, score_cut
from ..functional.head_weight import is_quantized
from ..kernels import CodedRows, code_rows, cpp_available, fingerprint, refine_, screen, screening_problem
from .distribution import log_distribution
from .lazy_logits import LinearLogits

CANNOT_SCREEN = 'impl="screened" {}; use set_head_impl(model, "auto")'
HEAD_IMPLS = ("auto", "screened", "full")
# From this many weights on, "auto" screens: to multiply 8 million with one vector takes milliseconds.
LEAST_WEIGHTS = 1 << 23
# With 16 rows a matrix product takes as long as the screen.
MOST_ROWS = 8
# As many of the largest logits are exact, whether they have weight or not: beam search goes on with the best of those
# without, where too few have any.
NUM_EXACT = 64


@dataclass
class _Run:
    """One call of ``generate``, in one thread.

    Attributes:
        num_steps: how often the head was asked for.
        checked: whether the copy was compared with the weights.
        screened: what the last step screened, or None.
        stopped: whether every further step is to have the full product.
    """

    num_steps: int = 0
    checked: bool = False
    screened: LinearLogits | None = None
    stopped: bool = False


class HeadScreen:
    """How ``generate`` of one model computes the logits of its head, and the copy of that head's weights.

    The copy is made when it is first needed. It belongs to nothing that is saved or copied.

    Args:
        impl: see ``set_head_impl``.
    """

    def __init__(self, impl: str = "auto") -> None:
        self.impl = impl
        self._runs: dict[int, _Run] = {}
        self._copy: CodedRows | None = None
        self._copied: tuple[object, ...] = ()
        self._seen: tuple[object, ...] = ()

    def __reduce__(self) -> tuple[type[HeadScreen], tuple[str]]:
        return HeadScreen, (self.impl,)

    def choose(self, impl: str) -> None:
        """Take another implementation; the copy is freed."""
        self.impl = impl
        self._drop()

    @contextmanager
    def run(self) -> Iterator[None]:
        """Run the block as a call of ``generate``, during which weights do not change."""
        thread = get_ident()
        outer = self._runs.get(thread)
        self._runs[thread] = _Run()
        try:
            yield
        finally:
            del self._runs[thread]
            if outer is not None:
                self._runs[thread] = outer

    def stop(self) -> None:
        """Have every further step of this call of ``generate`` multiply the head in full."""
        run = self._runs.get(get_ident())
        if run is not None:
            run.stopped = True

    @contextmanager
    def put_off(self, head: nn.Module | None, map_config: MapConfig) -> Iterator[None]:
        """Run a forward pass in which the head, where it can be screened, returns ``LinearLogits`` of one position.

        Raises:
            ValueError: inside ``generate``, the model was told to screen its head, and cannot.
        """
        run = self._runs.get(get_ident())
        if run is None:
            yield
            return
        run.screened = None
        run.num_steps += 1
        if run.stopped or not self._wanted(head, map_config, run.num_steps):
            yield
            return
        linear = cast(nn.Linear, head)
        vars(linear)["forward"] = _LazyForward(linear)
        try:
            yield
        finally:
            vars(linear).pop("forward", None)

    def _wanted(self, head: nn.Module | None, map_config: MapConfig, num_steps: int) -> bool:
        if self.impl == "full" or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return False
        problem = head_problem(head, map_config)
        if self.impl == "screened":
            if problem is not None:
                raise ValueError(CANNOT_SCREEN.format(problem))
            return True
        # One step alone is not worth a copy of all weights.
        worth_it = num_steps > 1 or self._copy is not None
        return problem is None and worth_it and _is_large(cast(nn.Linear, head)) and cpp_available(build=True)

    def logits(self, lazy: LinearLogits, map_config: MapConfig) -> Tensor:
        """Logits (..., V): exact where they can have weight, and the largest ones; elsewhere to within a bound.

        The full product where a weight, a hidden state or a logit is not finite.
        """
        run = self._runs.get(get_ident())
        rows = None
        if run is not None and not lazy.computed and lazy.scale > 0 and (lazy.outer is None or lazy.outer > 0):
            rows = self._rows_of(lazy.weight, run)
        found = None if rows is None else self._screened(lazy, rows, map_config)
        if found is None:
            return lazy.compute()
        assert run is not None
        run.screened = lazy
        return lazy.finished(found.to(lazy.dtype)).view(lazy.shape)

    def complete(self, map_config: MapConfig, num_rows: int) -> Tensor | None:
        """Log-probabilities (num_rows, V) of the last step from the full product, if that step was screened."""
        run = self._runs.get(get_ident())
        if run is None or run.screened is None or run.screened.shape[:-1].numel() != num_rows:
            return None
        return log_distribution(map_config, run.screened.compute().flatten(0, -2))

    def _drop(self) -> None:
        self._copy, self._copied, self._seen = None, (), ()

    def _rows_of(self, weight: Tensor, run: _Run) -> CodedRows | None:
        """The copy, made again where it is not of these weights; None where they are not finite.

        In-place changes of ``weight.data`` count nowhere: all weights are read once a run.
        """
        version = 0 if weight.is_inference() else weight._version
        seen = (weight.data_ptr(), version, weight.dtype, weight.shape)
        if run.checked and seen == self._seen:
            return self._copy
        copied = (weight.dtype, weight.shape, fingerprint(weight))
        if copied != self._copied:
            self._copy, self._copied = code_rows(weight), copied
        self._seen, run.checked = seen, True
        return self._copy

    def _screened(self, lazy: LinearLogits, rows: CodedRows, map_config: MapConfig) -> Tensor | None:
        """Outputs of the linear layer (N, V), float32; None where the full product is needed."""
        weight = lazy.weight
        vectors = lazy.hidden.reshape(-1, weight.shape[1]).float().contiguous()
        bias = None if lazy.bias is None else lazy.bias.reshape(-1).float().contiguous()
        found = screen(rows, weight, bias, vectors, min(NUM_EXACT, len(weight)))
        if found is None:
            return None
        largest = lazy.finished(found.exact.to(lazy.dtype))
        cuts = [_linear_cut(lazy, map_config, row) for row in largest.tolist()]
        count = refine_(found, weight, bias, vectors, torch.tensor(cuts, dtype=torch.float32, device="cpu"))
        if int(count.min()) < largest.shape[1]:  # not even these reach the cut: the copy is not of these weights
            self._drop()
            return None
        return found.product


def _linear_cut(lazy: LinearLogits, map_config: MapConfig, largest: list[float]) -> float:
    """An output of the linear layer below which no class of a row has weight or is among the ``largest`` logits."""
    rounding = 4 * torch.finfo(lazy.dtype).eps
    temperature = map_config.temperature
    cut = score_cut(map_config.name, map_config.map_settings, [z / temperature for z in largest]) * temperature
    cut = min(cut, *largest)
    cut -= rounding * abs(cut)
    if lazy.outer is not None:
        inside = cut / lazy.outer - rounding
        cut = math.atanh(inside) if -1 < inside < 1 else -math.inf
    cut /= lazy.scale
    return cut - rounding * abs(cut) if math.isfinite(cut) else -math.inf


def _is_large(head: nn.Linear) -> bool:
    return head.weight.numel() >= LEAST_WEIGHTS


class _LazyForward:
    """``nn.Linear.forward``, put off for a few rows of one position, in the thread that made this."""

    def __init__(self, head: nn.Linear) -> None:
        self.head = head
        self.thread = get_ident()

    def __call__(self, input: Tensor) -> Any:
        few = type(input) is Tensor and input.dim() == 3 and input.shape[1] == 1 and 0 < len(input) <= MOST_ROWS
        if self.thread != get_ident() or not few or input.dtype != self.head.weight.dtype:
            return nn.Linear.forward(self.head, input)
        return LinearLogits(input, self.head.weight, self.head.bias)


def head_problem(head: nn.Module | None, map_config: MapConfig) -> str | None:
    """Why a head cannot be screened, or None."""
    if map_config.centered or not has_cut(map_config.name, map_config.map_settings):
        return "takes heads of alpha_relu that are not centered, and of the entmax family with alpha above 1 up to 2"
    if head is not None and is_quantized(head):
        return "takes a head that is not quantized"
    if type(head) is not nn.Linear:
        return f"takes a head that is one linear layer (nn.Linear), was {type(head).__module__}.{type(head).__name__}"
    if type(head.weight) is not nn.Parameter:
        return "takes a head whose weight is a parameter, and this one is computed (pruned, or normalized)"
    own_forward = not isinstance(vars(head).get("forward"), _LazyForward | None)
    if own_forward or head._forward_hooks or head._forward_pre_hooks:
        return "takes a head without hooks, and without a forward of its own"
    return screening_problem(head.weight)
