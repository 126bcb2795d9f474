"""The weights of models with bounds or coverage: what the settings promise, whatever the padding."""

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutput

from hf_sparse import sparsify
from tests.attention.sequential.models import (
    BOUNDED,
    COVERED,
    SOURCE,
    TARGET,
    bounded,
    covered,
    every_case,
    forced,
    inputs_of,
    sequential,
    step_by_step,
)
from tests.tiny_models import SEQ2SEQS, attentions, tiny_model


@pytest.mark.parametrize("kind", BOUNDED)
@pytest.mark.parametrize("name", [*SEQ2SEQS, "llama", "gpt2"])
@torch.no_grad()
def test_no_word_gets_more_than_its_fertility(name, kind):
    model = bounded(name, kind)
    output = model(**inputs_of(model, SOURCE, TARGET), output_attentions=True)
    received = torch.stack(output.get("cross_attentions") or output.attentions).sum(3)
    most = float((received.mean(2) if BOUNDED[kind].get("shared") else received).max())
    assert most == pytest.approx(BOUNDED[kind]["fertility"], abs=1e-5)  # some bound binds, or the test shows nothing


@pytest.mark.parametrize("kind", COVERED)
@pytest.mark.parametrize("name", SEQ2SEQS)
@torch.no_grad()
def test_weights_with_coverage_sum_to_one(name, kind):
    weights = torch.stack(attentions(covered(name, kind), input_ids=SOURCE, decoder_input_ids=TARGET)[-2:])
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("name", "kind"), every_case())
@torch.no_grad()
def test_source_padding_on_either_side_changes_nothing(name, kind, side):
    model = sequential(name, kind)
    by = (3, 0) if side == "left" else (0, 3)
    states = torch.nn.functional.pad(model.get_encoder()(SOURCE).last_hidden_state, (0, 0, *by), value=0.7)
    mask = torch.nn.functional.pad(torch.ones_like(SOURCE), by)
    inputs = {"encoder_outputs": BaseModelOutput(states), "attention_mask": mask, "decoder_input_ids": TARGET}
    fertility = torch.rand(2, 6, generator=torch.Generator().manual_seed(0)) + 0.5
    for given in ({}, {"fertility": fertility}) if kind in BOUNDED else ({},):
        padded = {key: torch.nn.functional.pad(value, by) for key, value in given.items()}
        expected = forced(model, SOURCE, TARGET, **given)
        torch.testing.assert_close(model(**inputs, **padded).logits, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", SEQ2SEQS)
@torch.no_grad()
def test_fertilities_are_counts_or_numbers(name):
    model = bounded(name, fertility="given")
    counts = torch.tensor([[0, 2, 1, 0, 1, 0], [1, 1, 0, 3, 0, 1]])  # as an aligner gives them
    torch.testing.assert_close(
        forced(model, SOURCE, TARGET, fertility=counts), forced(model, SOURCE, TARGET, fertility=counts.double())
    )
    one = forced(model, SOURCE, TARGET, fertility=1.0)
    torch.testing.assert_close(one, forced(model, SOURCE, TARGET, fertility=torch.ones(2, 6)))


@pytest.mark.parametrize(
    "change",
    [{"fertility": 1.5}, {"fertility": [1, 2, 1, 2]}, {"exhaustion": 0.7}, {"sink_score": 1.0}, {"shared": True}],
    ids=str,
)
@torch.no_grad()
def test_every_setting_changes_the_result(change):
    one, other = bounded("bart"), bounded("bart", **change)
    assert not torch.allclose(forced(one, SOURCE, TARGET), forced(other, SOURCE, TARGET), atol=1e-3)


@torch.no_grad()
def test_the_sink_takes_what_words_may_not_and_without_it_words_take_all():
    sunk, whole = bounded("bart", fertility=3.0), bounded("bart", fertility=3.0, sink=False)
    with_sink, without = (
        attentions(model, input_ids=SOURCE, decoder_input_ids=TARGET)[-1].sum(-1) for model in (sunk, whole)
    )
    assert bool((with_sink <= 1 + 1e-9).all() and (with_sink < 0.99).any())
    torch.testing.assert_close(without, torch.ones_like(without))
    with pytest.raises(ValueError, match=r"nothing left for step 6 of sentence 0 .* short of the 1 that a step takes"):
        forced(whole, SOURCE, TARGET, fertility=1.0)


@torch.no_grad()
def test_layers_have_maps_of_their_own():
    model = sparsify(tiny_model("bart"), attn={"cross": [BOUNDED["csparsemax"], None], "encoder": "entmax15"})
    first, second = model(input_ids=SOURCE, decoder_input_ids=TARGET, output_attentions=True).cross_attentions
    assert float(first.sum(2).max()) <= 1 + 1e-5 < float(second.sum(2).max())


@torch.no_grad()
def test_self_attention_and_cross_attention_can_both_have_bounds():
    model = sparsify(tiny_model("t5").double(), attn={"cross": BOUNDED["csoftmax"], "decoder": BOUNDED["csparsemax"]})
    fertility = torch.full((2, 6), 0.7)
    logits, _ = step_by_step(model, SOURCE, TARGET, [3, 1, 5], fertility=fertility)
    torch.testing.assert_close(logits, forced(model, SOURCE, TARGET, fertility=fertility), atol=1e-9, rtol=0)
