"""The picture of a tree: one box per token, one number per branch, nothing overlaps."""

import pytest

from hf_sparse import hypothesis_tree, plot_hypotheses

TREE = hypothesis_tree([[5, 6, 9, 5, 2], [5, 6, 10, 2], [5, 6, 2]], [0.7, 0.2998, 0.0002])


def test_the_lattice_has_a_box_a_token_and_a_number_a_way(tmp_path):
    path = tmp_path / "lattice.svg"
    figure = plot_hypotheses(TREE, title="$t$", path=path)
    axes = figure.axes[0]
    assert len(axes.patches) == 8  # 5 6, then 9 5 2, 10 2, and 2
    texts = [text.get_text() for text in axes.texts if text.get_text()]
    assert sorted(texts) == sorted(["5", "6", "9", "5", "2", "10", "2", "2", "70.0%", "30.0%", "<0.1%"])
    assert axes.get_title() == "$t$"
    boxes = [patch.get_bbox() for patch in axes.patches]
    for number, one in enumerate(boxes):
        assert 0 < one.x0 < one.x1 < axes.get_xlim()[1]
        assert 0 < one.y0 < one.y1 < axes.get_ylim()[0]
        for other in boxes[:number]:
            apart = one.x0 >= other.x1 - 1e-9 or other.x0 >= one.x1 - 1e-9 or one.y0 > other.y1 or other.y0 > one.y1
            assert apart
    assert path.read_text(encoding="utf-8").startswith("<?xml")
    plot_hypotheses(TREE, path=tmp_path / "lattice.png")
    assert (tmp_path / "lattice.png").read_bytes()[:4] == b"\x89PNG"


def test_the_likeliest_way_goes_straight_on_and_wide_characters_get_room():
    class Tokenizer:
        def convert_ids_to_tokens(self, ids):
            return ["語" if token == 9 else "$" for token in ids]

        def convert_tokens_to_string(self, tokens):
            return tokens[0]

    figure = plot_hypotheses(TREE, Tokenizer())
    boxes = {round(patch.get_x(), 6): patch for patch in figure.axes[0].patches if patch.get_y() < 0.3}
    assert len(boxes) == 5  # the first row: 5 6 9 5 2
    widths = sorted({round(patch.get_width(), 6) for patch in boxes.values()})
    assert len(widths) == 2
    assert widths[1] > 1.3 * widths[0]


def test_too_many_hypotheses_do_not_fit_a_picture():
    tree = hypothesis_tree([[token, 2] for token in range(3, 104)], [1 / 101] * 101)
    with pytest.raises(ValueError, match=r"101 hypotheses do not fit a picture, 100 do; draw the likeliest"):
        plot_hypotheses(tree)
