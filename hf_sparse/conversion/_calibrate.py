"""calibrate: the temperatures and the threshold at which a sparse model is closest to the dense one."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ..attention import attention_sites
from ..config import MapConfig, SparseConfig
from ..functional.arguments import check_flag, check_number
from ..model.attach import change_settings
from ..model.audit import audit
from ..model.dry_run import quiet_evaluation
from ..model.example import example_inputs
from ..model.state import is_sparse, sparse_config, transformers_model
from ._batches import read_batches
from ._fit import fit_attention, fit_head, head_data
from ._measure import Trial, measure
from ._results import CalibratedLayer, Calibration
from ._rules import rules
from ._temperature import ROUNDS

logger = logging.getLogger(__name__)


def calibrate(
    model: nn.Module,
    dataloader: Iterable[Any],
    *,
    per_head: bool = False,
    max_batches: int | None = 32,
    eps: float = 1e-4,
    progress: bool = True,
) -> Calibration:
    """Fit the temperatures of a sparse model, and tau, so that it is as close as can be to the dense model it was.

    No weight changes. Attention first: each layer (or head) gets the temperature at which its weights q are closest
    to its softmax p on the dense model's scores, in ``||q - p||^2``. Then, under that attention, the head gets the
    temperature at which its loss against the dense model's distribution is smallest; alpha-ReLU is centered, and its
    tau is the mean threshold of entmax at that temperature. Softmax stays softmax.

    Args:
        model: what ``sparsify`` returned. Changed in place: the settings of its maps, which are saved with it.
        dataloader: yields keyword arguments for the model's forward, with labels; read from the start.
        per_head: fit a temperature for each head of attention instead of one for each layer.
        max_batches: how many batches to read; None reads all.
        eps: of the eps-perplexities in the report, in units of probability.
        progress: show a progress bar.

    Returns:
        A ``Calibration``: loss, eps-perplexity, divergence and supports of the dense model and of the sparse one
        before and after, over all and for each layer of attention. Print it.

    Raises:
        ValueError: a dense model, a loader that is empty or without labels that count, a temperature that is learned,
            ``eps <= 0``, or a fused loss of soft-capped logits that would have to be centered. The model is then as
            it was.
        TypeError: a loader that does not yield mappings.

    Cost: eight forward passes over the data where attention and head are sparse, and 39 evaluations of each layer's
    map. Memory: 256 MiB for the head. The same data give the same settings.
    """
    sparse = transformers_model(model)
    if not is_sparse(model):
        raise ValueError(f"this {type(sparse).__name__} is dense; call sparsify(model, ...) before calibrate")
    check_number("eps", eps, "> 0 and finite", lambda eps: 0 < eps < math.inf)
    check_flag("per_head", per_head)
    config = sparse_config(model)
    if any("temperature" in map_config.learned for map_config in config.attention_maps):
        raise ValueError('a temperature of attention is learned; make the model sparse without temperature="learned"')
    batches = read_batches(dataloader, max_batches)
    own: dict[str, MapConfig | None] = {site.path: site.map_config for _, site in attention_sites(sparse)}
    passes = (ROUNDS if own else 0) + (2 if config.head else 0) + 3
    with quiet_evaluation(sparse), tqdm(total=passes * len(batches), desc="calibrate", disable=not progress) as bar:
        fitted = fit_attention(sparse, batches, own, per_head, bar.update) if own else own
        head = config.head
        if head is not None:
            head = fit_head(head, *head_data(sparse, batches, fitted, bar.update))
        trials = [Trial(own, config.head), Trial(fitted, head)]
        dense, ((before, layers_before), (after, layers_after)) = measure(sparse, batches, trials, eps, bar.update)
    layers = [
        CalibratedLayer(
            site.path, site.kind, map_config.temperature, layers_before[site.path], layers_after[site.path]
        )
        for _, site in attention_sites(sparse)
        if (map_config := fitted[site.path]) is not None and site.path in layers_after
    ]
    _land(sparse, config, replace(config, attn=rules(sparse, fitted) or config.attn, head=head))
    settings = None if head is None else head.to_dict()
    report = Calibration(type(sparse).__name__, eps, dense, before, after, layers, settings)
    logger.info("calibrated %s", report)
    return report


def _land(model: PreTrainedModel, old: SparseConfig, new: SparseConfig) -> None:
    with ExitStack() as undo:
        undo.callback(change_settings, model, old)
        change_settings(model, SparseConfig.from_dict(new.to_dict()))
        if new.fused_loss:
            audit(model, example_inputs(model))
        undo.pop_all()  # all is well: keep them
