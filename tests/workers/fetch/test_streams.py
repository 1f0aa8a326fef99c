"""Reading samples of an iterable dataset, also after a resumption."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.abc.stateful import is_stateful
from feedline.abc.worker_spec import WorkerSpec
from feedline.frameworks.numpy import NumpyFramework
from feedline.randomness.scope import Scope, enter, rng
from feedline.types import DatasetKind, Draw, Position
from feedline.workers.fetch import fetcher_for
from feedline.workers.fetch.cutting import StreamFetcher
from feedline.workers.fetch.streams import Stream
from tests.workers.fetch.streams import BothHaveState, Counting, DatasetHasState, IteratorHasState, Numbers


def spec_of(dataset: Any, **options: Any) -> WorkerSpec:
    return WorkerSpec(dataset, DatasetKind.ITERABLE, list, NumpyFramework(), worker_count=0, base_seed=0, **options)


def fetcher(dataset: Any, resume: Position | None = None, scope: Scope | None = None, **options: Any) -> StreamFetcher:
    made = fetcher_for(dataset, spec_of(dataset, **options), scope or Scope(), resume)
    assert isinstance(made, StreamFetcher)
    return made


def rest_of(fetch: StreamFetcher, size: int) -> list[list[int]]:
    batches = []
    while True:
        try:
            batches.append(fetch(size))
        except StopIteration:
            return batches


# -- reading ---


class DrawsPerSample:
    def __iter__(self) -> Iterator[tuple[float, float]]:
        while True:
            yield rng().random(), random.random()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_a_sample_draws_depends_only_on_its_place_in_the_stream(size: int) -> None:
    def draw(size: int) -> list[tuple[float, float]]:
        scope = Scope(seeds_globals=True, keeps_globals=True)
        fetch = fetcher(DrawsPerSample(), scope=scope)
        drawn = []
        before = enter(scope)
        try:
            for _ in range(12 // size):
                scope.begin(Draw(5))
                drawn += fetch(size)
        finally:
            enter(before)
        return drawn

    mine = draw(size)
    assert mine == draw(12)
    assert len(set(mine)) == 12


@pytest.mark.parametrize("done", range(4))
def test_after_a_skip_collating_draws_the_numbers_of_the_new_place(done: int) -> None:
    def drawn(fetch: StreamFetcher, count: int) -> list[float]:
        before = enter(scope)
        try:
            found = []
            for _ in range(count):
                scope.begin(Draw(5))
                found.append(fetch(3))
            return found
        finally:
            enter(before)

    def made(resume: Position | None) -> StreamFetcher:
        spec = replace(spec_of(Numbers(12)), collate=lambda samples: rng().random())
        fetch = fetcher_for(spec.dataset, spec, scope, resume)
        assert isinstance(fetch, StreamFetcher)
        return fetch

    scope = Scope()
    whole = drawn(made(None), 4)
    assert drawn(made(Position(read=3 * done)), 4 - done) == whole[done:]


# -- many at a time ---


class FailsAt:
    """An iterator that raises something in place of one sample and goes on, or a generator, which cannot."""

    def __init__(self, place: int, error: BaseException, *, is_generator: bool) -> None:
        self.place, self.error, self.is_generator = place, error, is_generator

    def __iter__(self) -> Iterator[int]:
        return (self._made(number) for number in range(9)) if self.is_generator else map(self._made, range(9))

    def _made(self, number: int) -> int:
        if number == self.place:
            raise self.error
        return number


@pytest.mark.parametrize("is_generator", [True, False])
@pytest.mark.parametrize("place", [0, 2, 3, 7])
def test_a_failure_while_reading_many_samples_has_the_right_place(place: int, is_generator: bool) -> None:
    scope = Scope()
    fetch = fetcher(FailsAt(place, OSError("torn"), is_generator=is_generator), scope=scope)
    for number in range(place // 3):
        assert fetch(3) == [3 * number, 3 * number + 1, 3 * number + 2]
    with pytest.raises(OSError, match="torn"):
        fetch(3)
    assert (scope.place, fetch.stream.place) == (place, place + 1)
    assert fetch.stream.has_broken_off is is_generator
    rest = [] if is_generator else list(range(place + 1, 9))
    assert [sample for batch in rest_of(fetch, 3) for sample in batch] == rest


# -- states ---


counts, sizes, batches_done = st.integers(0, 20), st.integers(1, 6), st.integers(0, 8)
KINDS = [Numbers, Counting, IteratorHasState, DatasetHasState, BothHaveState]


def advance(kind: Any, count: int, size: int, done: int, *, drop_last: bool) -> StreamFetcher:
    """Return a fetcher that has made up to `done` batches."""
    fetch = fetcher(kind(count), drop_last=drop_last)
    for _ in range(done):
        try:
            fetch(size)
        except StopIteration:
            break
    return fetch


@pytest.mark.parametrize("kind", KINDS)
@given(count=counts, size=sizes, done=batches_done, drop_last=st.booleans())
def test_a_stream_resumes_from_its_states(kind: Any, count: int, size: int, done: int, drop_last: bool) -> None:
    fetch = advance(kind, count, size, done, drop_last=drop_last)
    dataset = kind(count)
    again = fetcher(dataset, fetch.stream.position().copied(), drop_last=drop_last)
    expected = rest_of(fetch, size)
    assert rest_of(again, size) == expected
    if is_stateful(dataset) and not isinstance(dataset, BothHaveState):
        assert dataset.read <= sum(map(len, expected)) + size, "nothing is read again"


@given(count=st.integers(4, 20), size=sizes, noted_at=st.integers(0, 3), since=st.integers(0, 3))
def test_a_stream_resumes_from_an_older_state(count: int, size: int, noted_at: int, since: int) -> None:
    """If only every n-th batch has a state, samples delivered since then are read again and dropped."""
    fetch = advance(Counting, count, size, noted_at, drop_last=False)
    noted = fetch.stream.position()
    for _ in range(since):
        try:
            fetch(size)
        except StopIteration:
            return
    again = fetcher(Counting(count), replace(noted, read=fetch.stream.place))
    assert rest_of(again, size) == rest_of(fetch, size)


def test_a_resumed_stream_draws_the_numbers_of_its_places() -> None:
    scope = Scope()
    fetch = fetcher(DrawsPerSample(), Position(read=4), scope)
    before = enter(scope)
    try:
        scope.begin(Draw(5))
        resumed = [first for first, _ in fetch(2)]
        for place, expected in enumerate(resumed, 4):
            scope.begin(Draw(5))
            scope.place = place
            assert rng().random() == expected
    finally:
        enter(before)


# -- is the dataset the same in every worker? ---


def digest_of(dataset: Any) -> bytes:
    stream = Stream(dataset, Scope(), None)
    stream.watch(is_shared=False)
    stream.read()
    stream.read()
    ((place, digest),) = stream.digests
    assert place == 0
    return digest


def read_one_by_one(stream: Stream) -> None:
    for _ in range(20):
        stream.read()


def read_together(stream: Stream) -> None:
    for count in (3, 10, 7):
        stream.fill([], count)


@pytest.mark.parametrize("read", [read_one_by_one, read_together])
def test_digests_of_a_shared_stream_lie_further_and_further_apart(read: Callable[[Stream], None]) -> None:
    stream = Stream(list(range(20)), Scope(), None)
    stream.watch(is_shared=True)
    read(stream)
    assert [place for place, _ in stream.digests] == [0, 1, 2, 4, 8, 16]
    assert stream.place == 20


class Failing:
    """An iterator over numbers; those in `bad` raise an exception in their place."""

    def __init__(self, bad: Collection[int]) -> None:
        self._bad = bad
        self._next = -1

    def __iter__(self) -> Failing:
        return self

    def __next__(self) -> int:
        self._next += 1
        if self._next >= 20:
            raise StopIteration
        if self._next in self._bad:
            raise ValueError(f"sample {self._next} is damaged")
        return self._next


@given(bad=st.sets(st.integers(0, 19)), steps=st.lists(st.sampled_from(["read", "fill", "skip"]), max_size=12))
def test_digests_are_those_of_the_samples_at_their_places(bad: set[int], steps: list[str]) -> None:
    """An exception in place of a sample must not move the digests of others."""
    right = dict(digests_after([], ["read"] * 20))
    assert set(digests_after(bad, steps)) <= set(right.items())
    everything = dict(digests_after(bad, ["fill"] * 40))
    assert everything == {place: digest for place, digest in right.items() if place not in bad}


def digests_after(bad: Collection[int], steps: list[str]) -> list[tuple[int, bytes]]:
    stream = Stream(Failing(bad), Scope(), None)
    stream.watch(is_shared=True)
    for step in steps:
        with suppress(ValueError, StopIteration):
            if step == "read":
                stream.read()
            elif step == "fill":
                stream.fill([], 5)
            else:
                stream.skip_to(stream.place + 3)
    return stream.digests


def test_equal_samples_have_the_same_digest_wherever_they_are_in_memory() -> None:
    """The pickle of a tensor contains its address, and that of two equal strings shows whether they are one object."""

    def sample(number: float) -> Any:
        parts = ["image", "".join(["im", "age"])]
        return {"x": torch.full((1000,), number), "y": (np.full(3, number), parts), "z": b"raw"}

    assert digest_of([sample(1), 0]) == digest_of([sample(1), 0])
    assert digest_of([sample(1), 0]) != digest_of([sample(2), 0])


def test_a_generator_that_fails_during_a_replay_raises() -> None:
    """It did not fail the first time. The samples after the failure are lost, so the stream must not just end."""

    class Torn:
        def __iter__(self) -> Iterator[int]:
            yield from range(3)
            raise OSError("torn")

    stream = Stream(Torn(), Scope(), Position(read=8))
    with pytest.raises(OSError, match="torn"):
        stream.read()
    assert stream.has_broken_off
