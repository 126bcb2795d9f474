"""The tree of hypotheses, and its text."""

import pytest
import torch

from hf_sparse import enumerate_support, hypothesis_tree, tree_text
from tests.enumeration import model_and_inputs, next_distribution
from tests.generation.spaced_tokenizer import spaced_tokenizer

# The past participle of "draw" as in Figure 1 of Peters et al. 2019: drawed, drawn, draw.
SEQUENCES = [[5, 6, 7, 8, 9, 5, 2], [5, 6, 7, 8, 10, 2], [5, 6, 7, 8, 2]]
PROBABILITIES = [0.664, 0.3, 0.036]


def strings(branch, before=()):
    tokens = before + branch.tokens
    if not branch.children:
        return {tokens: branch.probability}
    return {string: p for child in branch.children for string, p in strings(child, tokens).items()}


def test_what_is_shared_is_written_once():
    tree = hypothesis_tree(SEQUENCES, PROBABILITIES)
    assert tree.tokens == (5, 6, 7, 8)
    assert tree.probability == pytest.approx(1)
    assert [child.tokens for child in tree.children] == [(9, 5, 2), (10, 2), (2,)]
    assert tree.leaves == 3


def test_rows_of_generate_give_the_tree_of_their_ids():
    rows = [[5, 6, 7, 2], [5, 6, 8, 2], [9, 2, 0, 0]]
    assert hypothesis_tree(torch.tensor(rows), [0.5, 0.3, 0.2]) == hypothesis_tree(rows, [0.5, 0.3, 0.2])
    assert hypothesis_tree(list(torch.tensor(rows)), [0.5, 0.3, 0.2]) == hypothesis_tree(rows, [0.5, 0.3, 0.2])


@torch.no_grad()
def test_the_tree_holds_every_string_of_the_support_and_conditionals_are_the_models():
    model, inputs = model_and_inputs("bart", "entmax15")
    support = enumerate_support(model, inputs, max_hypotheses=60, max_new_tokens=12)
    tree = hypothesis_tree(support.sequences, support.probabilities)
    assert strings(tree) == pytest.approx({tuple(ids): p for ids, p in zip(support.sequences, support.probabilities)})

    def check(branch, before):
        tokens = before + branch.tokens
        if branch.children:
            p = next_distribution(model, inputs, tokens)
            order = p.argsort(descending=True)[: int((p > 0).sum())].tolist()
            assert [child.tokens[0] for child in branch.children] == order
            for child in branch.children:
                assert child.probability / branch.probability == pytest.approx(float(p[child.tokens[0]]), rel=1e-3)
                check(child, tokens)

    assert tree.children
    check(tree, ())


def test_the_text_has_a_line_a_branch():
    assert tree_text(hypothesis_tree(SEQUENCES, PROBABILITIES)).splitlines() == [
        "100.00%  5 6 7 8",
        " 66.40%  ├─ 9 5 2",
        " 30.00%  ├─ 10 2",
        "  3.60%  └─ 2",
    ]
    tree = hypothesis_tree([[4, 5, 2], [4, 6, 2], [3, 2]], [0.5, 0.25, 0.25])
    assert tree_text(tree, spaced_tokenizer()).splitlines() == [
        "100.00%  (start)",
        " 75.00%  ├─ ␣cat",
        " 50.00%  │  ├─ s </s>",
        " 25.00%  │  └─ c </s>",
        " 25.00%  └─ ␣the </s>",
    ]


def test_a_tree_needs_hypotheses_that_end():
    with pytest.raises(ValueError, match="there were 0 hypotheses and 0 probabilities"):
        hypothesis_tree([], [])
    with pytest.raises(ValueError, match="there were 1 hypotheses and 2 probabilities"):
        hypothesis_tree([[1]], [0.5, 0.5])
    with pytest.raises(
        ValueError, match=r"hypothesis \[1, 3\] is the beginning of \[1, 3, 4\]: it needs an end token"
    ):
        hypothesis_tree([[1, 3, 4], [1, 3]], [0.5, 0.5])
    with pytest.raises(ValueError, match=r"hypothesis \[1\] is the beginning of \[1\]"):
        hypothesis_tree([[1], [1]], [0.5, 0.5])


def test_tensors_of_probabilities_are_read_and_impossible_sums_refused():
    tree = hypothesis_tree([[1], [2]], torch.tensor([0.5, 0.25]))
    assert tree.probability == 0.75
    with pytest.raises(ValueError, match=r"probabilities must sum to 1 at most, summed to 1\.8"):
        hypothesis_tree([[1], [2]], [0.9, 0.9])
    with pytest.raises(TypeError, match="tree must be a Branch, from hypothesis_tree, was NoneType"):
        tree_text(None)
