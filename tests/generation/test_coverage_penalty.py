"""Beam search with a coverage penalty against the formula on every string, and on what stock generate returns."""

import copy
import itertools
import math

import pytest
import torch
from transformers import LogitsProcessorList, StoppingCriteriaList

from hf_sparse import CoveragePenalty, sparsify
from tests.tiny_models import BOS, EOS, PAD, tiny_model

VOCABULARY = 6
SOURCE = torch.tensor([[3, 4, 5, 3], [5, 4, PAD, PAD]])
MASK = (SOURCE != PAD).long()


def model_with(attention="softmax", name="bart"):
    model = sparsify(tiny_model(name, vocab_size=VOCABULARY), attn={"cross": attention})
    model.generation_config.max_length = None
    return model


@torch.no_grad()
def score(model, source, target, penalty):
    """The score of one finished target by its definition, without a cache, for one unpadded source."""
    start = model.generation_config.decoder_start_token_id
    ids = torch.tensor([[start, *target[:-1]]])
    output = model(input_ids=source[None], decoder_input_ids=ids, output_attentions=True)
    log_p = output.logits[0].log_softmax(-1)[range(len(target)), target].sum()
    attended = torch.stack(output.cross_attentions).mean((0, 2))[0].sum(0)
    coverage = sum(math.log(max(penalty.epsilon, min(1.0, float(a)))) for a in attended)
    return float(log_p) / ((5 + len(target)) / 6) ** penalty.alpha + penalty.beta * coverage


def generated(model, penalty, **options):
    options = {"max_new_tokens": 4, "output_scores": True, "return_dict_in_generate": True} | options
    return model.generate(input_ids=SOURCE, attention_mask=MASK, custom_generate=penalty, **options)


def strings(sequences):
    """Generated ids up to the end token."""
    rows = [row[1:].tolist() for row in sequences]
    return [row[: row.index(EOS) + 1] if EOS in row else row for row in rows]


@pytest.mark.parametrize(
    "penalty",
    [CoveragePenalty(beta=0.0), CoveragePenalty(beta=1.0), CoveragePenalty(beta=3.0, alpha=0.6, epsilon=0.3)],
    ids=["none", "coverage", "both"],
)
def test_search_wide_enough_finds_the_best_string_of_all(penalty):
    model = model_with("sparsemax")
    output = generated(model, penalty, num_beams=40, max_new_tokens=3)
    tokens = [token for token in range(VOCABULARY) if token != EOS]
    targets = [[*prefix, EOS] for length in range(3) for prefix in itertools.product(tokens, repeat=length)] + [
        list(prefix) for prefix in itertools.product(tokens, repeat=3)
    ]
    for row, source in enumerate(SOURCE):
        scores = {tuple(target): score(model, source[MASK[row] > 0], target, penalty) for target in targets}
        best = max(scores, key=scores.get)
        assert strings(output.sequences)[row] == list(best)
        assert float(output.sequences_scores[row]) == pytest.approx(scores[best], abs=1e-5)


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize(("name", "attention"), [("bart", "softmax"), ("marian", "entmax15"), ("t5", "softmax")])
def test_returned_scores_are_those_of_the_formula(name, attention, cache):
    penalty = CoveragePenalty(beta=0.7, alpha=0.4, epsilon=0.2)
    model = model_with(attention, name)
    output = generated(model, penalty, num_beams=3, num_return_sequences=3, use_cache=cache, max_new_tokens=6)
    for number, target in enumerate(strings(output.sequences)):
        row = number // 3
        expected = score(model, SOURCE[row][MASK[row] > 0], target, penalty)
        assert float(output.sequences_scores[number]) == pytest.approx(expected, abs=1e-4)


def test_without_weights_it_is_plain_beam_search():
    model = model_with()
    plain = model.generate(
        input_ids=SOURCE,
        attention_mask=MASK,
        num_beams=3,
        max_new_tokens=6,
        length_penalty=0.0,
        early_stopping="never",
    )
    assert torch.equal(generated(model, CoveragePenalty(beta=0.0), num_beams=3, max_new_tokens=6).sequences, plain)


def test_every_setting_changes_the_scores():
    model = model_with("sparsemax")
    settings = ({}, {"beta": 1.0}, {"alpha": 1.0}, {"epsilon": 1.0})
    best = [generated(model, CoveragePenalty(**changed), num_beams=20).sequences_scores for changed in settings]
    assert len({round(float(score.sum()), 5) for score in best}) == 4


def test_counting_of_supports_goes_on_afterwards():
    from hf_sparse.attention import attention_sites

    model = model_with()
    generated(model, CoveragePenalty(), num_beams=2)
    assert not any(site.observers.of(module) for module, site in attention_sites(model))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 1}, "needs num_beams >= 2 and do_sample=False, was 1 and False"),
        ({"num_beams": 2, "do_sample": True}, "was 2 and True"),
        ({"num_beams": 2, "length_penalty": 0.5}, "has its own length penalty, alpha; leave out length_penalty=0.5"),
    ],
)
def test_other_searches_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        generated(model_with(), CoveragePenalty(), **options)


def test_an_end_token_and_a_source_mask_are_needed():
    model = model_with()
    config = copy.deepcopy(model.generation_config)
    config.num_beams, config._eos_token_tensor = 2, torch.tensor([EOS])
    with pytest.raises(ValueError, match="needs the attention_mask of the source; pass it to generate"):
        CoveragePenalty()(model, SOURCE, LogitsProcessorList(), StoppingCriteriaList(), config)
    model.generation_config.eos_token_id = None
    with pytest.raises(ValueError, match="eos_token_id is None: no hypothesis ever ends"):
        generated(model, CoveragePenalty(), num_beams=2)


def test_models_without_cross_attention_sites_are_refused():
    with pytest.raises(ValueError, match="has no cross-attention to read"):
        generated(tiny_model("bart", vocab_size=VOCABULARY), CoveragePenalty(), num_beams=2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": -1}, "beta must be finite and at least 0, was -1"),
        ({"alpha": math.nan}, "alpha must be finite and at least 0, was nan"),
        ({"epsilon": 0.0}, r"epsilon must be in \(0, 1\], was 0.0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CoveragePenalty(**settings)


def test_penalty_of_known_coverage():
    penalty = CoveragePenalty(beta=2.0, alpha=1.0, epsilon=0.1)
    attended, mask = torch.tensor([[1.7, 0.5, 0.0, 0.0]]), torch.tensor([[1, 1, 1, 0]])
    assert float(penalty.coverage_penalty(attended, mask)) == pytest.approx(2 * (math.log(0.5) + math.log(0.1)))
    assert penalty.length_penalty(7) == pytest.approx(2.0)
    assert BOS != EOS
