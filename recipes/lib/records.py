"""Records: one JSON file per run, written when the run is done, so that the same command resumes a study."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState

from .environment import environment
from .memory import peak_memory, reset_peak_memory
from .settings import S, Settings

Record = dict[str, Any]
Figures = dict[str, Any]


class CannotRun(ValueError):
    """A run cannot be done in a folder, as it is."""


class OtherSettings(CannotRun):
    """A folder holds the same run, begun with other settings."""


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)


def read_json(path: Path) -> Any:
    """Content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def run_folder(out: Path, name: str, seed: int) -> Path:
    """Folder of one run: its record, its model, its checkpoints."""
    return out / "runs" / f"{name}-{seed}"


def sibling(folder: Path, name: str, settings: Settings) -> Path:
    """Folder of another run with the same seed, given the folder of one."""
    return folder.parent / f"{name}-{settings.seed}"


def check_begun(name: str, settings: Settings, out: Path) -> None:
    """Raise ``OtherSettings`` if the folder ``out`` holds this run, begun with other settings."""
    folder = run_folder(out, name, settings.seed)
    begun, asked = folder / "settings.json", _as_json(settings)
    if begun.is_file() and (found := read_json(begun)) != asked:
        other = {key: found.get(key) for key in found | asked if found.get(key) != asked.get(key)}
        raise OtherSettings(f"{folder} was begun with other settings ({other}); choose another --out")


def record_of(name: str, settings: S, perform: Callable[[S, Path], Figures], out: Path) -> Record:
    """The record of one run: read from its file, or made by running it.

    Args:
        name: of the run.
        settings: of the run.
        perform: runs it, given the settings and the run's folder; see ``Study``.
        out: folder of the study.

    Returns:
        ``run``, ``settings``, ``figures`` (returned by ``perform``), ``seconds`` of wall time and ``cpu_seconds``,
        ``peak_memory`` in bytes, ``commit``, ``versions`` and ``hardware``.

    Raises:
        OtherSettings: the folder holds this run, begun with other settings.
    """
    check_begun(name, settings, out)
    folder, asked = run_folder(out, name, settings.seed), _as_json(settings)
    path = folder / "result.json"
    if path.is_file():
        return read_json(path)
    process = PartialState()
    if process.is_main_process:
        write_json(folder / "settings.json", asked)
    process.wait_for_everyone()
    reset_peak_memory()
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
        write_json(path, record)
    process.wait_for_everyone()
    return read_json(path)


def _as_json(settings: Settings) -> dict[str, Any]:
    return json.loads(json.dumps(dataclasses.asdict(settings)))  # type: ignore[no-any-return]


def records_in(out: Path, names: Sequence[str]) -> list[Record]:
    """Records of the runs of these names that are done, in the order of ``names``, then by seed."""
    records = [read_json(path) for path in (out / "runs").glob("*/result.json")]
    known = [record for record in records if record["run"] in names]
    return sorted(known, key=lambda record: (names.index(record["run"]), record["settings"]["seed"]))
