"""How fast the maps train: CPU seconds of a training step of several models, which are trained in turns.

All see the same batches, in slices of a few steps each, so that whatever slows the machine slows all of them; leave it
idle all the same. Time depends on supports, and supports on how much a model has learned: the first turns tell of
untrained models, the last ones of trained ones.

    python -m recipes.translation_sweep.times --data multi30k --set vocabulary=4000 batch_size=64 steps=100
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from ..lib.batches import padding_collator
from ..lib.records import Figures
from ..lib.study import Study, main
from ..lib.training import StepSeconds, train
from .report import speeds
from .run import QUICK, Sweep, built, check, runs, task_of

SYSTEMS = (
    "softmax",
    "output-entmax15",
    "entmax15",
    "output-1.33",
    "output-alpha_relu",
    "sparsemax-from-entmax15",
    "attention-learned",
)
TURNS = 6
READS = ("data", "source", "target", "test", "reverse", "train_rows", "vocabulary", "temperature", "dropout", "tied")
READS += ("bf16", "steps", "batch_size", "lr")


def perform(settings: Sweep, folder: Path) -> Figures:
    """Train every system in turns, each with its last settings from the first step on.

    Returns:
        ``load``, of the machine before (processes); ``step_cpu_seconds``, by system the mean of each turn.
    """
    load = os.getloadavg()[0]
    _, tokenizer, rows = task_of(settings)
    maps = {name: {place: getattr(run, place) for place in ("head", "attention")} for name, run in runs().items()}
    models = {name: built(dataclasses.replace(settings, **maps[name])) for name in SYSTEMS}
    seconds: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    for turn in range(TURNS):
        for name, model in models.items():
            clock = StepSeconds()
            with tempfile.TemporaryDirectory(dir=folder) as fresh:  # no checkpoint of another model, or of before
                train(
                    model,
                    tokenizer,
                    rows,
                    Path(fresh) / "checkpoints",
                    collator=padding_collator(tokenizer, model),
                    steps=settings.steps,
                    lr=settings.lr,
                    batch_size=settings.batch_size,
                    seed=settings.seed + turn,
                    bf16=settings.bf16,
                    callbacks=[clock],
                )
            seconds[name].append(fmean(clock.seconds))
    return {"load": load, "step_cpu_seconds": seconds}


def report(results: dict[str, Any], out: Path) -> None:
    """Print the table of each seed."""
    for record in results["runs"]:
        print(speeds(record["figures"]))


STUDY = Study(
    name="translation_sweep",
    description=__doc__,
    runs={"times": Sweep(steps=100)},
    perform=perform,
    report=report,
    quick=QUICK,
    check=check,
    reads=lambda settings: READS,
    file="times",
)

if __name__ == "__main__":
    main(STUDY)
