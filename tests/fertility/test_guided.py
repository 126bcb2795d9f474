"""Fertilities counted from alignments, and the bounds looked up from them."""

import pytest
import torch

from hf_sparse.fertility import GuidedFertility, fertility_counts


def test_fertility_is_the_number_of_aligned_target_words():
    assert fertility_counts([[(0, 0), (2, 1), (2, 3)], []], [3, 2]) == [[1, 0, 2], [0, 0]]
    assert fertility_counts([[(0, 0), (0, 0)]], [1]) == [[1]]
    assert fertility_counts([torch.tensor([[0, 0], [0, 0], [1, 2]])], [2]) == [[1, 1]]


def test_bound_is_the_largest_count_seen_at_least_one_and_one_for_unseen_tokens():
    fertility = GuidedFertility.from_counts([[3, 4], [4, 5], [4]], [[0, 2], [4, 1], [3]], vocab_size=7)
    assert fertility.table.tolist() == [1, 1, 1, 1, 4, 1, 1]


def test_padding_gets_no_credit():
    fertility = GuidedFertility(torch.tensor([5.0, 2.0, 3.0]))
    ids, mask = torch.tensor([[1, 2, 0], [2, 0, 0]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert fertility(ids, mask).tolist() == [[2, 3, 0], [3, 0, 0]]
    assert fertility(ids).tolist() == [[2, 3, 5], [3, 5, 5]]


def test_saved_bounds_come_back_the_same(tmp_path):
    fertility = GuidedFertility(torch.tensor([1.0, 2.0, 7.0]))
    fertility.save_pretrained(tmp_path)
    assert torch.equal(GuidedFertility.from_pretrained(tmp_path).table, fertility.table)


def test_wrong_input_is_refused(tmp_path):
    with pytest.raises(ValueError, match="sentence 0 links source word 3, but has 2"):
        fertility_counts([[(3, 0)]], [2])
    with pytest.raises(ValueError, match="must pair up, were 1 and 2"):
        fertility_counts([[]], [2, 3])
    with pytest.raises(ValueError, match=r"table must be \(vocabulary,\), was \(2, 2\)"):
        GuidedFertility(torch.ones(2, 2))
    for table in ([0.5], [float("inf")], [float("nan")]):
        with pytest.raises(ValueError, match="finite bounds of at least 1"):
            GuidedFertility(torch.tensor(table))
    with pytest.raises(ValueError, match="one count for each token"):
        GuidedFertility.from_counts([[1, 2]], [[1]], 5)
    with pytest.raises(ValueError, match=r"token ids must be in \[0, 2\), were in \[1, 2\]"):
        GuidedFertility.from_counts([[1, 2]], [[1, 1]], 2)
    with pytest.raises(ValueError, match=r"holds no guided fertilities: guided_fertility\.safetensors is needed"):
        GuidedFertility.from_pretrained(tmp_path)
