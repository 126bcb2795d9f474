"""What becomes of one entry: works, refused, cannot be built, or failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hf_sparse import is_sparse, unsparsify
from tests.sweep.architectures import build, calibrate
from tests.sweep.checks import CheckFailed, NoMeasureError, check_attention, run
from tests.sweep.generating import check_generate
from tests.sweep.head import HEADS, check_head
from tests.sweep.inputs import inputs_for
from tests.sweep.inside import check_inside
from tests.sweep.saving import check_twins


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]


def verdict(mapping: str, kind: str, name: str, attn: str | None = None) -> dict[str, Any]:
    """The result of all checks on one architecture, as plain data; with ``attn`` those of attention with that map."""
    try:
        model = build(kind, name)
    except Exception as error:  # noqa: BLE001
        return {"result": "cannot be built", "reason": _short(error)}
    try:
        torch.manual_seed(0)
        inputs = inputs_for(kind, model)
        calibrate(model, inputs)
        run(model, inputs)
    except Exception as error:  # noqa: BLE001
        return {"result": "cannot be run", "reason": _short(error)}
    found = _of_attention(model, inputs, attn or "entmax15")
    if attn is not None:
        return found
    attention = found["result"] in ("interface", "inline", "mixed")
    head = mapping in HEADS and model.get_output_embeddings() is not None
    if mapping in HEADS:
        found["head"] = outcome(model, lambda: check_head(model, inputs))
    further: dict[str, Callable[[], str]] = {
        "generate": lambda: check_generate(model, inputs),
        "saved": lambda: check_twins(model, inputs, attention, head),
        "inside": lambda: check_inside(model, inputs, attention, head),
    }
    return found | {name: outcome(model, check) for name, check in further.items()}


def _of_attention(model: Any, inputs: dict[str, torch.Tensor], attn: str) -> dict[str, Any]:
    """What became of the attention of a model, which is dense afterwards."""
    try:
        found = check_attention(model, inputs, attn)
    except NoMeasureError as error:
        found = {"result": "cannot be run", "reason": str(error)}
    except CheckFailed as error:
        found = {"result": "FAILED", "reason": str(error)}
    except (ValueError, NotImplementedError) as error:
        refused = "attn=None" in str(error)
        found = {"result": "refused" if refused else "FAILED", "reason": str(error) if refused else _short(error)}
    except Exception as error:  # noqa: BLE001
        found = {"result": "FAILED", "reason": _short(error)}
    if is_sparse(model):
        unsparsify(model)
    return found


def outcome(model: Any, check: Callable[[], str]) -> str:
    """What a check found, in a line; the model is dense afterwards."""
    try:
        return check()
    except ValueError as error:
        return f"refused: {error}" if "head=None" in str(error) else f"FAILED: {_short(error)}"
    except Exception as error:  # noqa: BLE001
        return f"FAILED: {_short(error)}"
    finally:
        if is_sparse(model):
            unsparsify(model)
