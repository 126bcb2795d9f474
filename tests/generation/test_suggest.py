"""Suggestions against enumeration of all strings."""

import functools

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from hf_sparse import Ensemble, sparsify, suggest
from hf_sparse.generation.inputs import encode
from tests.enumeration import all_strings, next_distribution
from tests.generation.spaced_tokenizer import spaced_tokenizer
from tests.tiny_models import EOS, tiny_model

VOCAB = 7
TOKENIZER = spaced_tokenizer()
HEADS = ["entmax15", "sparsemax", {"name": "alpha_relu", "tau": "auto"}]
MANY = {"max_candidates": 10_000, "max_open": 10_000}


def model_and_arguments(name, head, seed=3):
    model = sparsify(tiny_model(name, vocab_size=VOCAB, seed=seed), head=head)
    model.generation_config.forced_eos_token_id = None
    if model.config.is_encoder_decoder:
        source = " the cats"
        inputs = TOKENIZER(source, return_tensors="pt")
        return model, dict(inputs), {"prefix": "", "source": source}
    inputs = TOKENIZER(" the cats", return_tensors="pt")
    return model, {"input_ids": inputs.input_ids}, {"prefix": " the cats"}


def text(tokens):
    return "".join(TOKENIZER.convert_ids_to_tokens([token for token in tokens if token > EOS]))


@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize("name", ["llama", "gpt2", "bart", "t5"])
@torch.no_grad()
def test_tokens_are_continued_exactly_as_far_as_nothing_else_is_possible(name, head):
    model, inputs, arguments = model_and_arguments(name, head)
    expected = {}
    for first, p in enumerate(next_distribution(model, inputs, ()).tolist()):
        tokens = (first,)
        while p > 0 and tokens[-1] != EOS and len(tokens) < 6:
            support = next_distribution(model, inputs, tokens).nonzero()
            if len(support) > 1:
                break
            tokens = (*tokens, int(support))
        if p > 0:
            expected[tokens] = p
    result = suggest(model, tokenizer=TOKENIZER, max_tokens=6, **arguments, **MANY)
    # Whether a token at the threshold is possible is up to rounding, which differs between batches.
    assert {candidate.tokens for candidate in result.candidates if candidate.probability > 1e-6} == {
        tokens for tokens, p in expected.items() if p > 1e-6
    }
    for candidate in result.candidates:
        assert candidate.probability == pytest.approx(expected.get(candidate.tokens, 0.0), rel=1e-4, abs=1e-7)
        assert candidate.text == text(candidate.tokens)
        assert candidate.ends == (candidate.tokens[-1] == EOS)
        assert candidate.cut == (len(candidate.tokens) == 6 and not candidate.ends)
    assert result.complete
    assert result.left == 0
    probabilities = [candidate.probability for candidate in result.candidates]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) == pytest.approx(1, abs=1e-5)


def test_the_cases_above_have_forced_tokens_and_choices():
    lengths = set()
    for name in ("llama", "gpt2", "bart", "t5"):
        for head in HEADS:
            model, _, arguments = model_and_arguments(name, head)
            result = suggest(model, tokenizer=TOKENIZER, max_tokens=6, **arguments, **MANY)
            lengths |= {len(candidate.tokens) for candidate in result.candidates}
    assert {1, 3, 6} <= lengths


def first_word(tokens):
    """The tokens of the first word of a string, or None if the string stops before it is certain to be complete."""
    for number in range(1, len(tokens)):
        so_far = text(tokens[:number])
        if so_far.strip() and (tokens[number] == EOS or text(tokens[number : number + 1]).startswith(" ")):
            return tokens[:number]
    return tokens if tokens[-1] == EOS else None


@pytest.mark.parametrize("name", ["llama", "gpt2", "bart", "t5"])
@torch.no_grad()
def test_words_have_the_probability_of_all_strings_that_begin_with_them(name):
    model, inputs, arguments = model_and_arguments(name, "entmax15")
    steps = 4
    expected: dict = {}
    for string, p in all_strings(model, inputs, steps=steps).items():
        word = first_word(string)
        expected[word] = expected.get(word, 0.0) + p
    result = suggest(model, tokenizer=TOKENIZER, unit="word", max_tokens=steps, **arguments, **MANY)
    found: dict = {}
    for candidate in result.candidates:
        word = None if candidate.cut and first_word(candidate.tokens) is None else first_word(candidate.tokens)
        # A word that is complete because several other words may follow ends with the candidate.
        word = candidate.tokens if word is None and not candidate.cut else word
        found[word] = found.get(word, 0.0) + candidate.probability
    for word in found.keys() | expected.keys():
        assert found.get(word, 0.0) == pytest.approx(expected.get(word, 0.0), rel=1e-4, abs=1e-6)
    assert len(expected) > 1
    assert result.complete


@torch.no_grad()
def test_budgets_say_what_is_left():
    model, _, arguments = model_and_arguments("t5", "entmax15")
    whole = suggest(model, tokenizer=TOKENIZER, unit="word", max_tokens=4, **arguments, **MANY)
    assert len(whole.candidates) > 3
    few = suggest(model, tokenizer=TOKENIZER, unit="word", max_tokens=4, max_candidates=2, **arguments)
    assert few.candidates == whole.candidates[:2]
    assert not few.complete
    assert few.left == pytest.approx(1 - sum(candidate.probability for candidate in few.candidates))
    narrow = suggest(model, tokenizer=TOKENIZER, unit="word", max_tokens=4, max_open=1, **arguments)
    assert not narrow.complete
    assert narrow.left > 0
    short = suggest(model, tokenizer=TOKENIZER, max_tokens=1, **arguments)
    assert all(len(candidate.tokens) == 1 for candidate in short.candidates)


@torch.no_grad()
def test_a_prefix_of_the_output_is_continued():
    model, inputs, arguments = model_and_arguments("bart", "entmax15")
    prefix = (4, 5)  # " cat", "s"
    result = suggest(model, " cats", TOKENIZER, source=arguments["source"], max_tokens=1)
    p = next_distribution(model, inputs, prefix)
    assert {candidate.tokens[0]: candidate.probability for candidate in result.candidates} == pytest.approx(
        {token: float(p[token]) for token in p.nonzero()[:, 0].tolist()}, rel=1e-4
    )


@torch.no_grad()
def test_an_ensemble_suggests_the_union_of_what_its_members_do():
    pairs = [model_and_arguments("llama", "entmax15", seed=3 + i) for i in range(2)]
    arguments = pairs[0][2]
    each = [suggest(model, tokenizer=TOKENIZER, max_tokens=1, **arguments).candidates for model, _, _ in pairs]
    both = suggest(Ensemble([model for model, _, _ in pairs]), tokenizer=TOKENIZER, max_tokens=1, **arguments)
    expected: dict = {}
    for candidate in each[0] + each[1]:
        expected[candidate.tokens] = expected.get(candidate.tokens, 0) + candidate.probability / 2
    assert {candidate.tokens: candidate.probability for candidate in both.candidates} == pytest.approx(
        expected, rel=1e-4
    )


@pytest.mark.parametrize(
    ("wrapped", "begin", "prefix", "expected"),
    [
        ("$A", "<s>", " the</s>", [3, 2]),  # an end token of the text itself
        ("<s> $A", "<s>", "", [1]),
        ("<s> $A </s>", "<s>", "", [1]),
        ("<s> $A </s>", "<s>", " the cat", [1, 3, 4]),
        ("<s> $A </s>", "<s>", " the</s>", [1, 3, 2]),
        ("$A </s>", "<s>", "", []),
        ("$A </s>", "<s>", " the", [3]),
        ("</s> $A", "</s>", "", [2]),  # as OPT's
        ("</s> $A", "</s>", " the", [2, 3]),
        ("</s> $A", "</s>", "</s>", [2, 2]),
        ("</s> $A </s>", "</s>", "", [2]),
        ("</s> $A </s>", "</s>", " the", [2, 3]),
    ],
)
def test_a_prompt_loses_the_end_token_that_its_tokenizer_appends_and_no_other(wrapped, begin, prefix, expected):
    model = model_and_arguments("llama", "entmax15")[0]
    tokenizer = spaced_tokenizer()
    tokenizer.bos_token = begin
    backend = tokenizer.backend_tokenizer
    backend.post_processor = TemplateProcessing(single=wrapped, special_tokens=[("<s>", 1), ("</s>", 2)])
    inputs, _ = encode(model, tokenizer, prefix, None)
    assert inputs["input_ids"].tolist() == [expected]
    if expected:
        p = next_distribution(model, inputs, ())
        result = suggest(model, prefix, tokenizer, max_tokens=1, **MANY)
        assert {candidate.tokens[0]: candidate.probability for candidate in result.candidates} == pytest.approx(
            {token: float(p[token]) for token in p.nonzero()[:, 0].tolist()}, rel=1e-4
        )


class ByteTokenizer:
    """Each token is one byte of UTF-8; byte 2 is the end."""

    def __call__(self, prefix):
        return type("Encoded", (), {"input_ids": list(prefix.encode())})

    def decode(self, ids, **options):
        return bytes(token for token in ids if token != EOS).decode(errors="replace")


@torch.no_grad()
def test_a_word_does_not_end_within_a_character():
    model = sparsify(tiny_model("llama", vocab_size=256, seed=1), head="sparsemax")
    # The model always writes the two bytes of é, and then either of two spaces.
    chain = {ord("a"): 0xC3, 0xC3: 0xA9}
    plain_forward = model.forward

    @functools.wraps(plain_forward)
    def forward(input_ids=None, **kwargs):
        output = plain_forward(input_ids=input_ids, **kwargs)
        logits = torch.zeros_like(output.logits)
        for row, last in enumerate(input_ids[:, -1].tolist()):
            for token in (chain[last],) if last in chain else (ord(" "), ord("\n")):
                logits[row, -1, token] = 9.0
        output.logits = logits
        return output

    model.forward = forward
    result = suggest(model, "a", ByteTokenizer(), unit="word")
    assert [(candidate.text, candidate.probability) for candidate in result.candidates] == [("é", 1.0)]


def test_bad_input_is_refused():
    llama, _, arguments = model_and_arguments("llama", "entmax15")
    bart = model_and_arguments("bart", "entmax15")[0]
    with pytest.raises(ValueError, match="unit must be one of 'token', 'word', was 'sentence'"):
        suggest(llama, tokenizer=TOKENIZER, unit="sentence", **arguments)
    for budget in ("max_candidates", "max_tokens", "max_open"):
        with pytest.raises(ValueError, match=f"{budget} must be at least 1, was 0"):
            suggest(llama, tokenizer=TOKENIZER, **arguments, **{budget: 0})
    with pytest.raises(ValueError, match="BartForConditionalGeneration reads a source text: pass source="):
        suggest(bart, " the", TOKENIZER)
    with pytest.raises(TypeError, match="source must be a text, or a mapping from names to tensors, was 3"):
        suggest(bart, " the", TOKENIZER, source=3)
    with pytest.raises(ValueError, match="LlamaForCausalLM has no encoder"):
        suggest(llama, " the", TOKENIZER, source=" cat")
    with pytest.raises(ValueError, match="the prompt and the prefix are empty"):
        suggest(llama, "", TOKENIZER)
    with pytest.raises(TypeError, match="tokenizer must be that of the model, was None"):
        suggest(llama, " the", None)
    with pytest.raises(TypeError, match=r"prefix must be a text, was \[' the'\]"):
        suggest(llama, [" the"], TOKENIZER)
    with pytest.raises(ValueError, match="head is dense"):
        suggest(sparsify(tiny_model("llama", vocab_size=VOCAB), attn="entmax15"), tokenizer=TOKENIZER, **arguments)
    with pytest.raises(ValueError, match="is not sparse"):
        suggest(tiny_model("llama", vocab_size=VOCAB), tokenizer=TOKENIZER, **arguments)
    llama.lm_head.weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="the model's logits are NaN"):
        suggest(llama, tokenizer=TOKENIZER, **arguments)
