"""Heads whose weight holds codes: their classes are counted right, and their numbers are not read."""

import pytest
import torch
from torch import nn

from hf_sparse.functional import estimate_tau_from_head
from hf_sparse.functional.head_weight import is_quantized, num_classes


class PackedLinear(nn.Linear):
    """A layer as bitsandbytes leaves it: codes of four bits, two in a byte, in one column."""

    def __init__(self):
        super().__init__(8, 6)
        self.weight = nn.Parameter(torch.zeros(24, 1, dtype=torch.uint8), requires_grad=False)


class EightBits(nn.Linear):
    def __init__(self, dtype):
        super().__init__(8, 6)
        self.weight = nn.Parameter(torch.zeros(6, 8, dtype=dtype), requires_grad=False)


@pytest.mark.parametrize(
    "head", [nn.Linear(8, 6), nn.Linear(8, 6).half(), nn.Embedding(6, 8)], ids=["linear", "half", "embedding"]
)
def test_a_head_of_numbers_is_not_quantized(head):
    assert num_classes(head) == 6
    assert not is_quantized(head)


@pytest.mark.parametrize(
    "head",
    [PackedLinear(), EightBits(torch.int8), EightBits(torch.float8_e4m3fn)],
    ids=["packed", "int8", "float8"],
)
def test_a_head_of_codes_has_its_classes_and_no_estimate_of_tau(head):
    assert num_classes(head) == 6
    assert is_quantized(head)
    with pytest.raises(ValueError, match=r"is quantized, so that tau cannot be estimated .* give tau a number"):
        estimate_tau_from_head(head, 1.5)


def test_a_head_without_a_weight_is_named():
    with pytest.raises(NotImplementedError, match="the head is a Sequential, which has no weight"):
        num_classes(nn.Sequential(nn.Linear(8, 6)))
