"""The picture of head errors: one panel per kind of attention, heads by layers, on a logarithmic scale."""

from types import SimpleNamespace

import pytest
import torch

from hf_sparse import plot_head_errors

ERRORS = {
    "encoder": torch.tensor([[0.1, 1e-6, 0.02]]),
    "cross": torch.tensor([[0.001, 0.01, torch.nan], [0.05, 0.002, 0.003]]),
}


def comparison(errors=ERRORS):
    return SimpleNamespace(heads=list(errors), kinds=list(errors), errors=lambda kind, alpha: errors[kind])


def test_every_kind_has_a_panel_with_its_errors_by_layer_and_head(tmp_path):
    path = tmp_path / "heads.png"
    figure = plot_head_errors(comparison(), title="all", path=path)
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == list(ERRORS)
    for axes, errors in zip(panels, ERRORS.values()):
        drawn = torch.as_tensor(axes.images[0].get_array().filled(torch.nan))
        # Four decades are told apart: 1e-6 is drawn as 1e-5.
        torch.testing.assert_close(drawn, errors.T.clamp(min=1e-5), equal_nan=True)
        assert axes.get_xlabel() == "layer"
    assert figure.get_suptitle() == "all"
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_alpha_chooses_the_errors():
    by_alpha = {1.5: 0.1, 2.0: 0.2}
    tried = SimpleNamespace(
        heads=["any"], kinds=["decoder"], errors=lambda kind, alpha: torch.full((1, 2), by_alpha[alpha])
    )
    for alpha, error in by_alpha.items():
        (image,) = plot_head_errors(tried, alpha=alpha).axes[0].images
        assert image.get_array().max() == pytest.approx(error)


def test_a_comparison_without_attention_is_refused():
    with pytest.raises(ValueError, match="without attention heads; call compare"):
        plot_head_errors(comparison({}))
