"""Names of files of pictures and pages: refused before anything is drawn."""

from __future__ import annotations

from pathlib import Path

SUFFIXES = (".png", ".svg", ".pdf", ".jpg", ".jpeg")


def check_folder(path: str | Path) -> Path:
    """The path, of a file that may be written there.

    Raises:
        FileNotFoundError: the folder it is in does not exist.
    """
    file = Path(path)
    if not file.parent.is_dir():
        raise FileNotFoundError(f"the folder of path does not exist, {str(file.parent)!r}; make it first")
    return file


def picture_file(path: str | Path) -> Path:
    """The file of a picture; one without a suffix is a PNG.

    Raises:
        ValueError: another suffix than those of ``SUFFIXES``.
        FileNotFoundError: see ``check_folder``.
    """
    file = Path(path) if Path(path).suffix else Path(f"{path}.png")
    if file.suffix.lower() not in SUFFIXES or file.stem == file.suffix:
        raise ValueError(f"path must be the name of a picture that ends in {', '.join(SUFFIXES)}, was {str(path)!r}")
    return check_folder(file)
