"""Figures: saved twice they have the same bytes, and a missing matplotlib is named."""

import sys
from types import SimpleNamespace

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
