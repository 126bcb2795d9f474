"""The calls that each attention backend serves, by its own refusals: for the table in docs/gpu.md."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch.nn.attention.flex_attention import create_block_mask

from hf_sparse.attention._call import AttentionCall
from hf_sparse.attention.backends import BACKENDS, _adasplash

TOKENS = 64
_PLAIN: dict[str, Any] = {
    "key_heads": 2, "keys": TOKENS, "dim": 64, "value_dim": 64, "dtype": torch.float16, "alpha": 1.5, "scaling": 0.125,
    "causal": True, "window": None, "mask": None, "softcap": None, "position_bias": None, "s_aux": None,
}  # fmt: skip


def _visible(left: int, right: int) -> torch.Tensor:
    """Later keys hidden, and padding on either side."""
    visible = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool).tril()
    visible[..., :left], visible[..., TOKENS - right :] = False, False
    return visible


CALLS = {
    "causal, float16": {},
    "float32": {"dtype": torch.float32},
    "not causal": {"causal": False},
    "keys shared by heads": {"key_heads": 1},
    "fewer queries than keys": {"keys": 2 * TOKENS},
    "head dimension 80": {"dim": 80, "value_dim": 80, "scaling": 80**-0.5},
    "values of another dimension": {"value_dim": 128},
    "sparsemax": {"alpha": 2.0},
    "alpha 1.05": {"alpha": 1.05},
    "one alpha per head": {"alpha": torch.tensor([1.3, 1.6])},
    "another scale": {"scaling": 1.0},
    "a temperature": {"temperature": 2.0},
    "one temperature per head": {"temperature": torch.tensor([2.0, 3.0])},
    "softcap": {"softcap": 30.0},
    "position bias": {"position_bias": torch.zeros(1, 2, TOKENS, TOKENS)},
    "window": {"window": 16},
    "padding on the right": {"mask": _visible(0, 5)},
    "padding on the left, any other mask": {"mask": _visible(5, 0)},
    "additive mask": {"mask": _visible(0, 5) * 1.0},
    "a mask function (BlockMask)": {
        "mask": create_block_mask(lambda b, h, i, j: j <= i, None, None, TOKENS, TOKENS, device="cpu"),
    },
    "sinks": {"s_aux": torch.zeros(2)},
}


def served() -> dict[str, dict[str, bool]]:
    """For every kind of call, whether each backend serves it where its engine is installed."""
    table = {}
    with mock.patch.object(_adasplash, "_unavailable", return_value=None):
        for name, changes in CALLS.items():
            given = _PLAIN | ({"causal": False} if "mask" in changes else {}) | changes
            query = torch.zeros(1, 2, TOKENS, given["dim"], dtype=given["dtype"])
            key = query.new_zeros(1, given["key_heads"], given["keys"], given["dim"])
            value = query.new_zeros(1, given["key_heads"], given["keys"], given["value_dim"])
            arguments = {field: given[field] for field in AttentionCall._fields if field in given}
            call = AttentionCall(query, key, value, **arguments)
            table[name] = {
                backend: record.problem(call if record.takes_temperature else call.divided(), given["alpha"]) is None
                for backend, record in BACKENDS.items()
            }
    return table
