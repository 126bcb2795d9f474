"""Exact search: its strings against enumeration and depth-first search without cache, and its proofs."""

import math
import warnings

import pytest
import torch
from peft import PrefixTuningConfig, get_peft_model
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MambaConfig,
    MambaForCausalLM,
    MaxTimeCriteria,
    SynthIDTextWatermarkingConfig,
)

from hf_sparse import (
    Lexicon,
    compare_with_empty,
    condition,
    enumerate_support,
    exact_decoding,
    exact_search,
    score_sequences,
    sparsify,
)
from hf_sparse.cache_name import CACHE
from hf_sparse.generation.search._constraints import Constraints
from hf_sparse.generation.search._lattice import _select
from hf_sparse.generation.search._prefix_tree import PrefixCache
from tests.enumeration import VOCAB, all_strings, depth_first_search, ended, model_and_inputs
from tests.peft_version import needs_fitting_peft
from tests.tiny_models import EOS, PAD, TOKENS, tiny_model

STEPS = 4
HEADS = ["entmax15", "sparsemax", {"name": "alpha_relu", "tau": "auto"}, None]
NAMES = ["llama", "gpt2", "gemma2", "bart", "marian", "t5"]


def in_double(name, head, **options):
    """Like ``model_and_inputs``, in float64: rounding next to the threshold does not blur comparisons."""
    model, inputs = model_and_inputs(name, head, **options)
    return model.double(), inputs


def assert_accounts_for(result, table):
    """The masses of a result are those of the strings it saw and did not see."""
    assert result.finished_mass + result.left_mass == pytest.approx(1, abs=1e-9)
    if result.ended_by is None:
        assert result.num_proved == len(result.hypotheses)
    seen = {tuple(hypothesis.tokens) for hypothesis in result.hypotheses}
    bound = math.exp(max([result.log_bound, *(h.log_probability for h in result.hypotheses[-1:])]))
    assert all(p <= bound * (1 + 1e-9) for p, string in ended(table) if string not in seen)


@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_finds_the_likeliest_strings_with_their_probabilities(name, head):
    model, inputs = in_double(name, head)
    table = all_strings(model, inputs, STEPS)
    likeliest = ended(table)[:3]
    (result,) = exact_search(model, inputs, num_hypotheses=3, max_new_tokens=STEPS)
    assert [hypothesis.probability for hypothesis in result.hypotheses] == pytest.approx(
        [p for p, _ in likeliest], rel=1e-9
    )
    for hypothesis in result.hypotheses:
        assert table[tuple(hypothesis.tokens)] == pytest.approx(hypothesis.probability, rel=1e-9)
    assert_accounts_for(result, table)


@pytest.mark.parametrize("settings", [{"attention_dropout": 0.5}, {"checkpointing": True}])
def test_a_model_in_training_is_searched_in_evaluation_mode(settings):
    model, inputs = in_double("llama", "entmax15")
    expected = exact_search(model, inputs, max_new_tokens=STEPS)
    if settings.get("checkpointing"):  # which leaves the cache out, in training
        model.activation_checkpointing_enable()
    for layer in model.model.layers:
        vars(layer.self_attn).update(settings)
    model.train()
    assert exact_search(model, inputs, max_new_tokens=STEPS) == expected
    assert model.training
    with pytest.raises(ValueError, match=r"in training mode, where outputs are random: call model\.eval\(\)"):
        model.generate(**inputs, custom_generate=exact_decoding, max_new_tokens=STEPS)


@needs_fitting_peft
def test_prefixes_of_peft_are_in_the_shared_cache():
    torch.manual_seed(0)
    model, inputs = in_double("llama", "entmax15")
    model = get_peft_model(model, PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).double()
    model.prompt_encoder["default"].embedding.weight.data.mul_(3)
    found, alone = (
        exact_search(model, inputs, max_new_tokens=STEPS, **each)[0] for each in ({}, {"use_cache": False})
    )
    assert [each.tokens for each in found.hypotheses] == [each.tokens for each in alone.hypotheses]
    prompt = inputs["input_ids"]
    log_p, ids = 0.0, prompt
    for token in found.best.tokens:
        with torch.no_grad():
            log_p += float(model(input_ids=ids).logits[0, -1].log_softmax(-1)[token])
        ids = torch.cat([ids, torch.tensor([[token]])], 1)
    assert len(found.best.tokens) > 1
    assert found.best.log_probability == pytest.approx(log_p, rel=1e-9)


@pytest.mark.parametrize("head", ["entmax15", "sparsemax", None], ids=str)
@pytest.mark.parametrize(("name", "seed"), [("llama", 3), ("llama", 5), ("gpt2", 1), ("bart", 2), ("t5", 3)])
def test_agrees_with_depth_first_search_without_cache(name, seed, head):
    model, inputs = in_double(name, head, seed=seed)
    string, score, _ = depth_first_search(model, inputs, 8)
    (result,) = exact_search(model, inputs, max_new_tokens=8, width=2)
    if string is None:
        assert result.best is None
    else:
        assert result.best.log_probability == pytest.approx(score, rel=1e-9)


def test_width_changes_the_work_and_not_what_is_found():
    model, inputs = in_double("t5", "entmax15")
    searches = [exact_search(model, inputs, 4, max_new_tokens=6, width=width)[0] for width in (1, 3, 64)]
    expected = [(h.tokens, pytest.approx(h.log_probability, rel=1e-9)) for h in searches[0].hypotheses]
    for result in searches[1:]:
        assert [(h.tokens, h.log_probability) for h in result.hypotheses] == expected
    assert searches[0].num_expanded < searches[2].num_expanded


# Stock gemma2 gives NaN for left padding in float64 (transformers 5.23); with sparse attention it does not.
@pytest.mark.parametrize(("name", "head"), [*((name, "entmax15") for name in NAMES), ("gpt2", None), ("t5", None)])
def test_sentences_of_a_batch_do_not_touch_each_other_and_left_padding_is_not_seen(name, head):
    sources = [(3, 5, 4, 6), (4, 4), (6,)]
    model, _ = in_double(name, head)
    rows = [[PAD] * (4 - len(source)) + list(source) for source in sources]
    if model.config.is_encoder_decoder:
        rows = [list(source) + [PAD] * (4 - len(source)) for source in sources]
    ids = torch.tensor(rows)
    together = exact_search(model, {"input_ids": ids, "attention_mask": (ids != PAD).long()}, 3, max_new_tokens=5)
    for source, result in zip(sources, together):
        row = torch.tensor([source])
        inputs = {"input_ids": row, "attention_mask": torch.ones_like(row)}
        (alone,) = exact_search(model, inputs, 3, max_new_tokens=5)
        assert [h.tokens for h in result.hypotheses] == [h.tokens for h in alone.hypotheses]
        expected = [h.log_probability for h in alone.hypotheses]
        assert [h.log_probability for h in result.hypotheses] == pytest.approx(expected, rel=1e-9)
        assert result.num_expanded == alone.num_expanded
        assert result.left_mass == pytest.approx(alone.left_mass, abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_cache_changes_nothing(name):
    model, inputs = in_double(name, "entmax15", source=(3, 5, 4, 6, 6, 5))
    (cached,) = exact_search(model, inputs, 5, max_new_tokens=7, width=3)
    (uncached,) = exact_search(model, inputs, 5, max_new_tokens=7, width=3, use_cache=False)
    assert [h.tokens for h in cached.hypotheses] == [h.tokens for h in uncached.hypotheses]
    assert cached.left_mass == pytest.approx(uncached.left_mass, abs=1e-9)
    assert cached.num_expanded == uncached.num_expanded > 7


def test_one_position_is_computed_and_stored_for_each_prefix(monkeypatch):
    model, inputs = in_double("gpt2", "entmax15")
    inputs_seen, caches, gather = [], [], PrefixCache.gather
    model.register_forward_pre_hook(lambda _, args, kwargs: inputs_seen.append(kwargs["input_ids"]), with_kwargs=True)
    monkeypatch.setattr(PrefixCache, "gather", lambda self, *where: (caches.append(self), gather(self, *where))[1])
    (result,) = exact_search(model, inputs, 5, max_new_tokens=6)
    assert {ids.shape[1] for ids in inputs_seen[1:]} == {1}
    assert sum(len(ids) for ids in inputs_seen) == result.num_expanded > 6
    assert all(len(keys) == result.num_expanded - 1 for keys in caches[0]._keys)


# --- certificates ---


def test_exhaustion_is_claimed_if_and_only_if_every_string_was_seen():
    model, inputs = in_double("bart", "entmax15")
    table = ended(all_strings(model, inputs, 8))
    (result,) = exact_search(model, inputs, num_hypotheses=100, max_new_tokens=8)
    assert result.certificate == "exhaustion"
    assert [tuple(h.tokens) for h in result.hypotheses] == [string for _, string in table]
    assert len(table) > 3
    assert result.left_mass == 0
    assert result.finished_mass == pytest.approx(1, abs=1e-9)
    assert result.num_proved == len(table)
    (pruned,) = exact_search(model, inputs, num_hypotheses=2, max_new_tokens=8)
    assert not pruned.exhausted
    assert pruned.num_proved == 2
    assert pruned.ended_by is None


@pytest.mark.parametrize(
    ("head", "kinds"), [("sparsemax", {"exhaustion", "mass", None}), (None, {"mass", "bound", None})]
)
def test_every_certificate_is_true_and_every_kind_occurs(head, kinds):
    """Over many small searches: a certified string is the likeliest of all, those longer than the search included."""
    claimed = set()
    for seed in range(16):
        model, inputs = in_double("llama" if seed % 2 else "bart", head, seed=seed)
        truth = max(ended(all_strings(model, inputs, 5 if head else 4)), default=(0.0, ()))[0]
        for budget in (1, 3, 10_000):
            (result,) = exact_search(model, inputs, max_new_tokens=3, max_expanded=budget, width=1)
            claimed.add(result.certificate)
            if result.certificate:
                assert truth <= result.best.probability * (1 + 1e-9)
                assert result.gap == 0
            elif result.best:
                assert truth <= result.best.probability * math.exp(result.gap) * (1 + 1e-9)
                assert result.gap > 0
    assert claimed == kinds


def test_softmax_models_are_proved_by_bound_and_mass():
    model, inputs = in_double("gpt2", None)
    (result,) = exact_search(model, inputs, max_new_tokens=12)
    assert result.certificate in ("bound", "mass")
    assert result.ended_by is None
    assert not result.exhausted


# --- budgets ---


def test_each_budget_ends_the_search_and_is_named():
    model, inputs = in_double("t5", None)
    table = ended(all_strings(model, inputs, 5))

    def search(**budget):
        (result,) = exact_search(model, inputs, 40, **{"max_new_tokens": 5, "width": 4, **budget})
        assert result.finished_mass + result.left_mass == pytest.approx(1, abs=1e-9)
        return result

    free = search()
    assert free.ended_by == "max_new_tokens"  # some prefix of five tokens is likelier than the 40th string
    assert [h.probability for h in free.hypotheses] == pytest.approx([p for p, _ in table[:40]], rel=1e-9)
    few = search(max_expanded=9)
    assert few.ended_by == "max_expanded"
    assert 9 <= few.num_expanded < 9 + 4
    small = search(max_open=8)
    assert small.ended_by == "max_open"
    assert small.num_expanded < free.num_expanded
    brief = search(max_seconds=1e-9)
    assert brief.ended_by == "max_seconds"
    assert brief.num_expanded == 1
    assert search(max_new_tokens=1).num_expanded == 1


def test_nothing_found_is_said_and_not_made_up():
    model, inputs = in_double("llama", "sparsemax", seed=0)  # ends nothing within four tokens
    (result,) = exact_search(model, inputs, max_new_tokens=4)
    assert result.best is None
    assert result.gap == math.inf
    assert result.certificate is None
    assert result.left_mass == pytest.approx(1)
    with pytest.warns(UserWarning, match=r"no string was found for sentences \[0\].*: raise max_new_tokens"):
        sequences = model.generate(**inputs, custom_generate=exact_decoding, max_new_tokens=4)
    assert torch.equal(sequences, inputs["input_ids"])


def test_where_no_budget_ended_the_search_none_is_to_be_raised():
    model, inputs = in_double("llama", "entmax15", seed=1)
    with pytest.warns(UserWarning, match=r"no string was found for sentences \[0\].*: none is as likely as min_prob"):
        model.generate(**inputs, custom_generate=exact_decoding, min_probability=1 - 1e-9, max_new_tokens=4)


def test_min_probability_bounds_what_is_looked_for():
    model, inputs = in_double("t5", None)
    table = [(p, string) for p, string in ended(all_strings(model, inputs, 5)) if p >= 2e-3]
    (result,) = exact_search(model, inputs, 1000, max_new_tokens=5, min_probability=2e-3)
    assert [h.probability for h in result.hypotheses] == pytest.approx([p for p, _ in table], rel=1e-9)
    assert len(table) > 5
    (everything,) = exact_search(model, inputs, 1000, max_new_tokens=3)
    (likely,) = exact_search(model, inputs, 1000, max_new_tokens=3, min_probability=0.05)
    assert likely.num_expanded < everything.num_expanded


# --- through generate ---


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_is_a_mode_of_generate(name):
    model, inputs = in_double(name, "entmax15")
    results = exact_search(model, inputs, 2, max_new_tokens=5)
    options = {"custom_generate": exact_decoding, "max_new_tokens": 5, "num_hypotheses": 2}
    output = model.generate(**inputs, **options, return_dict_in_generate=True)
    assert output.results == results
    prompt = 1 if model.config.is_encoder_decoder else 4
    for row, score, hypothesis in zip(output.sequences, output.sequences_scores, results[0].hypotheses):
        assert row[prompt:][: len(hypothesis.tokens)].tolist() == hypothesis.tokens
        assert (row[prompt + len(hypothesis.tokens) :] == PAD).all()
        assert float(score) == hypothesis.log_probability
    assert torch.equal(model.generate(**inputs, **options), output.sequences)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        many = model.generate(**inputs, **options | {"num_hypotheses": 500}, return_dict_in_generate=True)
    assert many.sequences.shape[0] == 500
    assert many.sequences_scores[-1] == -math.inf


def test_constraints_set_probabilities_to_zero_and_leave_the_others():
    model, inputs = in_double("t5", "entmax15")
    table = ended(all_strings(model, inputs, STEPS))
    allowed = [(p, string) for p, string in table if 3 not in string]
    assert table[0][1] == (EOS,)
    assert len(allowed) < len(table)
    (result,) = exact_search(model, inputs, 4, max_new_tokens=STEPS, suppress_tokens=[3])
    assert [h.probability for h in result.hypotheses] == pytest.approx([p for p, _ in allowed[:4]], rel=1e-9)
    longer = [(p, string) for p, string in table if len(string) > 1]
    (result,) = exact_search(
        model,
        inputs,
        max_new_tokens=STEPS,
        prefix_allowed_tokens_fn=lambda _, ids: [t for t in range(VOCAB) if t != EOS or len(ids) > 1],
    )
    assert result.best.probability == pytest.approx(longer[0][0], rel=1e-9)


def batch_and_alone(model, sources):
    """Inputs for several sentences together, padded where the model pads, and for each alone."""
    length, left = max(map(len, sources)), not model.config.is_encoder_decoder
    rows = [[PAD] * (length - len(s)) * left + list(s) + [PAD] * (length - len(s)) * (not left) for s in sources]
    ids = torch.tensor(rows)
    together = {"input_ids": ids, "attention_mask": (ids != PAD).long()}
    return together, [
        {"input_ids": torch.tensor([s]), "attention_mask": torch.ones(1, len(s)).long()} for s in sources
    ]


@pytest.mark.parametrize("head", ["entmax15", None])
@pytest.mark.parametrize("width", [1, 4])
def test_the_function_of_allowed_tokens_is_given_the_number_of_the_sentence(width, head):
    """By enumeration: each sentence is held to its own constraint, also when the others are finished."""
    model, _ = in_double("t5", head)
    together, alone = batch_and_alone(model, [(3, 5, 4, 6), (4, 4), (6, 3)])
    forbidden = ({3, 5}, {4}, {6, 1})
    asked = set()

    def allowed(sentence, ids):
        asked.add(sentence)
        return [token for token in range(VOCAB) if token not in forbidden[sentence]]

    results = exact_search(model, together, 3, max_new_tokens=STEPS, width=width, prefix_allowed_tokens_fn=allowed)
    assert asked == {0, 1, 2}
    for inputs, tokens, result in zip(alone, forbidden, results):
        table = [(p, s) for p, s in ended(all_strings(model, inputs, STEPS)) if not tokens & set(s)]
        assert [h.probability for h in result.hypotheses] == pytest.approx([p for p, _ in table[:3]], rel=1e-9)
        assert all(not tokens & set(h.tokens) for h in result.hypotheses)


class OwnToken(LogitsProcessor):
    """Forbids one token in each row of a batch."""

    def __init__(self, tokens):
        self.tokens = torch.tensor(tokens)

    def __call__(self, input_ids, scores):
        return scores.scatter(1, self.tokens[:, None], -math.inf)


ROW_READERS = {
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 2},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 0.5},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "own": lambda i: {"logits_processor": LogitsProcessorList([OwnToken([3, 4] if i is None else [[3, 4][i]])])},
}


@pytest.mark.parametrize("option", ROW_READERS)
@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_processors_that_look_at_their_row_act_on_each_sentence_as_alone(name, option):
    model, _ = in_double(name, "entmax15", seed=2)
    together, alone = batch_and_alone(model, [(3, 5, 4, 6), (4, 6, 4, 4)])
    options = ROW_READERS[option] if callable(ROW_READERS[option]) else lambda _: ROW_READERS[option]
    each = [
        exact_search(model, inputs, 30, max_new_tokens=4, width=3, **options(i))[0] for i, inputs in enumerate(alone)
    ]
    for width in (1, 5):
        results = exact_search(model, together, 30, max_new_tokens=4, width=width, **options(None))
        free = exact_search(model, together, 30, max_new_tokens=4, width=width)
        assert [r.hypotheses for r in results] != [r.hypotheses for r in free]
        for result, expected in zip(results, each, strict=True):
            assert [h.tokens for h in result.hypotheses] == [h.tokens for h in expected.hypotheses]
            assert [h.log_probability for h in result.hypotheses] == pytest.approx(
                [h.log_probability for h in expected.hypotheses], rel=1e-9
            )


def test_progress_is_shown_on_request_only(capfd):
    model, inputs = in_double("bart", "entmax15")
    exact_search(model, inputs)
    assert "exact search" not in capfd.readouterr().err
    exact_search(model, inputs, progress=True)
    assert "1/1" in capfd.readouterr().err


# --- refusals ---


WATERMARK = SynthIDTextWatermarkingConfig(ngram_len=2, keys=[1, 2])


class Replace(LogitsProcessor):
    def __init__(self, value):
        self.value = value

    def __call__(self, input_ids, scores):
        return torch.full_like(scores, self.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_hypotheses": 0}, "num_hypotheses must be at least 1, was 0"),
        ({"width": 0}, "width must be at least 1, was 0"),
        ({"max_open": 0}, "max_open must be at least 1, was 0"),
        ({"max_expanded": -1}, "max_expanded must be at least 1, was -1"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_seconds": 0}, "max_seconds must be above 0, or None, was 0"),
        ({"min_probability": 1.5}, r"min_probability must be in \[0, 1\], was 1.5"),
        ({"do_sample": True}, "exact search neither samples nor takes beams"),
        ({"num_beams": 3}, "exact search neither samples nor takes beams"),
        ({"max_time": 3.0}, "not by MaxTimeCriteria"),
        ({"stopping_criteria": [MaxTimeCriteria(3.0)]}, "not by MaxTimeCriteria"),
        ({"stop_strings": ["a"], "tokenizer": object()}, "not by stop_strings; for a time limit pass max_seconds"),
        ({"generation_config": GenerationConfig(stop_strings=["a"])}, "not by the generation config's stop_strings"),
        ({"eos_token_id": None}, "no string ever ends"),
        ({"logits_processor": LogitsProcessorList([Replace(math.nan)])}, "NaN after the tokens"),
        ({"logits_processor": LogitsProcessorList([Replace(0.5)])}, "probabilities, so that those of a step sum to"),
        ({"sequence_bias": [[[EOS], 0.5]]}, "probabilities, so that those of a step sum to 1"),
        ({"cache_implementation": "static"}, "layers of type StaticLayer"),
        ({"watermarking_config": WATERMARK}, "SynthIDTextWatermarkLogitsProcessor keeps a memory of the steps before"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_refuses_what_it_cannot_answer(options, message):
    model, inputs = model_and_inputs("gpt2", "sparsemax")
    with pytest.raises(ValueError, match=message):
        exact_search(model, inputs, **options)


def test_stop_strings_of_the_model_are_refused_unless_left_out():
    model, inputs = model_and_inputs("gpt2", "sparsemax")
    expected = exact_search(model, inputs)
    model.generation_config.stop_strings = ["a"]
    with pytest.raises(ValueError, match="not by the generation config's stop_strings, which must be None"):
        exact_search(model, inputs)
    with pytest.raises(ValueError, match="not by the generation config's stop_strings, which must be None"):
        condition(model, inputs, Lexicon([[3]]))
    assert exact_search(model, inputs, stop_strings=None) == expected


def test_guidance_of_a_dense_model_is_refused_by_name():
    model, inputs = model_and_inputs("gpt2", None)
    with pytest.raises(ValueError, match="UnbatchedClassifierFreeGuidanceLogitsProcessor keeps a memory"):
        exact_search(model, inputs, guidance_scale=1.5)


def test_refuses_an_empty_batch():
    model, _ = model_and_inputs("gpt2", "sparsemax")
    with pytest.raises(ValueError, match="batch is empty"):
        exact_search(model, {"input_ids": torch.empty(0, 4, dtype=torch.long)})


def test_refuses_nan_weights():
    model, inputs = model_and_inputs("gpt2", None)
    model.transformer.ln_f.weight.data[0] = math.nan
    with pytest.raises(ValueError, match=r"NaN after the tokens \[3, 5, 4, 6\]"):
        exact_search(model, inputs)


def test_a_cache_without_keys_is_refused_by_name_and_can_be_done_without():
    config = MambaConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, state_size=4, **TOKENS)
    torch.manual_seed(0)
    model = MambaForCausalLM(config).eval()
    inputs = {"input_ids": torch.tensor([[3, 5]])}
    with pytest.raises(ValueError, match="use_cache=False"):
        exact_search(model, inputs, max_new_tokens=3)
    (result,) = exact_search(model, inputs, max_new_tokens=3, use_cache=False)
    assert result.finished_mass + result.left_mass == pytest.approx(1, abs=1e-5)


def test_a_filled_cache_is_refused():
    model, inputs = model_and_inputs("gpt2", "sparsemax")
    cache = model(inputs["input_ids"][:, :2])[CACHE]
    with pytest.raises(ValueError, match="starts from the prompt"):
        exact_search(model, inputs, **{CACHE: cache})


def test_peft_models_are_searched_too():
    from peft import LoraConfig, get_peft_model

    model, inputs = model_and_inputs("gpt2", "entmax15")
    expected = exact_search(model, inputs, max_new_tokens=5)
    lora = get_peft_model(model, LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
    found = exact_search(lora, inputs, max_new_tokens=5)
    assert found[0].best.tokens == expected[0].best.tokens
    assert found[0].best.probability == pytest.approx(expected[0].best.probability, rel=1e-5)


@pytest.mark.parametrize("function", [exact_search, enumerate_support, condition, score_sequences, compare_with_empty])
def test_models_that_do_not_generate_are_refused_by_name(function):
    model, inputs = model_and_inputs("gpt2", "entmax15")
    given = {condition: (Lexicon([[3]]),), score_sequences: (torch.tensor([[3, 5, 4, 6, 3]]),)}.get(function, ())
    with pytest.raises(TypeError, match=r"was DataParallel; give the one inside it, at 'module'$"):
        function(torch.nn.DataParallel(model), inputs, *given)
    with pytest.raises(TypeError, match=r"was Sequential; give the one inside it, at '1'$"):
        function(torch.nn.Sequential(torch.nn.Identity(), model), inputs, *given)
    with pytest.raises(TypeError, match="was NoneType; make the model sparse"):
        function(None, inputs, *given)
    encoder = sparsify(tiny_model("bert"), head="entmax15")
    with pytest.raises(TypeError, match="BertForMaskedLM does not generate; give a model that does"):
        function(encoder, inputs, *given)


def test_arguments_with_other_rows_than_sentences_are_refused_where_they_would_be_read_again():
    ids = torch.tensor([[3, 5], [4, 4]])
    options = {"token_type_ids": torch.zeros(3, 2, dtype=torch.long)}
    rows = torch.tensor([1, 1])
    assert torch.equal(_select({"input_ids": ids}, rows, 2, False)["input_ids"], ids[rows])
    assert _select(options, rows, 2, True) == options
    with pytest.raises(ValueError, match="token_type_ids has 3 rows for 2 sentences"):
        _select(options, rows, 2, False)


def test_a_sentence_without_a_prefix_left_is_ended_for_processors():
    seen = []

    class Watch(LogitsProcessor):
        def __call__(self, input_ids, scores):
            seen.append(input_ids.tolist())
            return scores

    constraints = Constraints(LogitsProcessorList([Watch()]), torch.tensor([[5, 6], [7, 8]]), EOS, PAD)
    constraints(torch.tensor([[7, 8, 3, 4]]), torch.zeros(1, 9), torch.tensor([1]))
    assert seen == [[[5, 6, EOS, PAD], [7, 8, 3, 4]]]
