"""Coverage vectors against a slow, obvious version; inside models cached is uncached, and the rest is refused."""

import copy
import pickle

import pytest
import torch
from datasets import Dataset
from torch import nn
from transformers import LongT5Config, LongT5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from hf_sparse import (
    CoveragePenalty,
    SparseTrainer,
    from_pretrained,
    save_pretrained,
    sparse_config,
    sparsify,
    unsparsify,
)
from hf_sparse.attention.interface import sparse_attention
from hf_sparse.attention.sequential import SpentLayer
from hf_sparse.attention.sequential._coverage import covered_attention
from hf_sparse.attention.site import SITE, AttentionSite, attention_sites
from hf_sparse.config import MapConfig, SparseConfig
from hf_sparse.functional import get_map
from hf_sparse.settings import CoverageVectors
from tests.attention.test_constrained_models import BEAMS, forced, scores_of, step_by_step
from tests.reference import clipped_by_bisection
from tests.tiny_inline_models import tiny_inline_model
from tests.tiny_models import PAD, attentions, labelled, tiny_model, tokens
from tests.tolerances import WEIGHT
from tests.training.test_trainer import arguments

NAMES = ["bart", "marian", "t5"]
MAPS = {
    "softmax": {"name": "softmax"},
    "sparsemax": {"name": "sparsemax"},
    "entmax": {"name": "entmax", "alpha": "learned", "temperature": 0.7},
}
EVERY_MAP = pytest.mark.parametrize("map_config", MAPS.values(), ids=MAPS)
SOURCE, TARGET = tokens(2, 6), tokens(2, 9, seed=5)
VECTOR = {"coverage": "vector"}


def covered(name, map_config=MAPS["softmax"], seed=7, size=2.0):
    """A tiny model in float64 whose cross-attention has coverage vectors that are not zero."""
    model = tiny_model(name).double()
    model.generation_config.forced_eos_token_id = None
    sparsify(model, attn={"cross": {**map_config, **VECTOR}})
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for vectors in vectors_of(model):
            vectors.copy_(size * torch.randn(vectors.shape, generator=generator))
    return model


def vectors_of(model):
    return [module.sparse_coverage.value for module, site in attention_sites(model) if site.has_coverage]


def by_bisection(name, z):
    """Weights of one row: both maps are those of the bisection with bounds of 1, which no weight exceeds."""
    increasing = {"softmax": torch.exp, "sparsemax": lambda t: t.clamp(min=0)}[name]
    return clipped_by_bisection(increasing, z, torch.ones_like(z))


def slowly(name, q, k, v, vectors, mask, spending, scaling):
    """(batch, queries, heads, value_dim) outputs: every key moved along its vector, one row, one query at a time."""
    out = q.new_zeros(*q.shape[:3], v.shape[-1])
    group = q.shape[1] // k.shape[1]
    for row in range(q.shape[0]):
        seen = mask[row].nonzero()[:, 0].tolist()
        for head in range(q.shape[1]):
            received = dict.fromkeys(seen, 0.0)
            for t in range(q.shape[2]):
                keys = [k[row, head // group, j] + received[j] * vectors[head] for j in seen]
                p = by_bisection(name, torch.stack([scaling * (q[row, head, t] * key).sum() for key in keys]))
                out[row, head, t] = sum(weight * v[row, head // group, j] for weight, j in zip(p, seen))
                if spending[row, t]:
                    received = {j: received[j] + float(weight) for j, weight in zip(seen, p)}
    return out.transpose(1, 2)


def problem(heads=2, key_heads=1, seed=0):
    """A module with a site, and queries, keys, values, vectors, and masks of source and target."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"q": (2, heads, 5, 3), "k": (2, key_heads, 6, 3), "v": (2, key_heads, 6, 2), "vectors": (heads, 3)}
    leaves = {n: 1.5 * torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}
    mask = torch.tensor([[True] * 6, [False, True, True, True, True, False]])
    spending = torch.tensor([[True] * 5, [False, False, True, True, True]])
    return leaves, mask, spending


def quickly(name, leaves, mask, spending, scaling):
    module = nn.Module()
    coverage = CoverageVectors(*leaves["vectors"].shape)
    module.__dict__[SITE] = AttentionSite("there", "cross", MapConfig.parse(name, "attn"), coverage=coverage)
    module.sparse_coverage = lambda scores: leaves["vectors"]
    return sparse_attention(
        module, leaves["q"], leaves["k"], leaves["v"], mask[:, None, None], scaling=scaling, target_mask=spending
    )[0]


@pytest.mark.parametrize("name", ["softmax", "sparsemax"])
@pytest.mark.parametrize("key_heads", [1, 2])
def test_output_and_gradients_are_those_of_the_slow_version(name, key_heads):
    leaves, mask, spending = problem(key_heads=key_heads)
    for leaf in leaves.values():
        leaf.requires_grad_()
    out = quickly(name, leaves, mask, spending, 0.6)
    plain = {key: leaf.detach() for key, leaf in leaves.items()}
    expected = slowly(name, **plain, mask=mask, spending=spending, scaling=0.6)
    torch.testing.assert_close(out, expected, atol=10 * WEIGHT[torch.float64], rtol=0)
    uncovered = slowly(name, **{**plain, "vectors": 0 * plain["vectors"]}, mask=mask, spending=spending, scaling=0.6)
    assert float((expected - uncovered).abs().max()) > 0.1

    generator = torch.Generator().manual_seed(1)
    upstream = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    along = {key: torch.randn(leaf.shape, generator=generator, dtype=torch.float64) for key, leaf in leaves.items()}
    gradients = dict(zip(leaves, torch.autograd.grad(out, list(leaves.values()), upstream)))
    assert bool((gradients["k"][1, :, [0, 5]] == 0).all())  # masked keys
    step = 1e-6
    ends = [
        slowly(
            name,
            **{key: leaf + s * along[key] for key, leaf in plain.items()},
            mask=mask,
            spending=spending,
            scaling=0.6,
        )
        for s in (step, -step)
    ]
    slope = sum((gradient * along[key]).sum() for key, gradient in gradients.items())
    torch.testing.assert_close(slope, ((ends[0] - ends[1]) * upstream).sum() / (2 * step), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "covering", [None, torch.tensor([[True] * 4, [False, True, True, False]])], ids=["all", "some"]
)
@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15"])
def test_gradcheck_through_the_steps(name, covering):
    generator = torch.Generator().manual_seed(2)
    z, slope, received = (
        torch.rand(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((2, 2, 4, 5), (2, 2, 4, 1), (2, 2, 5))
    )
    sparse_map = get_map(name).function
    assert torch.autograd.gradcheck(lambda *x: covered_attention(sparse_map, *x, covering), (z, slope, received))


def test_half_precision_is_summed_in_float32_and_a_masked_row_is_zero():
    leaves, mask, spending = problem()
    mask[0] = False
    half = {key: leaf.bfloat16().requires_grad_() for key, leaf in leaves.items()}
    out = quickly("softmax", half, mask, spending, 0.6)
    assert out.dtype == torch.bfloat16
    assert bool((out[0] == 0).all())
    exact = quickly("softmax", {key: leaf.detach().double() for key, leaf in half.items()}, mask, spending, 0.6)
    torch.testing.assert_close(out.double(), exact, atol=0.1, rtol=0)
    out.sum().backward()
    assert all(bool(leaf.grad.isfinite().all()) for leaf in half.values())


@EVERY_MAP
@pytest.mark.parametrize("name", NAMES)
def test_vectors_start_at_zero_where_they_change_nothing_and_have_a_gradient(name, map_config):
    model = sparsify(tiny_model(name), attn={"cross": {**map_config, **VECTOR}})
    plain = sparsify(tiny_model(name), attn={"cross": map_config})
    inputs = labelled(model)
    output, expected = model(**inputs), plain(**inputs)
    torch.testing.assert_close(output.logits, expected.logits, atol=1e-5, rtol=1e-5)
    output.loss.backward(), expected.loss.backward()
    assert [tuple(vectors.shape) for vectors in vectors_of(model)] == [(4, 8)] * 2
    for vectors in vectors_of(model):
        assert not vectors.any()
        assert vectors.grad.any()
    own = dict(model.named_parameters())
    for key, parameter in plain.named_parameters():
        torch.testing.assert_close(own[key].grad, parameter.grad, atol=1e-4, rtol=1e-3, msg=key)


def test_the_gradient_of_the_vectors_is_that_of_the_formula():
    model = covered("bart")
    vectors = vectors_of(model)[0]
    forced(model, SOURCE, TARGET).square().mean().backward()
    with torch.no_grad():
        values = []
        for step in (1e-6, -2e-6):
            vectors[1, 3] += step
            values.append(float(forced(model, SOURCE, TARGET).square().mean()))
    assert float(vectors.grad[1, 3]) == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4)


@EVERY_MAP
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_cached_is_uncached(name, map_config):
    model = covered(name, map_config)
    expected = forced(model, SOURCE, TARGET)
    plain = forced(covered(name, map_config, size=0.0), SOURCE, TARGET)
    assert float((expected - plain).abs().max()) > 1e-3
    for sizes in ([1] * 9, [4, 1, 3, 1]):
        logits, cache = step_by_step(model, SOURCE, TARGET, sizes)
        torch.testing.assert_close(logits, expected, atol=1e-9, rtol=0)
    assert all(isinstance(layer, SpentLayer) for layer in cache.cross_attention_cache.layers)
    weights = torch.stack(attentions(model, input_ids=SOURCE, decoder_input_ids=TARGET)[-2:])
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@EVERY_MAP
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_source_padding_on_either_side_changes_nothing(name, side, map_config):
    model = covered(name, map_config)
    by = (3, 0) if side == "left" else (0, 3)
    states = nn.functional.pad(model.get_encoder()(SOURCE).last_hidden_state, (0, 0, *by), value=0.7)
    inputs = {"encoder_outputs": BaseModelOutput(states), "decoder_input_ids": TARGET}
    mask = nn.functional.pad(torch.ones_like(SOURCE), by)
    logits = model(**inputs, attention_mask=mask).logits
    torch.testing.assert_close(logits, forced(model, SOURCE, TARGET), atol=1e-9, rtol=0)


@torch.no_grad()
def test_padding_before_the_target_covers_nothing():
    model = covered("t5")
    padded = torch.cat([torch.full((2, 3), PAD), TARGET], 1)
    mask = (padded != PAD).long()
    expected = forced(model, SOURCE, TARGET)
    logits = forced(model, SOURCE, padded, decoder_attention_mask=mask)[:, 3:]
    torch.testing.assert_close(logits, expected, atol=1e-9, rtol=0)
    assert float((forced(model, SOURCE, padded)[:, 3:] - expected).abs().max()) > 1e-3
    cache, parts = None, []
    for start, end in ((0, 5), (5, 12)):
        inputs = {"input_ids": SOURCE, "decoder_input_ids": padded[:, start:end]}
        output = model(**inputs, decoder_attention_mask=mask[:, :end], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        parts.append(output.logits)
    torch.testing.assert_close(torch.cat(parts, 1)[:, 3:], expected, atol=1e-9, rtol=0)


@EVERY_MAP
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_beams_score_what_their_strings_score_without_a_cache(name, map_config):
    model = covered(name, map_config)
    output = model.generate(SOURCE, **BEAMS)
    torch.testing.assert_close(output.sequences_scores, scores_of(model, SOURCE, output, 3), atol=1e-5, rtol=0)


@torch.no_grad()
def test_without_the_reorder_beams_would_score_something_else(monkeypatch):
    model = covered("bart")
    monkeypatch.setattr(SpentLayer, "_change", lambda self, change: None)
    output = model.generate(SOURCE, **BEAMS)
    assert float((output.sequences_scores - scores_of(model, SOURCE, output, 3)).abs().max()) > 1e-3


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_greedy_and_sampling_read_the_distribution_of_teacher_forcing(name):
    model = covered(name, MAPS["sparsemax"])
    for settings in ({"do_sample": False}, {"do_sample": True, "num_return_sequences": 3, "top_k": 0}):
        torch.manual_seed(0)
        output = model.generate(SOURCE, max_new_tokens=6, return_dict_in_generate=True, output_logits=True, **settings)
        rows = SOURCE.repeat_interleave(settings.get("num_return_sequences", 1), 0)
        logits = forced(model, rows, output.sequences)[:, :-1]
        torch.testing.assert_close(torch.stack(output.logits, 1).double(), logits, atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore:Passing `generation_config`")
@pytest.mark.parametrize("assistant", ["dense", "covered", "itself", "prompt lookup"])
@torch.no_grad()
def test_assisted_decoding_is_greedy(assistant):
    model = covered("bart")
    others = {"dense": tiny_model("bart", seed=3).double(), "covered": covered("bart", seed=9), "itself": model}
    helped = {"assistant_model": others[assistant]} if assistant in others else {"prompt_lookup_num_tokens": 2}
    settings = {"max_new_tokens": 12, "do_sample": False}
    assert torch.equal(model.generate(SOURCE[:1], **settings, **helped), model.generate(SOURCE[:1], **settings))


@torch.no_grad()
def test_the_cache_is_cropped_repeated_and_selected_with_what_its_keys_received():
    model = covered("bart")
    _, cache = step_by_step(model, SOURCE, TARGET, [2, 1, 1, 1, 1, 3])
    cache.crop(-5)
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([3, 0, 1]))
    rows = [1, 0, 0]
    other = torch.cat([TARGET[:, :4], TARGET.flip(1)[:, :4]], 1)[rows]
    inputs = {"input_ids": SOURCE[rows], "decoder_input_ids": other[:, 4:]}
    logits = model(**inputs, past_key_values=cache, use_cache=True).logits
    torch.testing.assert_close(logits, forced(model, SOURCE[rows], other)[:, 4:], atol=1e-9, rtol=0)
    with pytest.raises(ValueError, match=r"coverage follows a dynamic cache, and .* was given one of StaticLayer"):
        model.generate(SOURCE, max_new_tokens=3, cache_implementation="static")


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["bart", "t5"])
def test_gradient_checkpointing_changes_no_gradient(name, reentrant):
    gradients = []
    for checkpointing in (False, True):
        model = covered(name).train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if isinstance(getattr(module, "dropout", None), float):
                module.dropout = 0.0
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        model(**labelled(model)).loss.backward()
        gradients.append({key: p.grad for key, p in model.named_parameters() if p.grad is not None})
    plain, checkpointed = gradients
    assert plain.keys() == checkpointed.keys()
    for key, gradient in plain.items():
        torch.testing.assert_close(checkpointed[key], gradient, atol=1e-10, rtol=1e-8, msg=key)


def test_trainer_learns_them_and_checkpoints_bring_them_back(tmp_path):
    model = sparsify(tiny_model("t5"), attn={"cross": {"name": "entmax15", **VECTOR}}, head="entmax15")
    data = Dataset.from_dict({"input_ids": tokens(8).tolist(), "labels": tokens(8, seed=4).tolist()})
    SparseTrainer(model, arguments(tmp_path / "run", max_steps=3), train_dataset=data).train()
    assert all(vectors.any() for vectors in vectors_of(model))
    save_pretrained(model, tmp_path / "model")
    loaded = from_pretrained(tmp_path / "model")
    assert torch.equal(loaded(**labelled(model)).logits, model.eval()(**labelled(model)).logits)
    assert all(map(torch.equal, vectors_of(loaded), vectors_of(model)))
    assert "by a learned vector for each head" in (tmp_path / "model" / "README.md").read_text()


@torch.no_grad()
def test_it_is_saved_loaded_copied_pickled_and_undone(tmp_path):
    model = tiny_model("marian")
    names, expected = list(model.state_dict()), forced(model, SOURCE, TARGET)
    sparsify(model, attn={"cross": [{"name": "softmax", **VECTOR}, None]})
    (vectors,) = vectors_of(model)
    vectors.normal_(generator=torch.Generator().manual_seed(0))
    assert sparse_config(model).to_dict()["attn"]["cross"][0] == {"name": "softmax", "coverage": {"vector": [4, 8]}}
    logits = forced(model, SOURCE, TARGET)
    assert not torch.allclose(logits, expected, atol=1e-3)
    save_pretrained(model, tmp_path / "model")
    for twin in (from_pretrained(tmp_path / "model"), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(forced(twin, SOURCE, TARGET), logits)
        cached, _ = step_by_step(twin, SOURCE, TARGET, [1] * 9)
        torch.testing.assert_close(cached, logits, atol=1e-4, rtol=0)
        unsparsify(twin)
        assert list(twin.state_dict()) == names
        assert torch.equal(forced(twin, SOURCE, TARGET), expected)
        assert not any(module._forward_pre_hooks for module in twin.modules())


def test_lora_trains_and_saves_them(tmp_path):
    peft = pytest.importorskip("peft")
    tiny_model("t5").save_pretrained(tmp_path / "base")
    base = sparsify(
        type(tiny_model("t5")).from_pretrained(tmp_path / "base"), attn={"cross": {**MAPS["softmax"], **VECTOR}}
    )
    config = peft.LoraConfig(target_modules=["q"], modules_to_save=["sparse_coverage"])
    model = peft.get_peft_model(base, config)
    data = Dataset.from_dict({"input_ids": tokens(4).tolist(), "labels": tokens(4).tolist()})
    SparseTrainer(model, arguments(tmp_path / "run", max_steps=2), train_dataset=data).train()
    learned = [module.sparse_coverage(None) for module, site in attention_sites(model) if site.has_coverage]
    assert all(vectors.any() for vectors in learned)
    save_pretrained(model.eval(), tmp_path / "adapter")
    again = from_pretrained(tmp_path / "adapter").eval()
    inputs = {"input_ids": SOURCE, "decoder_input_ids": TARGET}
    torch.testing.assert_close(again(**inputs).logits, model(**inputs).logits)
    with pytest.raises(ValueError, match="PEFT would not save a setting that is learned in a model it holds already"):
        sparsify(peft.get_peft_model(tiny_model("t5"), config), attn={"cross": {**MAPS["softmax"], **VECTOR}})


@torch.no_grad()
def test_it_goes_with_a_coverage_penalty():
    model = covered("bart")
    inputs = {"input_ids": SOURCE, "attention_mask": torch.ones_like(SOURCE)}
    settings = {**BEAMS, "custom_generate": CoveragePenalty(beta=0.0)}
    output = model.generate(**inputs, **settings)
    torch.testing.assert_close(output.sequences_scores, scores_of(model, SOURCE, output, 3), atol=1e-5, rtol=0)


CROSS = {"cross": {"name": "softmax", **VECTOR}}
REFUSED = [
    ("bart", {"name": "softmax", **VECTOR}, ValueError, 'is self-attention; give a kind, "cross"'),
    ("bart", {"decoder": {"name": "softmax", **VECTOR}}, ValueError, "coverage is what words of a source received"),
    ("llama", {"name": "entmax15", **VECTOR}, ValueError, "LlamaAttention at .* is self-attention"),
    ("llama", CROSS, ValueError, "LlamaForCausalLM has no cross attention"),
    ("bart", {"cross": {"name": "csparsemax", **VECTOR}}, ValueError, "csparsemax follows .* by its bounds"),
    ("bart", {"cross": {"name": "softmax", "coverage": True}}, ValueError, '"none" or "vector" .*, was True'),
    ("bart", {"cross": {"name": "softmax", "coverage": 2}}, ValueError, '"none" or "vector" .*, was 2'),
    ("bart", {"cross": {"name": "softmax", "coverage": "vectors"}}, ValueError, "was 'vectors'"),
    ("bart", {"cross": {"name": "softmax", "coverage": "learned"}}, ValueError, "coverage must be .*, was 'learned'"),
    ("bart", {"cross": {"name": "softmax", "coverage": {"vector": [4]}}}, ValueError, r"coverage must be .*\[4\]"),
    ("bart", {"cross": {"name": "softmax", "coverage": {"vector": [4, 0]}}}, ValueError, r"was .*\[4, 0\]"),
]


@pytest.mark.parametrize(("name", "attn", "error", "message"), REFUSED, ids=[f"{c[0]} {c[1]}" for c in REFUSED])
def test_what_cannot_be_honoured_is_refused_and_the_model_stays_dense(name, attn, error, message):
    model = tiny_model(name)
    keys = list(model.state_dict())
    with pytest.raises(error, match=message):
        sparsify(model, attn=attn)
    assert type(model) is type(tiny_model(name))
    assert list(model.state_dict()) == keys
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_head_has_no_coverage_and_a_saved_size_is_needed():
    with pytest.raises(ValueError, match="head: coverage follows what attention gave its keys; it is for attention"):
        sparsify(tiny_model("bart"), head={"name": "entmax15", **VECTOR})
    with pytest.raises(ValueError, match='saved attention has coverage="vector" without the size of the vectors'):
        SparseConfig.from_dict({"version": 1, "attn": CROSS})


def test_models_whose_attention_cannot_follow_it_are_refused():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 4, "vocab_size": 23}
    model = LongT5ForConditionalGeneration(LongT5Config(**sizes, decoder_start_token_id=PAD)).eval()
    message = "LongT5ForConditionalGeneration does not hand target_mask on to LongT5Attention .* bounds and coverage"
    with pytest.raises(ValueError, match=message):
        sparsify(model, attn=CROSS)
    with pytest.raises(ValueError, match="self-attention"):
        sparsify(tiny_inline_model("gptj"), attn={"name": "softmax", **VECTOR})


def test_capped_scores_and_ways_to_compute_without_weights_are_refused():
    leaves, mask, _ = problem()
    module = nn.Module()
    module.__dict__[SITE] = AttentionSite(
        "there", "cross", MapConfig.parse("softmax", "attn"), coverage=CoverageVectors(2, 3)
    )
    with pytest.raises(ValueError, match="Module caps its scores, and coverage is not part of what it caps"):
        sparse_attention(module, leaves["q"], leaves["k"], leaves["v"], mask[:, None, None], softcap=5.0)
    model = covered("bart", {"name": "entmax15"})
    for _, site in attention_sites(model):
        site.impl = "flex" if site.has_coverage else "auto"
    with pytest.raises(ValueError, match='impl="flex" does not follow what keys received before'):
        forced(model, SOURCE, TARGET)


def test_fertilities_are_not_for_coverage():
    with pytest.raises(
        ValueError, match="fertility is for constrained attention, and BartForConditionalGeneration has"
    ):
        forced(covered("bart"), SOURCE, TARGET, fertility=2.0)
