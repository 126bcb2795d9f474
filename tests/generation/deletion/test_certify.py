"""Deletion certificates against deletion itself, token by token with a cache, and against a search by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from hf_sparse import certify, sparsify
from hf_sparse.cache_name import CACHE
from hf_sparse.functional import MAPS
from hf_sparse.generation.deletion import certify as certify_file
from hf_sparse.generation.deletion._closure import closure, needed_inputs
from hf_sparse.generation.deletion._refusal import is_interval
from tests.sweep.architectures import build
from tests.tiny_models import CAUSAL, SEQ2SEQS, tiny_model, tokens
from tests.tiny_whisper import tiny_whisper

SHARP = {"name": "sparsemax", "temperature": 0.03}
LAYERS = {
    **{name: {"num_hidden_layers": 2, "num_attention_heads": 2} for name in ("llama", "qwen3", "gemma2")},
    "gpt2": {"n_layer": 2, "n_head": 2},
    **{name: {"encoder_layers": 1, "encoder_attention_heads": 2} for name in ("bart", "marian")},
    "t5": {"num_layers": 1, "num_heads": 1},
}


def sharp_model(name, seed=0, attn=SHARP, **changes):
    """A float64 model whose attention gives weight to few keys."""
    return sparsify(tiny_model(name, seed=seed, **LAYERS[name] | changes).double(), attn=attn)


def padded(name, rows=2, length=9, seed=1):
    """Inputs whose first row is shorter."""
    ids = tokens(rows, length, seed=seed)
    mask = torch.ones_like(ids)
    columns = slice(0, 3) if name in CAUSAL else slice(-3, None)
    ids[0, columns] = mask[0, columns] = 0
    return {"input_ids": ids, "attention_mask": mask}


def generated(model, inputs, steps=4, **options):
    return model.generate(**inputs, max_new_tokens=steps, min_new_tokens=steps, do_sample=False, **options)


def positions(mask):
    return (mask.cumsum(-1) - 1).clamp(min=0)


@torch.no_grad()
def decoder_logits(model, inputs, sequence, row, kept):
    """Logits of the generated tokens of one row of a decoder that is given ``kept`` only, token by token, cached."""
    length = inputs["input_ids"].shape[1]
    where = positions(inputs["attention_mask"][row])
    prompt = model(sequence[None, kept], position_ids=where[None, kept], use_cache=True)
    logits, cache = [prompt.logits[0, -1]], prompt[CACHE]
    for step, token in enumerate(sequence[length:-1]):
        place = where[length - 1] + 1 + step
        output = model(token.view(1, 1), position_ids=place.view(1, 1), **{CACHE: cache}, use_cache=True)
        logits.append(output.logits[0, -1])
    return torch.stack(logits)


@torch.no_grad()
def masked_logits(model, inputs, sequence, row, kept):
    """Logits of the generated tokens of one row with other inputs than ``kept`` hidden, positions as they are."""
    ids, mask = inputs["input_ids"][row], torch.zeros_like(inputs["input_ids"][row])
    mask[kept] = 1
    if model.config.is_encoder_decoder:
        return model(input_ids=ids[None], attention_mask=mask[None], decoder_input_ids=sequence[None]).logits[0, :-1]
    more = len(sequence) - len(ids)
    mask, full = (torch.cat([m, m.new_ones(more)]) for m in (mask, inputs["attention_mask"][row]))
    output = model(sequence[None], attention_mask=mask[None], position_ids=positions(full)[None])
    return output.logits[0, len(ids) - 1 : -1]


@pytest.mark.parametrize("name", [*CAUSAL, *SEQ2SEQS])
def test_every_certificate_holds_when_its_tokens_are_deleted(name):
    deletable = 0
    for seed in (0, 2):
        model, inputs = sharp_model(name, seed), padded(name, seed=seed)
        sequences = generated(model, inputs, steps=3)
        for row, certificate in enumerate(certify(model, inputs, sequences)):
            check(model, inputs, sequences[row], row, certificate)
            deletable += sum(len(certificate.deletable_for(output)) for output in certificate.needed)
    assert deletable > 0


def check(model, inputs, sequence, row, certificate):
    """Each output alone, and all of them, with the tokens hidden and, where windows allow it, taken out."""
    real = inputs["attention_mask"][row].nonzero()[:, 0].tolist()
    assert certificate.tokens == real
    before = masked_logits(model, inputs, sequence, row, real)
    cases = [([output], needed) for output, needed in certificate.needed.items()]
    for outputs, kept in [*cases, (list(certificate.needed), certificate.kept)]:
        assert set(kept) <= set(real)
        after = masked_logits(model, inputs, sequence, row, kept)
        torch.testing.assert_close(after[outputs], before[outputs], rtol=0, atol=1e-9)
        if certificate.change_removed is not None:
            after = decoder_logits(model, inputs, sequence, row, kept)
            torch.testing.assert_close(after[outputs], before[outputs], rtol=0, atol=1e-9)
    assert certificate.change <= 1e-9
    assert (certificate.change_removed or 0.0) <= 1e-9


@torch.no_grad()
def test_positions_of_three_axes_go_with_their_tokens():
    model, inputs = build("qwen2_vl", "Qwen2VLForConditionalGeneration").double(), padded("llama")
    sparsify(model, attn={"decoder": SHARP}, example=inputs)
    sequences, deletable = generated(model, inputs, steps=2), 0
    length = inputs["input_ids"].shape[1]
    for row, certificate in enumerate(certify(model, inputs, sequences)):
        of_prompt = inputs["attention_mask"][row]
        where = positions(torch.cat([of_prompt, of_prompt.new_ones(2)]))
        logits = []
        for kept in (certificate.tokens, certificate.kept):
            columns = [*kept, length, length + 1]
            output = model(sequences[row, None, columns], position_ids=where[columns].expand(3, 1, -1))
            logits.append(output.logits[0, -3:-1])
        torch.testing.assert_close(*logits, rtol=0, atol=1e-9)
        assert certificate.change_removed <= 1e-9
        deletable += len(certificate.deletable)
    assert deletable > 0


@pytest.mark.parametrize("attn", ["entmax15", {"name": "entmax", "alpha": 3.0, "temperature": 0.1}], ids=str)
def test_certificates_hold_in_float32_and_for_other_maps(attn):
    attn = {"name": "entmax15", "temperature": 0.03} if attn == "entmax15" else attn
    model, inputs = sharp_model("llama", attn=attn).float(), padded("llama")
    sequences = generated(model, inputs)
    for row, certificate in enumerate(certify(model, inputs, sequences)):
        before = masked_logits(model, inputs, sequences[row], row, certificate.tokens)
        after = masked_logits(model, inputs, sequences[row], row, certificate.kept)
        torch.testing.assert_close(after, before, rtol=0, atol=1e-5)
        assert certificate.change <= 1e-5


def outcome(attn):
    """``"holds"``, or the reason of a refusal."""
    settings = {"tau": 1.0} if "tau" in MAPS[attn].settings else {}
    model, inputs = sharp_model("llama", attn={"name": attn, "temperature": 0.03, **settings}), padded("llama")
    sequences = generated(model, inputs, steps=2)
    try:
        found = certify(model, inputs, sequences)
    except ValueError as refusal:
        return str(refusal)
    for row, certificate in enumerate(found):
        check(model, inputs, sequences[row], row, certificate)
    return "holds"


def test_certificates_of_every_map_hold_or_are_refused_by_its_name():
    outcomes = {name: outcome(name) for name, known in MAPS.items() if known.any_scores and not known.bounds}
    assert {"entmax15", "entmax", "sparsemax", "softmax", "sparsegen_lin"} <= {
        name for name, found in outcomes.items() if found == "holds"
    }
    assert "holds" not in (outcomes["sparsehourglass"], outcomes["softpick"])
    for name, found in outcomes.items():
        assert found == "holds" or f"weights of {name} depend on keys of weight zero" in found


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_needed_tokens_are_those_a_search_by_hand_reaches(name):
    model, inputs = sharp_model(name), {"input_ids": tokens(1, 8)}
    sequences = generated(model, inputs, steps=3)
    (certificate,) = certify(model, inputs, sequences)
    with torch.no_grad():
        layers = model(sequences, output_attentions=True).attentions
    lower = [(layer[0] > 0).any(0) for layer in layers[:-1]]
    last = (layers[-1][0] > 0).any(0)
    for output, needed in certificate.needed.items():
        place = 7 + output
        agenda = [place, *range(8, place), *last[place].nonzero()[:, 0].tolist()]
        seen = set()
        while agenda:
            query = agenda.pop()
            if query not in seen:
                seen.add(query)
                agenda += [key for layer in lower for key in layer[query].nonzero()[:, 0].tolist()]
        assert needed == sorted(key for key in seen if key < 8)


def test_needed_sources_are_those_a_search_by_hand_reaches():
    """In a decoder of two layers, the lower of which brings sources of earlier positions to an output."""
    model = sharp_model("t5", attn={**SHARP, "temperature": 0.003}, num_layers=2, num_decoder_layers=2)
    inputs = {"input_ids": tokens(1, 12)}
    sequences = generated(model, inputs, steps=4)
    (certificate,) = certify(model, inputs, sequences)
    with torch.no_grad():
        output = model(**inputs, decoder_input_ids=sequences, output_attentions=True)
    encoder, (lower, last) = (
        [(layer[0] > 0).any(0) for layer in weights]
        for weights in (output.encoder_attentions, output.cross_attentions)
    )
    for place, needed in certificate.needed.items():
        agenda = (lower[: place + 1].any(0) | last[place]).nonzero()[:, 0].tolist()
        seen = set()
        while agenda:
            query = agenda.pop()
            if query not in seen:
                seen.add(query)
                agenda += [key for layer in encoder for key in layer[query].nonzero()[:, 0].tolist()]
        assert needed == sorted(seen)
    assert len(set(map(tuple, certificate.needed.values()))) > 1


def test_chains_of_weights_are_not_enough():
    """A token from which no chain of nonzero weights leads to the output may change it when it goes alone."""
    worst = 0.0
    for seed in range(12):
        model, inputs = sharp_model("llama", seed, num_hidden_layers=3), {"input_ids": tokens(1, 8, seed=seed)}
        sequences = generated(model, inputs, steps=1)
        with torch.no_grad():
            layers = model(inputs["input_ids"], output_attentions=True).attentions
        reached = torch.eye(8).bool()[7]
        for layer in reversed(layers):
            reached = reached | (layer[0] > 0).any(0)[reached].any(0)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        before = decoder_logits(model, inputs, sequences[0], 0, list(range(8)))
        for token in (~reached).nonzero()[:, 0].tolist():
            kept = [place for place in range(8) if place != token]
            after = decoder_logits(model, inputs, sequences[0], 0, kept)
            worst = max(worst, float((after - before).abs().max()))
    assert worst > 0.1


def test_softmax_needs_every_token():
    model, inputs = sharp_model("llama", attn="softmax"), padded("llama")
    for certificate in certify(model, inputs, generated(model, inputs)):
        assert certificate.deletable == []
        assert certificate.share == 0.0


def test_tied_keys_are_all_needed():
    model = sharp_model("gpt2", n_layer=1)
    with torch.no_grad():
        model.transformer.wpe.weight.zero_()
    inputs = {"input_ids": torch.tensor([[5, 7, 5, 7, 5, 9]])}
    (certificate,) = certify(model, inputs, torch.tensor([[5, 7, 5, 7, 5, 9, 4]]))
    groups = [{0, 2, 4}, {1, 3}]
    assert certificate.change == 0.0
    assert all(group <= set(certificate.kept) or not group & set(certificate.kept) for group in groups)


def test_rows_of_a_batch_have_the_certificates_they_have_alone():
    model, inputs = sharp_model("qwen3"), padded("qwen3")
    sequences = generated(model, inputs)
    for row, certificate in enumerate(certify(model, inputs, sequences)):
        alone = {name: value[row : row + 1] for name, value in inputs.items()}
        (single,) = certify(model, alone, sequences[row : row + 1])
        assert single.needed == certificate.needed


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32], ids=str)
def test_a_mask_of_another_dtype_gives_the_same_certificates(dtype):
    model, inputs = sharp_model("llama", attn={**SHARP, "temperature": 0.003}), padded("llama", seed=0)
    sequences = generated(model, inputs, steps=2)
    found = certify(model, inputs, sequences)
    assert any(certificate.deletable for certificate in found)
    mask = inputs["attention_mask"].to(dtype)
    assert certify(model, {**inputs, "attention_mask": mask}, sequences) == found
    assert torch.equal(mask, inputs["attention_mask"].to(dtype))


def test_several_sequences_of_one_input_have_certificates_of_their_own():
    model, inputs = sharp_model("bart"), {"input_ids": tokens(2)}
    sequences = generated(model, inputs, num_beams=3, num_return_sequences=2)
    found = certify(model, inputs, sequences)
    assert len(found) == 4
    for row, certificate in enumerate(found):
        (single,) = certify(model, {"input_ids": inputs["input_ids"][row // 2][None]}, sequences[row][None])
        assert single.needed == certificate.needed


def test_outputs_are_those_asked_for_and_none_after_the_end():
    model, inputs = sharp_model("llama"), {"input_ids": tokens(1, 6)}
    sequences = torch.cat([inputs["input_ids"], torch.tensor([[5, 2, 0, 0]])], dim=1)
    (certificate,) = certify(model, inputs, sequences)
    assert list(certificate.needed) == [0, 1]
    (second,) = certify(model, inputs, sequences, outputs=[1])
    assert second.needed == {1: certificate.needed[1]}
    assert second.kept == second.needed[1]
    assert certificate.deletable_for(1) == second.deletable
    (none,) = certify(model, inputs, sequences, outputs=[3])
    assert none.needed == {}


def test_sliding_windows_are_never_cut_shorter_by_removal():
    model, inputs = sharp_model("gemma2"), {"input_ids": tokens(1, 9)}
    (certificate,) = certify(model, inputs, generated(model, inputs))
    assert certificate.change_removed is None


def test_a_training_model_is_certified_in_evaluation_mode_and_left_as_it_was():
    model, inputs = sharp_model("gpt2").train(), {"input_ids": tokens(1, 6)}
    sequences = torch.cat([inputs["input_ids"], tokens(1, 2)], dim=1)
    assert certify(model, inputs, sequences)[0].change == 0.0
    assert all(part.training for part in model.modules())
    assert certify(model, inputs, sequences) == certify(model.eval(), inputs, sequences)


@pytest.mark.parametrize(
    ("attn", "message"),
    [
        (None, "its attention is dense, and no weight is zero; sparsify"),
        ("sparsehourglass", "the weights of sparsehourglass depend on keys of weight zero"),
        ({"name": "entmax15", "beta": 0.5}, "scales scores by the number of keys"),
        ({"name": "entmax15", "delta": 2.0}, "so that keys of weight zero count; give no delta$"),
        ({"decoder": {"name": "csparsemax", "fertility": 2.0}}, "follows what keys received before"),
    ],
    ids=str,
)
def test_maps_under_which_zero_weights_count_are_refused(attn, message):
    model = sparsify(tiny_model("llama"), attn=attn, head="entmax15")
    inputs = {"input_ids": tokens(1, 6)}
    with pytest.raises(ValueError, match=message):
        certify(model, inputs, torch.cat([inputs["input_ids"], tokens(1, 2)], dim=1))


def test_a_model_that_gives_logits_of_some_positions_alone_is_refused(monkeypatch):
    """Bamba, Zamba and Falcon-H1 ask for those of the last position, and mix positions."""
    model, inputs = sparsify(tiny_model("llama"), attn=SHARP), {"input_ids": tokens(1, 6)}
    prepare = model.prepare_inputs_for_generation
    monkeypatch.setattr(
        model,
        "prepare_inputs_for_generation",
        lambda *args, **kwargs: {**prepare(*args, **kwargs), "logits_to_keep": 1},
    )
    with pytest.raises(ValueError, match="gives logits of 1 positions for 8 tokens"):
        certify(model, inputs, torch.cat([inputs["input_ids"], tokens(1, 2)], dim=1))


class Shifted(nn.Module):
    """Adds to each position the one before it."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x + torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1])


class Convolved(Shifted):
    """A convolution of kernel 1, which mixes nothing but could."""

    def __init__(self, inner):
        super().__init__(inner)
        self.convolution = nn.Conv1d(32, 32, 1)

    def forward(self, x):
        return self.inner(self.convolution(x.transpose(1, 2)).transpose(1, 2))


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        (Shifted, "with its attention turned off, a change of some tokens"),
        (Convolved, "Conv1d at 'model.layers.1.mlp.c"),
    ],
)
def test_mixing_outside_of_attention_is_refused(wrapper, message):
    model = tiny_model("llama")
    model.model.layers[1].mlp = wrapper(model.model.layers[1].mlp)
    sparsify(model, attn=SHARP)
    inputs = {"input_ids": tokens(1, 6)}
    with pytest.raises(ValueError, match=message):
        certify(model, inputs, torch.cat([inputs["input_ids"], tokens(1, 2)], dim=1))


def test_an_encoder_that_mixes_positions_is_refused():
    model = tiny_model("bart")
    model.model.encoder.layers[0].fc1 = Shifted(model.model.encoder.layers[0].fc1)
    sparsify(model, attn=SHARP)
    with pytest.raises(ValueError, match="with its attention turned off"):
        certify(model, {"input_ids": tokens(1, 6)}, torch.tensor([[2, 5, 6]]))


def test_what_cannot_be_deleted_is_refused_by_name():
    model, inputs = sparsify(tiny_model("llama"), attn=SHARP), {"input_ids": tokens(1, 6)}
    sequences = torch.cat([inputs["input_ids"], tokens(1, 2)], dim=1)
    with pytest.raises(ValueError, match=r"inputs must be among input_ids, attention_mask, .*'inputs_embeds'"):
        certify(model, {**inputs, "inputs_embeds": torch.zeros(1, 6, 32)}, sequences)
    model.config.expert_capacity = 4
    with pytest.raises(ValueError, match="experts have a capacity"):
        certify(model, inputs, sequences)
    del model.config.expert_capacity
    with pytest.raises(ValueError, match=r"in which small weights become zeros; use model\.float"):
        certify(model.to(torch.bfloat16), inputs, sequences)


def test_speech_is_refused():
    model, inputs = tiny_whisper(attn=SHARP)
    with pytest.raises(ValueError, match="'input_features': only text tokens can be deleted"):
        certify(model, inputs, torch.tensor([[1, 5]]))


@pytest.mark.parametrize(
    ("outputs", "error", "message"),
    [
        ([2], ValueError, "outputs must be some of the 2 generated tokens, counted from 0"),
        ([-1], ValueError, "outputs must be some of the 2"),
        ([], ValueError, "outputs must be some of the 2"),
        ([0.5], TypeError, "outputs must be numbers of generated tokens, or None"),
        ("0", TypeError, "outputs must be numbers"),
        (1, TypeError, "outputs must be numbers"),
    ],
)
def test_outputs_must_be_there(outputs, error, message):
    model, inputs = sparsify(tiny_model("llama"), attn=SHARP), {"input_ids": tokens(1, 6)}
    with pytest.raises(error, match=message):
        certify(model, inputs, torch.cat([inputs["input_ids"], tokens(1, 2)], dim=1), outputs)


def test_a_certificate_that_deletion_contradicts_is_never_returned(monkeypatch):
    model, inputs = sharp_model("llama"), {"input_ids": tokens(1, 6)}
    sequences = torch.cat([inputs["input_ids"], tokens(1, 2)], dim=1)
    needs_the_last = torch.zeros(1, 2, 6).bool().index_fill(2, torch.tensor([5]), True)
    monkeypatch.setattr(certify_file, "needed_inputs", lambda *_: needs_the_last)
    with pytest.raises(RuntimeError, match="scores of sequence 0 change by"):
        certify(model, inputs, sequences)
    assert certify(model, inputs, sequences, tolerance=100.0)[0].deletable == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="tolerance must be at least 0"):
        certify(model, inputs, sequences, tolerance=-1.0)


def test_both_changes_are_those_of_runs_without_the_tokens(monkeypatch):
    def too_few(*args):
        needed = needed_inputs(*args)
        return needed & (torch.arange(needed.shape[-1]) == needed.shape[-1] - 1)

    monkeypatch.setattr(certify_file, "needed_inputs", too_few)
    model, inputs = sharp_model("llama"), {"input_ids": tokens(1, 8)}
    (wrong,) = certify(model, inputs, generated(model, inputs), tolerance=1e3)
    assert wrong.kept == [7]
    assert wrong.change > 0.1
    assert wrong.change_removed == pytest.approx(wrong.change, rel=1e-6)


def test_closure_reaches_what_paths_reach():
    generator = torch.Generator().manual_seed(0)
    edges = torch.rand(4, 7, 7, generator=generator) < 0.2
    start = torch.rand(4, 3, 7, generator=generator) < 0.2
    paths = torch.stack([torch.linalg.matrix_power(edges.double() + torch.eye(7), k) for k in (7,)])[0] > 0
    expected = (start.double() @ paths.double()) > 0
    assert torch.equal(closure(start, edges), expected)


def test_intervals_have_no_holes_but_padding():
    real = torch.tensor([[True, True, False, True, True]])
    rows = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 0, 1, 1], [1, 0, 0, 1, 0], [1, 1, 1, 1, 0], [0, 0, 0, 0, 0]]).bool()
    assert is_interval(rows[None], real).tolist() == [[True, True, False, False, True]]


def test_certificates_are_plain_data():
    model, inputs = sharp_model("llama"), {"input_ids": tokens(1, 6)}
    (certificate,) = certify(model, inputs, torch.cat([inputs["input_ids"], tokens(1, 2)], dim=1))
    data = dataclasses.asdict(certificate)
    assert set(data) == {"tokens", "needed", "change", "change_removed"}
    assert all(type(column) is int for columns in data["needed"].values() for column in columns)
