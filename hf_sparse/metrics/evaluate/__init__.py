"""REP, DROP and AER as metrics of the ``evaluate`` library.

``load("rep")`` finds them wherever the package lies; in a clone ``evaluate.load("hf_sparse/metrics/evaluate/rep")``
does too. Nothing is fetched.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import evaluate

_FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.parent.name for path in _FOLDER.glob("*/*.py") if path.stem == path.parent.name))


def load(name: str, **kwargs: Any) -> evaluate.Metric:
    """Load a metric of this folder.

    Args:
        name: ``"rep"``, ``"drop"`` or ``"aer"``.
        **kwargs: as for ``evaluate.load``.

    Raises:
        ValueError: another name.

    >>> load("rep").compute(predictions=["a a"], references=["a b c"])
    {'rep': 66.66666666666667}
    """
    import evaluate

    if name not in NAMES:
        raise ValueError(f"unknown metric {name!r}; choose one of {', '.join(map(repr, NAMES))}")
    return evaluate.load(str(_FOLDER / name), **kwargs)


__all__ = ["NAMES", "load"]
