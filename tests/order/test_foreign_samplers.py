"""Samplers that are not feedline's: when they are asked what, and how they are resumed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from feedline import DataLoader, Loader
from feedline.errors import BadOption
from feedline.samplers import LengthBucketBatchSampler, distribute
from tests.order.facts import values

KINDS = [Loader, DataLoader]


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
    loader: Any = DataLoader(range(20), batch_size, sampler=make_sampler())
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [torch.as_tensor(batch).tolist() for batch in batches]
    torch.manual_seed(2)
    other: Any = DataLoader(range(20), batch_size, sampler=make_sampler())
    other.load_state_dict(state)
    assert [torch.as_tensor(batch).tolist() for batch in other] == rest


def test_torchs_distributed_sampler_resumes_in_the_epoch_that_it_was_told() -> None:
    def make() -> tuple[DataLoader[int], DistributedSampler[int]]:
        sampler: DistributedSampler[int] = DistributedSampler(range(20), 2, 1, seed=5)  # type: ignore[arg-type]
        return DataLoader(range(20), 2, sampler=sampler), sampler

    loader, sampler = make()
    sampler.set_epoch(3)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    other, fresh = make()
    other.load_state_dict(state)
    assert values(other) == values(batches)
    assert fresh.epoch == 3


class Watchful:
    """A sampler that is a generator function, which wants to be closed."""

    def __init__(self) -> None:
        self.opened = self.closed = 0

    def __iter__(self) -> Iterator[int]:
        self.opened += 1
        try:
            yield from range(10)
        finally:
            self.closed += 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_samplers_iterator_is_closed_with_the_loop_and_the_state_is_still_known(kind: Any, workers: int) -> None:
    def make(sampler: Watchful) -> Any:
        options = {"workers" if kind is Loader else "num_workers": workers}
        return kind(list(range(10)), 2, sampler=sampler, engine="thread" if workers else "auto", **options)

    sampler = Watchful()
    loader = make(sampler)
    for _ in loader:
        break
    assert sampler.closed == sampler.opened > 0
    other = make(Watchful())
    other.load_state_dict(loader.state_dict())
    assert values(other) == [[2, 3], [4, 5], [6, 7], [8, 9]]


class Eager:
    """Draws its order when it is asked for an iterator."""

    def __init__(self) -> None:
        self.random = random.Random(4)

    def __iter__(self) -> Iterator[int]:
        return iter(self.random.sample(range(10), 10))


@pytest.mark.parametrize("kind", KINDS)
def test_asking_for_the_state_beforehand_does_not_change_the_order(kind: Any) -> None:
    plain, asked = (kind(list(range(10)), 2, sampler=Eager()) for _ in range(2))
    asked.state_dict()
    asked.state_dict()
    assert [values(asked), values(asked)] == [values(plain), values(plain)]


class Counted:
    """A sampler that counts who asks for its length."""

    asked = 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))

    def __len__(self) -> int:
        self.asked += 1
        return 4


@pytest.mark.parametrize("kind", KINDS)
def test_iterating_does_not_ask_for_the_length_of_the_sampler(kind: Any) -> None:
    sampler = Counted()
    assert values(kind(list(range(4)), 2, sampler=sampler)) == [[0, 1], [2, 3]]
    assert sampler.asked == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_sampler_is_no_sampler(kind: Any) -> None:
    batches = LengthBucketBatchSampler([1, 2, 3, 4], 2)
    with pytest.raises(BadOption, match="Give it as batch_sampler="):
        kind(list(range(4)), 2, sampler=batches)
    assert len(values(kind(list(range(4)), batch_sampler=batches))) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_last_round_that_cannot_be_split_is_refused_at_the_beginning(kind: Any) -> None:
    batches = distribute(LengthBucketBatchSampler([1] * 5, 2, shuffle=False), 0, 2, tail="exact")
    loader = kind(list(range(5)), batch_sampler=batches)
    with pytest.raises(BadOption, match='tail="exact"'):
        iter(loader)
