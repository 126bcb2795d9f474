"""Bounds and coverage in every mode of ``generate``: the same distribution as that of one call without a cache."""

import pytest
import torch

from hf_sparse import CoveragePenalty, sparsify
from hf_sparse.attention.sequential import SpentLayer
from tests.attention.sequential.models import (
    BEAMS,
    BOUNDED,
    SOURCE,
    TARGET,
    bounded,
    covered,
    every_case,
    forced,
    scores_of,
    sequential,
)
from tests.tiny_models import SEQ2SEQS, attentions, tiny_model


@pytest.mark.parametrize(("name", "kind"), every_case("llama"))
@torch.no_grad()
def test_beams_score_what_their_strings_score_without_a_cache(name, kind):
    model = sequential(name, kind)
    output = model.generate(SOURCE, **BEAMS)
    torch.testing.assert_close(output.sequences_scores, scores_of(model, SOURCE, output, 3), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("name", "kind"), [("bart", "csparsemax"), ("llama", "csparsemax"), ("bart", "softmax")])
@torch.no_grad()
def test_without_the_reorder_beams_would_score_something_else(name, kind, monkeypatch):
    model = sequential(name, kind)
    # Keys follow the beams; what they have received does not.
    monkeypatch.setattr(SpentLayer, "_change", lambda self, change: None)
    output = model.generate(SOURCE, **BEAMS)
    assert float((output.sequences_scores - scores_of(model, SOURCE, output, 3)).abs().max()) > 1e-3


SAMPLES = {"do_sample": True, "num_return_sequences": 3, "top_k": 0}


@pytest.mark.parametrize("settings", [{"do_sample": False}, SAMPLES], ids=["greedy", "samples"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, kind) for name in SEQ2SEQS for kind in ("csparsemax", "sparsemax")), ("llama", "csparsemax")],
)
@torch.no_grad()
def test_greedy_and_sampling_read_the_distribution_of_teacher_forcing(name, kind, settings):
    model = sequential(name, kind)
    torch.manual_seed(0)
    output = model.generate(SOURCE, max_new_tokens=6, return_dict_in_generate=True, output_logits=True, **settings)
    rows = SOURCE.repeat_interleave(settings.get("num_return_sequences", 1), 0)
    start = 1 if model.config.is_encoder_decoder else SOURCE.shape[1]
    logits = forced(model, rows, output.sequences)[:, start - 1 : -1]
    torch.testing.assert_close(torch.stack(output.logits, 1).double(), logits, atol=1e-5, rtol=0)
    if not settings["do_sample"]:
        plain = model.generate(SOURCE, max_new_tokens=6, do_sample=False, use_cache=False)
        assert torch.equal(plain, output.sequences)


@pytest.mark.parametrize("name", SEQ2SEQS)
@torch.no_grad()
def test_fertilities_of_the_call_follow_beams_and_samples(name):
    model = bounded(name, fertility="given")
    fertility = torch.tensor([[0.3, 2.0, 1.0, 0.0, 1.0, 0.5], [1.0, 1.0, 0.2, 3.0, 0.1, 1.0]])
    output = model.generate(SOURCE, **BEAMS, fertility=fertility)
    expected = scores_of(model, SOURCE, output, 3, fertility=fertility)
    torch.testing.assert_close(output.sequences_scores, expected, atol=1e-5, rtol=0)
    assert float((expected - scores_of(model, SOURCE, output, 3, fertility=9.0)).abs().max()) > 1e-3
    drawn = model.generate(SOURCE, do_sample=True, num_return_sequences=2, max_new_tokens=4, fertility=fertility)
    assert drawn.shape[0] == 4
    weights = attentions(model, input_ids=SOURCE, decoder_input_ids=TARGET, fertility=fertility)[-1]
    assert bool((weights.sum(2) <= fertility[:, None] + 1e-9).all())


@pytest.mark.filterwarnings("ignore:Passing `generation_config`")
@pytest.mark.parametrize("assistant", ["dense", "bounded", "itself", "prompt lookup"])
@pytest.mark.parametrize("name", ["bart", "t5", "llama"])
@torch.no_grad()
def test_assisted_decoding_with_bounds_is_greedy(name, assistant):
    model = bounded(name)
    source = SOURCE[:1]
    arguments = {"fertility": torch.full((1, 6), 1.3)} if model.config.is_encoder_decoder else {}
    greedy = model.generate(source, max_new_tokens=12, do_sample=False, **arguments)
    helped = {"prompt_lookup_num_tokens": 2}
    if assistant == "itself":
        helped = {"assistant_model": model}
    if assistant == "dense":
        helped = {"assistant_model": tiny_model(name, seed=3).double()}
    if assistant == "bounded":
        other = tiny_model(name, seed=4).double()
        kind = "cross" if other.config.is_encoder_decoder else "decoder"
        helped = {"assistant_model": sparsify(other, attn={kind: BOUNDED["csoftmax"]})}
    assert torch.equal(model.generate(source, max_new_tokens=12, do_sample=False, **helped, **arguments), greedy)


@pytest.mark.filterwarnings("ignore:Passing `generation_config`")
@pytest.mark.parametrize("assistant", ["dense", "covered", "itself", "prompt lookup"])
@torch.no_grad()
def test_assisted_decoding_with_coverage_is_greedy(assistant):
    model = covered("bart")
    others = {"dense": tiny_model("bart", seed=3).double(), "covered": covered("bart", seed=9), "itself": model}
    helped = {"assistant_model": others[assistant]} if assistant in others else {"prompt_lookup_num_tokens": 2}
    settings = {"max_new_tokens": 12, "do_sample": False}
    assert torch.equal(model.generate(SOURCE[:1], **settings, **helped), model.generate(SOURCE[:1], **settings))


@torch.no_grad()
def test_coverage_goes_with_a_coverage_penalty():
    model = covered("bart")
    inputs = {"input_ids": SOURCE, "attention_mask": torch.ones_like(SOURCE)}
    settings = {**BEAMS, "custom_generate": CoveragePenalty(beta=0.0)}
    output = model.generate(**inputs, **settings)
    torch.testing.assert_close(output.sequences_scores, scores_of(model, SOURCE, output, 3), atol=1e-5, rtol=0)
