"""Continuous batching: ``generate_batch`` of a sparse model decodes as its ``generate`` does.

Transformers puts requests of any length into one row, and hides by a mask what is of another request. It builds that
mask for the implementations of attention that it knows, and switches others to one of these; here it is told that
sparse attention reads masks, too, and stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)

from ..attention.interface import NAME
from ..attention.site import attention_sites
from ..functional.log_zero import LOG_ZERO
from .find import sparse_state
from .kept_support import keep_zeros
from .patch import Patch

_PACKAGE = "transformers.generation.continuous_batching"
_MANAGER = "_cached_continuous_batching_manager"


class KeptInBatches(ContinuousBatchingLogitsProcessorList):
    """Processors of a batch of requests, after which no token is likelier for having had probability zero before.

    See ``KeptSupport``. Settings may differ by request.

    Args:
        processors: of scores that are ``log_distribution``.
    """

    def __init__(self, processors: ContinuousBatchingLogitsProcessorList) -> None:
        self.__dict__.update(vars(processors))

    def __call__(self, input_ids: Tensor, scores: Tensor, logits_processor_args: Tensor) -> Tensor:
        """The processed scores (requests, V).

        Args:
            input_ids: the last token of each request.
            scores: (requests, V).
            logits_processor_args: the settings of processors that have one for each request, in their order.
        """
        zero, settings = scores < LOG_ZERO / 2, iter(logits_processor_args)
        for processor in self.logits_processor:
            before = scores.clone()
            by_request = isinstance(processor, ContinuousBatchingLogitsProcessor)
            processed = processor(before, next(settings)) if by_request else processor(input_ids, before)
            scores = keep_zeros(scores, processed, zero)
        return scores


def init_continuous_batching(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
    """The model's own manager of requests, with processors that leave what has probability zero at zero.

    Raises:
        NotImplementedError: attention that carries something from query to query, or computes its own softmax.
        RuntimeError: inside ``raw_scores``, or sparse attention was taken out by way of the configuration.
    """
    sparse_state(self).check_decoding(self)
    _check_attention(self)
    cached = vars(self).get(_MANAGER)
    if cached is not None and not isinstance(cached.logit_processor, KeptInBatches):  # of the dense model
        self.destroy_cached_continuous_batching_manager()
    manager = self._dense_class.init_continuous_batching(self, *args, **kwargs)
    manager.logit_processor = KeptInBatches(manager.logit_processor)
    return manager


def forget_batches(model: PreTrainedModel) -> None:
    """Let go of managers that were kept for later calls: their keys and values are of other maps now."""
    for part in model.modules():
        if vars(part).get(_MANAGER) is not None:
            cast(Any, part).destroy_cached_continuous_batching_manager()


def _check_attention(model: PreTrainedModel) -> None:
    """Refuse attention that a row of several requests would mix, or that does not read the mask between them."""
    for _, site in attention_sites(model):
        if site.map_config is not None and site.kind != "encoder" and (site.is_sequential or site.inline):
            why = (
                "carries credit or coverage from query to query"
                if site.is_sequential
                else "computes its own softmax, and Transformers batches through the attention interface alone"
            )
            raise NotImplementedError(
                f"continuous batching is not supported where attention {why} ({site.path}); use model.generate"
            )


def _switch_to_cb_friendly_attn(
    original: Callable[..., None], self: Any, model: PreTrainedModel, *args: object, **kwargs: object
) -> None:
    if model.config.get_text_config()._attn_implementation != NAME:
        original(self, model, *args, **kwargs)


def _attn_mask_is_needed(original: Callable[..., bool], config: PreTrainedConfig) -> bool:
    return config._attn_implementation == NAME or original(config)


OF_BATCHING = (
    Patch(
        f"{_PACKAGE}.continuous_api:ContinuousBatchingManager",
        "switch_to_cb_friendly_attn",
        _switch_to_cb_friendly_attn,
        reason="Continuous batching keeps sparse attention, which it would refuse.",
    ),
    Patch(
        f"{_PACKAGE}.input_outputs",
        "attn_mask_is_needed",
        _attn_mask_is_needed,
        reason="Without a mask sparse attention would mix the requests of a batch.",
    ),
)
