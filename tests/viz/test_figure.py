"""Figures: saved twice they have the same bytes, and a missing matplotlib is named."""

import sys
from pathlib import Path
from types import SimpleNamespace
from xml.dom import minidom

import pytest
import torch

from hf_sparse import (
    DeletionCertificate,
    hypothesis_tree,
    plot_attention,
    plot_certificate,
    plot_head_errors,
    plot_hypotheses,
)
from hf_sparse.viz._figure import new_figure, save_figure

COMPARISON = SimpleNamespace(
    heads=["any"], kinds=["decoder"], errors=lambda kind, alpha: torch.tensor([[0.1, 0.01], [0.001, torch.nan]])
)
PLOTS = {
    "attention": lambda **options: plot_attention(torch.eye(2), ["a", "b"], ["x", "y"], **options),
    "certificate": lambda **options: plot_certificate(DeletionCertificate([0, 1], {0: [1]}, 0.0, None), **options),
    "head_errors": lambda **options: plot_head_errors(COMPARISON, **options),
    "hypotheses": lambda **options: plot_hypotheses(hypothesis_tree([[5, 2], [6, 2]], [0.75, 0.25]), **options),
}
plots = pytest.mark.parametrize("plot", PLOTS.values(), ids=PLOTS.keys())


@plots
def test_the_same_picture_saved_twice_has_the_same_bytes(plot, tmp_path):
    for name in ("one.svg", "two.svg"):
        plot(title="t", path=tmp_path / name)
    one, two = ((tmp_path / name).read_bytes() for name in ("one.svg", "two.svg"))
    assert one.startswith(b"<?xml")
    assert one == two


@plots
def test_a_missing_matplotlib_is_named(plot, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pictures need matplotlib: pip install 'hf_sparse\[plots\]'"):
        plot()


@plots
def test_a_figure_shows_itself_in_a_notebook(plot):
    assert plot()._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "PDF"])
def test_any_text_can_be_drawn(suffix, tmp_path):
    labels = ["\ufeff", "\x00\x1b[31m", "\u200f$x$"]
    path = tmp_path / f"picture.{suffix}"
    plot_attention(torch.eye(3), labels, labels, title="\x07<b>", path=path)
    plot_certificate(DeletionCertificate([0, 1, 2], {0: [1]}, 0.0, None), labels, path=path)
    assert path.stat().st_size > 2000
    if suffix == "svg":
        minidom.parse(str(path))


def test_a_picture_that_cannot_be_drawn_leaves_the_old_file_alone(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    path = tmp_path / "picture.pdf"
    path.write_text("old")
    monkeypatch.setattr(Figure, "savefig", lambda self, file, **options: file.write(b"%PDF") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        plot_attention(torch.eye(2), ["a", "b"], ["x", "y"], path=path)
    assert path.read_text() == "old"


def test_a_path_without_a_suffix_gets_that_of_a_png(tmp_path):
    plot_attention(torch.eye(2), ["a", "b"], ["x", "y"], path=tmp_path / "picture")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["llama-3.1", "head.0", "", ".png"])
def test_names_that_are_no_pictures_are_refused_before_anything_is_drawn(tmp_path, name):
    with pytest.raises(ValueError, match=r"path must be the name of a picture that ends in \.png"):
        new_figure(2, 2, f"{tmp_path}/{name}" if name else name)


def test_a_folder_that_does_not_exist_and_a_picture_that_is_too_large_are_refused_first(tmp_path):
    with pytest.raises(FileNotFoundError, match="the folder of path does not exist"):
        new_figure(2, 2, tmp_path / "missing" / "x.png")
    with pytest.raises(ValueError, match="a picture of 70 by 2 inches is too large"):
        new_figure(70, 2)


def test_a_file_that_cannot_be_written_whole_leaves_the_one_before(tmp_path, monkeypatch):
    file = tmp_path / "x.svg"
    file.write_text("before")

    def full(path, content):
        with open(path, "wb") as stream:
            stream.write(content[:3])
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space left"):
        save_figure(new_figure(2, 2), file)
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]
