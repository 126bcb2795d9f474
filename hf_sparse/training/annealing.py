"""Annealing: training that begins at softmax and moves the settings of sparse maps to their target step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from ..config import MapConfig, SparseConfig
from ..config.settings import SettingValue
from ..functional.arguments import check_count
from ..model.attach import change_settings
from ..model.find import sparse_config, sparse_state

# From the share of the annealing steps done, in [0, 1), to the share of the way gone; at 1 all of it is.
SCHEDULES: dict[str, Callable[[float, int], float]] = {
    "linear": lambda done, stages: done,
    "cosine": lambda done, stages: (1 - math.cos(math.pi * done)) / 2,
    "step": lambda done, stages: math.floor(done * stages) / stages,
}
# Where a map of the entmax family is exactly softmax of the scores.
SOFTMAX = {"alpha": 1.0, "temperature": 1.0}


class AnnealingCallback(TrainerCallback, ExportableState):
    """Moves a sparse model's settings from where they start to those the model was given, while it trains.

    The target is what ``sparsify`` (or ``calibrate``) gave the model. The first step runs at the start, by default
    alpha = 1, which is exactly softmax with cross-entropy; step ``over`` and all later ones run at the target. What
    is saved on the way carries the settings of the step that comes next, and training resumed from it goes on from
    there to the same target, with a model from ``sparsify`` as with one loaded from the checkpoint.

    entmax15 and sparsemax are entmax with alpha on the way, and themselves again at the end.

    Works with ``Trainer`` and ``SparseTrainer``. Logs ``annealed``, the share of the way gone.

    Args:
        over: the annealing steps: a number of steps (int), or a share of all training steps (float in (0, 1]).
        schedule: ``"linear"``; ``"cosine"``, slow at both ends; or ``"step"``, ``stages`` equal jumps.
        attn: settings of attention to move, with the number each starts at, as in ``{"alpha": 1.0}``; None leaves
            attention at its target.
        head: the same for the head, as in ``{"tau": 0.0}``. With ``attn`` and ``head`` both None everything sparse
            starts at softmax: alpha and temperature at 1.
        stages: number of jumps; only ``"step"`` has them.

    Raises:
        ValueError: an argument out of range. When training begins: a dense model; nothing to anneal; a map without
            the setting, or one that is learned; a start out of its range; more annealing steps than training steps;
            ``load_best_model_at_end``; a second such callback.
        TypeError: an argument of the wrong type.

    Source: Peters et al. 2019, Eq. 7: softmax is the end alpha = 1 of the entmax family.

    >>> AnnealingCallback(over=0.5, schedule="step", stages=4).share(step=30, max_steps=100)
    0.5
    """

    changes_maps = True  # a run resumed with it goes on from the settings of its checkpoint; read by trainer_guard

    def __init__(
        self,
        over: float = 0.5,
        schedule: str = "linear",
        attn: Mapping[str, float] | None = None,
        head: Mapping[str, float] | None = None,
        stages: int = 5,
    ) -> None:
        _check_over(over)
        if not isinstance(schedule, str) or schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(map(repr, SCHEDULES))}, was {schedule!r}")
        check_count("stages", stages)
        _check_starts("attn", attn)
        _check_starts("head", head)
        self.over = over
        self.schedule = schedule
        self.attn = attn
        self.head = head
        self.stages = stages
        self.target: dict[str, Any] | None = None

    def share(self, step: int, max_steps: int) -> float:
        """The share of the way from start to target, in [0, 1], at which training step ``step`` (from 0) runs."""
        done = step / self._steps(max_steps)
        return 1.0 if done >= 1 else SCHEDULES[self.schedule](done, self.stages)

    def settings(self, target: SparseConfig, share: float) -> SparseConfig:
        """``start + share (target - start)`` of every annealed setting; the target itself at 1.

        Args:
            target: the settings at the end.
            share: of the way gone, in [0, 1].

        Raises:
            ValueError: see the class.
        """
        default = SOFTMAX if self.attn is None and self.head is None else None
        attn, head = self.attn or default, self.head or default
        moved = target.replace_maps(lambda rule: _moved(rule.map, attn, rule.role, share))
        return replace(moved, head=_moved(target.head, head, "head", share))

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: object,
    ) -> None:
        """Find the target, check that it can be annealed to, and go to where the first step runs."""
        saved = state.stateful_callbacks.get(type(self).__name__)
        if isinstance(saved, list):
            raise ValueError("one AnnealingCallback moves all settings; give the trainer one")
        if args.load_best_model_at_end:
            raise ValueError(
                "load_best_model_at_end=True would compare losses of different settings and could bring back weights "
                "from before the target under the target's settings; leave it False"
            )
        if self._steps(state.max_steps) > state.max_steps:
            raise ValueError(
                f"over={self.over} annealing steps do not end within {state.max_steps} training steps; "
                "give fewer, or a share such as 0.5"
            )
        # A model loaded from a checkpoint has the settings of the way; the target is in the checkpoint's state.
        # One that was interrupted on the way has not lost its target.
        target = sparse_state(model).target or sparse_config(model)
        if state.global_step > 0:
            if saved is None:
                raise ValueError("the checkpoint was saved without annealing, so that its target is not known")
            target = SparseConfig.from_dict(saved["attributes"]["target"])
        self._check_moves(target)
        self.target = target.to_dict()
        self._move(model, state)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: object,
    ) -> None:
        """Go to the settings of the next step."""
        self._move(model, state)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        """Say how far annealing is."""
        if logs is not None and "loss" in logs:
            logs["annealed"] = self.share(state.global_step, state.max_steps)
            state.log_history[-1]["annealed"] = logs["annealed"]

    def state(self) -> dict[str, Any]:
        """The part of a checkpoint: the arguments, and the target."""
        names = ("over", "schedule", "attn", "head", "stages")
        return {"args": {name: getattr(self, name) for name in names}, "attributes": {"target": self.target}}

    def _move(self, model: Any, state: TrainerState) -> None:
        target = SparseConfig.from_dict(self.target)
        settings = self.settings(target, self.share(state.global_step, state.max_steps))
        if settings != sparse_config(model):
            change_settings(model, settings)
        sparse_state(model).target = None if settings == target else target

    def _check_moves(self, target: SparseConfig) -> None:
        # Not the target itself, which has another name where that is entmax15 or sparsemax.
        first, later = self.settings(target, 0.0), self.settings(target, 0.5)
        given = [role for role in ("attn", "head") if getattr(self, role) is not None]
        still = [role for role in given if getattr(first, role) == getattr(later, role)]
        if first == later or still:
            what = still[0] if still else "the model"
            raise ValueError(f"{what} has nothing to anneal: training would start at its target, {target.to_dict()}")

    def _steps(self, max_steps: int) -> int:
        return self.over if isinstance(self.over, int) else max(1, math.ceil(self.over * max_steps))


def _check_over(over: object) -> None:
    if isinstance(over, bool) or not isinstance(over, int | float):
        raise TypeError(f"over must be a number of steps (int) or a share of them (float), was {over!r}")
    if not (over >= 1 if isinstance(over, int) else 0 < over <= 1):
        raise ValueError(f"over must be a number of steps >= 1 (int) or a share in (0, 1] (float), was {over!r}")


def _check_starts(role: str, starts: object) -> None:
    if starts is None:
        return
    if not isinstance(starts, Mapping) or not starts:
        raise TypeError(f'{role} must map settings to where they start, as {{"alpha": 1.0}}, was {starts!r}')
    for name, start in starts.items():
        if isinstance(start, bool) or not isinstance(start, int | float):
            raise TypeError(f"{role}: {name} must start at a number, was {start!r}")
        if not math.isfinite(start):
            raise ValueError(f"{role}: {name} must start at a finite number, was {start}")


def _moved(
    map_config: MapConfig | None, starts: Mapping[str, float] | None, role: str, share: float
) -> MapConfig | None:
    """A map with every setting of ``starts`` at ``start + share (target - start)``."""
    if map_config is None or starts is None or map_config.name == "softmax":
        return map_config
    family = map_config.spelled_out if "alpha" in starts else map_config
    known = [*family.map_settings, "temperature"]
    if starts is SOFTMAX and family.name != "entmax":
        moves = next(name for name in known if family.value(name).numbers)
        raise ValueError(
            f"{role}: {map_config.name} does not begin at softmax; say what moves and from where, as in "
            f'{role[:4]}={{"{moves}": ...}}, or give only the other of attn and head'
        )
    _check_known(map_config, family, known, starts, role)
    moved = {name: _between(start, family.value(name), share) for name, start in starts.items()}
    return map_config if share == 1 else family.with_settings(**moved)


def _check_known(
    map_config: MapConfig, family: MapConfig, known: list[str], starts: Mapping[str, float], role: str
) -> None:
    for name, start in starts.items():
        if name not in known:
            has = ", ".join(map(repr, known))
            raise ValueError(f"{role}: {map_config.name} has no {name!r} to anneal; it has {has}")
        if name in family.learned:
            raise ValueError(f"{role}: {name} is learned, so that training moves it already; anneal something else")
        if not family.value(name).numbers:
            raise ValueError(f"{role}: {name} ends at the word {family.value(name)!r}; give it a number to anneal to")
        family.setting(name).check(f"{role}: the start of {name}", start)


def _between(start: float, target: SettingValue, share: float) -> float | tuple[float, ...]:
    """A number, or one per head; one number again where all heads agree, as at the start."""
    numbers = tuple(start + share * (end - start) for end in target.numbers)
    return numbers[0] if len(set(numbers)) == 1 else numbers
