"""Studies: many runs of one recipe under one command line, which resumes what an interruption cut short.

A recipe describes itself in a ``Study``, and ``main`` does the rest: command line, seeds, records, the file of all
results, model cards, and the summary that is kept in git.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import fnmatch
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple

import datasets
import transformers
from accelerate import PartialState

from .card import Card
from .records import (
    CannotRun,
    Figures,
    OtherSettings,
    Record,
    check_begun,
    record_of,
    records_in,
    run_folder,
    write_json,
)
from .settings import S, changed, check_read, listing, names_of, read_of
from .summary import write_summary


@dataclasses.dataclass(frozen=True)
class Study(Generic[S]):
    """Description of a recipe.

    Attributes:
        name: of its folder in ``recipes``, and of the folder of its results in ``out``.
        description: of the command line; the docstring of ``run.py``.
        runs: settings by name of the run; a setting ``data`` names the data set, where there is one.
        perform: trains and measures one run, given its settings and its folder; returns the figures. A model is saved
            in the folder's ``model``, checkpoints may stay beside it. ``CannotRun`` ends the command with its message.
        report: prints and draws the results, given these and the folder of the study.
        quick: settings with which a run takes seconds, for ``--quick``.
        usual: patterns of the runs that a command without ``--only`` does.
        needs: names of the runs that a run resumes from or is compared with; these are done before it with the same
            seed, asked for or not, and ``perform`` finds them by ``sibling``.
        check: reads the data of a run; if it raises ``OSError`` or ``ValueError``, nothing is run.
        reads: names of the settings that a run reads, usually all. It keeps its own values of others, and ``--set`` of
            one that no run reads is refused.
        card: model card of a run, given its record and those of all runs; None for a model that is no result. Without
            it no model is kept.
        condensed: the figures of a run that are kept in git.
        file: of the command, in the recipe's folder; another than ``run`` has results of its own.
    """

    name: str
    description: str
    runs: Mapping[str, S]
    perform: Callable[[S, Path], Figures]
    report: Callable[[dict[str, Any], Path], None]
    quick: Mapping[str, Any]
    usual: Sequence[str] = ("*",)
    needs: Callable[[S], Iterable[str]] = lambda settings: ()
    check: Callable[[S], Any] = lambda settings: None
    reads: Callable[[S], Iterable[str]] = names_of
    card: Callable[[Record, Sequence[Record]], Card | None] | None = None
    condensed: Callable[[Figures], Figures] = lambda figures: figures
    file: str = "run"

    @property
    def module(self) -> str:
        """The module that is run: ``recipes.NAME.FILE``."""
        return f"recipes.{self.name}.{self.file}"

    @property
    def out(self) -> Path:
        """Default folder of the results."""
        return Path("out") / (self.name if self.file == "run" else f"{self.name}-{self.file}")

    @property
    def quick_out(self) -> Path:
        """That of quick runs."""
        return self.out.with_name(f"{self.out.name}-quick")


class Part(NamedTuple):
    """A kind of run, of a recipe that has several: what performs it, and names of the settings that it reads."""

    perform: Callable[[Any, Path], Figures]
    reads: tuple[str, ...]


def main(study: Study, arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run a study from the command line.

    Args:
        study: the recipe.
        arguments: command line; None for that of the process.

    Returns:
        The content of ``results.json``: a list ``runs`` of records. The record of a run with a saved model has the
        ``command`` that trains it and the folder of its ``weights`` besides.
    """
    parser = _parser(study)
    options = parser.parse_args(arguments)
    try:
        out, runs = _out(study, options), _runs(study, options)
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        print(listing(runs, study.reads))
        return {}
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    for name, settings in runs.items():
        try:
            study.check(settings)
        except (OSError, ValueError) as error:
            parser.error(f"{name}: {error}")
    planned = [
        (number, name, dataclasses.replace(settings, seed=seed))
        for number, (name, settings) in enumerate(runs.items(), 1)
        for seed in ([settings.seed] if options.seeds is None else range(options.seeds))
    ]
    for _, name, settings in planned:
        try:
            check_begun(name, settings, out)
        except OtherSettings as error:
            parser.error(str(error))
    for number, name, settings in planned:
        print(f"\n[{number}/{len(runs)}] {name}, seed {settings.seed}", flush=True)
        try:
            record_of(name, settings, study.perform, out)
        except CannotRun as error:
            parser.error(str(error))
    results = gathered(study, out)
    if PartialState().is_main_process:
        _write(study, results, out, options.summary)
    return results


def gathered(study: Study, out: Path) -> dict[str, Any]:
    """The results of all runs that are done in a folder, by this command or an earlier one; see ``main``."""
    return {"runs": [_with_origin(study, record, out) for record in records_in(out, list(study.runs))]}


def with_needed(runs: Mapping[str, S], chosen: Iterable[str], needs: Callable[[S], Iterable[str]]) -> dict[str, S]:
    """The chosen runs, each after those it needs."""
    ordered: dict[str, S] = {}

    def add(name: str) -> None:
        for needed in needs(runs[name]):
            add(needed)
        ordered.setdefault(name, runs[name])

    for name in chosen:
        add(name)
    return ordered


def command(study: Study, record: Record, out: Path) -> str:
    """The command line that does one run, with the settings that are not the recipe's own."""
    usual = json.loads(json.dumps(dataclasses.asdict(study.runs[record["run"]])))
    changes = {name: value for name, value in record["settings"].items() if value != usual[name]}
    words = ["python", "-m", study.module]
    if "data" in changes:
        words += ["--data", changes.pop("data")]
    words += ["--only", record["run"]]
    if changes:
        words += ["--set", *(f"{name}={value}" for name, value in changes.items())]
    if out != study.out:
        words += ["--out", out.as_posix()]
    return shlex.join(words)


def _with_origin(study: Study, record: Record, out: Path) -> Record:
    weights = run_folder(out, record["run"], record["settings"]["seed"]) / "model"
    if not weights.is_dir():
        return record
    return record | {"command": command(study, record, out), "weights": weights.as_posix()}


def _write(study: Study, results: dict[str, Any], out: Path, summary: Path | None) -> None:
    write_json(out / "results.json", results)
    for record in results["runs"]:
        if study.card and "weights" in record and (card := study.card(record, results["runs"])):
            card.write(Path(record["weights"]))
    study.report(results, out)
    print(f"\nResults in {out / 'results.json'}")
    if summary:
        write_summary(summary, results["runs"], study.condensed)
        print(f"Summary in {summary}")


def _parser(study: Study) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {study.module}",
        description=study.description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, metavar="DIR", help="folder for results; the same one goes on after an interruption "
        f"({study.out}; {study.quick_out} with --quick)")  # fmt: skip
    add("--data", metavar="DATA", help="a file, a folder or the name of a data set on the Hub, for every run that "
        "reads one")  # fmt: skip
    told = "all" if "*" in study.usual else f"{' '.join(study.usual)}, of {' '.join(study.runs)}"
    add("--only", nargs="+", metavar="RUN", default=study.usual,
        help=f"runs to do now, * and ? allowed (default: {told})")  # fmt: skip
    add("--seeds", type=int, default=None, metavar="N", help="do every run with seeds 0 to N - 1")
    add("--set", nargs="+", type=_change, metavar="NAME=VALUE", default=[], help="change a setting of every run")
    add("--quick", action="store_true", help="a few steps and rows: shows that all works, learns nothing")
    add("--list", action="store_true", help="print the runs, their settings and the paper's, and stop")
    add("--summary", type=Path, metavar="FILE", help="write what git keeps of the results, too")
    return parser


def _change(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, was {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


def _out(study: Study, options: argparse.Namespace) -> Path:
    out = options.out or (study.quick_out if options.quick else study.out)
    if out.is_file():
        raise ValueError(f"--out {out} is a file; choose a folder")
    return out


def _runs(study: Study[S], options: argparse.Namespace) -> dict[str, S]:
    if options.seeds is not None and options.seeds < 1:
        raise ValueError(f"--seeds must be at least 1, was {options.seeds}")
    asked = [name for name in study.runs if any(fnmatch.fnmatchcase(name, pattern) for pattern in options.only)]
    if not asked:
        raise ValueError(f"--only {' '.join(options.only)}: no such run; there are: {', '.join(study.runs)}")
    given = (study.quick if options.quick else {}) | dict(options.set)
    given |= {} if options.data is None else {"data": options.data}
    runs = with_needed(study.runs, asked, study.needs)
    reads = {name: read_of(own, study.reads(changed(own, given))) for name, own in runs.items()}
    check_read(dict(options.set), reads)
    return {
        name: changed(own, {key: value for key, value in given.items() if key in {"data", *reads[name]}})
        for name, own in runs.items()
    }
