"""A kernel library is loaded only if this user built it and nothing changed it since."""

import functools
import grp
import os
import pwd
import shutil
import stat
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from hf_sparse.kernels import KernelUnavailable, _cache, _library
from hf_sparse.kernels._build import build
from hf_sparse.kernels._library import _load

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The cache folder of a user without one, and a compiler whose libraries are a line of text."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    use_compiler(tmp_path, monkeypatch, 'echo library > "$last"')
    return tmp_path / "home" / "cache" / "hf_sparse"


def use_compiler(tmp_path, monkeypatch, script):
    path = tmp_path / "compiler"
    path.write_text(f"#!/bin/sh\nfor last; do :; done\n{script}\n")
    path.chmod(0o700)
    monkeypatch.setenv("CXX", str(path))


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def cut_in_half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zeroed_in_the_middle(path):
    content = path.read_bytes()
    path.write_bytes(content[:2] + bytes(len(content) - 4) + content[-2:])


def linked_from_elsewhere(path):
    elsewhere = path.parents[1] / "library.so"
    path.replace(elsewhere)
    path.symlink_to(elsewhere)


def writable_by_others(path):
    path.chmod(0o722)


def a_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (cut_in_half, "is not what was built"),
        (zeroed_in_the_middle, "is not what was built"),
        (linked_from_elsewhere, "cannot be opened, or is a link"),
        (writable_by_others, "can be written to by others"),
        (a_pipe, "is not a file of this user"),
    ],
)
def test_a_library_that_is_not_what_was_built_is_built_again_with_a_warning(folder, change, said):
    path = build()
    change(path)
    with pytest.warns(RuntimeWarning, match=f"the C.. kernel was built again: {path} {said}"):
        assert build() == path
    assert not path.is_symlink()
    assert path.read_text() == "library\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build() == path
    assert list(folder.iterdir()) == [path]


def test_a_planted_library_of_another_content_is_removed(folder):
    path = build()
    planted = path.with_name(path.name.replace(path.stem[-32:], "0" * 32))
    path.replace(planted)
    with pytest.warns(RuntimeWarning, match=f"{planted} is not what was built"):
        assert build() == path
    assert not planted.exists()


def test_a_damaged_library_that_cannot_be_built_again_is_refused(folder, tmp_path, monkeypatch):
    path = build()
    cut_in_half(path)
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(KernelUnavailable, match=rf"{path} is not what was built; it could not be built again: false"):
        build()


def test_a_library_of_another_user_is_refused(folder, monkeypatch):
    path, user = build(), os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    assert _cache.library_problem(path) == "is not a file of this user"
    with pytest.raises(KernelUnavailable, match=f"{folder} belongs to another user, and the C.. kernel would run"):
        build()


@pytest.mark.parametrize("above", [0, 1, 2])
@pytest.mark.parametrize("bits", [0o777, 0o702, 0o720])
def test_a_folder_that_others_can_write_to_or_exchange_is_refused(folder, above, bits, monkeypatch):
    monkeypatch.setattr(_cache, "_is_private", lambda gid: False)
    build()
    path = [folder, *folder.parents][above]
    path.chmod(bits)
    with pytest.raises(KernelUnavailable, match=f"{path} can be written to by others.*set XDG_CACHE_HOME to a folder"):
        build()


def test_the_group_of_a_user_alone_may_write(folder, monkeypatch):
    monkeypatch.setattr(_cache, "_is_private", lambda gid: True)
    path = build()
    for written in (path, *list(path.parents)[:3]):
        written.chmod(0o770)
    assert build() == path


@pytest.mark.parametrize(
    ("primary", "name", "members", "private"),
    [
        (7, "me", [], True),
        (7, "me", ["me"], True),
        (7, "me", ["you"], False),
        (7, "us", [], False),
        (8, "me", [], False),
    ],
)
def test_a_group_is_private_if_it_is_the_users_own_and_has_no_other_member(
    primary, name, members, private, monkeypatch
):
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="me", pw_gid=primary))
    monkeypatch.setattr(grp, "getgrgid", lambda gid: SimpleNamespace(gr_name=name, gr_mem=members))
    assert _cache._is_private(7) is private


def test_a_user_without_a_name_has_no_private_group(monkeypatch):
    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert not _cache._is_private(os.getgid())


def test_a_folder_like_tmp_may_be_above_the_cache_but_not_be_it(folder):
    path = build()
    folder.parent.chmod(0o1777)
    assert build() == path
    folder.chmod(0o1777)
    with pytest.raises(KernelUnavailable, match=f"{folder} can be written to by others"):
        build()


def test_a_link_to_another_disk_may_be_the_cache_and_the_folders_above_it_count(folder, tmp_path):
    scratch = tmp_path / "scratch" / "cache"
    scratch.mkdir(parents=True, mode=0o700)
    folder.parents[1].mkdir(mode=0o700)
    folder.parent.symlink_to(scratch)
    assert build().parent == scratch / "hf_sparse"
    (tmp_path / "scratch").chmod(0o777)
    with pytest.raises(KernelUnavailable, match=f"{tmp_path}/scratch can be written to by others"):
        build()


def test_whatever_the_umask_nobody_else_can_write(folder):
    before = os.umask(0)
    try:
        path = build()
    finally:
        os.umask(before)
    assert [mode(made) for made in (path, folder, folder.parent, folder.parents[1])] == [0o700] * 4


def test_what_a_killed_build_left_is_removed_and_a_build_under_way_is_not(folder):
    path = build()
    left, fresh = folder / "tmpleft.so", folder / "tmpfresh.so"
    left.touch()
    fresh.touch()
    os.utime(left, (time.time() - 7200,) * 2)
    assert build() == path
    assert not left.exists()
    assert fresh.exists()


def test_a_library_in_a_folder_that_cannot_be_written_is_loaded(folder, monkeypatch):
    path = build()
    folder.chmod(0o500)
    monkeypatch.setenv("CXX", "false")
    assert build() == path


def test_a_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(KernelUnavailable, match=f"the C.. kernel could not be built in {tmp_path}/file/hf_sparse"):
        build()


def test_without_a_home_there_is_no_kernel(monkeypatch):
    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(KernelUnavailable, match=r"there is no home folder for the C.. kernel; set XDG_CACHE_HOME"):
        build()


def test_a_compiler_that_is_no_command_is_named(folder, monkeypatch):
    monkeypatch.setenv("CXX", 'g++ "-O3')
    with pytest.raises(KernelUnavailable, match=r"CXX must be a command, was 'g\+\+ \"-O3': No closing quotation"):
        build()


@needs_compiler
@pytest.mark.parametrize(
    ("script", "said"),
    [(f'{COMPILER} -fPIC -shared -x c /dev/null -o "$last"', "hf_sparse_use_team"), ('echo text > "$last"', "")],
    ids=["a library without the functions", "not a library"],
)
def test_what_the_compiler_made_may_not_be_the_kernel(folder, tmp_path, monkeypatch, script, said):
    use_compiler(tmp_path, monkeypatch, script)
    with pytest.raises(KernelUnavailable, match=f"the compiled C.. kernel does not load: .*{said}"):
        _load()


ROWS = "import torch, hf_sparse.functional as F; p = F.entmax15(torch.zeros(64, 20_000)); assert float(p.sum()) > 63\n"
CHOSEN = "from hf_sparse.kernels import chosen; print(chosen('auto', torch.zeros(1 << 20), 1.5))"


@pytest.mark.parametrize(
    ("change", "chosen", "warning"),
    [
        (cut_in_half, "cpp", "the C++ kernel was built again"),
        (lambda path: path.parent.chmod(0o777), "torch", "hf_sparse computes in torch, which is slower"),
    ],
    ids=["a library cut in half", "a folder open to others"],
)
def test_a_process_goes_on_with_one_warning(tmp_path, kept_compiler, change, chosen, warning):
    environment = {key: value for key, value in os.environ.items() if key != "HF_SPARSE_CPP"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "CXX": kept_compiler}

    def run():
        return subprocess.run(
            [sys.executable, "-c", ROWS + ROWS + CHOSEN], env=environment, capture_output=True, text=True
        )

    first = run()
    assert (first.returncode, first.stdout.strip()) == (0, "cpp"), first.stderr
    change(next((tmp_path / "hf_sparse").iterdir()))
    again = run()
    assert (again.returncode, again.stdout.strip()) == (0, chosen), again.stderr
    assert again.stderr.count("RuntimeWarning") == again.stderr.count(warning) == 1


def test_threads_that_come_first_together_build_once(monkeypatch):
    built = []

    def load():
        time.sleep(0.05)
        built.append(threading.get_ident())
        raise _library.KernelUnavailable("none here")

    monkeypatch.setattr(_library, "_load", load)
    monkeypatch.setattr(_library, "_loaded", functools.cache(_library._loaded.__wrapped__))
    monkeypatch.setattr(_library, "_loaded_once", functools.cache(_library._loaded_once.__wrapped__))
    threads = [threading.Thread(target=_library._loaded) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
