"""Continuous batching: requests of any length in one batch are decoded as one by one."""

import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList, SequenceBiasLogitsProcessor
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessorList

from hf_sparse import SparseConfig, log_probabilities, raw_scores, sparsify, unsparsify
from hf_sparse.attention import attention_sites
from hf_sparse.functional.log_zero import LOG_ZERO
from hf_sparse.hooks import install, uninstall
from hf_sparse.model.attach import change_settings
from hf_sparse.model.continuous import KeptInBatches
from tests.sweep.architectures import build
from tests.tiny_inline_models import tiny_inline_model
from tests.tiny_models import BOS, CAUSAL, EOS, PAD, tiny_model
from tests.tolerances import WEIGHT

STEPS = 6
PROMPTS = [[3, 4, 5], [7, 8, 9, 10, 11, 12], [20], [3, 4, 5, 6, 7, 8, 9, 10, 11]]
SMALL = {"page_size": 4, "num_blocks": 32, "max_batch_tokens": 12}  # prompts are split, and span pages
MAPS = {
    "head": {"head": "entmax15"},
    "attention": {"attn": "entmax15"},
    "both": {"attn": "sparsemax", "head": {"name": "entmax", "alpha": 1.3}},
    "by the number of keys": {"attn": {"name": "entmax15", "beta": 0.5}, "head": "alpha_relu"},
    "sums other than one": {"attn": "softpick"},
}


def settings(**options):
    ids = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
    return GenerationConfig(max_new_tokens=STEPS, **{"do_sample": False, **ids, **options})


def one_by_one(model, **options):
    return [
        model.generate(torch.tensor([prompt]), generation_config=settings(**options))[0, len(prompt) :].tolist()
        for prompt in PROMPTS
    ]


def batched(model, prompts=PROMPTS, batching=SMALL, persistent_manager=False, **options):
    """What ``generate_batch`` returns for each prompt."""
    found = model.generate_batch(
        prompts,
        generation_config=settings(**options),
        continuous_batching_config=ContinuousBatchingConfig(**batching),
        persistent_manager=persistent_manager,
        progress_bar=False,
    )
    assert [output.error for output in found.values()] == [None] * len(found)
    return list(found.values())


def strings(outputs):
    return [output.generated_tokens for output in outputs]


@pytest.mark.parametrize("maps", MAPS)
@pytest.mark.parametrize("name", CAUSAL)
def test_a_batch_is_decoded_as_one_by_one(name, maps):
    model = sparsify(tiny_model(name).double(), **MAPS[maps])
    assert strings(batched(model)) == one_by_one(model)


@pytest.mark.parametrize("maps", ["head", "attention", "both"])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_other_threads_read_a_configuration_that_stays_as_it_is(name, maps):
    model, seen = sparsify(tiny_model(name), **MAPS[maps]), []
    layers = model.get_decoder().layers
    layers[0].register_forward_pre_hook(lambda *_: seen.append(getattr(model.config, "is_causal", None)))
    batched(model)
    assert seen
    assert set(seen) == {None}


@pytest.mark.parametrize("is_causal", [True, False])
@torch.no_grad()
def test_where_no_mask_says_it_the_argument_is_heard(is_causal):
    model = tiny_model("qwen3")
    model.set_attn_implementation("sdpa")
    sparsify(model, head="entmax15")
    unmasked = {"full_attention": None, "sliding_attention": None}
    one, other = (
        model(torch.tensor([ids]), attention_mask=unmasked, is_causal=is_causal).logits[0, 0]
        for ids in ([3, 4, 5, 6], [3, 4, 5, 9])
    )
    assert torch.equal(one, other) == is_causal


@pytest.mark.parametrize(("name", "implementation"), [("gemma2", "eager"), ("llama", "eager"), ("llama", "sdpa")])
def test_dense_attention_is_switched_and_comes_back(name, implementation):
    model = tiny_model(name).double()
    model.set_attn_implementation(implementation)
    sparsify(model, head="entmax15")
    assert strings(batched(model)) == one_by_one(model)
    assert model.config._attn_implementation == implementation


def test_settings_by_head_and_layer_are_kept():
    attn = [{"name": "entmax", "alpha": [1.2, 1.5, 1.8, 2.0]}, None]
    model = sparsify(tiny_model("llama").double(), attn={"decoder": attn})
    assert strings(batched(model)) == one_by_one(model)


@pytest.mark.parametrize("head", ["entmax15", "alpha_relu", None])
def test_log_probabilities_are_those_of_the_sparse_distribution(head):
    model = sparsify(tiny_model("llama").double(), attn="entmax15", head=head)
    outputs = batched(model, batching=SMALL | {"return_logprobs": True, "seed": 1}, do_sample=True)
    for prompt, output in zip(PROMPTS, outputs):
        ids = torch.tensor([prompt + output.generated_tokens])
        log_p = model(ids).logits.log_softmax(-1)[0, len(prompt) - 1 : -1]
        expected = log_p.gather(-1, ids[0, len(prompt) :, None])[:, 0]
        found = torch.tensor(output.logprobs)
        torch.testing.assert_close(found.exp(), expected.float().exp(), atol=WEIGHT[torch.float32], rtol=0)


@pytest.mark.parametrize("per_request", [False, True])
def test_a_temperature_brings_no_token_back(per_request):
    model = sparsify(tiny_model("llama"), head="entmax15")
    batching = SMALL | {"per_request_processors": per_request, "seed": 0}
    outputs = batched(model, PROMPTS * 8, batching, do_sample=True, temperature=1e6)
    assert len({tuple(output.generated_tokens) for output in outputs}) > len(PROMPTS)
    for prompt, output in zip(PROMPTS * 8, outputs):
        ids = torch.tensor([prompt + output.generated_tokens])
        log_p = model(ids).logits[0, len(prompt) - 1 : -1].gather(-1, ids[0, len(prompt) :, None])
        assert (log_p > LOG_ZERO / 2).all()


def test_requests_have_temperatures_of_their_own():
    model = sparsify(tiny_model("llama"), head="entmax15")
    cold = one_by_one(model)[0]
    batching = ContinuousBatchingConfig(**SMALL, per_request_processors=True, seed=0)
    with model.continuous_batching_context_manager(
        generation_config=settings(do_sample=True, temperature=0.5), continuous_batching_config=batching
    ) as manager:
        names = {manager.add_request(PROMPTS[0], temperature=heat): heat for heat in (1e-4, 1e4) for _ in range(8)}
        found = [manager.get_result(timeout=60) for _ in names]
    by_heat = {1e-4: [], 1e4: []}
    for output in found:
        by_heat[names[output.request_id]].append(output.generated_tokens)
    assert by_heat[1e-4] == [cold] * 8
    assert len(set(map(tuple, by_heat[1e4]))) > 4


def test_a_bias_brings_no_token_back():
    scores = torch.tensor([[0.0, -1.0, LOG_ZERO], [LOG_ZERO, LOG_ZERO, 0.0]])
    biases = LogitsProcessorList([SequenceBiasLogitsProcessor([[[2], 2e4], [[0], 1.0]])])
    kept = KeptInBatches(ContinuousBatchingLogitsProcessorList(biases))
    found = kept(torch.zeros(2, 1, dtype=torch.long), scores, torch.zeros(0, 2))
    assert torch.equal(found, torch.tensor([[1.0, -1.0, LOG_ZERO], [LOG_ZERO, LOG_ZERO, 2e4]]))


@pytest.mark.slow
def test_a_manager_of_the_dense_model_is_not_used_again():
    model = tiny_model("llama").double()
    dense = strings(batched(model, persistent_manager=True))
    sparsify(model, attn="entmax15", head="entmax15")
    sparse, again = (strings(batched(model, persistent_manager=True)) for _ in range(2))
    model.destroy_cached_continuous_batching_manager()
    assert sparse == again == one_by_one(model) != dense
    unsparsify(model)
    assert strings(batched(model)) == one_by_one(model) == dense


@pytest.mark.slow
def test_a_manager_that_was_kept_forgets_what_it_computed_under_other_maps():
    prompts = [[*range(3, 20)], [*range(3, 16), 20], [7] * 13]  # beginnings that batches share

    def kept(model):
        return strings(batched(model, prompts, persistent_manager=True))

    def alone(model):
        return [
            model.generate(torch.tensor([prompt]), generation_config=settings())[0, len(prompt) :].tolist()
            for prompt in prompts
        ]

    model = sparsify(tiny_model("llama").double(), attn="sparsemax")
    found = [kept(model) == alone(model)]
    change_settings(model, SparseConfig.parse(attn={"name": "softmax", "temperature": 3.0}))
    found.append(kept(model) == alone(model))
    unsparsify(model)
    found.append(kept(model) == alone(model))
    sparsify(model, attn={"name": "entmax15", "temperature": 0.5})
    found.append(kept(model) == alone(model))
    model.destroy_cached_continuous_batching_manager()
    assert found == [True] * 4


def test_without_the_changes_to_transformers_sparse_attention_is_refused():
    model = sparsify(tiny_model("llama"), attn="entmax15")
    uninstall()
    try:
        with pytest.raises(ValueError, match="hf_sparse is not supported for continuous batching"):
            batched(model)
    finally:
        install()
    assert strings(batched(model))


def test_attention_that_a_batch_would_mix_is_refused():
    model = sparsify(tiny_inline_model("bloom"), attn="entmax15")
    with pytest.raises(NotImplementedError, match=r"computes its own softmax.*\(transformer.h.0.self_attention\)"):
        batched(model)
    model = sparsify(tiny_model("bart"), attn={"cross": {"name": "entmax15", "coverage": "vector"}})
    with pytest.raises(NotImplementedError, match="carries credit or coverage from query to query"):
        batched(model)


def test_an_encoder_that_computes_its_own_softmax_is_no_obstacle():
    model = sparsify(build("got_ocr2", "GotOcr2ForConditionalGeneration"), attn="entmax15", head="entmax15")
    kinds = {site.kind for _, site in attention_sites(model) if site.inline}
    assert kinds == {"encoder"}
    assert strings(batched(model.double())) == one_by_one(model)


def test_blocks_that_read_the_logits_otherwise_are_told():
    model = sparsify(tiny_model("llama").double(), head="entmax15")
    with raw_scores(model), pytest.raises(RuntimeError, match=r"generate inside raw_scores\(model\)"):
        batched(model)
    with log_probabilities(model):
        found = strings(batched(model))
    assert found == one_by_one(model)
