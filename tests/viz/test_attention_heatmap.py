"""Heat maps: every nonzero cell is outlined, labels are text."""

import pytest
import torch
from matplotlib.patches import Rectangle

from hf_sparse import plot_attention

WEIGHTS = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0]])


def test_every_nonzero_cell_is_outlined_and_no_other(tmp_path):
    path = tmp_path / "attention.png"
    figure = plot_attention(WEIGHTS, ["a", "b", "c"], ["x", "y"], title="t", path=path)
    axes = figure.axes[0]
    (outlines,) = axes.collections
    corners = {tuple((path.vertices[:4].mean(0)).round().astype(int)[::-1].tolist()) for path in outlines.get_paths()}
    assert corners == {(0, 0), (1, 0), (1, 1)}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b", "c"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "y"]
    assert axes.get_title() == "t"
    assert "50% of the cells are exactly zero" in axes.get_xlabel()
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_a_weight_too_small_for_float32_is_no_zero():
    axes = plot_attention(torch.tensor([[1.0, 1e-50]], dtype=torch.float64), ["a", "b"], ["x"]).axes[0]
    assert len(axes.collections[0].get_paths()) == 2
    assert "; 0% of the cells are exactly zero" in axes.get_xlabel()


def test_a_large_map_takes_no_rectangle_of_matplotlib_for_each_cell(monkeypatch):
    made, init = [], Rectangle.__init__
    monkeypatch.setattr(
        Rectangle, "__init__", lambda self, *args, **options: made.append(init(self, *args, **options))
    )
    plot_attention(torch.ones(3, 3), ["a"] * 3, ["x"] * 3)
    by_small = len(made)
    figure = plot_attention(torch.ones(30, 30), ["a"] * 30, ["x"] * 30)
    assert len(figure.axes[0].collections[0].get_paths()) == 900
    assert len(made) == 2 * by_small


def test_labels_must_fit():
    with pytest.raises(ValueError, match=r"\(queries, keys\) = \(1, 3\), were \(2, 3\)"):
        plot_attention(WEIGHTS, ["a", "b", "c"], ["x"])


@pytest.mark.parametrize("character", ["-", "W"])
@pytest.mark.parametrize("length", [8, 40, 300])
@pytest.mark.parametrize("count", [1, 5])
def test_long_labels_leave_the_picture_its_size(character, length, count, tmp_path):
    labels = [character * length] * count
    figure = plot_attention(torch.eye(count), labels, labels, path=tmp_path / "a.svg")
    figure.canvas.draw()
    assert figure.axes[0].get_window_extent().width / figure.dpi > 0.25 * count


def test_what_is_no_map_of_weights_is_refused():
    with pytest.raises(TypeError, match="weights must be a tensor, was"):
        plot_attention(WEIGHTS.tolist(), ["a", "b", "c"], ["x", "y"])
    with pytest.raises(ValueError, match=r"there are no weights to draw, they were \(0, 3\)"):
        plot_attention(WEIGHTS[:0], ["a", "b", "c"], [])


def test_dollar_signs_are_no_formula(tmp_path):
    figure = plot_attention(WEIGHTS, ["$a", "b$", "$"], ["$x_$", "y"], title="$^$", path=tmp_path / "a.svg")
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["$a", "b$", "$"]


def test_weights_and_labels_that_are_none_are_refused():
    for bad in (torch.tensor([[0.5, -0.1]]), torch.tensor([[0.5, torch.nan]]), torch.tensor([[0.5, torch.inf]])):
        with pytest.raises(ValueError, match="weights must be finite and at least 0"):
            plot_attention(bad, ["a", "b"], ["x"])
    for labels in (None, [3, 4]):
        with pytest.raises(TypeError, match="must be a"):
            plot_attention(WEIGHTS[:1, :2], labels, ["x"])


def test_long_texts_have_smaller_cells_and_longer_ones_are_refused():
    tokens = ["t"] * 200
    figure = plot_attention(torch.eye(200), tokens, tokens)
    assert max(figure.get_size_inches()) < 40
    with pytest.raises(ValueError, match="1001 tokens do not fit a picture, 1000 do; draw a part"):
        plot_attention(torch.eye(1001), ["t"] * 1001, ["t"] * 1001)
