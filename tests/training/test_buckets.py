"""Buckets of length: little padding, every row once an epoch, batches in an order drawn anew, resumable."""

import pytest
import torch
from datasets import Dataset

from hf_sparse import SparseTrainer, from_pretrained, sparsify
from hf_sparse.training import BucketedTrainer, LengthBuckets
from tests.tiny_models import tiny_model, tokens
from tests.training.runs import arguments, largest_change

LENGTHS = torch.randint(1, 60, (1013,), generator=torch.Generator().manual_seed(0)).tolist()


def batches(sampler):
    order = list(sampler)
    return [order[start : start + sampler.batch_size] for start in range(0, len(order), sampler.batch_size)]


def test_every_row_comes_once_and_the_part_of_a_batch_last():
    sampler = LengthBuckets(LENGTHS, 8)
    assert sorted(sampler) == list(range(1013))
    assert len(sampler) == 1013
    assert [len(batch) for batch in batches(sampler)] == [8] * 126 + [5]
    assert sorted(LengthBuckets(LENGTHS[:8], 8)) == list(range(8))
    assert list(LengthBuckets([3], 8)) == [0]


def test_rows_of_a_batch_have_similar_lengths():
    """Sorting groups of 400 rows of 59 lengths leaves a batch of 8 a spread of about one, 40 at random."""
    spreads = [max(LENGTHS[i] for i in b) - min(LENGTHS[i] for i in b) for b in batches(LengthBuckets(LENGTHS, 8))]
    assert sum(spreads) / len(spreads) < 4


def test_batches_come_in_random_order():
    """Transformers' own run from long to short: the length of a batch foretells that of the next."""
    means = torch.tensor([sum(LENGTHS[i] for i in b) / len(b) for b in batches(LengthBuckets(LENGTHS, 8))])
    neighbours = torch.corrcoef(torch.stack([means[:-1], means[1:]]))[0, 1]
    assert abs(float(neighbours)) < 0.3


def test_each_epoch_and_seed_has_its_own_order_which_comes_again():
    sampler = LengthBuckets(LENGTHS, 8)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert list(LengthBuckets(LENGTHS, 8, seed=5)) != first
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_a_last_batch_that_is_full_is_shuffled_with_the_others():
    """The longest rows are in the last batch before the shuffle."""
    sampler, places = LengthBuckets(range(32), 8), set()
    for epoch in range(10):
        sampler.set_epoch(epoch)
        places.add(list(sampler).index(31) // 8)
    assert len(places) > 1


def test_a_row_meets_others_in_each_epoch():
    sampler = LengthBuckets(range(1000), 8)
    first = {frozenset(batch) for batch in batches(sampler)}
    sampler.set_epoch(1)
    assert len(first & {frozenset(batch) for batch in batches(sampler)}) < len(first) / 10


def rows(lengths=(3, 9, 4, 8, 5, 7, 6, 10)):
    ids = [tokens(1, length)[0].tolist() for length in lengths]
    return Dataset.from_dict({"input_ids": ids, "labels": ids, "length": list(lengths)})


def collate(features):
    ids = [torch.tensor(row["input_ids"]) for row in features]
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    labels = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-100)
    return {"input_ids": padded, "labels": labels}


OPTIONS = {"per_device_train_batch_size": 2, "train_sampling_strategy": "group_by_length", "max_steps": 6}
OPTIONS |= {"remove_unused_columns": False}


@pytest.mark.parametrize(
    ("strategy", "kind"), [("group_by_length", LengthBuckets), ("random", torch.utils.data.RandomSampler)]
)
def test_trainers_use_them_where_rows_are_grouped_by_length(strategy, kind, tmp_path):
    options = {**OPTIONS, "train_sampling_strategy": strategy, "gradient_accumulation_steps": 2}
    dense = BucketedTrainer(tiny_model("llama"), arguments(tmp_path, **options), train_dataset=rows())
    model = sparsify(tiny_model("llama"), head="entmax15")
    sparse = SparseTrainer(model, arguments(tmp_path, **options, data_seed=7), train_dataset=rows())
    samplers = [trainer._get_train_sampler() for trainer in (dense, sparse)]
    assert [type(sampler) for sampler in samplers] == [kind, kind]
    if kind is LengthBuckets:
        assert [sampler.batch_size for sampler in samplers] == [4, 4]
        assert [sampler.seed for sampler in samplers] == [0, 7]


def test_the_seed_of_the_data_may_be_zero(tmp_path):
    args = arguments(tmp_path, **OPTIONS, seed=5, data_seed=0)
    assert BucketedTrainer(tiny_model("llama"), args, train_dataset=rows())._get_train_sampler().seed == 0


def test_training_that_is_resumed_sees_the_rows_it_would_have_seen(tmp_path):
    def trained(model, folder, resume=None, **options):
        args = arguments(tmp_path / folder, **{**OPTIONS, **options})
        SparseTrainer(model, args, train_dataset=rows(), data_collator=collate).train(resume_from_checkpoint=resume)
        return model

    def start():
        return sparsify(tiny_model("llama"), head="entmax15")

    whole = trained(start(), "whole")
    trained(start(), "part", save_strategy="steps", save_steps=5)
    checkpoint = str(tmp_path / "part" / "checkpoint-5")
    resumed = trained(from_pretrained(checkpoint), "rest", checkpoint)
    assert largest_change(whole, resumed) < 1e-6
    assert largest_change(whole, start()) > 1e-3


def test_arguments_are_checked_when_it_is_made():
    with pytest.raises(ValueError, match="batch_size must be at least 1, was 0"):
        LengthBuckets([3, 4], 0)
    for lengths, seed in ((["a"], 0), ([3, 4], "x"), (None, 0)):
        with pytest.raises(TypeError):
            LengthBuckets(lengths, 2, seed)
