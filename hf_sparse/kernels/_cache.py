"""The cache folder of compiled kernels. A library runs with all rights of its user: only the user's own is loaded.

The name of a library ends with the hash of its content. A file that others could have written, or whose content is no
longer what was built (a full disk, a copy cut short), is never given to the loader, which a damaged one would crash.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path

from ._recipe import content_hash, library_name

# Older files of a build belong to one that was killed.
_LONGEST_BUILD = 3600.0


class KernelUnavailable(RuntimeError):
    """A compiled kernel, C++ or Triton, cannot be used here; the message names it and says why."""


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/hf_sparse``, by default ``~/.cache/hf_sparse``.

    Raises:
        KernelUnavailable: the user has no home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "hf_sparse"
    except RuntimeError as error:
        raise KernelUnavailable("there is no home folder for the C++ kernel; set XDG_CACHE_HOME") from error


def own_folder() -> Path:
    """The cache folder without symbolic links, made if need be, and without what killed builds left in it.

    Raises:
        KernelUnavailable: others can write to it, or to a folder above it, which they could exchange.
        OSError: it cannot be made.
    """
    folder = cache_folder().absolute()
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)  # with ``parents=True`` those would have the mode of the umask
    folder = folder.resolve(strict=True)
    for path in (folder, *folder.parents):
        problem = _folder_problem(path.stat(), is_leaf=path == folder)
        if problem is not None:
            raise KernelUnavailable(
                f"{path} {problem}, and the C++ kernel would run with your rights: set XDG_CACHE_HOME to a folder "
                "that only you can write to (chmod go-w)"
            )
    for path in folder.glob("tmp*.so"):
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime < time.time() - _LONGEST_BUILD:
                path.unlink()
    return folder


def _folder_problem(found: os.stat_result, is_leaf: bool) -> str | None:
    """Why others could exchange what is in a folder, or None."""
    if found.st_uid != os.getuid() and (is_leaf or found.st_uid != 0):
        return "belongs to another user"
    # In a folder like /tmp others can add files, but not rename or remove this user's.
    is_shared = not is_leaf and found.st_mode & stat.S_ISVTX
    return "can be written to by others" if not is_shared and _others_write(found) else None


def _others_write(found: os.stat_result) -> bool:
    by_group = found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid)
    return bool(found.st_mode & stat.S_IWOTH or by_group)


def _is_private(gid: int) -> bool:
    """Whether the user is the only member of a group: many systems give each user one, and let it write."""
    import grp  # neither exists on Windows, where nothing is built
    import pwd

    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def stored(folder: Path, key: str) -> list[Path]:
    """The files that claim to be libraries of this key, to be asked for their ``library_problem``."""
    return sorted(folder.glob(f"entmax-{key}-*.so"))


def library_problem(path: Path) -> str | None:
    """Why a file in the cache folder is not a library that this user built, or None."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return f"cannot be opened, or is a link ({error.strerror})"
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            return "is not a file of this user"
        if _others_write(found):
            return "can be written to by others"
        return None if path.stem.endswith(f"-{content_hash(file.read())}") else "is not what was built"


def keep(built: Path, key: str) -> Path:
    """Move a library that was just built in the cache folder to its name, in one step.

    Returns:
        The new path. Processes that build the same end with the same file.
    """
    built.chmod(0o700)
    path = built.with_name(library_name(key, built.read_bytes()))
    built.replace(path)
    return path
