"""Settings of a head that ``"auto"`` leaves open: its temperature, and tau of alpha-ReLU."""

from __future__ import annotations

import logging
import math
import warnings

from accelerate.utils import align_module_device
from transformers import PreTrainedModel

from ..config import MapConfig
from ..functional import estimate_tau_from_head
from ..functional.head_weight import num_classes
from ..functional.tau import logit_moments
from .dry_run import DryRun

logger = logging.getLogger(__name__)

# How far the logits of one row may be from what fresh weights give, in standard errors over the vocabulary, and how
# far at least: with fresh weights of nine architectures all were below 3 and, above 10,000 classes, below 0.02.
_STANDARD_ERRORS = 6.0
_NEGLIGIBLE = 0.1


def balanced_head(model: PreTrainedModel, head_map: MapConfig) -> MapConfig:
    """A head's map at the temperature at which one that is drawn anew starts; see ``MapConfig.balanced``."""
    balanced = head_map.balanced(num_classes(model.get_output_embeddings()), "head")
    logger.info("temperature of the head = %.4f, for %s", balanced.temperature, head_map.name)
    return balanced


def tau_of_head(model: PreTrainedModel, head_map: MapConfig, before: DryRun) -> float:
    """The estimate for a head from its weights and the size of what entered it; warns where it will not do.

    Args:
        model: a dense model.
        head_map: alpha-ReLU, with its alpha, temperature and centering.
        before: a run of the model.

    Raises:
        ValueError: the run did not call the head, or gave it NaN.
    """
    if before.hidden_rms is None:
        raise ValueError(
            f'tau="auto" reads the input of the head, which {type(model).__name__} did not call; give tau a number'
        )
    if not math.isfinite(before.hidden_rms):
        raise ValueError(
            f'tau="auto" reads the input of the head, which is NaN or infinite in this {type(model).__name__}; look '
            "at its weights"
        )
    head = model.get_output_embeddings()
    settings = {"temperature": head_map.temperature, "centered": head_map.centered}
    with align_module_device(head):  # its weights may be on disk
        tau = estimate_tau_from_head(head, head_map.map_settings["alpha"], before.hidden_rms, **settings)
        mean, std = logit_moments(head, before.hidden_rms, **settings)
    logger.info("tau = %.4f, estimated from the weights of the head", tau)
    _warn_if_trained(head_map, before, mean, std)
    return tau


def _warn_if_trained(head_map: MapConfig, before: DryRun, mean: float, std: float) -> None:
    """Compare the logits of a run with the normal ones, of this mean and standard deviation, of a fresh head."""
    logits = before.output.logits.detach().flatten(0, -2).double() / head_map.temperature
    if head_map.centered:
        logits = logits - logits.mean(-1, keepdim=True)
    seen_mean, seen_std = float(logits.mean(-1).median()), float(logits.std(-1).median())
    classes = logits.shape[-1]
    far = max(_STANDARD_ERRORS / math.sqrt(classes), _NEGLIGIBLE)
    offset, spread = abs(seen_mean - mean) / std, abs(math.log(max(seen_std, 1e-12) / std))
    if offset <= far and spread <= far:
        return
    warnings.warn(
        f'tau="auto" fits heads that are not trained yet: its estimate assumes logits of mean {mean:.3g} and standard '
        f"deviation {std:.3g}, and those of the example have {seen_mean:.3g} and {seen_std:.3g}. Loss and support may "
        "be far off: fit tau and temperature to data with hf_sparse.calibrate(model, batches), or give tau a number",
        UserWarning,
        stacklevel=5,
    )
