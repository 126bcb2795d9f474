"""What the searches are given to start from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def num_sentences(inputs: Any) -> int:
    """How many sentences ``inputs`` are for.

    Args:
        inputs: what ``model.generate`` takes, (B, length) tensors by name.

    Raises:
        TypeError: no such mapping.
    """
    named = inputs if isinstance(inputs, Mapping) else {}
    tensors = [value for value in named.values() if isinstance(value, Tensor)]
    lists = [name for name, value in named.items() if isinstance(value, list)]
    if not tensors or lists:
        was = f"{lists[0]} was a list" if lists else f"was {type(inputs).__name__}"
        raise TypeError(
            "inputs must be a mapping from names to (B, length) tensors, as "
            f'tokenizer(text, return_tensors="pt") gives; {was}'
        )
    return len(tensors[0])
