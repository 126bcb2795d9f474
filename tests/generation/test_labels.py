"""Labels of tokens show white space and never an empty text."""

from hf_sparse.generation.labels import token_labels
from tests.generation.spaced_tokenizer import spaced_tokenizer


def test_labels_show_spaces_and_keep_parts_of_characters():
    class Tokenizer:
        def convert_ids_to_tokens(self, ids):
            return ["▁view", "a\n", "Ã", "", "▁"][: len(ids)]

        def convert_tokens_to_string(self, tokens):
            return {"▁view": "view", "a\n": "a\n", "Ã": "\ufffd", "": "", "▁": ""}[tokens[0]]

    assert token_labels(range(5), Tokenizer()) == ["␣view", "a⏎", "Ã", "", "␣"]
    assert token_labels([4, 0]) == ["4", "0"]


def test_labels_show_control_characters_and_hold_none():
    class Tokenizer:
        def convert_ids_to_tokens(self, ids):
            return ["\r\x00\x1b[0m", "\x7f", "\x85", "a\u2028", "\u202eb", "\uffff", "👩\u200d👧"]

        def convert_tokens_to_string(self, tokens):
            return tokens[0]

    shown = [r"\r\x00\x1b[0m", r"\x7f", r"\x85", "a\\u2028", "\\u202eb", "\\uffff", "👩\u200d👧"]
    assert token_labels(range(7), Tokenizer()) == shown


def test_tokens_that_the_tokenizer_lacks_are_numbers():
    assert token_labels([3, 7, 9], spaced_tokenizer()) == ["␣the", "[7]", "[9]"]
