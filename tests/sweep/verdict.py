"""What becomes of one entry: works, refused, cannot be built, or failed."""

from __future__ import annotations

from typing import Any

import torch

from hf_sparse import is_sparse, unsparsify
from tests.sweep.architectures import build, calibrate
from tests.sweep.checks import CheckFailed, check_attention, run
from tests.sweep.head import HEADS, check_head
from tests.sweep.inputs import inputs_for


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]


def verdict(mapping: str, kind: str, name: str) -> dict[str, Any]:
    """The result of all checks on one architecture, as plain data."""
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
    try:
        found = check_attention(model, inputs)
    except CheckFailed as error:
        found = {"result": "FAILED", "reason": str(error)}
    except (ValueError, NotImplementedError) as error:
        refused = "attn=None" in str(error)
        found = {"result": "refused" if refused else "FAILED", "reason": str(error) if refused else _short(error)}
    except Exception as error:  # noqa: BLE001
        found = {"result": "FAILED", "reason": _short(error)}
    if is_sparse(model):
        unsparsify(model)
    if mapping in HEADS:
        try:
            found["head"] = check_head(model, inputs)
        except ValueError as error:
            found["head"] = f"refused: {error}" if "head=None" in str(error) else f"FAILED: {_short(error)}"
        except Exception as error:  # noqa: BLE001
            found["head"] = f"FAILED: {_short(error)}"
    return found
