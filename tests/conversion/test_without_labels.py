"""Models without labels, heads or losses are calibrated by their outputs; what a mask excludes does not count."""

import copy
import logging

import pytest
import torch
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertModel,
    ProphetNetConfig,
    ProphetNetForCausalLM,
    SegformerConfig,
    SegformerForSemanticSegmentation,
    ViTConfig,
    ViTModel,
    Wav2Vec2Config,
    Wav2Vec2Model,
)

from hf_sparse import calibrate, compare, sparse_config, sparsify
from hf_sparse.conversion._batches import answer
from hf_sparse.conversion._padding import counted
from hf_sparse.functional import entmax15
from hf_sparse.metrics import jensen_shannon
from tests.tiny_models import spread, tiny_model, tokens


def encoder():
    return tiny_model("bert").bert


def padded(batches=3):
    generator = torch.Generator().manual_seed(0)
    mask = (torch.arange(9) < torch.tensor([[9], [6], [4]])).long()
    return [
        {"input_ids": torch.randint(5, 20, (3, 9), generator=generator), "attention_mask": mask}
        for _ in range(batches)
    ]


def states_lost(sparse, dense, batch):
    with torch.no_grad():
        kept = batch["attention_mask"].bool()
        h, h0 = (model(**batch).last_hidden_state[kept] for model in (sparse, dense))
    return float((h - h0).square().sum() / (h0 - h0.mean(0)).square().sum())


def test_an_encoder_is_judged_by_its_states_where_there_is_no_padding():
    model, batches = sparsify(encoder(), attn="sparsemax"), padded()
    before = states_lost(model, encoder(), batches[-1])
    report = calibrate(model, batches, progress=False)
    assert report.measure == "states"
    assert report.dense.targets == 19
    assert report.dense.loss is None
    assert report.before.divergence == pytest.approx(before, rel=1e-3)
    assert report.after.divergence == pytest.approx(states_lost(model, encoder(), batches[-1]), rel=1e-3)
    assert report.after.divergence < report.before.divergence
    assert "19 positions held out" in str(report)
    assert "ppl" not in str(report)


def model_of_rewards():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    return spread(BertForSequenceClassification(BertConfig(vocab_size=23, num_labels=1, **sizes)).eval())


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 2])
def test_the_share_of_the_variance_is_that_of_all_batches_together(rows):
    dense = model_of_rewards()
    ids = tokens(16)
    # Every fourth batch is judged, the last among them.
    judged = torch.cat([part for number, part in enumerate(ids.split(rows)) if number % 4 == 3])
    y0 = dense(judged).logits
    model = sparsify(copy.deepcopy(dense), attn="sparsemax")
    lost = float((model(judged).logits - y0).square().sum() / (y0 - y0.mean()).square().sum())
    report = calibrate(model, [{"input_ids": part} for part in ids.split(rows)], progress=False)
    assert report.measure == "states"
    assert report.before.divergence == pytest.approx(lost, rel=1e-4)
    assert 0 < report.after.divergence < report.before.divergence


def test_outputs_that_do_not_differ_have_no_variance_to_lose():
    model = sparsify(model_of_rewards(), attn="sparsemax")
    with pytest.raises(ValueError, match="outputs do not differ"):
        calibrate(model, [{"input_ids": row} for row in tokens(2).split(1)], progress=False)


def test_compare_takes_encoders_too():
    found = compare(encoder(), padded(), attn="sparsemax", budget=0.05, progress=False)
    assert found.measure == "states"
    assert found.asked["attention, recommended"].divergence <= 0.05
    assert "relative error of each encoder head's weights" in str(found)


@pytest.mark.parametrize("measure", ["eps_kl", "js", "states"])
def test_measures_are_chosen_by_name(measure):
    model = sparsify(tiny_model("gpt2"), attn="sparsemax")
    report = calibrate(model, padded(), measure=measure, progress=False)
    assert report.measure == measure
    assert report.after.divergence <= report.before.divergence


def test_a_head_is_fitted_without_labels():
    model = sparsify(tiny_model("gpt2"), attn="entmax15", head="entmax15")
    report = calibrate(model, padded(), progress=False)
    assert report.after.divergence < report.before.divergence
    assert report.dense.support == 23
    assert sparse_config(model).head.temperature > 1
    found = compare(tiny_model("gpt2"), padded(), head="entmax15", progress=False)
    assert found.recommended.divergence <= found.asked["head"].divergence


def test_an_image_encoder_needs_no_mask():
    torch.manual_seed(0)
    config = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
    model = sparsify(ViTModel(ViTConfig(**config, image_size=8, patch_size=4)).eval(), attn="sparsemax")
    batches = [{"pixel_values": torch.randn(2, 3, 8, 8)} for _ in range(2)]
    assert calibrate(model, batches, progress=False).dense.targets == 2 * 5


def test_classes_of_an_images_places_are_those_that_the_loss_takes():
    torch.manual_seed(0)
    config = SegformerConfig(
        num_encoder_blocks=1, depths=[1], sr_ratios=[1], hidden_sizes=[16], num_attention_heads=[2], mlp_ratios=[2],
        patch_sizes=[3], decoder_hidden_size=16, num_labels=5,
    )  # fmt: skip
    images = {"pixel_values": torch.randn(2, 3, 16, 24)}
    model = spread(SegformerForSemanticSegmentation(config).eval())
    logits = model(**images).logits  # at each fourth pixel
    assert torch.equal(answer(model, images).rows, logits.movedim(1, -1).flatten(0, 2))
    report = calibrate(sparsify(model, attn="sparsemax", example=images), [images], progress=False)
    assert report.dense.targets == 2 * 4 * 6
    assert report.dense.support == 5


def test_it_is_never_worse_by_its_own_report():
    """At alpha near 1 the map is closest as it is; whatever is fitted must not take that away."""
    model = sparsify(tiny_model("gpt2"), attn={"name": "entmax", "alpha": 1.01})
    report = calibrate(model, padded(), progress=False)
    assert report.after.divergence <= report.before.divergence


def test_edges_bound_what_attention_keeps():
    found = {}
    for edges in (0.9, 0.4):
        model = sparsify(encoder(), attn="entmax15")
        report = calibrate(model, padded(), edges=edges, progress=False)
        assert report.edges <= edges
        found[edges] = report.after.divergence
    assert found[0.9] < found[0.4]


def test_the_share_of_edges_counts_every_head_where_layers_have_different_numbers_of_them():
    bart = tiny_model("bart", encoder_attention_heads=1, decoder_attention_heads=8)
    report = calibrate(sparsify(bart, attn="sparsemax"), padded(), progress=False)
    assert {layer.heads for layer in report.layers} == {1, 8}
    kept, visible = (
        sum(layer.heads * getattr(layer.after, name) for layer in report.layers)
        for name in ("support", "dense_support")
    )
    assert report.edges == pytest.approx(kept / visible)


def test_texts_of_one_token_leave_attention_as_it_was():
    """One key has all of the weight at any temperature."""
    model = sparsify(tiny_model("llama"), attn="entmax15")
    report = calibrate(model, [{"input_ids": torch.tensor([[5], [6]])}] * 2, progress=False)
    assert report.layers
    assert {map_config.temperature for map_config in sparse_config(model).attention_maps} == {1.0}


def test_attention_that_shows_its_heads_in_some_calls_alone_is_calibrated():
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_decoder_attention_heads": 4, "ngram": 2}
    torch.manual_seed(0)
    config = ProphetNetConfig(
        vocab_size=23, num_decoder_layers=1, decoder_ffn_dim=32, is_decoder=True, is_encoder_decoder=False, **sizes
    )
    model = sparsify(spread(ProphetNetForCausalLM(config).eval()), attn="sparsemax")
    report = calibrate(model, padded(), progress=False)
    assert report.after.divergence < report.before.divergence
    assert any(layer.heads == 1 for layer in report.layers)


def test_a_time_budget_reads_less():
    calls = []
    model = sparsify(encoder(), attn="entmax15")
    model.register_forward_hook(lambda *_: calls.append(1))
    calibrate(model, padded(8), max_seconds=1e-6, progress=False)
    in_haste = len(calls)
    calls.clear()
    calibrate(model, padded(8), progress=False)
    assert in_haste == 1 + 2 * 3  # one batch read; the dense model, the old attention and other temperatures judged
    assert len(calls) > 6 + 2 * 2


@torch.no_grad()
def test_a_time_budget_fits_the_head_on_the_positions_that_were_kept(monkeypatch):
    monkeypatch.setattr("hf_sparse.conversion._head_rows._KEPT_LOGITS", 23 * 6 * 4)  # four of each of six batches
    batches = padded(8)
    model = sparsify(tiny_model("llama"), head="entmax15")
    calibrate(model, batches, max_seconds=1e-6, progress=False)  # reads the first
    z = tiny_model("llama")(**batches[0]).logits[batches[0]["attention_mask"].bool()][[0, 6, 12, 18]]
    temperature = sparse_config(model).head.temperature
    assert temperature != 1.0
    # Where a head's own loss is smallest, it and the dense distribution agree on the mean score.
    assert entmax15(z / temperature).mul(z).sum() == pytest.approx(float(z.softmax(-1).mul(z).sum()), rel=2e-2)


@pytest.mark.parametrize(
    ("batch", "kind", "whole", "shape", "expected"),
    [
        ({"attention_mask": torch.tensor([[1, 1, 0]])}, "decoder", False, (1, 3), [[True, True, False]]),
        ({"attention_mask": torch.tensor([[1, 0, 0, 0]])}, "encoder", True, (1, 2), [[True, False]]),
        ({"attention_mask": torch.tensor([[1, 0]])}, "cross", True, (1, 2), None),
        ({"labels": torch.tensor([[4, -100]])}, "cross", True, (1, 2), [[True, False]]),
        ({"decoder_attention_mask": [[1, 0]], "labels": torch.tensor([[4, 4]])}, "decoder", True, (1, 2),
         [[True, False]]),
        ({"attention_mask": torch.ones(1, 2)}, "encoder", False, (1, 2), None),
        ({"attention_mask": torch.tensor([[[[0, 0, 0], [0, 1, 0], [0, 1, 1]]]]).bool()}, "decoder", False, (1, 3),
         [[False, True, True]]),
        ({"attention_mask": torch.tensor([[[[0.0, -1e38], [0.0, -1e38]]]]).mul(3)}, "encoder", True, (1, 2),
         [[True, False]]),
        ({"labels": torch.tensor([[4, -100]])}, "decoder", False, (1, 2), None),
        ({"attention_mask": torch.tensor([[[1, 1], [1, 0]]])}, "encoder", False, (2, 2),
         [[True, True], [True, False]]),
    ],
)  # fmt: skip
def test_what_a_mask_excludes(batch, kind, whole, shape, expected):
    found = counted(batch, kind, whole, shape)
    assert (None if found is None else found.tolist()) == expected


def test_silence_is_left_out_where_frames_are_not_so_many_samples_each():
    torch.manual_seed(0)
    config = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
    model = sparsify(Wav2Vec2Model(Wav2Vec2Config(**config)).eval(), attn="entmax15")
    mask = (torch.arange(4000) < torch.tensor([[4000], [1500]])).long()
    batch = {"input_values": torch.randn(2, 4000), "attention_mask": mask}
    frames = int(model._get_feature_vector_attention_mask(12, mask).sum())
    assert 12 < frames < 24
    assert calibrate(model, [batch], progress=False).dense.targets == frames


def test_a_mask_that_cannot_be_read_is_reported(caplog):
    with caplog.at_level(logging.WARNING, logger="hf_sparse"):
        assert counted({"attention_mask": torch.tensor([[1, 1, 0]])}, "encoder", False, (1, 5)) is None
    assert "5 positions of 1 rows cannot be told apart by a mask of shape (1, 3): all of them count" in caplog.text


def test_outputs_without_anything_to_compare_are_refused():
    class Pooled(BertModel):
        def forward(self, *args, **options):
            return {"pooled": super().forward(*args, **options).pooler_output}

    model = sparsify(Pooled(encoder().config).eval(), attn="entmax15")
    with pytest.raises(ValueError, match="returns no logits, start_logits or last_hidden_state to compare"):
        calibrate(model, padded(), progress=False)
    with pytest.raises(ValueError, match="measure='js' compares distributions, and BertModel returns none here"):
        calibrate(sparsify(encoder(), attn="entmax15"), padded(), measure="js", progress=False)


@torch.no_grad()
def test_answers_of_padded_batches_are_those_of_the_rows_alone():
    model, batch = encoder(), padded(1)[0]
    found = answer(model, batch)
    alone = [model(input_ids=row[None, :n]).last_hidden_state[0] for row, n in zip(batch["input_ids"], (9, 6, 4))]
    torch.testing.assert_close(found.rows, torch.cat(alone), atol=1e-5, rtol=1e-4)
    assert not found.is_logits


def answers_of(model, batch):
    """Where answers start and end: a distribution over each row's own positions, for each of the two."""
    rows = zip(batch["input_ids"], batch["attention_mask"].sum(-1))
    outputs = [model(input_ids=row[None, :length]) for row, length in rows]
    return [output[name][0].softmax(-1) for output in outputs for name in ("start_logits", "end_logits")]


@torch.no_grad()
def test_a_model_that_points_to_answers_is_judged_by_where_they_start_and_end():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    dense = spread(BertForQuestionAnswering(BertConfig(vocab_size=23, **sizes)).eval())
    model, batches = sparsify(copy.deepcopy(dense), attn="sparsemax"), padded()
    expected = answers_of(dense, batches[-1])
    for p, q in zip(expected, answer(dense, batches[-1]).rows.softmax(-1), strict=True):
        torch.testing.assert_close(q[: len(p)], p, atol=1e-5, rtol=1e-4)
        assert not q[len(p) :].any()
    before = [float(jensen_shannon(q, p)) for q, p in zip(answers_of(model, batches[-1]), expected)]
    with torch.enable_grad():
        report = calibrate(model, batches, measure="js", progress=False)
    after = [float(jensen_shannon(q, p)) for q, p in zip(answers_of(model, batches[-1]), expected)]
    assert report.dense.targets == 6
    assert report.before.divergence == pytest.approx(sum(before) / 6, rel=1e-3)
    assert report.after.divergence == pytest.approx(sum(after) / 6, rel=1e-3)
    assert report.after.divergence < report.before.divergence
    assert compare(dense, batches, attn="sparsemax", progress=False).measure == "eps_kl"
    # The places of batches of different lengths are no vectors of one space.
    refused = pytest.raises(ValueError, match=r"BertForQuestionAnswering scores the positions of each batch")
    with refused:
        calibrate(model, batches, measure="states", progress=False)
    with refused:
        compare(dense, batches, attn="sparsemax", measure="states", progress=False)


BAD = [
    ({"edges": 0}, ValueError, r"edges must be in \(0, 1\], or None, was 0"),
    ({"coverage": 1}, ValueError, r"coverage must be in \(0, 1\), or None, was 1"),
    ({"classes": 0.5}, ValueError, "classes must be >= 1 and finite, or None, was 0.5"),
    ({"max_seconds": 0}, ValueError, "max_seconds must be > 0, or None, was 0"),
    ({"measure": "kl"}, ValueError, "measure must be one of 'auto', 'eps_kl', 'js', 'states', was 'kl'"),
    ({"edges": 0.01}, ValueError, r"edges=0\.01 is out of reach"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD, ids=str)
def test_bad_requests_are_refused(arguments, error, message):
    model = sparsify(encoder(), attn="entmax15")
    config = sparse_config(model)
    with pytest.raises(error, match=message):
        calibrate(model, padded(), **arguments, progress=False)
    assert sparse_config(model) == config


def test_edges_are_for_attention():
    with pytest.raises(ValueError, match="edges is for attention, and this model's is dense"):
        calibrate(sparsify(tiny_model("gpt2"), attn="softmax"), padded(), edges=0.5, progress=False)
    with pytest.raises(ValueError, match="edges is for attention, and this model's is dense"):
        calibrate(sparsify(tiny_model("gpt2"), head="entmax15"), padded(), edges=0.5, progress=False)


def test_edges_are_refused_where_no_query_to_fit_on_counts():
    model = sparsify(tiny_model("gpt2"), attn="entmax15")
    ids = torch.tensor([[5, 6, 7, 8]])
    padding = {"input_ids": ids, "attention_mask": torch.zeros_like(ids)}
    with pytest.raises(ValueError, match=r"edges=0\.5 is for attention, and no query of sparse attention counts in"):
        calibrate(model, [padding, {"input_ids": ids}], edges=0.5, progress=False)


def test_alphas_are_fitted_unless_told_otherwise():
    names = {}
    for fit_alpha in (True, False):
        model = sparsify(encoder(), attn="entmax15")
        calibrate(model, padded(), edges=0.4, fit_alpha=fit_alpha, progress=False)
        names[fit_alpha] = {map_config.name for map_config in sparse_config(model).attention_maps}
    assert names == {True: {"entmax"}, False: {"entmax15"}}
