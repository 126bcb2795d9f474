"""Every mode of ``generate`` reads exactly the sparse distribution: checked against enumeration of all strings."""

import copy
import math

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LogitsProcessorList
from transformers.generation.streamers import BaseStreamer

from hf_sparse import Ensemble, SparseLogitsProcessor, score_sequences, sparsify, unsparsify
from hf_sparse.cache_name import CACHE, OLD_NAME
from hf_sparse.functional.log_zero import LOG_ZERO
from hf_sparse.model.beam_record import draw_allowed_continuations, recorded_beam_search
from hf_sparse.model.kept_support import KeptSupport
from tests.enumeration import VOCAB, all_strings, model_and_inputs, next_distribution
from tests.sweep.architectures import build
from tests.sweep.inputs import inputs_for
from tests.tiny_models import EOS, PAD, TOKENS, tiny_model, tokens

STEPS = 3
HEADS = [
    "entmax15",
    "sparsemax",
    {"name": "entmax", "alpha": 1.25},
    {"name": "alpha_relu", "alpha": 1.5, "tau": "auto"},
]
NAMES = ["llama", "gpt2", "gemma2", "bart", "t5"]


def strings_of(model, inputs, sequences):
    """Generated ids as tuples, prompt or start token and padding taken off."""
    prompt = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    strings = []
    for row in sequences[:, prompt:].tolist():
        end = row.index(EOS) + 1 if EOS in row else len(row)
        strings.append(tuple(row[:end]))
    return strings


@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_beam_search_finds_the_best_strings_with_their_exact_probabilities(name, head):
    model, inputs = model_and_inputs(name, head)
    table = all_strings(model, inputs, STEPS)
    assert sum(table.values()) == pytest.approx(1, abs=1e-5)
    beams = 40
    output = model.generate(
        **inputs,
        max_new_tokens=STEPS,
        num_beams=beams,
        num_return_sequences=beams,
        length_penalty=0.0,
        return_dict_in_generate=True,
        output_scores=True,
        do_sample=False,
    )
    found = dict(zip(strings_of(model, inputs, output.sequences), output.sequences_scores.exp().tolist()))
    best = sorted(table.items(), key=lambda entry: -entry[1])[: beams // 4]
    for string, probability in best:
        assert found[string] == pytest.approx(probability, rel=1e-4)
    for string, score in found.items():
        assert score == pytest.approx(table.get(string, 0.0), abs=1e-5)


@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_greedy_takes_the_likeliest_token_and_reports_its_log_probability(name, head):
    model, inputs = model_and_inputs(name, head)
    output = model.generate(
        **inputs, max_new_tokens=STEPS, do_sample=False, return_dict_in_generate=True, output_scores=True
    )
    (string,) = strings_of(model, inputs, output.sequences)
    for position, token in enumerate(string):
        p = next_distribution(model, inputs, string[:position])
        assert token == int(p.argmax())
        scores = output.scores[position][0].double()
        torch.testing.assert_close(scores.exp(), p, atol=1e-6, rtol=1e-4)
        assert torch.equal(scores.float().exp() == 0, p == 0)


@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize("name", ["llama", "bart"])
@torch.no_grad()
def test_sampling_draws_strings_with_their_probabilities_and_never_one_of_probability_zero(name, head):
    model, inputs = model_and_inputs(name, head)
    table = all_strings(model, inputs, STEPS)
    torch.manual_seed(0)
    draws = 1500
    sequences = model.generate(
        **inputs, max_new_tokens=STEPS, do_sample=True, top_k=0, num_return_sequences=draws, temperature=1.0
    )
    counts: dict = {}
    for string in strings_of(model, inputs, sequences):
        counts[string] = counts.get(string, 0) + 1
    assert set(counts) <= set(table)
    for string, p in table.items():
        spread = math.sqrt(draws * p * (1 - p)) + 1
        assert abs(counts.get(string, 0) - draws * p) < 5 * spread


@torch.no_grad()
def test_a_dense_head_would_have_drawn_other_strings():
    model, inputs = model_and_inputs("llama", "sparsemax")
    assert len(all_strings(model, inputs, STEPS)) < sum((VOCAB - 1) ** k for k in range(1, STEPS + 1)) / 3


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("name", ["llama", "bart"])
@torch.no_grad()
def test_cache_and_left_padding_do_not_change_beams(name, use_cache):
    model, inputs = model_and_inputs(name, {"name": "alpha_relu", "tau": "auto"})
    settings = {"max_new_tokens": 4, "num_beams": 4, "use_cache": use_cache, "do_sample": False}
    settings |= {"return_dict_in_generate": True, "output_scores": True}
    alone = model.generate(**inputs, **settings)
    if not model.config.is_encoder_decoder:
        padding = torch.full((1, 2), PAD)
        ids = torch.cat([padding, inputs["input_ids"]], dim=1)
        inputs = {"input_ids": ids, "attention_mask": (ids != PAD).long()}
        padded = model.generate(**inputs, **settings)
        assert torch.equal(padded.sequences[:, 2:], alone.sequences)
        torch.testing.assert_close(padded.sequences_scores, alone.sequences_scores, atol=1e-4, rtol=1e-4)
    reference = model.generate(**inputs, **{**settings, "use_cache": not use_cache})
    torch.testing.assert_close(reference.sequences_scores, alone.sequences_scores, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_assisted_decoding_and_prompt_lookup_agree_with_greedy():
    model, inputs = model_and_inputs("llama", "entmax15")
    assistant = sparsify(tiny_model("llama", vocab_size=VOCAB, seed=8), head="sparsemax")
    greedy = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    assert torch.equal(model.generate(**inputs, max_new_tokens=8, do_sample=False, assistant_model=assistant), greedy)
    lookup = model.generate(**inputs, max_new_tokens=8, do_sample=False, prompt_lookup_num_tokens=2)
    assert torch.equal(lookup, greedy)


@pytest.mark.skipif(CACHE == OLD_NAME, reason="assistants took no static cache before Transformers 5.24")
def test_assisted_decoding_over_a_static_cache_agrees_with_greedy():
    model, inputs = model_and_inputs("llama", "entmax15")
    assistant, _ = model_and_inputs("llama", "sparsemax", seed=8)
    options = {"max_new_tokens": 8, "do_sample": False}
    static = model.generate(**inputs, **options, assistant_model=assistant, cache_implementation="static")
    assert torch.equal(static, model.generate(**inputs, **options))


@torch.no_grad()
def test_a_constraint_that_empties_the_support_leaves_the_order_of_scores():
    model, inputs = model_and_inputs("llama", "sparsemax")
    p = next_distribution(model, inputs, ())
    allowed = [token for token in range(VOCAB) if p[token] == 0]
    output = model.generate(
        **inputs, max_new_tokens=1, do_sample=False, suppress_tokens=[t for t in range(VOCAB) if t not in allowed]
    )
    logits = model(inputs["input_ids"]).logits[0, -1]
    assert int(output[0, -1]) == max(allowed, key=lambda token: float(logits[token]))


# --- sampling: every truncation and temperature acts on the sparse distribution ---


def by_probability(p, keep):
    """``p`` restricted to the tokens where ``keep`` holds, summing to one."""
    q = p * keep
    return q / q.sum()


def nucleus(p, mass, order):
    """The first tokens of ``order`` that hold ``mass``."""
    before = p[order].cumsum(0) - p[order]
    return torch.zeros_like(p).scatter(0, order, (before < mass).double())


def typical(p, mass):
    surprise = torch.where(p > 0, -p.clamp(min=1e-300).log(), torch.inf)
    return nucleus(p, mass, (surprise - entropy(p).sum()).abs().argsort(stable=True))


def entropy(p):
    """What each token adds to it, in nats."""
    return torch.where(p > 0, -p * p.clamp(min=1e-300).log(), 0.0)


def top_h(p, share):
    """The likeliest tokens, as many as have ``share`` of the entropy together, and one at least."""
    order = p.argsort(descending=True)
    spent = entropy(p)[order].cumsum(0)
    spent[0] = 0
    return torch.zeros_like(p).scatter(0, order, (spent <= share * entropy(p).sum()).double())


def eta(p, cutoff):
    return p >= min(cutoff, cutoff**0.5 * float(torch.exp(-entropy(p).sum())), float(p.max()))


TRUNCATIONS = {
    "temperature": ({"temperature": 2.0}, lambda p: p.sqrt() / p.sqrt().sum()),
    "cold": ({"temperature": 0.5}, lambda p: p**2 / (p**2).sum()),
    "top_k": ({"top_k": 2}, lambda p: by_probability(p, p >= p.topk(2).values[-1])),
    "top_p": ({"top_p": 0.6}, lambda p: by_probability(p, nucleus(p, 0.6, p.argsort(descending=True)))),
    "min_p": ({"min_p": 0.3}, lambda p: by_probability(p, p >= 0.3 * p.max())),
    "typical_p": ({"typical_p": 0.6}, lambda p: by_probability(p, typical(p, 0.6))),
    "epsilon": ({"epsilon_cutoff": 0.2}, lambda p: by_probability(p, p >= 0.2)),
    "eta": ({"eta_cutoff": 0.3}, lambda p: by_probability(p, eta(p, 0.3))),
    "top_h": ({"top_h": 0.7}, lambda p: by_probability(p, top_h(p, 0.7))),
    "none": ({}, lambda p: p),
}


@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize("mode", TRUNCATIONS)
@torch.no_grad()
def test_truncation_and_temperature_act_on_the_sparse_distribution(mode, head):
    settings, expected = TRUNCATIONS[mode]
    for name in ("gpt2", "t5"):
        model, inputs = model_and_inputs(name, head)
        torch.manual_seed(0)
        output = model.generate(
            **inputs,
            **{"top_k": 0, "max_new_tokens": 3, "do_sample": True, "num_return_sequences": 5} | settings,
            return_dict_in_generate=True,
            output_scores=True,
        )
        for row, string in enumerate(strings_of(model, inputs, output.sequences)):
            for position in range(len(string)):
                p = next_distribution(model, inputs, string[:position])
                q = output.scores[position][row].double().softmax(-1)
                assert (q - expected(p)).abs().max() < 2e-5
                assert q[string[position]] > 0


# --- constraints ---


@pytest.mark.parametrize("num_beams", [1, 3])
@torch.no_grad()
def test_constraints_choose_among_strings_of_nonzero_probability(num_beams):
    model, inputs = model_and_inputs("t5", "entmax15")
    table = all_strings(model, inputs, STEPS)
    forbidden = max(table, key=table.__getitem__)[0]
    for constraint in (
        {"suppress_tokens": [forbidden]},
        {"bad_words_ids": [[forbidden]]},
        {"prefix_allowed_tokens_fn": lambda _, ids: [token for token in range(VOCAB) if token != forbidden]},
    ):
        if forbidden == EOS and "bad_words_ids" in constraint:
            continue  # Transformers never counts the end token as a bad word
        sequences = model.generate(
            **inputs, max_new_tokens=STEPS, num_beams=num_beams, do_sample=False, length_penalty=0.0, **constraint
        )
        (string,) = strings_of(model, inputs, sequences)
        assert forbidden not in string
        assert table[string] > 0


@torch.no_grad()
def test_diverse_beam_search_is_no_longer_part_of_transformers():
    model, inputs = model_and_inputs("gpt2", "entmax15")
    with pytest.raises(ValueError, match="trust_remote_code"):
        model.generate(**inputs, max_new_tokens=2, num_beams=4, num_beam_groups=2, diversity_penalty=1.0)


# --- batches and caches ---


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "bart", "t5"])
@torch.no_grad()
def test_a_padded_batch_decodes_like_its_sentences_alone(name):
    sources = [(3, 5, 4, 6), (4, 4), (6,)]
    model, _ = model_and_inputs(name, "entmax15")
    model.double()
    left = not model.config.is_encoder_decoder
    rows = [[PAD] * (4 - len(s)) * left + list(s) + [PAD] * (4 - len(s)) * (not left) for s in sources]
    ids = torch.tensor(rows)
    settings = {"do_sample": False, "return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 5}
    for options in ({}, {"use_cache": False}):
        together = model.generate(ids, attention_mask=(ids != PAD).long(), **settings, **options)
        for row, source in enumerate(sources):
            one = torch.tensor([source])
            alone = model.generate(one, attention_mask=torch.ones_like(one), **settings)
            steps = len(alone.scores)
            assert torch.equal(together.sequences[row, -len(together.scores) :][:steps], alone.sequences[0, -steps:])
            for ours, theirs in zip(together.scores, alone.scores):
                torch.testing.assert_close(ours[row].exp(), theirs[0].exp(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
@torch.no_grad()
def test_static_cache_decodes_like_the_dynamic_one(name):
    model, inputs = model_and_inputs(name, "entmax15")
    settings = {"do_sample": False, "return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 6}
    dynamic = model.generate(**inputs, **settings)
    static = model.generate(**inputs, **settings, cache_implementation="static", disable_compile=True)
    assert torch.equal(dynamic.sequences, static.sequences)
    for ours, theirs in zip(static.scores, dynamic.scores):
        torch.testing.assert_close(ours.exp(), theirs.exp(), atol=1e-5, rtol=1e-4)


# --- speculation ---


@torch.no_grad()
def test_speculative_sampling_draws_from_the_sparse_distribution_whatever_the_assistant():
    model, inputs = model_and_inputs("llama", "sparsemax", seed=9)
    table = all_strings(model, inputs, 2)
    assert len(table) > 3
    assistant, _ = model_and_inputs("llama", None, seed=8)
    torch.manual_seed(0)
    draws = 150
    counts: dict = {}
    for _ in range(draws):
        sequences = model.generate(
            **inputs, max_new_tokens=2, min_new_tokens=0, do_sample=True, top_k=0, assistant_model=assistant
        )
        (string,) = strings_of(model, inputs, sequences)
        counts[string] = counts.get(string, 0) + 1
    assert set(counts) <= set(table)
    for string, p in table.items():
        assert abs(counts.get(string, 0) - draws * p) < 5 * (math.sqrt(draws * p * (1 - p)) + 1)


@torch.no_grad()
def test_a_mixture_with_the_assistant_is_refused_for_sparse_heads_alone():
    model, inputs = model_and_inputs("llama", "sparsemax")
    assistant, _ = model_and_inputs("llama", None, seed=8)
    options = {"max_new_tokens": 3, "assistant_model": assistant, "assistant_ensemble_weight": 0.3}
    for refusing in (model, Ensemble([model, model])):
        with pytest.raises(ValueError, match=r"assistant_ensemble_weight takes tokens .* hf_sparse.Ensemble"):
            refusing.generate(**inputs, **options)
    dense, _ = model_and_inputs("llama", None)
    sparsify(dense, attn="sparsemax").generate(**inputs, **options)


@torch.no_grad()
def test_a_contrast_with_earlier_layers_is_refused_for_sparse_heads_alone():
    """The code of DoLa is a folder on the Hub, which gets its settings and processors from ``generate``."""

    def contrast(model, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
        return generation_config.dola_layers

    options = {"max_new_tokens": 3, "dola_layers": "high", "custom_generate": contrast}
    model, inputs = model_and_inputs("llama", "sparsemax")
    with pytest.raises(ValueError, match=r"dola_layers contrasts .* leave it out, or pass head=None"):
        model.generate(**inputs, **options)
    dense, _ = model_and_inputs("llama", None)
    assert sparsify(dense, attn="sparsemax").generate(**inputs, **options) == "high"


# --- around generate ---


@torch.no_grad()
def test_streamer_and_pipeline_give_what_generate_gives():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, TextStreamer, pipeline

    words = {f"w{i} ": i for i in range(VOCAB)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w3 ")), pad_token="w0 ", eos_token="w2 "
    )
    model, _ = model_and_inputs("llama", "entmax15")
    inputs = {"input_ids": torch.tensor([[4]]), "attention_mask": torch.ones(1, 1, dtype=torch.long)}
    expected = model.generate(**inputs, max_new_tokens=5, do_sample=False)[0]
    heard = []

    class Streamer(TextStreamer):
        def put(self, value):
            heard.extend(value.flatten().tolist())

        def end(self):
            pass

    model.generate(**inputs, max_new_tokens=5, do_sample=False, streamer=Streamer(tokenizer))
    assert heard == expected.tolist()
    generator = pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    (text,) = generator("w4 ", max_new_tokens=5, do_sample=False, return_tensors=True)
    assert text["generated_token_ids"] == expected.tolist()


@torch.no_grad()
def test_token_healing_replaces_the_last_token_by_one_that_begins_like_it():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<s>", "</s>", "x", "xa", "xb", "xc", *(f"y{i}" for i in range(16))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", bos_token="<s>")
    model = sparsify(tiny_model("llama"), head="entmax15")
    prompts = [[7 + i, 20 - i, 9 + i, words.index("x")] for i in range(8)]
    p = torch.stack([model(torch.tensor([ids[:-1]])).logits[0, -1].exp() for ids in prompts])
    assert (p[:, 3:7] == 0).all(-1).any()
    options = {"max_new_tokens": 1, "do_sample": False, "tokenizer": tokenizer, "token_healing": True}
    for ids in prompts:
        for healing in (model, Ensemble([model, sparsify(tiny_model("llama", seed=1), head="sparsemax")])):
            healed = healing.generate(torch.tensor([ids]), **options)[0, :4]
            assert healed[:3].tolist() == ids[:3]
            assert words[healed[3]].startswith("x")


def test_strings_of_is_read_correctly():
    model, inputs = model_and_inputs("llama", "sparsemax")
    rows = torch.tensor([[3, 5, 4, 6, 5, EOS, PAD], [3, 5, 4, 6, 5, 4, 3]])
    assert strings_of(model, inputs, rows) == [(5, EOS), (5, 4, 3)]


# --- beams ---


def test_beams_of_a_batch_end_as_those_of_each_sentence_alone():
    model = sparsify(tiny_model("gpt2", vocab_size=7, seed=3), head="sparsemax").double()
    ids = torch.tensor([[3, 5, 4, 6], [6, 3, 3, 5], [4, 4, 6, 3], [5, 6, 3, 4]])
    options = {"num_beams": 4, "num_return_sequences": 4, "early_stopping": True, "max_new_tokens": 6}

    def strings(rows):
        found = model.generate(
            rows, attention_mask=torch.ones_like(rows), do_sample=False, length_penalty=0.0, **options
        )
        return [string[: string.index(EOS) + 1] if EOS in string else string for string in found[:, 4:].tolist()]

    assert strings(ids) == [string for row in ids for string in strings(row[None])]


@pytest.mark.parametrize("by", ["head", "processor", "ensemble"])
@torch.no_grad()
def test_early_stopping_ends_with_strings_of_nonzero_probability(by):
    """The support is smaller than the beam, and an end token of probability zero is among what fills it up."""
    head = {"name": "sparsemax", "temperature": 0.1}
    config = GPT2Config(vocab_size=20, n_embd=16, n_layer=1, n_head=2, initializer_range=0.5, **TOKENS)
    torch.manual_seed(1)
    dense = GPT2LMHeadModel(config).eval()
    sparse = sparsify(copy.deepcopy(dense), head=head)
    model = {"head": sparse, "processor": dense, "ensemble": Ensemble([sparse, sparse])}[by]
    options = {"logits_processor": [SparseLogitsProcessor(head)]} if by == "processor" else {}
    inputs = {"input_ids": torch.tensor([[7, 6, 5]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    options |= {"do_sample": False, "max_new_tokens": 40}
    greedy = model.generate(**inputs, **options)
    for early_stopping in (True, False, "never"):
        beams = model.generate(**inputs, num_beams=4, early_stopping=early_stopping, **options)
        assert beams[0, :11].tolist() == greedy[0, :11].tolist() == [7, 6, 5, 7, 3, 3, 7, 7, 7, 3, EOS]
        assert math.exp(score_sequences(sparse, inputs, beams).normalized[0]) == pytest.approx(0.937, abs=1e-3)


@torch.no_grad()
def test_beams_that_are_drawn_have_no_forbidden_token_while_others_are_left():
    """At most three of the six continuations that three beams draw have nonzero probability; thirty are allowed."""
    model = sparsify(tiny_model("llama", vocab_size=40), head={"name": "sparsemax", "temperature": 0.01})
    ids, allowed = torch.tensor([[3, 5, 4, 6]]), list(range(10, 20))
    torch.manual_seed(0)
    drawn = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, num_beams=3, num_return_sequences=3,
        max_new_tokens=4, prefix_allowed_tokens_fn=lambda row, prefix: allowed,
    )  # fmt: skip
    assert set(drawn[:, 4:].flatten().tolist()) <= set(allowed)


def test_beams_are_drawn_by_their_probability_without_replacement():
    """Of probabilities .5, .3 and .2 two are drawn: each pair as often as in either order together."""
    p = torch.tensor([0.5, 0.3, 0.2, 0.0])
    scores = torch.where(p > 0, p.log(), LOG_ZERO).expand(20_000, -1)

    def kept(model, accumulated_log_probs, do_sample, beams_to_keep):
        return accumulated_log_probs.topk(beams_to_keep).indices

    def search(model, *_):
        return draw_allowed_continuations(kept, model, accumulated_log_probs=scores, do_sample=True, beams_to_keep=2)

    torch.manual_seed(0)
    drawn = recorded_beam_search(search, None, None, KeptSupport(LogitsProcessorList()), None, None)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        share = float((drawn == torch.tensor([one, other])).all(-1).float().mean())
        both = float(p[one] * p[other] * (1 / (1 - p[one]) + 1 / (1 - p[other])))
        assert share == pytest.approx(both, abs=0.015)


@torch.no_grad()
def test_a_model_that_a_streamer_made_dense_stays_as_it_was():
    model = tiny_model("llama")
    name, expected = model.config._attn_implementation, model(tokens()).logits
    sparsify(model, attn="entmax15")

    class Undo(BaseStreamer):
        def put(self, value):
            pass

        def end(self):
            unsparsify(model)

    model.generate(tokens()[:1], max_new_tokens=2, do_sample=False, streamer=Undo())
    assert model.config._attn_implementation == name
    assert torch.equal(model(tokens()).logits, expected)


@pytest.mark.parametrize("part", ["attn", "head"])
def test_a_model_that_lends_the_preparation_of_its_cache_to_its_codec_generates(part):
    kind = "kyutai_speech_to_text"
    model = build(kind, "KyutaiSpeechToTextForConditionalGeneration")
    example = inputs_for(kind, model)
    audio = {"input_values": torch.randn(1, 1, 8000, generator=torch.Generator().manual_seed(0))}
    options = {"max_new_tokens": 4, "do_sample": False, "output_scores": True, "return_dict_in_generate": True}
    dense = torch.stack(model.generate(**audio, **options).scores)
    same = torch.stack(sparsify(model, **{part: "softmax"}, example=example).generate(**audio, **options).scores)
    torch.testing.assert_close(same.log_softmax(-1), dense.log_softmax(-1))
    sparsify(unsparsify(model), **{part: "entmax15"}, example=example)
    assert not torch.allclose(torch.stack(model.generate(**audio, **options).scores).softmax(-1), dense.softmax(-1))
    if part == "attn":
        with pytest.raises(ValueError, match="KyutaiSpeechToTextForConditionalGeneration has no layer that caches"):
            model.generate(**audio, **options, cache_implementation="screened")


@pytest.mark.parametrize("cache", [None, "static"])
def test_a_model_that_generates_blocks_by_denoising_takes_padding(cache):
    """Its ``generate`` has masks made from token ids, in whose dtype there is no lowest number."""
    kind = "diffusion_gemma"
    model = build(kind, "DiffusionGemmaForBlockDiffusion")
    example, ids, mask = inputs_for(kind, model), tokens(2, 8), torch.ones(2, 8, dtype=torch.long)
    mask[0, :3] = 0

    def generated():
        torch.manual_seed(0)
        options = {"max_denoising_steps": 2, "cache_implementation": cache, "disable_compile": True}
        return model.generate(ids, attention_mask=mask, max_new_tokens=8, **options).sequences

    dense = generated()
    sparsify(model, attn="softmax", example=example)
    assert torch.equal(generated(), dense)
