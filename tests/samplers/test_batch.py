"""Batches: like torch's over any iterable, and by number over feedline's samplers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline import abc
from feedline.samplers import BatchSampler, RandomSampler, SequentialSampler
from feedline.types import Key

torch_data = pytest.importorskip("torch.utils.data")


def cut(sampler: abc.Sampler, batch_size: int, drop_last: bool) -> abc.BatchSampler:
    batches = BatchSampler(sampler, batch_size, drop_last)
    assert isinstance(batches, abc.BatchSampler)
    return batches


@given(st.integers(0, 60), st.integers(1, 20), st.booleans())
def test_batches_equal_torchs(samples: int, batch_size: int, drop_last: bool) -> None:
    theirs = torch_data.BatchSampler(range(samples), batch_size, drop_last)
    for sampler in (range(samples), SequentialSampler(range(samples)), torch_data.SequentialSampler(range(samples))):
        ours = BatchSampler(sampler, batch_size, drop_last)
        assert list(ours) == list(theirs)
        assert len(ours) == len(theirs)


@given(st.integers(1, 60), st.integers(1, 20), st.booleans(), st.integers(0, 3))
def test_batches_can_be_computed_by_number(samples: int, batch_size: int, drop_last: bool, epoch: int) -> None:
    batches = cut(RandomSampler(range(samples), seed=1), batch_size, drop_last)
    batches.set_epoch(epoch)
    expected = list(batches)
    assert batches.size() == len(batches) == len(expected)
    numbers = reversed(range(len(expected)))
    assert [batches.batch(number, Key(1, epoch)).tolist() for number in numbers] == expected[::-1]


def test_seed_and_epoch_come_from_the_sampler() -> None:
    sampler = RandomSampler(range(20), seed=4)
    batches = cut(sampler, 5, False)
    sampler.set_epoch(7)
    assert (batches.seed, batches.epoch, batches.epoch_was_set) == (4, 7, True)
    assert batches.begin() == Key(4, 7)
    batches.set_epoch(3)
    assert (sampler.epoch, sampler.epoch_was_set) == (3, True)
    first = list(batches)
    assert sampler.epoch == 4
    sampler.set_epoch(3)
    assert [index for batch in first for index in batch] == list(sampler)


def test_other_iterables_are_consumed_lazily() -> None:
    asked: list[int] = []

    def indices() -> Iterator[int]:
        for index in range(6):
            asked.append(index)
            yield index

    batches = BatchSampler(indices(), 2, False)
    assert not isinstance(batches, abc.BatchSampler)
    assert batches.cut_from() is None
    assert next(iter(batches)) == [0, 1]
    assert asked == [0, 1]
    with pytest.raises(TypeError):
        len(batches)


def test_a_subclass_with_its_own_iteration_is_not_computed_by_number() -> None:
    class Backwards(BatchSampler):
        def __iter__(self) -> Iterator[list[Any]]:
            yield from reversed(list(super().__iter__()))

    batches = Backwards(SequentialSampler(range(4)), 2, False)
    assert list(batches) == [[2, 3], [0, 1]]
    assert not isinstance(batches, abc.BatchSampler)


@pytest.mark.parametrize(
    ("before", "inside"), [(range(9), SequentialSampler(range(5))), (RandomSampler(range(9)), range(5))]
)
def test_frameworks_can_rebuild_it_with_another_sampler(before: Any, inside: Any) -> None:
    batches = BatchSampler(before, 2, False)
    for again in (
        type(batches)(inside, batch_size=batches.batch_size, drop_last=batches.drop_last),
        type(batches)(sampler=inside, batch_size=2, drop_last=False),
        type(batches)(inside, 2, False),
    ):
        assert list(again) == [[0, 1], [2, 3], [4]]
        assert len(again) == 3
        assert isinstance(again, abc.BatchSampler) == isinstance(inside, abc.Sampler)
        assert again.sampler is inside


@pytest.mark.parametrize(
    ("batch_size", "drop_last"), [(0, True), (-1, True), (True, True), (2.0, True), ("2", True), (2, 1), (2, None)]
)
def test_rejects_what_torch_rejects(batch_size: Any, drop_last: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as theirs:
        torch_data.BatchSampler(range(5), batch_size, drop_last)
    for sampler in (range(5), SequentialSampler(range(5))):
        with pytest.raises(theirs.type):
            BatchSampler(sampler, batch_size, drop_last)
