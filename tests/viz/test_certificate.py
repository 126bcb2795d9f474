"""The picture and the report of a certificate: a cell is empty where deletion is proved to change nothing."""

import pytest
import torch

from hf_sparse import (
    DeletionCertificate,
    Ensemble,
    certify,
    enumerate_support,
    html_report,
    plot_certificate,
    sparsify,
)
from tests.generation.spaced_tokenizer import spaced_tokenizer
from tests.tiny_models import tiny_model
from tests.viz.test_html_report import Page

FOUND = DeletionCertificate([1, 2, 3, 4], {0: [4], 2: [2, 4]}, change=0.0, change_removed=1e-7)
TEXT = " the cats the cc the cats s the"


def cells(figure):
    return torch.as_tensor(figure.axes[0].images[0].get_array())


def test_a_row_for_each_output_and_one_for_all(tmp_path):
    path = tmp_path / "certificate.png"
    figure = plot_certificate(FOUND, ["pad", "a", "$b$", "c", "d"], ["x", "y", "z"], title="$t$", path=path)
    assert cells(figure).tolist() == [[0, 0, 0, 1], [0, 1, 0, 1], [0, 1, 0, 1]]
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "$b$", "c", "d"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "z", "all of them"]
    assert "2 of 4 inputs can be deleted together" in axes.get_xlabel()
    assert axes.get_title() == "$t$"
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_numbers_stand_for_labels_that_are_not_given():
    axes = plot_certificate(FOUND).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "3", "4"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "2", "all of them"]


def test_long_labels_leave_the_picture_its_size():
    figure = plot_certificate(FOUND, ["W" * 40] * 5, ["x" * 100] * 3)
    figure.canvas.draw()
    assert figure.axes[0].get_window_extent().width / figure.dpi > 0.25 * 4


def test_tokens_without_a_label_are_refused():
    with pytest.raises(ValueError, match="inputs must be labels of at least 5 tokens, were 2"):
        plot_certificate(FOUND, ["a", "b"])
    with pytest.raises(ValueError, match="outputs must be labels of at least 3 tokens, were 1"):
        plot_certificate(FOUND, None, ["x"])
    with pytest.raises(ValueError, match="the certificate is of no output"):
        plot_certificate(DeletionCertificate([0], {}, 0.0, None))


# Of one layer and one head, so that something can go.
SIZES = {
    "bart": {"encoder_layers": 1, "encoder_attention_heads": 1, "decoder_layers": 1, "decoder_attention_heads": 1},
    "llama": {"num_hidden_layers": 2, "num_attention_heads": 2},
}


def reported(name, **options):
    model = sparsify(
        tiny_model(name, vocab_size=7, seed=2, **SIZES[name]).double(),
        attn={"name": "sparsemax", "temperature": 0.03},
        head="sparsemax",
    )
    model.generation_config.forced_eos_token_id = None
    return model, html_report(model, spaced_tokenizer(), TEXT, max_new_tokens=8, **options)


@pytest.mark.parametrize("name", ["bart", "llama"])
def test_the_report_shows_what_each_token_of_the_likeliest_hypothesis_needs(name):
    model, html = reported(name, deletions=True)
    inputs = {"input_ids": torch.tensor([spaced_tokenizer()(TEXT).input_ids])}
    best = torch.tensor([enumerate_support(model, inputs, 50, 8).sequences[0]])
    start = inputs["input_ids"]
    if model.config.is_encoder_decoder:
        start = torch.full((1, 1), model.generation_config.decoder_start_token_id)
    (found,) = certify(model, inputs, torch.cat([start, best], dim=1))
    assert found.deletable
    page = Page(html)
    shown = " ".join(" ".join(page.text["section"]).split())
    assert f"{len(found.deletable)} of the {len(found.tokens)} input tokens can be deleted together" in shown
    table = html.split("<caption>Influence of the input</caption>")[1].split("</table>")[0]
    rows = [row.split("<td>") for row in table.split("<tbody>")[1].split("<tr>")[1:]]
    counts = [(row[1].count("<code"), row[2].count("<code")) for row in rows]
    expected = [len(needed) for needed in found.needed.values()] + [len(found.kept)]
    assert counts == [(count, len(found.tokens) - count) for count in expected]


def test_the_report_proves_deletions_only_where_it_is_asked_to():
    assert "Tokens without influence" not in reported("llama")[1]


def test_a_report_without_proof_is_refused():
    dense = sparsify(tiny_model("llama", vocab_size=7, seed=3), head="sparsemax")
    with pytest.raises(ValueError, match="no certificate for this LlamaForCausalLM: its attention is dense"):
        html_report(dense, spaced_tokenizer(), TEXT, max_new_tokens=8, deletions=True)
    members = [
        sparsify(tiny_model("bart", vocab_size=7, seed=seed), attn="sparsemax", head="sparsemax") for seed in (3, 4)
    ]
    with pytest.raises(ValueError, match="no certificate for this"):
        html_report(Ensemble(members), spaced_tokenizer(), TEXT, max_new_tokens=5, deletions=True)
