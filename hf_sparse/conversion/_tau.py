"""The threshold of an alpha-ReLU head from data: what entmax finds for the model's logits, on average."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from ..config import SparseConfig
from ..model.dry_run import as_it_runs, eager_evaluation
from ._batches import read_batches, scored
from ._fit_head import thresholds

logger = logging.getLogger(__name__)


def estimate_tau_from_data(
    model: nn.Module,
    dataloader: Iterable[Any],
    alpha: float = 1.5,
    *,
    temperature: float = 1.0,
    centered: bool = False,
    max_batches: int | None = 32,
    progress: bool = True,
) -> float:
    """The mean threshold ``tau`` of entmax over the logits a model gives on the user's data.

    Args:
        model: a Transformers model with a head, dense or sparse. It is left as it was.
        dataloader: yields keyword arguments for the model's forward, with labels; positions whose label is ignored do
            not count.
        alpha: from 1.001 to 5.
        temperature: above 0; what the logits are divided by.
        centered: whether the mean of the logits is taken off, as alpha-ReLU on a pretrained head needs it.
        max_batches: how many batches to read; None reads all.
        progress: show a progress bar.

    Returns:
        tau for ``{"name": "alpha_relu", "alpha": ..., "tau": ..., "temperature": ..., "centered": ...}``, in units of
        ``(alpha - 1) z``. It is logged with its standard deviation over positions.

    Raises:
        ValueError: an argument out of range, a loader that is empty or without labels that count, or an adapter of
            PEFT that is a prompt.
        TypeError: not a Transformers model, or a loader that does not yield mappings.

    Source: Tezekbayev et al. 2022, Section 3.1: tau by running data through the model.
    Cost: one forward pass over the data.
    """
    head = {"name": "alpha_relu", "alpha": alpha, "tau": 0.0, "temperature": temperature, "centered": centered}
    map_config: Any = SparseConfig.parse(head=head).head
    if map_config.open_settings:
        raise ValueError('temperature must be a number, was "auto"; balanced_temperature(alpha, vocab_size) gives one')
    inner = as_it_runs(model)
    batches = read_batches(dataloader, max_batches, "estimate_tau_from_data")
    found = []
    with eager_evaluation(inner):
        for batch in tqdm(batches, desc="tau", disable=not progress):
            found.append(thresholds(map_config, scored(inner, batch)[0]))
    taus = torch.cat(found).double()
    if len(taus) == 0:
        raise ValueError("no target counts in the model's loss: every label is ignored once labels are shifted")
    tau = float(taus.mean())
    deviation = float(taus.std(correction=min(1, len(taus) - 1)))
    logger.info("tau = %.4f, the mean over %d targets (standard deviation %.4f)", tau, len(taus), deviation)
    return tau
