"""Logits processors in a search, whose rows are prefixes and not the sentences of a batch."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process

# Read the tokens of each row and nothing else, so that one call serves any rows; all others are called in rounds.
_ROW_BY_ROW = (
    logits_process.ForcedBOSTokenLogitsProcessor,
    logits_process.ForcedEOSTokenLogitsProcessor,
    logits_process.MinLengthLogitsProcessor,
    logits_process.MinNewTokensLengthLogitsProcessor,
    logits_process.NoBadWordsLogitsProcessor,
    logits_process.NoRepeatNGramLogitsProcessor,
    logits_process.SuppressTokensAtBeginLogitsProcessor,
    logits_process.SuppressTokensLogitsProcessor,
    logits_process.WhisperTimeStampLogitsProcessor,
)
_WITH_MEMORY = (
    logits_process.DiaEOSDelayPatternLogitsProcessor,
    logits_process.SynthIDTextWatermarkLogitsProcessor,
    *(cls for name, cls in vars(logits_process).items() if "ClassifierFreeGuidance" in name),
)
# Rounding of log_softmax: of a score, and of a sum over 256,000 classes, which reaches 1.5e-5.
_OF_SCORE, _OF_SUM = 1e-5, 1e-4


class Constraints:
    """Processors, applied to prefixes as ``generate`` applies them to the sentences of a batch.

    A processor may look at its row: ``prefix_allowed_tokens_fn`` is given its number, others hold a source per row.
    So each is called in rounds, with one row per sentence, in order. A sentence without a prefix left for the round
    has what greedy decoding has there after its end: the end token, then padding.

    Args:
        processors: from ``generate``.
        prompts: (B, T) token ids before the first generated one.
        end: a token that ends a string.
        pad: the token after it.

    Raises:
        ValueError: a processor that remembers the step before, which a search does not visit in order.
    """

    def __init__(self, processors: LogitsProcessorList, prompts: Tensor, end: int, pad: int) -> None:
        self._processors, self._prompts, self._end, self._pad = processors, prompts, end, pad
        self._row_by_row = all(type(processor) in _ROW_BY_ROW for processor in processors)
        for processor in processors:
            _check(processor)

    def __call__(self, ids: Tensor, scores: Tensor, sentences: Tensor) -> Tensor:
        """The processed scores of some prefixes.

        Args:
            ids: (n, T + length) prompts and prefixes.
            scores: (n, V) log-probabilities.
            sentences: (n,) indices of their sentences.
        """
        if self._row_by_row:
            return self._processors(ids, scores)
        processed = torch.empty_like(scores)
        ranks = rank_in_group(sentences)
        for i in range(int(ranks.max()) + 1):
            rows = (ranks == i).nonzero()[:, 0]
            places = sentences[rows]
            batch = self._ended(ids.shape[1])
            batch[places] = ids[rows]
            batch_scores = scores[rows[:1]].repeat(len(batch), 1)
            batch_scores[places] = scores[rows]
            processed[rows] = self._processors(batch, batch_scores)[places]
        return processed

    def _ended(self, length: int) -> Tensor:
        """The prompts (B, length), each ended at once."""
        batch = self._prompts.new_full((len(self._prompts), length), self._pad)
        start = self._prompts.shape[1]
        batch[:, :start] = self._prompts
        batch[:, start : start + 1] = self._end
        return batch


def check_sums(scores: Tensor) -> None:
    """Refuse processed scores (rows, V) whose probabilities sum to more than one.

    Raises:
        ValueError: a row that does.
    """
    sums = scores.logsumexp(-1)
    if (scores > _OF_SCORE).any() or (sums > _OF_SUM).any():
        raise ValueError(
            f"a logits processor raised probabilities, so that those of a step sum to {sums.amax().exp():.6g}: no "
            "bound holds; leave that processor out, let it lower probabilities only, or pass renormalize_logits=True"
        )


def rank_in_group(groups: Tensor) -> Tensor:
    """For each entry (n,) the number of entries before it in the same group.

    >>> rank_in_group(torch.tensor([1, 0, 1, 1]))
    tensor([0, 0, 1, 2])
    """
    ordered, order = groups.sort(stable=True)
    ranks = torch.arange(len(groups), device=groups.device) - torch.searchsorted(ordered, ordered)
    return torch.empty_like(ranks).scatter_(0, order, ranks)


def _check(processor: LogitsProcessor) -> None:
    if isinstance(processor, _WITH_MEMORY):
        raise ValueError(
            f"{type(processor).__name__} keeps a memory of the steps before, which exact search does not visit in "
            "order; leave out the option that adds it (guidance_scale, watermarking_config, ...)"
        )
