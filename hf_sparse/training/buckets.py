"""Batches of rows of similar length, in an order drawn anew each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import index
from typing import Any

import torch
from torch.utils.data import Sampler
from transformers import Trainer
from transformers.trainer_pt_utils import LengthGroupedSampler

from ..functional.arguments import check_count


class LengthBuckets(Sampler[int]):
    """Indices of rows, batch by batch: rows of similar length are together, and the batches are in random order.

    Rows are shuffled, sorted by length in groups of ``GROUP`` batches, and cut into batches, whose order is shuffled;
    a last batch that is not full stays last.

    Args:
        lengths: of all rows.
        batch_size: rows per optimizer step.
        seed: of the shuffles, together with the epoch.

    Raises:
        TypeError: lengths that are no whole numbers, or a batch size or seed that is none.
        ValueError: a batch size below 1.

    >>> buckets = LengthBuckets([9, 1, 9, 1, 9, 1, 9, 1], batch_size=2)
    >>> rows = torch.tensor(list(buckets)).view(4, 2)
    >>> bool((buckets.lengths[rows[:, 0]] == buckets.lengths[rows[:, 1]]).all())
    True
    """

    GROUP = 50

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int = 0) -> None:
        check_count("batch_size", batch_size)
        self.lengths = torch.tensor([index(length) for length in lengths], device="cpu")
        self.batch_size = batch_size
        self.seed = index(seed)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass; a trainer that resumes calls it too, and skips what was seen."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator, device="cpu")
        groups = order.split(self.GROUP * self.batch_size)
        ordered = torch.cat([group[self.lengths[group].argsort(stable=True)] for group in groups])
        *batches, last = ordered.split(self.batch_size)
        if len(last) == self.batch_size:
            batches, last = [*batches, last], last[:0]
        shuffled = [batches[place] for place in torch.randperm(len(batches), generator=generator, device="cpu")]
        return iter(torch.cat([*shuffled, last]).tolist())


class BucketedTrainer(Trainer):
    """``Trainer`` whose ``train_sampling_strategy="group_by_length"`` shuffles the batches, by ``LengthBuckets``.

    Transformers' own order runs from the longest batch of fifty to the shortest, again and again, and training forgets
    the long rows on the way to the short ones. That costs dense and sparse models alike: train softmax with this class
    too where a sparse model is compared with it.
    """

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(train_dataset)
        if type(sampler) is not LengthGroupedSampler:
            return sampler
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return LengthBuckets(sampler.lengths, sampler.batch_size, seed)
