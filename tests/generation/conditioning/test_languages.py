"""Languages of texts, against Python's ``re`` and ``in`` on what the tokenizer decodes, for every token string."""

import itertools
import re
import sys

import pytest
from tokenizers import AddedToken, decoders
from transformers import CLIPTokenizer, WhisperTokenizerFast

from hf_sparse import Grammar, Lexicon, RequiredWords, condition
from tests.enumeration import all_strings, ended, model_and_inputs
from tests.generation.conditioning.tokenizers import byte_level, decoding, joined, metaspace, sentence_piece
from tests.tiny_models import EOS
from tests.word_tokenizer import word_tokenizer

LETTERS = joined("a", "b", "ab", "ba")
SPACED = byte_level("a", "Ġ", "Ġa", "Ã", "©", "Ã©")
PIECES = sentence_piece("▁", "a", "▁a", "b", "<0x61>", "a▁")
TOKENIZERS = {"letters": LETTERS, "spaced": SPACED, "pieces": PIECES}


def decoded(tokenizer, string):
    return tokenizer.decode(list(string), clean_up_tokenization_spaces=False)


def after(tokenizer, string):
    """The text that a string adds to a prompt."""
    return decoded(tokenizer, (4, *string)).removeprefix(decoded(tokenizer, (4,)))


def read(language, string):
    """Whether a language has a string."""
    state = language.start()
    for token in string:
        state = language.step(state, token)
        if state is None:
            return False
    return language.accepts(state)


def strings(tokenizer, length=4):
    return itertools.chain(*(itertools.product(range(3, len(tokenizer)), repeat=n) for n in range(length)))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_lexicon_has_all_tokenizations_of_its_texts_or_the_tokenizers_own(name):
    tokenizer, texts = TOKENIZERS[name], ["ab", "a", " a", "é a", " "]
    everything = Lexicon(texts, tokenizer)
    canonical = Lexicon(["a", "aa"], tokenizer, tokenizations="canonical")
    own = {tuple(tokenizer(text, add_special_tokens=False).input_ids) for text in ("a", "aa")}
    found = 0
    for string in strings(tokenizer):
        assert read(everything, string) == (after(tokenizer, string) in texts), string
        assert read(canonical, string) == (string in own)
        found += read(everything, string)
    assert found > 2


@pytest.mark.parametrize("language", [Lexicon(["abab", "ba"], LETTERS), Lexicon([[3, 4], [5]])])
def test_allowed_tokens_are_those_that_step_takes(language):
    open_states = [language.start()]
    for _ in range(3):
        for state in open_states:
            steps = {token: language.step(state, token) for token in range(9)}
            assert language.allowed(state) == {token for token, after in steps.items() if after is not None}
        open_states = [language.step(state, token) for state in open_states for token in language.allowed(state)]
    assert not read(language, (1,))


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("words", [["a"], ["aa", "a "], ["é"], ["aba", "b"], [" a"]])
def test_required_words_are_in_the_text(name, words):
    tokenizer = TOKENIZERS[name]
    language = RequiredWords(words, tokenizer)
    for string in strings(tokenizer):
        assert read(language, string) == all(word in after(tokenizer, string) for word in words), string
    assert not read(language, (1,))


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize(
    "pattern", ["a|ab", "(ab)+", ".*", "a+?b?", "[^a]*", "é?a", r"\w\s?.{0,2}", "", "(?i)AB", "(a|ba)*b", " ?a"]
)
def test_a_regular_expression_has_what_python_matches(name, pattern):
    pytest.importorskip("llguidance")
    tokenizer = TOKENIZERS[name]
    language = Grammar.from_regex(pattern, tokenizer)
    for string in strings(tokenizer):
        text = after(tokenizer, string)
        if "\ufffd" not in text:  # the beginning of a character
            assert read(language, string) == bool(re.fullmatch(pattern, text)), string


def test_where_an_output_begins_a_text_the_first_space_is_left_out():
    for language in (
        Lexicon(["a", "aa", " a"], PIECES, begins_text=True),
        RequiredWords([" a"], PIECES, begins_text=True),
    ):
        texts = ["a", "aa", " a"]
        for string in strings(PIECES):
            text = decoded(PIECES, string)
            wanted = text in texts if isinstance(language, Lexicon) else " a" in text
            assert read(language, string) == wanted, string


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
@pytest.mark.parametrize("begins_text", [True, False])
def test_metaspace_leaves_out_the_spaces_of_the_first_token(scheme, begins_text):
    tokenizer = metaspace(scheme, "▁", "a", "▁a", "▁▁", "a▁")
    for wanted in ("a", " a", "  a", "aa", "a a"):
        language = Lexicon([wanted], tokenizer, begins_text=begins_text)
        for string in strings(tokenizer):
            text = decoded(tokenizer, string) if begins_text else after(tokenizer, string)
            assert read(language, string) == (text == wanted), (wanted, string)


def test_times_that_the_tokenizer_leaves_out_write_nothing():
    tokenizer = WhisperTokenizerFast(vocab={"a": 0, "b": 1, "Ġa": 2}, merges=[])
    tokenizer.add_tokens([AddedToken("<|0.00|>", special=False), AddedToken("a<", special=False)])
    language = Lexicon([" ab", "aa<"], tokenizer)
    numbers = [number for number in range(len(tokenizer)) if number not in tokenizer.all_special_ids]
    found = [s for n in range(5) for s in itertools.product(numbers, repeat=n) if read(language, s)]
    assert found == [
        s for n in range(5) for s in itertools.product(numbers, repeat=n) if decoded(tokenizer, s) in (" ab", "aa<")
    ]
    assert len(found) > 10


@pytest.mark.parametrize(
    ("tokenizer", "text"),
    [(word_tokenizer(), "w3 other"), (joined("a", "b"), "axb"), (joined("a"), "a</s>"), (byte_level("a", "Ã"), "é")],
)
def test_a_canonical_entry_that_the_tokenizer_does_not_write_is_refused(tokenizer, text):
    with pytest.raises(ValueError, match=f"of the entry '{text}', which is the text .*; leave the entry out"):
        Lexicon([text], tokenizer, tokenizations="canonical")


def test_tokens_after_a_gap_in_the_vocabulary_count():
    tokenizer = joined("a", "x", "x", "b")  # 4 is no token, for a word has one id
    assert tokenizer.convert_ids_to_tokens([3, 4, 5, 6]) == ["a", None, "x", "b"]
    assert read(Lexicon(["ab"], tokenizer), (3, 6))


def test_a_regular_expression_of_an_output_that_begins_a_text():
    pytest.importorskip("llguidance")
    language = Grammar.from_regex("a b?|a", PIECES, begins_text=True)
    for string in strings(PIECES):
        assert read(language, string) == bool(re.fullmatch("a b?|a", decoded(PIECES, string))), string


def test_grammars_and_json_schemas():
    pytest.importorskip("llguidance")
    nested = Grammar.from_lark('start: "a" start "b" | "ab"', LETTERS)
    assert [read(nested, s) for s in ((5,), (3, 5, 4), (3, 3, 4, 4), (5, 5))] == [True, True, True, False]
    digits = joined("1", "2", "12", '"')
    numbers = Grammar.from_json_schema({"enum": [12, 1]}, digits)
    assert [read(numbers, s) for s in ((5,), (3, 4), (3,), (4,))] == [True, True, True, False]


def test_conditioning_on_texts_sums_over_their_tokenizations():
    pytest.importorskip("llguidance")
    model, inputs = model_and_inputs("t5", "entmax15")
    model.double()
    table = all_strings(model, inputs, 4)
    pattern = "(a|b){1,3}"
    truth = {}
    for p, string in ended(table):
        if all(token > EOS for token in string[:-1]) and re.fullmatch(pattern, decoded(LETTERS, string[:-1])):
            truth[decoded(LETTERS, string[:-1])] = truth.get(decoded(LETTERS, string[:-1]), 0) + p
    (found,) = condition(model, inputs, Grammar.from_regex(pattern, LETTERS), max_new_tokens=4)
    assert found.complete  # three letters and the end token
    shares = {text: pytest.approx((p / sum(truth.values()),) * 2, rel=1e-9) for text, p in truth.items()}
    assert found.texts(LETTERS) == shares
    assert len(shares) < len(found.members)
    (listed,) = condition(model, inputs, Lexicon(list(truth), LETTERS), max_new_tokens=4)
    assert listed.probability == pytest.approx(found.probability, rel=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lexicon([]), "entries must not be empty"),
        (lambda: Lexicon("yes"), "entries must be a list of texts"),
        (lambda: Lexicon([3, 4]), "entries must all be texts, or all be lists of token ids, was 3"),
        (lambda: Lexicon(["a", [3]], LETTERS), "entries must all be texts"),
        (lambda: Lexicon(["a"]), "tokenizer must be that of the model, was None"),
        (lambda: Lexicon(["a"], LETTERS, tokenizations="some"), "must be one of 'all', 'canonical', was 'some'"),
        (lambda: Lexicon(["a"], LETTERS, begins_text=1), "begins_text must be True or False"),
        (lambda: Lexicon(["w3"], word_tokenizer()), "spaces between tokens"),
        (lambda: Lexicon(["a"], CLIPTokenizer({"a": 0, "a</w>": 1}, [])), "CLIPTokenizer decodes in a way of its own"),
        *(
            (lambda decoder=decoder: Lexicon(["a"], decoding(decoder, "a")), f"tokenizer decodes with {name}")
            for name, decoder in (
                ("Strip", decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)])),
                ("Replace after", decoders.Sequence([decoders.Fuse(), decoders.Replace("aa", "b")])),
                ("Replace after", decoders.Sequence([decoders.ByteLevel(), decoders.Replace("a", "b")])),
                ("Metaspace after", decoders.Sequence([decoders.Fuse(), decoders.Metaspace()])),
            )
        ),
        (lambda: RequiredWords("yes", LETTERS), "words must be a list of texts"),
        (lambda: RequiredWords([""], LETTERS), "none of them empty"),
        (lambda: RequiredWords(["a"], None), "tokenizer must be that of the model, was None"),
    ],
)
def test_bad_languages_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Grammar.from_regex(3, LETTERS), "pattern must be a text, was 3"),
        (lambda: Grammar.from_regex("(", LETTERS), "llguidance refuses the grammar"),
        (lambda: Grammar.from_regex(r"(a)\1", LETTERS), "llguidance refuses the grammar"),
        (lambda: Grammar.from_regex("[a&&b]", LETTERS), r"pattern '\[a&&b\]': Possible set intersection"),
        (lambda: Grammar.from_regex("(?i)[[:alpha:]]", LETTERS), "Possible nested set"),
        (lambda: Grammar.from_lark(None, LETTERS), "grammar must be a text, was None"),
        (lambda: Grammar(3, LETTERS), "grammar must be a text, was 3"),
        (lambda: Grammar.from_json_schema("{}", LETTERS), "schema must be a mapping"),
    ],
)
def test_bad_grammars_are_refused(make, message):
    pytest.importorskip("llguidance")
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_without_llguidance_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'hf_sparse[grammar]'")):
        Grammar.from_regex("a", LETTERS)


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        *(
            (pattern, r"a quantifier that gives nothing back, '.*\+'")
            for pattern in ("a++a", "a*+", "(b?+a)", "a{1,2}+a")
        ),
        *((pattern, r"a count with spaces, '\{ ?1, 2\}'") for pattern in ("a{1, 2}", r"\[a{ 1, 2}]")),
        *((pattern, r"the flag x, '\(\?i?x'") for pattern in ("(?x)[a b]", "(?x) a", "(?ix:a b)")),
    ],
)
def test_what_python_reads_in_another_way_is_refused(pattern, what):
    pytest.importorskip("llguidance")
    with pytest.raises(ValueError, match=f"has {what}, which llguidance reads in another way"):
        Grammar.from_regex(pattern, LETTERS)


@pytest.mark.parametrize(
    "pattern", [r"a+\+?", "[+b?]*a", "[a++]b", "[]{1, 2}+a]+", r"a\{?b*", "(?P<x>a)", "(?:a|b)+", "(a+)+"]
)
def test_what_looks_like_it_and_is_read_alike_is_taken(pattern):
    pytest.importorskip("llguidance")
    language = Grammar.from_regex(pattern, LETTERS)
    for string in strings(LETTERS):
        assert read(language, string) == bool(re.fullmatch(pattern, after(LETTERS, string))), string
