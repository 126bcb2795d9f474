"""A head whose training from scratch would begin with most targets outside of the support, and the cure."""

from __future__ import annotations

from ..config import MapConfig
from ..functional import balanced_temperature


def cold_start(map_config: MapConfig, missed: float, vocab_size: int) -> str | None:
    """What to do where most targets are missed at a temperature below the balanced one; None elsewhere.

    Args:
        map_config: the head's map.
        missed: share of the targets of probability zero, in [0, 1].
        vocab_size: number of classes.

    >>> cold_start(MapConfig.parse("entmax15", "head"), 0.97, 4096)
    '97% of the targets have probability zero, so that training begins by shrinking the logits: to train from scratch
    give the head "temperature": "auto" (8 here, it has 1); fit that of a pretrained model with calibrate'
    """
    if missed <= 0.5 or map_config.alpha is None:
        return None
    balanced = balanced_temperature(map_config.alpha, vocab_size)
    if map_config.temperature >= balanced:
        return None
    return (
        f"{missed:.0%} of the targets have probability zero, so that training begins by shrinking the logits: to "
        f'train from scratch give the head "temperature": "auto" ({balanced:.3g} here, it has '
        f"{map_config.temperature:.3g}); fit that of a pretrained model with calibrate"
    )
