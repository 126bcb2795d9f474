"""Labels of tokens show white space and never an empty text."""

from hf_sparse.generation.labels import token_labels


def test_labels_show_spaces_and_keep_parts_of_characters():
    class Tokenizer:
        def convert_ids_to_tokens(self, ids):
            return ["▁view", "a\n", "Ã", "", "▁"][: len(ids)]

        def convert_tokens_to_string(self, tokens):
            return {"▁view": "view", "a\n": "a\n", "Ã": "\ufffd", "": "", "▁": ""}[tokens[0]]

    assert token_labels(range(5), Tokenizer()) == ["␣view", "a⏎", "Ã", "", "␣"]
    assert token_labels([4, 0]) == ["4", "0"]
