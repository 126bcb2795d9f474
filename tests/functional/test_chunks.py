"""Entries found chunk by chunk are those found by looking at everything."""

import pytest
import torch

from hf_sparse.functional.chunks import Padding, chunk_maxima, entries_from


def found(z, bound, most=1.0):
    return entries_from(z, chunk_maxima(z).to(bound.dtype), bound, most)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_columns", [1024, 1025, 1055, 1087, 16_384, 16_385, 16_447])
@pytest.mark.parametrize("quantile", [0.8, 0.99, 1.0])
def test_the_entries_are_all_that_reach_the_bound_of_their_row(num_columns, dtype, quantile):
    z = torch.randn(4, num_columns, generator=torch.Generator().manual_seed(0)).to(dtype)
    z[1, ::3] = -torch.inf
    z[2, -1] = 9
    bound = z.double().quantile(quantile, dim=1, keepdim=True).to(torch.promote_types(dtype, torch.float32))
    row, column, value, crowded = found(z, bound)
    assert not bool(crowded.any())
    assert torch.equal(torch.stack([row, column], 1), (z >= bound).nonzero())
    assert torch.equal(value, z.to(bound.dtype)[row, column])
    assert value.dtype == bound.dtype


def test_nothing_reaches_nan_and_nan_reaches_nothing():
    z = torch.zeros(3, 1030)
    z[0, 1029], z[1, 3], z[1, 700] = torch.nan, 1.0, torch.nan
    row, column, _, _ = found(z, torch.tensor([[0.5], [0.5], [torch.nan]]))
    assert (row.tolist(), column.tolist()) == ([1], [3])


def test_rows_with_too_much_to_list_are_named_and_left_out():
    z = torch.zeros(4, 2048)
    z[0, :1920], z[1, :1792], z[2, ::32] = 1.0, 1.0, 1.0
    bound = torch.full((4, 1), 0.5)
    row, _, _, crowded = found(z, bound)
    assert crowded.tolist() == [True, False, False, False]  # 15 in 16 eights, 7 in 8, one in 4
    assert torch.bincount(row, minlength=4).tolist() == [0, 1792, 64, 0]
    row, _, _, crowded = found(z, bound, most=0.875)
    assert crowded.tolist() == [True, False, True, False]  # every chunk of the third row has something
    assert torch.bincount(row, minlength=4).tolist() == [0, 1792, 0, 0]


def test_padding_puts_every_row_at_its_beginning():
    padding = Padding.of(torch.tensor([0, 0, 2]), 4)
    assert padding.fill(torch.tensor([5, 6, 7]), -1).tolist() == [[5, 6], [-1, -1], [7, -1], [-1, -1]]
    assert Padding.of(torch.zeros(0, dtype=torch.int64), 0).fill(torch.zeros(0), 0.0).shape == (0, 0)
