"""A study: many runs of one recipe, each kept when it is done, so that the same command goes on after an interruption.

A recipe says in a dataclass what a run is made of (``Settings``, ``setting``), lists its runs by name, and gives a
function that performs one; ``main`` does the rest: command line, seeds, records, and the one file of results.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import fnmatch
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import datasets
import torch
import transformers
from accelerate import PartialState
from environment import environment

S = TypeVar("S", bound="Settings")


def setting(default: Any, paper: str = "", where: str = "") -> Any:
    """A field of ``Settings``.

    Args:
        default: the value used here.
        paper: the paper's value, as ``--list`` shows it; empty where the paper has no such setting.
        where: the section or table that gives it.
    """
    return dataclasses.field(default=default, metadata={"paper": paper, "where": where})


@dataclasses.dataclass(frozen=True)
class Settings:
    """What one run is made of; recipes add fields, all of them plain values."""

    seed: int = setting(0)


def check_positive(settings: Settings, *names: str) -> None:
    """Raise ``ValueError`` unless these settings are all above 0."""
    for name in names:
        if not getattr(settings, name) > 0:
            raise ValueError(f"{name} must be above 0, was {getattr(settings, name)}")


class OtherSettings(ValueError):
    """A folder holds a run that was begun with other settings."""


def write(path: Path, content: Any) -> None:
    """Write JSON, all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".part")
    half.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    half.replace(path)


def forget_peak_memory() -> None:
    """Measure the peak from now on, where the system can: on a GPU and on Linux."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return
    forget = Path("/proc/self/clear_refs")
    if forget.exists():
        forget.write_text("5")


def peak_memory() -> int | None:
    """The largest memory since ``forget_peak_memory``, in bytes: the GPU's, else resident; None where unknown."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024


def record_of(name: str, settings: S, perform: Callable[[S, Path], dict[str, Any]], out: Path) -> dict[str, Any]:
    """The record of one run: from its file, or made now and kept there.

    Args:
        name: of the run.
        settings: what it is made of.
        perform: performs it; gets the settings and a folder of its own, where checkpoints may stay.
        out: folder of the study.

    Returns:
        Name, settings, figures (what ``perform`` returned), wall and CPU seconds, peak memory in bytes, environment.

    Raises:
        OtherSettings: the folder holds this run, begun with other settings.
    """
    folder = out / "runs" / f"{name}-{settings.seed}"
    path, begun = folder / "result.json", folder / "settings.json"
    asked = dataclasses.asdict(settings)
    if begun.is_file():
        found = json.loads(begun.read_text(encoding="utf-8"))
        if found != json.loads(json.dumps(asked)):
            other = {key: found.get(key) for key in found | asked if found.get(key) != asked.get(key)}
            raise OtherSettings(f"{folder} was begun with other settings ({other}); choose another --out")
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    process = PartialState()
    if process.is_main_process:
        write(begun, asked)
    process.wait_for_everyone()
    forget_peak_memory()
    wall, cpu = time.perf_counter(), time.process_time()
    figures = perform(settings, folder)
    record = {
        "run": name,
        "settings": asked,
        "figures": figures,
        "seconds": round(time.perf_counter() - wall, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "peak_memory": peak_memory(),
        **environment(),
    }
    if process.is_main_process:
        write(path, record)
    process.wait_for_everyone()
    return json.loads(path.read_text(encoding="utf-8"))


def sibling(folder: Path, name: str, settings: Settings) -> Path:
    """The folder of the run of another name and the same seed, from that which ``perform`` got."""
    return folder.parent / f"{name}-{settings.seed}"


def records_in(out: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """The records of all runs of these names that are done, by this command or an earlier one; by name and seed."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (out / "runs").glob("*/result.json")]
    known = [record for record in records if record["run"] in names]
    return sorted(known, key=lambda record: (names.index(record["run"]), record["settings"]["seed"]))


def listing(runs: Mapping[str, Settings]) -> str:
    """The runs, and beside each setting the paper's value and where it stands."""
    lines = []
    for name, settings in runs.items():
        lines.append(name)
        for field in dataclasses.fields(settings):
            paper, where = field.metadata.get("paper", ""), field.metadata.get("where", "")
            told = f"   paper: {paper}" + (f" ({where})" if where else "") if paper else ""
            lines.append(f"    {field.name} = {getattr(settings, field.name)!r}{told}")
    return "\n".join(lines)


def _overridden(settings: S, changes: Mapping[str, Any]) -> S:
    unknown = sorted(set(changes) - {field.name for field in dataclasses.fields(settings)})
    if unknown:
        known = ", ".join(field.name for field in dataclasses.fields(settings))
        raise ValueError(f"no setting named {', '.join(unknown)}; there are: {known}")
    kinds = get_type_hints(type(settings))
    for name, value in changes.items():
        kind = kinds[name]
        if kind in (bool, int, float, str) and not isinstance(value, (int, float) if kind is float else kind):
            raise ValueError(f"{name} must be {kind.__name__}, was {value!r}")
    return dataclasses.replace(settings, **changes)


def with_needed(runs: Mapping[str, S], chosen: Iterable[str], needs: Callable[[S], Iterable[str]]) -> dict[str, S]:
    """The chosen runs by name, each after those it needs."""
    ordered: dict[str, S] = {}

    def add(name: str) -> None:
        for needed in needs(runs[name]):
            add(needed)
        ordered.setdefault(name, runs[name])

    for name in chosen:
        add(name)
    return ordered


def _change(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, was {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


def main(
    name: str,
    description: str,
    runs: Mapping[str, S],
    perform: Callable[[S, Path], dict[str, Any]],
    report: Callable[[dict[str, Any], Path], None],
    quick: Mapping[str, Any],
    arguments: Sequence[str] | None = None,
    *,
    usual: Sequence[str] = ("*",),
    needs: Callable[[S], Iterable[str]] = lambda settings: (),
    check: Callable[[S], Any] = lambda settings: None,
) -> dict[str, Any]:
    """Run a study from the command line.

    Args:
        name: of the study, and of its folder in ``out``.
        description: the recipe's docstring.
        runs: settings of every run, by name; a setting ``data`` names the data set, where there is one.
        perform: performs one run; see ``record_of``.
        report: prints and draws the results; gets them and the folder.
        quick: settings that make a run take seconds, for ``--quick``.
        arguments: in place of the program's own.
        usual: the runs that are done where the command line names none.
        needs: names the runs that a run goes on from or is compared with; they are done before it, asked for or not,
            with the same seed; ``sibling`` is where ``perform`` finds them.
        check: reads what a run will read; where it raises ``OSError`` or ``ValueError``, nothing is done.

    Returns:
        The results, as written to ``results.json``.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, metavar="DIR", help="folder for results; the same one goes on after an interruption "
        f"({Path('out') / name}; {Path('out') / f'{name}-quick'} with --quick)")  # fmt: skip
    add("--data", metavar="DATA", help="a file, a folder or the name of a data set on the Hub, for every run")
    told = "all" if "*" in usual else f"{' '.join(usual)}, of {' '.join(runs)}"
    add("--only", nargs="+", metavar="RUN", default=usual, help=f"runs to do now, * and ? allowed (default: {told})")
    add("--seeds", type=int, default=None, metavar="N", help="do every run with seeds 0 to N - 1")
    add("--set", nargs="+", type=_change, metavar="NAME=VALUE", default=[], help="change a setting of every run")
    add("--quick", action="store_true", help="a few steps and rows: shows that all works, learns nothing")
    add("--list", action="store_true", help="print the runs, their settings and the paper's, and stop")
    options = parser.parse_args(arguments)
    if options.seeds is not None and options.seeds < 1:
        parser.error(f"--seeds must be at least 1, was {options.seeds}")
    if options.out is None:
        options.out = Path("out") / (f"{name}-quick" if options.quick else name)
    if options.out.is_file():
        parser.error(f"--out {options.out} is a file; choose a folder")
    asked = [n for n in runs if any(fnmatch.fnmatchcase(n, pattern) for pattern in options.only)]
    if not asked:
        parser.error(f"--only {' '.join(options.only)}: no such run; there are: {', '.join(runs)}")
    changes = (dict(quick) if options.quick else {}) | dict(options.set)
    if options.data is not None:
        changes["data"] = options.data
    try:
        chosen = {run: _overridden(settings, changes) for run, settings in with_needed(runs, asked, needs).items()}
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        print(listing(chosen))
        return {}
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    for run, settings in chosen.items():
        try:
            check(settings)
        except (OSError, ValueError) as error:
            parser.error(f"{run}: {error}")
    for number, (run, settings) in enumerate(chosen.items(), 1):
        seeds = [settings.seed] if options.seeds is None else range(options.seeds)
        for seed in seeds:
            print(f"\n[{number}/{len(chosen)}] {run}, seed {seed}", flush=True)
            try:
                record_of(run, dataclasses.replace(settings, seed=seed), perform, options.out)
            except OtherSettings as error:
                parser.error(str(error))
    results = {"runs": records_in(options.out, list(runs))}
    if PartialState().is_main_process:
        write(options.out / "results.json", results)
        report(results, options.out)
        print(f"\nResults in {options.out / 'results.json'}")
    return results
