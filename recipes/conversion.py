"""From softmax to sparse: what a trained model loses when its softmax is replaced, and how it gets that back.

A small GPT-2-like model and a small BART-like one are trained with softmax. Each is then made sparse in attention,
at the head, and in both, in six ways, and compared with the dense model trained on for as many steps:

    swap        the maps are replaced and nothing else is done
    calibrate   temperatures are fitted on a few training rows; no training
    train       swap, then train on
    anneal      calibrate, then train on while alpha moves from 1 (softmax) to its target
    distil      the same with the dense model as a teacher
    scratch     sparse from the first step, for the steps of the dense model and those of the conversion together

Losses of different maps are different functions. What is compared is the log of the eps-perplexity (Martins, Marinho
and Martins 2020) on held-out rows: the negative log-likelihood after one part in a hundred of the uniform
distribution has been mixed in, in nats a token, for dense and sparse models alike.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import transformers
from conversion_data import TASKS, Task, evaluate
from conversion_report import draw, table
from environment import environment
from progress import Progress
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ProgressCallback

import hf_sparse
from hf_sparse.hub import fresh_folder

PLACES = {"attention": ("attn",), "head": ("head",), "both": ("attn", "head")}
WAYS = ("swap", "calibrate", "train", "anneal", "distil", "scratch")
CURVE_POINTS = 5  # evaluations in a phase of training
TEACHER_WEIGHT = 0.5


class Curve(TrainerCallback):
    """Evaluates on the held-out rows a few times while a model trains."""

    def __init__(self, task: Task, options: Any, first_step: int, steps: int) -> None:
        self.task = task
        self.options = options
        self.first_step = first_step
        self.every = max(steps // CURVE_POINTS, 1)
        self.points: list[dict[str, Any]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Add a point when it is time, and at the end."""
        if state.global_step % self.every == 0 or state.global_step == state.max_steps:
            figures = evaluate(model, self.task, self.options.batch_size)
            self.points.append({"step": self.first_step + state.global_step, **figures})


def train(
    model: PreTrainedModel,
    task: Task,
    options: Any,
    steps: int,
    first_step: int = 0,
    teacher: PreTrainedModel | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> list[dict[str, Any]]:
    """Train ``model`` in place for one phase, the learning rate up and down once; the points of its curve."""
    sparse = hf_sparse.is_sparse(model)
    trainer_class: Any = hf_sparse.SparseTrainer if sparse else Trainer
    arguments_class: Any = hf_sparse.SparseTrainingArguments if sparse else TrainingArguments
    distil = {} if teacher is None else {"distillation_weight": TEACHER_WEIGHT}
    curve = Curve(task, options, first_step, steps)
    with tempfile.TemporaryDirectory() as folder:
        arguments = arguments_class(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=options.batch_size,
            learning_rate=options.lr if first_step == 0 else options.lr / 2,
            warmup_steps=max(steps // 10, 1),
            lr_scheduler_type="cosine",
            seed=options.seed + first_step,
            logging_steps=max(steps // 5, 1),
            save_strategy="no",
            report_to="none",
            disable_tqdm=False,
            dataloader_pin_memory=False,
            **distil,
        )
        trainer = trainer_class(
            model,
            arguments,
            task.collator,
            train_dataset=task.train,
            callbacks=[*callbacks, curve],
            **({} if teacher is None else {"teacher": teacher}),
        )
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(Progress)
        trainer.train()
    return curve.points


def dense_model(task: Task, options: Any, folder: Path) -> PreTrainedModel:
    """The dense model, trained once and then read."""
    if not folder.is_dir():
        model = task.build(options.seed)
        points = train(model, task, options, options.steps)
        with fresh_folder(folder) as new:
            model.save_pretrained(new)
            (new / "curve.json").write_text(json.dumps(points), encoding="utf-8")
    return type(task.build(0)).from_pretrained(folder)


def convert(
    task: Task, options: Any, folder: Path, place: str, way: str
) -> tuple[PreTrainedModel, list[dict[str, Any]]]:
    """One conversion: the model, and the points of its curve, the last of which is its result."""
    maps = {part: {"name": "entmax", "alpha": options.alpha} for part in PLACES[place]}
    if way == "scratch":
        model = hf_sparse.sparsify(task.build(options.seed), **maps)
        points = train(model, task, options, options.steps)
        return model, points + train(model, task, options, options.conversion_steps, options.steps)
    model = hf_sparse.sparsify(dense_model(task, options, folder), **maps)
    callbacks = []
    if way in ("calibrate", "anneal", "distil"):
        hf_sparse.calibrate(model, task.loader(task.train.select(range(options.calibration_rows)), options.batch_size))
    if way in ("swap", "calibrate"):
        return model, [{"step": options.steps, **evaluate(model, task, options.batch_size)}]
    if way in ("anneal", "distil"):
        callbacks = [hf_sparse.AnnealingCallback(options.anneal_over)]
    teacher = dense_model(task, options, folder) if way == "distil" else None
    return model, train(model, task, options, options.conversion_steps, options.steps, teacher, callbacks)


def units(options: Any) -> list[tuple[str, str, str]]:
    """Every run: model, place and way; the dense ones first."""
    dense = [(name, "none", way) for name in options.models for way in ("dense", "continue")]
    return dense + [(name, place, way) for name in options.models for place in options.places for way in options.ways]


def run(unit: tuple[str, str, str], task: Task, options: Any) -> dict[str, Any]:
    """One run of ``units``."""
    name, place, way = unit
    folder = options.out / f"{name}-dense"
    started = time.process_time()
    if place == "none":
        model = dense_model(task, options, folder)
        if way == "dense":
            points = json.loads((folder / "curve.json").read_text(encoding="utf-8"))
        else:
            points = train(model, task, options, options.conversion_steps, options.steps)
    else:
        model, points = convert(task, options, folder, place, way)
    model.save_pretrained(options.out / "models" / "-".join(unit))
    return {
        "model": name,
        "place": place,
        "way": way,
        **points[-1],
        "curve": [{"step": point["step"], "loss": point["loss"]} for point in points],
        "cpu_seconds": round(time.process_time() - started, 1),
    }


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; leaves the program with a message where it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--text", type=Path, metavar="FILE", help="text for the GPT-2-like model (default: English verbs)")
    add("--source", type=Path, metavar="FILE", help="lines the BART-like model reads (default: English verbs)")
    add("--target", type=Path, metavar="FILE", help="lines it writes, aligned with --source; .gz is read too")
    add("--out", type=Path, default=Path("out/conversion"), metavar="DIR",
        help="folder for results; a run that stopped there goes on (%(default)s)")  # fmt: skip
    add("--models", nargs="+", default=list(TASKS), choices=TASKS, help="models to convert (both)")
    add("--places", nargs="+", default=list(PLACES), choices=PLACES, help="what to make sparse (all three, in turn)")
    add("--ways", nargs="+", default=list(WAYS), choices=WAYS, help="ways to convert (all six)")
    add("--alpha", type=float, default=1.5, help="of entmax, the sparse map; 2 is sparsemax (%(default)s)")
    add("--steps", type=int, default=300, help="training steps of the dense model (%(default)s)")
    add("--conversion-steps", type=int, default=120, help="training steps of a conversion (%(default)s)")
    add("--anneal-over", type=float, default=0.6, help="share of these that alpha takes (%(default)s)")
    add("--batch-size", type=int, default=16, help="rows in a step (%(default)s)")
    add("--lr", type=float, default=2e-3, help="peak learning rate; half of it for conversions (%(default)s)")
    add("--width", type=int, default=64, help="of the models, a multiple of 4 (%(default)s)")
    add("--layers", type=int, default=3, help="of GPT-2; BART has one fewer on either side (%(default)s)")
    add("--vocabulary", type=int, default=1000, help="tokens, learned by byte-level BPE (%(default)s)")
    add("--train-rows", type=int, default=100_000, help="train on at most this many rows (%(default)s)")
    add("--dev-rows", type=int, default=200, help="evaluate on at most this many rows (%(default)s)")
    add("--calibration-rows", type=int, default=64, help="training rows to calibrate on (%(default)s)")
    add("--seed", type=int, default=0, help="for weights, dropout and the order of the rows (%(default)s)")
    add("--quick", action="store_true", help="a few steps of a tiny model: shows that all works, learns nothing")
    options = parser.parse_args(arguments)
    if (options.source is None) != (options.target is None):
        parser.error("--source and --target go together: give both or neither")
    numbers = ("steps", "conversion_steps", "batch_size", "lr", "train_rows", "dev_rows", "calibration_rows", "layers")
    for name in numbers:
        if not getattr(options, name) > 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0, was {getattr(options, name)}")
    if not 0 < options.anneal_over <= 1:
        parser.error(f"--anneal-over must be in (0, 1], was {options.anneal_over}")
    if not 1 < options.alpha <= 2:
        parser.error(f"--alpha must be in (1, 2], was {options.alpha}")
    if options.width < 4 or options.width % 4:
        parser.error(f"--width must be a multiple of 4, was {options.width}")
    if options.vocabulary < 300:
        parser.error(f"--vocabulary must be at least 300, 256 of them bytes, was {options.vocabulary}")
    if options.out.is_file():
        parser.error(f"--out {options.out} is a file; choose a folder")
    if importlib.util.find_spec("matplotlib") is None:
        parser.error("the picture needs matplotlib: pip install 'hf_sparse[plots]'")
    if options.quick:
        options.steps, options.conversion_steps, options.width, options.layers = 6, 4, 16, 1
        options.vocabulary, options.dev_rows, options.calibration_rows = 300, 16, 16
    return options


def settings_of(options: Any) -> dict[str, Any]:
    """What decides the result of a run, as plain data: files by name, and not what is run or where it goes."""
    kept = {key: value for key, value in vars(options).items() if key not in ("out", "models", "places", "ways")}
    return {key: value.name if isinstance(value, Path) else value for key, value in kept.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe."""
    options = parse_arguments(arguments)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    options.out.mkdir(parents=True, exist_ok=True)
    settings, kept = settings_of(options), options.out / "settings.json"
    if kept.is_file() and json.loads(kept.read_text(encoding="utf-8")) != settings:
        raise SystemExit(f"{options.out} holds a run with other settings ({kept}); choose another --out")
    kept.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")

    tasks, rows = {}, []
    all_units = units(options)
    for number, unit in enumerate(all_units, 1):
        name, place, way = unit
        path = options.out / f"{'-'.join(unit)}.json"
        if name not in tasks:
            try:
                tasks[name] = TASKS[name](options)
            except (OSError, ValueError) as error:
                raise SystemExit(f"{name}: {error}") from error
            task = tasks[name]
            print(f"\n{name}: {task.what}; {len(task.train):,} rows to train on, {len(task.dev):,} to evaluate on")
        print(
            f"\n[{number}/{len(all_units)}] {name}, {way}{'' if place == 'none' else f', sparse {place}'}", flush=True
        )
        if not path.is_file():
            half = path.with_suffix(".part")
            half.write_text(json.dumps(run(unit, tasks[name], options)), encoding="utf-8")
            half.rename(path)  # a run is there as a whole or not at all
        rows.append(json.loads(path.read_text(encoding="utf-8")))
        print(f"  loss {rows[-1]['loss']:.4f} after {rows[-1]['step']} steps")

    data = {name: {"what": task.what, "train_rows": len(task.train), "dev_rows": len(task.dev),
                   "vocabulary": len(task.tokenizer), "parameters": task.build(0).num_parameters()}
            for name, task in tasks.items()}  # fmt: skip
    result = {"settings": settings, "data": data, "rows": rows, **environment()}
    (options.out / "results.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    draw(result, options.out / "conversion.png")
    print(f"\n{table(result)}\n\nResults in {options.out}: results.json, conversion.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
