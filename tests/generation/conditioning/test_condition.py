"""Conditioning against enumeration of every string by full forward passes: members, intervals, proofs, samples."""

import math
import re

import pytest
import torch

from hf_sparse import (
    Intersection,
    Language,
    Lexicon,
    condition,
    enumerate_support,
    exact_search,
    score_sequences,
)
from hf_sparse.generation.conditioning.result import Conditioned
from hf_sparse.generation.search.result import Hypothesis, SearchResult
from tests.enumeration import VOCAB, all_strings, ended, model_and_inputs
from tests.tiny_models import EOS, PAD
from tests.tolerances import MASS
from tests.word_tokenizer import word_tokenizer

STEPS = 5
NAMES = ["llama", "gpt2", "gemma2", "bart", "marian", "t5"]
DOUBLE = MASS[torch.float64]


class Pattern:
    """The strings whose tokens, one letter each, match a pattern: without any look ahead, by ``re`` alone."""

    def __init__(self, pattern):
        self.pattern = pattern

    def start(self):
        return ""

    def step(self, state, token):
        return state + "abcdefghij"[token]

    def accepts(self, state):
        return re.fullmatch(self.pattern, state) is not None


def members_of(table, accepted):
    """Of all strings those in a language, likeliest first: (probability, string with end token)."""
    return [(p, string) for p, string in ended(table) if accepted("".join("abcdefghij"[t] for t in string[:-1]))]


def in_double(name, head="entmax15", **options):
    model, inputs = model_and_inputs(name, head, **options)
    return model.double(), inputs


def likeliest(table, count):
    return [list(string[:-1]) for _, string in ended(table)[:count]]


@pytest.mark.parametrize(
    ("name", "head"),
    [
        *((name, "entmax15") for name in NAMES),
        ("gpt2", "sparsemax"),
        ("bart", {"name": "alpha_relu", "tau": "auto"}),
        ("gpt2", None),
        ("t5", None),
    ],
)
def test_members_and_their_probabilities_are_those_of_enumeration(name, head):
    model, inputs = in_double(name, head)
    table = all_strings(model, inputs, 3)
    pattern = "[c-g]?[ef]?"
    truth = members_of(table, lambda text: re.fullmatch(pattern, text))
    (found,) = condition(model, inputs, Pattern(pattern), max_new_tokens=3)
    if head in ("entmax15", None) and name != "marian":  # others end at once or go on
        assert 0 < len(truth) < len(ended(table))
    assert {tuple(m.tokens): m.probability for m in found.members} == pytest.approx({s: p for p, s in truth}, rel=1e-9)
    low, high = found.probability
    longer = sum(p for string, p in table.items() if string[-1] != EOS)  # cut at the last step
    assert low == pytest.approx(sum(p for p, _ in truth), rel=1e-9)
    assert high - low <= longer + DOUBLE


def test_entries_with_the_end_token_are_refused_and_not_proved_impossible():
    model, inputs = in_double("gpt2")
    (string,) = likeliest(all_strings(model, inputs, 3), 1)
    with pytest.raises(ValueError, match=rf"after .* goes on with the end token {EOS}, .* leave end tokens out"):
        condition(model, inputs, Lexicon([[*string, EOS]]), max_new_tokens=4)
    with pytest.raises(ValueError, match=rf"after .* goes on with the end token {EOS}, .* leave end tokens out"):
        condition(model, inputs, Lexicon([[*string, EOS], [*string, EOS + 1]]), max_new_tokens=4)
    (found,) = condition(model, inputs, Lexicon([string, [*string, EOS]]), max_new_tokens=4)
    assert [member.tokens for member in found.members] == [[*string, EOS]]


def test_a_member_that_a_dense_head_gives_less_than_float32_can_hold_is_no_impossible_one():
    model, inputs = model_and_inputs("llama", None)
    with torch.no_grad():
        model.lm_head.weight *= 250 / model(**inputs).logits[0, -1].log_softmax(-1).amin().abs()
    token = int(model(**inputs).logits[0, -1].argmin())
    string = torch.cat([inputs["input_ids"], torch.tensor([[token, EOS]])], dim=1)
    log_p = float(score_sequences(model, inputs, string).normalized)
    assert -700 < log_p < -104  # exp of float32 is 0 from there on, of float64 from -745 on
    (found,) = condition(model, inputs, Lexicon([[token]]), max_new_tokens=2)
    assert [member.tokens for member in found.members] == [[token, EOS]]
    assert found.members[0].log_probability == pytest.approx(log_p, abs=1e-3)
    assert not found.impossible


@pytest.mark.parametrize("option", [{"min_probability": 0.5}, {"num_hypotheses": 3}])
def test_what_would_leave_members_out_is_refused_and_proves_nothing(option):
    model, inputs = in_double("gpt2")
    with pytest.raises(ValueError, match=f"{next(iter(option))}: condition finds every member of its language"):
        condition(model, inputs, Lexicon([[]]), max_new_tokens=4, **option)


@pytest.mark.parametrize("name", NAMES)
def test_a_lexicon_is_complete_with_sparse_and_dense_heads(name):
    for head in ("entmax15", None):
        model, inputs = in_double(name, head)
        table = all_strings(model, inputs, 3)
        entries = [*likeliest(table, 4), [3, 3], [6]]
        wanted = {(*entry, EOS) for entry in entries}
        truth = {string: p for p, string in ended(table) if string in wanted}
        (found,) = condition(model, inputs, Lexicon(entries), max_new_tokens=3)
        assert found.complete
        assert found.search.left_mass == 0
        assert found.probability.low == found.probability.high == pytest.approx(sum(truth.values()), rel=1e-9)
        assert found.impossible == (not truth)
        for member in found.members:
            share = truth[tuple(member.tokens)] / sum(truth.values())
            assert found.conditional(member.tokens) == pytest.approx((share, share), rel=1e-9)
        if truth:
            assert found.best.probability == pytest.approx(max(truth.values()), rel=1e-9)
            assert found.proved


def test_only_prefixes_that_are_possible_and_begin_a_member_are_expanded():
    model, inputs = in_double("t5")
    table = all_strings(model, inputs, STEPS)
    entries = likeliest(table, 3)
    begun = {tuple(entry[:length]) for entry in entries for length in range(len(entry) + 1)}
    (found,) = condition(model, inputs, Lexicon(entries), max_new_tokens=9)
    assert found.search.num_expanded == len(begun)
    assert found.search.num_passes == 1 + max(map(len, entries))


@pytest.mark.parametrize("name", ["gpt2", "t5", "llama"])
def test_sentences_of_a_padded_batch_have_languages_of_their_own(name):
    model, _ = in_double(name)
    sources = [(3, 5, 4, 6), (4, 4), (6,)]
    rows = [
        list(s) + [PAD] * (4 - len(s)) if model.config.is_encoder_decoder else [PAD] * (4 - len(s)) + list(s)
        for s in sources
    ]
    ids = torch.tensor(rows)
    languages = [Pattern("[ad-j]*"), Pattern("[d-g]{1,2}"), Pattern("(.g?)*")]
    together = condition(model, {"input_ids": ids, "attention_mask": (ids != PAD).long()}, languages, max_new_tokens=3)
    for source, language, found in zip(sources, languages, together, strict=True):
        row = torch.tensor([source])
        table = all_strings(model, {"input_ids": row, "attention_mask": torch.ones_like(row)}, 3)
        truth = members_of(table, lambda text, language=language: re.fullmatch(language.pattern, text))
        got = {tuple(member.tokens): member.probability for member in found.members}
        assert got == pytest.approx({string: p for p, string in truth}, rel=1e-9)


@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_cache_and_width_change_nothing(name):
    model, inputs = in_double(name, source=(3, 5, 4, 6, 6))
    language = Pattern("[d-j]{1,3}")
    usual, uncached, narrow = (
        condition(model, inputs, language, max_new_tokens=4, **options)[0]
        for options in ({}, {"use_cache": False}, {"width": 1})
    )
    for other in (uncached, narrow):
        assert [m.tokens for m in other.members] == [m.tokens for m in usual.members]
        assert other.probability == pytest.approx(usual.probability, rel=1e-9)
        assert other.search.num_expanded == usual.search.num_expanded
    assert narrow.search.num_passes > usual.search.num_passes


def test_impossible_is_claimed_if_and_only_if_no_member_has_nonzero_probability():
    model, inputs = in_double("bart")
    table = all_strings(model, inputs, 8)
    assert all(string[-1] == EOS for string in table)
    possible = {string[:-1] for string in table}
    impossible = [[a, b] for a in range(3, VOCAB) for b in range(3, VOCAB) if (a, b) not in possible]
    (found,) = condition(model, inputs, Lexicon(impossible))
    assert found.impossible
    assert found.probability == (0, 0)
    assert "p(L) = 0, proved" in repr(found)
    with pytest.raises(ValueError, match="impossible"):
        found.conditional([3, EOS])
    with pytest.raises(ValueError, match="impossible"):
        found.texts(word_tokenizer(VOCAB))
    with pytest.raises(ValueError, match="impossible"):
        found.sample()
    (one,) = condition(model, inputs, Lexicon([*impossible, list(min(possible))]))
    assert not one.impossible
    assert one.complete
    dense, inputs = in_double("bart", None)
    assert not condition(dense, inputs, Lexicon(impossible))[0].impossible


@pytest.mark.parametrize("head", ["entmax15", None], ids=str)
@pytest.mark.parametrize("budget", [{"max_expanded": 3}, {"max_expanded": 12}, {"max_open": 4}, {"max_new_tokens": 3}])
def test_intervals_of_a_budget_contain_the_truth(head, budget):
    model, inputs = in_double("llama", head)
    language = Pattern("[d-g]*")
    table = all_strings(model, inputs, STEPS)
    truth = {s: p for p, s in members_of(table, lambda text: re.fullmatch(language.pattern, text))}
    tail = sum(p for string, p in table.items() if string[-1] != EOS)  # may yet become members
    (found,) = condition(model, inputs, language, width=2, **{"max_new_tokens": STEPS} | budget)
    assert not found.complete
    assert found.search.ended_by in {*budget, "max_new_tokens"}
    low, high = found.probability
    inside = sum(truth.values())
    assert low <= inside + DOUBLE
    assert inside <= high + DOUBLE
    assert low < high <= low + found.search.left_mass + DOUBLE
    for string, p in truth.items():  # whatever of the tail is in L
        low, high = found.conditional(list(string))
        for total in (inside, inside + tail):
            if total <= found.probability.high:
                assert low - DOUBLE <= p / total <= high + DOUBLE
    with pytest.raises(ValueError, match=f"raise {found.search.ended_by}, or pass approximate=True"):
        found.sample()
    assert found.sample(3, approximate=True)
    assert f"raise {found.search.ended_by}" in repr(found)


def test_all_strings_are_a_language_of_probability_one():
    model, inputs = in_double("bart")
    (found,) = condition(model, inputs, Pattern(".*"), max_new_tokens=8)
    support = enumerate_support(model, inputs, max_new_tokens=8)
    assert [m.tokens for m in found.members] == support.sequences
    assert found.probability == pytest.approx((1, 1), abs=1e-9)


def test_strings_of_equal_probability_are_all_found():
    model, inputs = in_double("gpt2", None)
    with torch.no_grad():  # tokens 3 to 6 cannot be told apart
        model.transformer.wte.weight[3:] = model.transformer.wte.weight[3].clone()
    table = all_strings(model, inputs, 3)
    truth = members_of(table, lambda text: len(text) == 2)
    (found,) = condition(model, inputs, Pattern("[a-j]{2}"), max_new_tokens=3)
    assert len({round(math.log(p), 6) for p, _ in truth}) < len(truth)
    assert sorted(tuple(m.tokens) for m in found.members) == sorted(string for _, string in truth)


def test_constraints_count_only_when_asked_for_and_take_probability_away():
    model, inputs = in_double("bart")
    language = Pattern(".*")
    (free,) = condition(model, inputs, language, max_new_tokens=8)
    model.generation_config.min_length = 4
    assert condition(model, inputs, language, max_new_tokens=8)[0].members == free.members
    (bound,) = condition(model, inputs, language, max_new_tokens=8, constrained=True)
    long = [m.tokens for m in free.members if len(m.tokens) >= 4]
    assert [m.tokens for m in bound.members] == long
    assert 0 < len(long) < len(free.members)
    with pytest.raises(ValueError, match="min_new_tokens: options of generate do not count here"):
        condition(model, inputs, language, min_new_tokens=2)


def test_constraints_that_raise_probabilities_are_refused_and_their_shares_are_not():
    """The probability that a budget leaves would not bound that of the members in it."""
    model, inputs = in_double("gpt2")
    for raised in (
        {"encoder_repetition_penalty": 3.0},
        {"repetition_penalty": 0.5},
        {"sequence_bias": [[[EOS], 0.5]]},
    ):
        options = {"constrained": True, "max_new_tokens": 4, **raised}
        with pytest.raises(ValueError, match=r"those of a step sum to \d.*or pass renormalize_logits=True"):
            condition(model, inputs, Pattern(".*"), **options)
        (found,) = condition(model, inputs, Pattern(".*"), renormalize_logits=True, **options)
        for budget in (1, 2, 4):
            (part,) = condition(
                model, inputs, Pattern(".*"), renormalize_logits=True, max_expanded=budget, width=1, **options
            )
            low, high = part.probability
            assert low - DOUBLE <= found.probability.low <= found.probability.high <= high + DOUBLE


def test_draws_have_the_conditional_distribution():
    model, inputs = in_double("t5")
    entries = likeliest(all_strings(model, inputs, STEPS), 4)
    (found,) = condition(model, inputs, Lexicon(entries))
    draws = found.sample(20_000, torch.Generator().manual_seed(0))
    for member in found.members:
        share = found.conditional(member.tokens).low
        error = 5 * math.sqrt(share * (1 - share) / len(draws))
        assert draws.count(member.tokens) / len(draws) == pytest.approx(share, abs=error)
    same = found.sample(20, torch.Generator().manual_seed(1))
    assert same == found.sample(20, torch.Generator().manual_seed(1)) != draws[:20]


def test_the_end_of_several_end_tokens_is_no_part_of_a_member():
    model, inputs = in_double("bart")
    (found,) = condition(model, inputs, Lexicon([[], [6]]), eos_token_id=[EOS, 3])
    searched = exact_search(model, inputs, 50, eos_token_id=[EOS, 3])[0].hypotheses
    wanted = {(end,) for end in (EOS, 3)} | {(6, end) for end in (EOS, 3)}
    truth = {tuple(h.tokens): h.probability for h in searched if tuple(h.tokens) in wanted}
    assert {tuple(m.tokens): m.probability for m in found.members} == pytest.approx(truth, rel=1e-9)


def test_an_intersection_has_what_all_its_languages_have():
    model, inputs = in_double("llama")
    entries = [[3], [3, 4], [5, 6], [6], [4, 4]]
    both = Intersection(Lexicon(entries), Pattern("[d-j]{2}"))
    assert isinstance(both, Language)
    (found,) = condition(model, inputs, both)
    (alone,) = condition(model, inputs, Lexicon([entry for entry in entries if len(entry) == 2]))
    assert found.members == alone.members
    assert found.complete
    assert Intersection(Pattern(".")).allowed(("",)) is None


@pytest.mark.parametrize(
    ("language", "message"),
    [
        ("yes", "given must have the methods start, step and accepts"),
        (["yes", "no"], "given must have the methods"),
        (Lexicon, "given must have the methods"),
        ([Lexicon([[3]])] * 2, "one for each of the 1 sentences, was 2"),
    ],
)
def test_what_is_no_language_is_refused(language, message):
    model, inputs = model_and_inputs("gpt2", "entmax15")
    with pytest.raises((TypeError, ValueError), match=message):
        condition(model, inputs, language)


@pytest.mark.parametrize("languages", [(), ("yes",)])
def test_an_intersection_of_nothing_is_refused(languages):
    with pytest.raises(TypeError, match=r"at least one language|must have the methods"):
        Intersection(*languages)


def test_shares_of_outputs_too_long_for_a_float_are_known():
    """Each entry is less likely than the least float; their ratios are not."""
    model, inputs = in_double("gpt2", None)
    with torch.no_grad():
        model.transformer.ln_f.weight.mul_(60)
    entries = [[3, 5, 4, 6] * 12, [3, 5, 4, 6] * 12 + [3], [5, 4, 3] * 14]
    (found,) = condition(model, inputs, Lexicon(entries))
    logs = torch.tensor([member.log_probability for member in found.members], dtype=torch.float64)
    assert logs.max() < -800
    shares = logs.softmax(-1).tolist()
    assert [found.conditional(m.tokens) for m in found.members] == [pytest.approx((p, p), rel=1e-9) for p in shares]
    assert found.proved
    assert not found.impossible
    for budget in range(1, 150, 8):
        (part,) = condition(model, inputs, Lexicon(entries), width=1, max_expanded=budget)
        for member, p in zip(found.members, shares):
            low, high = part.conditional(member.tokens)
            assert low <= p * (1 + 1e-9)
            assert high >= p * (1 - 1e-9)
        assert not part.proved or part.best.tokens == found.best.tokens
        if part.members and not part.complete:
            with pytest.raises(ValueError, match=r"distribution is up to .*% away"):
                part.sample()


def test_what_is_left_of_unknown_size_is_no_zero():
    likeliest = Hypothesis([5, 2], -800.0)
    found = Conditioned(SearchResult([likeliest], 0.0, 0.0, -790.0, num_expanded=3, ended_by="max_expanded"))
    assert not found.proved
    assert found.search.certificate is None
    assert found.conditional([5, 2]) == (pytest.approx(0, abs=1e-9), 1)
    assert found.conditional([6, 2]) == (0, pytest.approx(1 / (1 + math.exp(-10))))
    with pytest.raises(ValueError, match=r"up to 100.00% away"):
        found.sample()
