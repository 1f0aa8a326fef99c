"""Reading samples of an iterable dataset, also after a resumption."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.abc.worker_spec import WorkerSpec
from feedline.frameworks.numpy import NumpyFramework
from feedline.randomness.scope import Scope
from feedline.types import DatasetKind, Position
from feedline.workers.fetch import fetcher_for
from feedline.workers.fetch.cutting import StreamFetcher
from feedline.workers.fetch.streams import Stream


def fetcher(dataset: Any, scope: Scope) -> StreamFetcher:
    spec = WorkerSpec(dataset, DatasetKind.ITERABLE, list, NumpyFramework(), worker_count=0, base_seed=0)
    made = fetcher_for(dataset, spec, scope)
    assert isinstance(made, StreamFetcher)
    return made


def rest_of(fetch: StreamFetcher, size: int) -> list[list[int]]:
    batches = []
    while True:
        try:
            batches.append(fetch(size))
        except StopIteration:
            return batches


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
    fetch = fetcher(FailsAt(place, OSError("torn"), is_generator=is_generator), scope)
    for number in range(place // 3):
        assert fetch(3) == [3 * number, 3 * number + 1, 3 * number + 2]
    with pytest.raises(OSError, match="torn"):
        fetch(3)
    assert (scope.place, fetch.stream.place) == (place, place + 1)
    assert fetch.stream.has_broken_off is is_generator
    rest = [] if is_generator else list(range(place + 1, 9))
    assert [sample for batch in rest_of(fetch, 3) for sample in batch] == rest


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
