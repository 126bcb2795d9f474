"""Weights that are computed for observers alone, a part of a call at a time, are those of the whole call."""

import pytest
import torch

from hf_sparse import sparsify
from hf_sparse.attention import interface, observe
from hf_sparse.attention._call import AttentionCall
from hf_sparse.attention._scores import scores_of_call
from tests.tiny_models import tiny_model, tokens


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


CALLS = {
    "causal": {"causal": True, "mask": None},
    "padding": {"mask": torch.arange(7) >= torch.arange(2)[:, None, None, None]},
    "causal with padding and a window": {
        "causal": True, "window": 3, "mask": torch.arange(7) >= torch.arange(2)[:, None, None, None],
    },
    "added mask and bias": {"mask": drawn(1, 1, 5, 7), "position_bias": drawn(1, 4, 5, 7)},
    "bias of the key": {"mask": None, "position_bias": drawn(4, 1, 7), "softcap": 2.0},
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("num_scores", [1, 60, 150, 10_000])
def test_scores_of_parts_are_those_of_the_call(name, num_scores):
    call = AttentionCall(drawn(2, 4, 5, 8), drawn(2, 2, 7, 8), drawn(2, 2, 7, 8), scaling=0.3, **CALLS[name])
    visible = torch.ones(5, 7, dtype=torch.bool)
    if call.causal:
        visible = visible.tril(2)
    if call.window is not None:
        visible = visible.triu(2 - call.window + 1)
    plain = call._replace(causal=False, window=None)
    whole = scores_of_call(plain).masked_fill(~visible, -torch.inf)
    if num_scores >= whole.numel():
        assert list(call.parts(num_scores)) == [call]
        return
    parts = [scores_of_call(part) for part in call.parts(num_scores)]
    assert all(part.numel() <= max(num_scores, 4 * 7) for part in parts)
    of_sequences = [torch.cat(parts[: len(parts) // 2], 2), torch.cat(parts[len(parts) // 2 :], 2)]
    torch.testing.assert_close(torch.cat(of_sequences), whole, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["llama", "gemma2", "bart"])
def test_counts_of_parts_are_those_of_the_whole(name, monkeypatch):
    """Sentences long enough for the C++ kernel, with padding."""
    model = sparsify(tiny_model(name), attn="entmax15")
    ids, padding = tokens(16, 48), torch.arange(48) < torch.arange(16)[:, None]
    inputs = {"input_ids": ids, "attention_mask": (~padding).long()}
    found = []
    for most in (1 << 27, 5000):
        monkeypatch.setattr(interface, "_SHOWN_AT_ONCE", most)
        with torch.no_grad(), observe(model) as counts:
            model(**inputs)
        found.append({path: (count.nonzero, count.rows, count.keys) for path, count in counts.items()})
    assert found[0] == found[1]
