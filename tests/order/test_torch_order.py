"""Which order follows from the arguments of torch's loader."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

import feedline
from feedline import samplers
from feedline.order.foreign_order import ForeignOrder
from feedline.order.order import BatchOrder, Entry, Order, SampleOrder, SpanOrder, StreamOrder
from feedline.order.torch_order import torch_order
from feedline.types import IndexBlock, Key, Share, StreamSharding

pytestmark = pytest.mark.sample(16)

NUMBERS: Any = range(10)


def order_of(dataset: Any = NUMBERS, *, sharding: StreamSharding | None = None, **options: Any) -> Order:
    return order_in(DataLoader(dataset, **options), sharding)


def order_in(loader: DataLoader[Any], sharding: StreamSharding | None = None) -> Order:
    return torch_order(
        loader._index_sampler,
        loader.batch_size,
        is_map=loader._dataset_kind == torch.utils.data._DatasetKind.Map,
        batched=loader._auto_collation,
        sharding=sharding,
    )


def listed(order: Order, key: Key = Key(3, 0)) -> list[Any]:  # noqa: B008  frozen
    order.prepare({})
    plan = order.plan(Entry(key, 0))
    items = [item.array.tolist() if isinstance(item, IndexBlock) else item for item in plan]
    return [item.tolist() if isinstance(item, torch.Tensor) else item for item in items]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Mine(SequentialSampler):
    pass


# -- which kind ---


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, SampleOrder),
        ({"batch_size": None}, SampleOrder),
        ({"shuffle": True}, ForeignOrder),
        ({"shuffle": True, "batch_size": None}, ForeignOrder),
        ({"sampler": [3, 1]}, ForeignOrder),
        ({"sampler": Mine(range(10))}, ForeignOrder),
        ({"sampler": SubsetRandomSampler([1, 2])}, ForeignOrder),
        ({"sampler": samplers.RandomSampler(range(10), seed=1)}, SampleOrder),
        ({"sampler": samplers.RandomSampler(range(10), seed=1), "batch_size": None}, SampleOrder),
        ({"batch_sampler": BatchSampler(SequentialSampler(range(10)), 2, False)}, SampleOrder),
        ({"batch_sampler": [[0, 1], [2]]}, ForeignOrder),
        ({"batch_sampler": samplers.BatchSampler(samplers.SequentialSampler(range(9)), 2, False)}, SampleOrder),
        ({"batch_sampler": samplers.BatchSampler([3, 1, 2], 2, False)}, ForeignOrder),
        ({"batch_sampler": samplers.LengthBucketBatchSampler(list(range(10)), 2, seed=1)}, BatchOrder),
    ],
)
def test_orders_of_map_style_datasets(options: dict[str, Any], kind: type) -> None:
    order = order_of(**options)
    assert type(order) is kind
    drawn = "shuffle" in options or isinstance(options.get("sampler"), (samplers.RandomSampler, SubsetRandomSampler))
    if not drawn and kind is not BatchOrder:
        loader: Any = DataLoader(NUMBERS, **{**options, "collate_fn": list if "batch_size" not in options else None})
        assert listed(order) == [list(batch) if isinstance(batch, list) else batch for batch in loader]


def test_orders_of_iterable_datasets() -> None:
    assert type(order_of(Stream(), batch_size=2)) is StreamOrder
    assert type(order_of(Stream(), batch_size=2, sharding=StreamSharding(2, Share()))) is SpanOrder


# -- torch's samplers, exactly ---


@pytest.mark.parametrize("count", [0, 1, 7, 1023, 1024, 1025, 40_000])
@pytest.mark.parametrize("drop_last", [True, False])
def test_torchs_sequential_sampler_can_be_entered_anywhere(count: int, drop_last: bool) -> None:
    order = order_of(range(count), batch_size=7, drop_last=drop_last)
    expected = [list(batch) for batch in BatchSampler(SequentialSampler(range(count)), 7, drop_last)]
    assert listed(order) == expected
    done = len(expected) // 2
    plan: Any = order.plan(Entry(Key(3, 0), 0, {"consumed": 7 * done}))
    assert [item.array.tolist() for item in plan] == expected[done:]


class Growing:
    count = 3

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_length_of_a_growing_dataset_is_read_when_iteration_starts(shuffle: bool) -> None:
    data: Any = Growing()
    loader: Any = DataLoader(data, batch_size=2, shuffle=shuffle)
    data.count = 5
    indices = [index for batch in listed(order_in(loader)) for index in batch]
    assert sorted(indices) == [0, 1, 2, 3, 4]


def drawn_samplers(generator: torch.Generator | None) -> dict[str, Any]:
    return {
        "random": RandomSampler(range(10), generator=generator),
        "with replacement": RandomSampler(range(10), True, 25, generator),
        "more than there are": RandomSampler(range(10), num_samples=23, generator=generator),
        "subset": SubsetRandomSampler(range(2, 9), generator),
        "weighted": WeightedRandomSampler([0.1, 0.2, 0.7], 20, generator=generator),
    }


@pytest.mark.parametrize("name", drawn_samplers(None))
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("size", [3, None])
def test_torchs_random_samplers_are_obeyed(name: str, own: bool, size: int | None) -> None:
    def begin() -> Any:
        torch.manual_seed(5)
        return drawn_samplers(torch.Generator().manual_seed(7) if own else None)[name]

    sampler = begin()
    theirs = list(sampler) if size is None else list(BatchSampler(sampler, size, False))
    state_after = torch.get_rng_state()
    loader: Any = DataLoader(NUMBERS, size, sampler=begin())
    assert listed(order_in(loader)) == theirs
    assert torch.equal(torch.get_rng_state(), state_after), "the program's own generator ends in the same state"


@pytest.mark.parametrize("name", drawn_samplers(None))
@pytest.mark.parametrize("done", [0, 1, 3])
def test_an_order_drawn_from_a_generator_resumes(name: str, done: int) -> None:
    def order(seed: int) -> Order:
        return order_of(batch_size=3, sampler=drawn_samplers(torch.Generator().manual_seed(seed))[name])

    first = order(7)
    everything = listed(order(7))
    first.prepare({})
    plan = first.plan(Entry(Key(3, 0), 0))
    for _ in range(done):
        next(plan)
    state = {**plan.state(done), **first.expected()}
    second = order(99)
    second.check(state)
    second.prepare(state)
    entered = second.plan(Entry(Key(3, 0), 0, state))
    rest = [item.array.tolist() if isinstance(item, IndexBlock) else item for item in entered]
    assert rest == everything[done:]


class SkipBatchSampler:
    """A stand-in for Accelerate's."""

    __module__ = "accelerate.data_loader"

    def __init__(self, batch_sampler: Any, skip_batches: int) -> None:
        self.batch_sampler = batch_sampler
        self.skip_batches = skip_batches

    def __iter__(self) -> Any:
        return itertools.islice(self.batch_sampler, self.skip_batches, None)

    def __len__(self) -> int:
        return len(self.batch_sampler) - self.skip_batches


class Drawing(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> Any:
        return index, feedline.rng().random()


@pytest.mark.parametrize("skips", [0, 1, 3, 4])
@pytest.mark.parametrize("kind", ["feedline's", "torch's", "foreign"])
def test_batches_that_accelerate_skips_are_not_delivered(kind: str, skips: int) -> None:
    def batches(skips: int) -> Any:
        sampler: Any = {
            "feedline's": samplers.RandomSampler(range(7), seed=3),
            "torch's": RandomSampler(NUMBERS[:7], generator=torch.Generator().manual_seed(0)),
            "foreign": [6, 5, 4, 3, 2, 1, 0],
        }[kind]
        whole: Any = BatchSampler(sampler, 2, False)
        return feedline.DataLoader(Drawing(), batch_sampler=SkipBatchSampler(whole, skips), seed=1)

    whole = [[values.tolist() for values in batch] for batch in batches(0)]
    loader = batches(skips)
    assert len(loader) == len(whole) - skips
    assert [[values.tolist() for values in batch] for batch in loader] == whole[skips:]


# -- resuming ---


@pytest.mark.parametrize(
    "make_sampler",
    [
        lambda: SubsetRandomSampler(range(20)),
        lambda: WeightedRandomSampler([1.0 + number for number in range(20)], 20),
    ],
)
@pytest.mark.parametrize("batch_size", [2, None])
def test_torchs_samplers_without_a_generator_resume_exactly(
    make_sampler: Callable[[], Any], batch_size: int | None
) -> None:
    torch.manual_seed(1)
    loader: Any = feedline.DataLoader(range(20), batch_size, sampler=make_sampler())
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [torch.as_tensor(batch).tolist() for batch in batches]
    torch.manual_seed(2)
    other: Any = feedline.DataLoader(range(20), batch_size, sampler=make_sampler())
    other.load_state_dict(state)
    assert [torch.as_tensor(batch).tolist() for batch in other] == rest


def test_torchs_distributed_sampler_resumes_in_the_epoch_that_was_set() -> None:
    def make() -> tuple[feedline.DataLoader[int], DistributedSampler[int]]:
        sampler: DistributedSampler[int] = DistributedSampler(range(20), 2, 1, seed=5)  # type: ignore[arg-type]
        return feedline.DataLoader(range(20), 2, sampler=sampler), sampler

    loader, sampler = make()
    sampler.set_epoch(3)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    other, fresh = make()
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == [batch.tolist() for batch in batches]
    assert fresh.epoch == 3
