"""Sharing a stream that every worker of every rank reads in full: each sample once, and ranks end together."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from feedline.abc.source import Repeatable, StreamSource
from feedline.abc.worker_spec import WorkerSpec
from feedline.collate import default
from feedline.errors import BadOption
from feedline.faults.policy import policy_of
from feedline.frameworks.numpy import NumpyFramework
from feedline.randomness.scope import Scope
from feedline.system.ranks import TAILS, Share
from feedline.types import DatasetKind, Span, StreamSharding
from feedline.workers.fetch import fetcher_for
from feedline.workers.fetch.guard import Guard
from feedline.workers.fetch.spans import SpanFetcher
from tests.workers.fetch.streams import Numbers


@dataclass(frozen=True)
class World:
    """Ranks, workers and how samples are shared out among them."""

    batch_size: int | None = 2
    world_size: int = 1
    worker_count: int = 1
    tail: str = "pad"
    drop_last: bool = False
    collate: Any = list

    def fetcher(
        self,
        rank: int,
        dataset: Any,
        scope: Scope | None = None,
        guard: Guard | None = None,
    ) -> SpanFetcher:
        batched = self.batch_size is not None
        spec = WorkerSpec(
            dataset,
            DatasetKind.ITERABLE,
            self.collate if batched else lambda sample: sample,
            NumpyFramework(),
            worker_count=self.worker_count,
            base_seed=0,
            batched=batched,
            sharding=StreamSharding(self.batch_size or 1, Share(rank, self.world_size, self.tail), self.drop_last),
        )
        made = fetcher_for(dataset, spec, scope or Scope(), None, guard)
        assert isinstance(made, SpanFetcher)
        return made


@dataclass
class Run:
    """The batches of all ranks."""

    batches: list[list[Any]]
    """By rank."""
    consumed: list[int]
    """Samples of the stream that all ranks have consumed after the first, second, ... step."""

    def steps(self) -> int:
        (count,) = {len(batches) for batches in self.batches}
        return count

    def delivered(self, first: int = 0, stop: int | None = None) -> Counter[int]:
        return Counter(
            sample
            for batches in self.batches
            for batch in batches[first:stop]
            for sample in (batch if isinstance(batch, list) else [batch])
        )


def run(world: World, make: Any, *, origin: int = 0) -> Run:
    """Let every worker of every rank make its steps: worker w those numbered w, w + n, w + 2n, ..."""
    result = Run([], [])
    stride = (world.batch_size or 1) * world.world_size
    for rank in range(world.world_size):
        workers = [world.fetcher(rank, make()) for _ in range(world.worker_count)]
        batches: list[Any] = []
        while True:
            worker = workers[len(batches) % world.worker_count]
            try:
                batches.append(worker(Span(len(batches), origin)))
            except StopIteration:
                break
            if rank == 0:
                known = worker.consumed
                result.consumed.append(origin + len(batches) * stride if known is None else known)
        for worker in workers:
            with pytest.raises(StopIteration):
                worker(Span(len(batches) + world.worker_count, origin))
        result.batches.append(batches)
    return result


def run_or_skip(world: World, make: Any, **where: Any) -> Run:
    try:
        return run(world, make, **where)
    except BadOption:
        assert world.tail == "exact"
        assume(False)
        raise


worlds = st.builds(
    World,
    batch_size=st.none() | st.integers(1, 4),
    world_size=st.integers(1, 4),
    worker_count=st.integers(1, 3),
    tail=st.sampled_from(TAILS),
)
totals = st.integers(0, 40)


@settings(deadline=None)
@given(worlds, totals)
def test_each_sample_is_delivered_once_and_ranks_end_together(world: World, total: int) -> None:
    result = run_or_skip(world, lambda: Numbers(total))
    result.steps()
    delivered = result.delivered()
    if world.tail == "exact":
        assert delivered == Counter(range(total))
    elif world.tail == "drop":
        left_out = Counter(range(total)) - delivered
        assert delivered <= Counter(range(total))
        assert left_out.total() < world.world_size
        assert set(left_out) == set(range(delivered.total(), total)), "the last samples"
    else:
        assert set(delivered) == set(range(total))
        assert delivered.total() - total < world.world_size, "as few as possible"
    if result.consumed:
        assert result.consumed[-1] <= total


@settings(deadline=None)
@given(worlds, totals)
def test_after_every_step_the_ranks_have_consumed_a_prefix(world: World, total: int) -> None:
    result = run_or_skip(world, lambda: Numbers(total))
    for done, consumed in enumerate(result.consumed, 1):
        assert set(result.delivered(stop=done)) == set(range(consumed))


@settings(deadline=None)
@given(worlds, totals)
def test_the_batches_do_not_depend_on_the_number_of_workers(world: World, total: int) -> None:
    alone = World(world.batch_size, world.world_size, 1, world.tail)
    assert run_or_skip(world, lambda: Numbers(total)).batches == run(alone, lambda: Numbers(total)).batches


class Skippable(StreamSource):
    """0, 1, ...; samples of other workers need not be read."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.iterator = SkippingIterator(count)

    def __iter__(self) -> Iterator[int]:
        self.iterator = SkippingIterator(self.count)
        return self.iterator


class SkippingIterator(Iterator[int]):
    def __init__(self, count: int) -> None:
        self.count = count
        self.place = 0

    def __next__(self) -> int:
        if self.place >= self.count:
            raise StopIteration
        self.place += 1
        return self.place - 1

    def skip(self, count: int) -> int:
        skipped = min(count, self.count - self.place)
        self.place += skipped
        return skipped


@settings(deadline=None)
@given(worlds, totals)
def test_a_stream_that_can_skip_makes_the_same_batches(world: World, total: int) -> None:
    assert run_or_skip(world, lambda: Skippable(total)).batches == run(world, lambda: Numbers(total)).batches


class Columns(StreamSource):
    """0, 1, ...; returns samples as columns, too."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.made: list[ColumnIterator] = []

    def __iter__(self) -> Iterator[int]:
        self.made.append(ColumnIterator(self.count))
        return self.made[-1]


class ColumnIterator(SkippingIterator):
    def columns(self, offsets: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        if self.place + count > self.count:
            raise IndexError("the stream ends before")
        return self.place + offsets


@settings(deadline=None)
@given(worlds, totals, st.booleans(), st.data())
def test_batches_made_of_columns_equal_those_made_of_samples(
    world: World, total: int, drop_last: bool, data: st.DataObject
) -> None:
    world = dataclasses.replace(world, drop_last=drop_last, collate=default)
    before = run_or_skip(world, lambda: Numbers(total))
    done = data.draw(st.integers(0, before.steps()))
    consumed = before.consumed[done - 1] if done else 0
    after = run(world, lambda: Columns(total), origin=consumed)
    for found, expected in zip(after.batches, before.batches, strict=True):
        assert [np.asarray(batch).tolist() for batch in found] == [np.asarray(one).tolist() for one in expected[done:]]


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from(["pad", "drop"]), totals)
def test_drop_last_leaves_out_batches_that_are_not_full(size: int, world_size: int, tail: str, total: int) -> None:
    result = run(World(size, world_size, 2, tail, drop_last=True), lambda: Numbers(total))
    assert all(len(batch) == size for batches in result.batches for batch in batches)
    per_rank = -(-total // world_size) if tail == "pad" else total // world_size
    assert result.steps() == per_rank // size


def test_padding_repeats_the_first_sample_that_a_rank_has_in_the_step() -> None:
    result = run(World(2, 2, 1, "pad"), lambda: Numbers(7))
    assert result.batches == [[[0, 2], [4, 6]], [[1, 3], [5, 5]]]
    result = run(World(2, 3, 1, "pad"), lambda: Numbers(7))
    assert result.batches == [[[0, 3], [6]], [[1, 4], [6]], [[2, 5], [6]]], "a rank without any has the step's first"


def test_exact_raises_if_a_rank_would_have_no_sample() -> None:
    with pytest.raises(BadOption, match="tail='exact' is not possible"):
        run(World(2, 3, 1, "exact"), lambda: Numbers(2))


@pytest.mark.parametrize(("tail", "ahead"), [("pad", 0), ("drop", 0), ("exact", 3)])
def test_the_stream_is_read_no_further_than_the_step_needs(tail: str, ahead: int) -> None:
    dataset = Numbers(100)
    fetch = World(2, 3, 2, tail).fetcher(1, dataset)
    assert dataset.read == 0
    assert fetch(Span(0)) == [1, 4]
    assert dataset.read == 6 + ahead
    assert fetch(Span(2)) == [13, 16]
    assert dataset.read == 18 + ahead


# -- streams that break off ---


class Torn:
    """A generator that fails after `count` samples."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        yield from range(self.count)
        raise OSError("torn")


def guarded(world: World, rank: int, dataset: Any, on_error: Any) -> SpanFetcher:
    scope = Scope()
    guard = Guard(policy_of(on_error), scope, dataset, worker=None, pause=lambda _: None)
    return world.fetcher(rank, dataset, scope=scope, guard=guard)


@settings(deadline=None)
@given(worlds, st.integers(0, 20), st.sampled_from(["skip", "retry", None]), st.booleans())
def test_every_worker_of_every_rank_raises_the_error_of_a_broken_stream(
    world: World, count: int, on_error: Any, drop_last: bool
) -> None:
    """Each worker of each rank may be the only one that reaches it."""
    world = dataclasses.replace(world, drop_last=drop_last)
    for rank in range(world.world_size):
        for worker in range(world.worker_count):
            fetcher = guarded(world, rank, Torn(count), on_error)
            number = worker
            while True:
                try:
                    fetcher(Span(number, 0))
                except OSError:
                    break
                number += world.worker_count
            step = count // ((world.batch_size or 1) * world.world_size)  # the one in which it breaks off
            assert step <= number <= step + world.worker_count
            with pytest.raises(StopIteration):  # raised once, then the stream has ended
                fetcher(Span(number + world.worker_count, 0))


class Vanishing(Repeatable):
    """Fails after `count` samples, and ends when it is retried."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.place = 0

    def __iter__(self) -> Vanishing:
        return Vanishing(self.count)

    def __next__(self) -> int:
        self.place += 1
        if self.place == self.count + 1:
            raise OSError("torn")
        if self.place > self.count:
            raise StopIteration
        return self.place - 1

    def try_again(self) -> bool:
        return True


@pytest.mark.parametrize("count", range(5))
def test_the_error_is_raised_if_the_stream_ends_during_a_retry(count: int) -> None:
    fetcher = guarded(World(), 0, Vanishing(count), "retry")
    for number in range(count // 2):
        assert fetcher(Span(number, 0)) == [2 * number, 2 * number + 1]
    with pytest.raises(OSError, match="torn"):
        fetcher(Span(count // 2, 0))
