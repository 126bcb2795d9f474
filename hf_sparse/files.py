"""Files and folders of the user's: paths are checked, and what is written is written as a whole or not at all."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(file: Path, content: bytes) -> None:
    """Write a file beside the one it replaces, and put it in its place once it is complete."""
    target = file.resolve()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        complete = Path(folder) / target.name
        complete.write_bytes(content)
        os.replace(complete, target)


@contextmanager
def complete_files(path: Path) -> Iterator[Path]:
    """A folder to fill, whose files are moved into ``path`` once the block has run through, and only then.

    Args:
        path: a folder, or a link to one; made where there is none. Its own files stay, but for those of the same
            names and the weights that the new ones replace: a reader would take old shards for a part of the model.

    Raises:
        ValueError: ``path`` is a file.
    """
    check_target(path)
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the folder, where it exists: it may be a disk of its own, or its parent closed to us.
    near = target if target.is_dir() else target.parent
    with tempfile.TemporaryDirectory(dir=near, prefix=f".{target.name}-") as temporary:
        folder = Path(temporary)
        yield folder
        written = [file.relative_to(folder) for file in sorted(folder.rglob("*")) if file.is_file()]
        target.mkdir(exist_ok=True)
        for name in written:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(folder / name, target / name)
        for stale in _stale_weights(target, {name.name for name in written if name.parent == Path()}):
            stale.unlink()


def check_target(path: str | Path) -> None:
    """Refuse a path where no folder can be.

    Raises:
        TypeError: no path.
        ValueError: ``path`` is a file.
    """
    check_path(path)
    target = Path(path).resolve()
    if target.exists() and not target.is_dir():
        raise ValueError(f"{path} is a file; give the path of a folder to save the model in")


# model.safetensors, model-00001-of-00002.safetensors and model.safetensors.index.json are weights of one model.
_WEIGHTS = re.compile(r"(.+?)(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")


def _stale_weights(folder: Path, written: set[str]) -> list[Path]:
    """Files of an earlier save whose weights those in ``written`` replace."""
    replaced = {found[1] for found in map(_WEIGHTS.fullmatch, written) if found}
    names = {file.name: _WEIGHTS.fullmatch(file.name) for file in folder.iterdir() if file.is_file()}
    return [folder / name for name, found in names.items() if found and found[1] in replaced and name not in written]


def check_path(path: object) -> None:
    """Refuse what is no path.

    Raises:
        TypeError: neither text nor a path, or empty.
    """
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise TypeError(f"path must be that of a folder, or a Hub id, was {path!r}")
