"""Datasets of simulated worlds: a sample is its own index, or its position in the stream."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TypeVar

import numpy as np

from feedline.abc.sampler import BatchSampler, IndexArray
from feedline.abc.source import Repeatable, ShardedSource, StreamSource
from feedline.types import Key
from tests.simulation.scenario import OWN, SHARED, Scenario, Troubles

Sample = int | tuple[int, int]
"""An index or position; with the worker, for a worker's own stream."""


class SampleFailed(Exception):
    """Raised for a sample that cannot be made."""


class CallFailed(Exception):
    """Raised by a method of the dataset."""


class NotSent(TypeError):
    """Raised for a task that cannot be sent to its worker."""


class NotReady(Exception):
    """Raised by the user's start-up code in a worker."""


class Killed(BaseException):
    """Raised where a sample kills its worker."""


class Blocked(BaseException):
    """Raised where a sample blocks its worker forever."""


_T = TypeVar("_T", bound="_Troubled")


class _Troubled:
    """The base of all datasets here: they record calls, and some of their samples fail."""

    def __init__(self, scenario: Scenario) -> None:
        self.count = scenario.samples
        self.troubles = scenario.troubles
        self.calls: list[int] = []
        """The calls that this copy of the dataset has received."""
        self._special = _special(scenario.troubles)
        self._failed: set[int] = set()

    def copy(self: _T) -> _T:
        """Return the copy for a worker."""
        twin = copy.copy(self)
        twin.calls, twin._failed = self.calls.copy(), set()
        return twin

    def note(self, number: int, *, fails: bool) -> None:
        """Record a call; raise `CallFailed` if `fails`."""
        self.calls.append(number)
        if fails:
            raise CallFailed(f"call {number}")

    def check(self, place: int) -> None:
        """Fail as `troubles` prescribes for the sample at `place`."""
        troubles = self.troubles
        if place in troubles.killers:
            raise Killed
        if place in troubles.blockers:
            raise Blocked
        if place in troubles.bad:
            raise SampleFailed(f"sample {place}")
        if place in troubles.flaky and place not in self._failed:
            self._failed.add(place)
            raise SampleFailed(f"sample {place}, the first time")


def _special(troubles: Troubles) -> frozenset[int]:
    return troubles.bad | troubles.flaky | troubles.fatal


class Items(_Troubled):
    """A map-style dataset."""

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index in self._special:
            self.check(index)
        return index


class RemappedItems(Items):
    """A map-style dataset whose indices mean other samples in each epoch. Its copies share the epoch."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._source_of = scenario.source_of
        self._epoch = [0]

    def set_epoch(self, epoch: int) -> None:
        self._epoch[0] = epoch

    def __getitem__(self, index: int) -> int:
        super().__getitem__(self._source_of(index, self._epoch[0]))
        return index


class Made(int):
    """A sample that knows how many samples the same copy of the dataset made before it."""

    before = 0


class StatefulItems(Items):
    """A map-style dataset whose state is the number of samples it has made."""

    made = 0

    def __getitem__(self, index: int) -> int:
        sample = Made(super().__getitem__(index))
        sample.before = self.made
        self.made += 1
        return sample

    def state_dict(self) -> int:
        return self.made

    def load_state_dict(self, state: int) -> None:
        self.made = state


class _Places(Repeatable, Iterator[Sample]):
    """An iterator over the places of a stream."""

    def __init__(self, stream: SharedStream | OwnStream) -> None:
        self._stream = stream
        self._place = 0

    def __next__(self) -> Sample:
        place = self._place
        if place >= self._stream.count:
            raise StopIteration
        self._place += 1
        self._stream.check(place)
        return self._stream.sample(place)

    def try_again(self) -> bool:
        self._place -= 1
        return True

    def skip(self, count: int) -> int:
        """Skip up to `count` samples, and return how many were skipped."""
        count = min(count, self._stream.count - self._place)
        self._place += count
        return count


class _StatefulPlaces(_Places):
    def state_dict(self) -> int:
        return self._place

    def load_state_dict(self, state: int) -> None:
        self._place = state


class SharedStream(_Troubled, StreamSource):
    """A stream that every worker reads as a whole."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._places = _StatefulPlaces if scenario.stateful else _Places

    def __iter__(self) -> Iterator[Sample]:
        return self._places(self)

    def sample(self, place: int) -> Sample:
        """Return a sample."""
        return place


class OwnStream(_Troubled, ShardedSource):
    """A dataset that gives each worker a stream of its own."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._places = _StatefulPlaces if scenario.stateful else _Places
        self._worker = 0

    def set_worker(self, number: int, count: int) -> None:
        self._worker = number
        self.count = length_of(self.count, number)

    def __iter__(self) -> Iterator[Sample]:
        return self._places(self)

    def sample(self, place: int) -> Sample:
        """Return a sample."""
        return self._worker, place


def length_of(samples: int, worker: int) -> int:
    """Return the length of a worker's own stream. The lengths differ, so the streams end one after the other."""
    return max(0, samples - 5 * worker)


def dataset_of(scenario: Scenario) -> Items | SharedStream | OwnStream:
    """Return the dataset of a world."""
    if scenario.kind == SHARED:
        return SharedStream(scenario)
    if scenario.kind == OWN:
        return OwnStream(scenario)
    if scenario.stateful:
        return StatefulItems(scenario)
    return RemappedItems(scenario) if scenario.remaps else Items(scenario)


class Ragged(BatchSampler):
    """Batches of 1, 2, ..., `batch_size` samples, over and over, in dataset order."""

    seed = 0

    def __init__(self, samples: int, batch_size: int) -> None:
        self._samples = samples
        self._batch_size = batch_size
        self._stride = batch_size * (batch_size + 1) // 2
        rounds, left = divmod(samples, self._stride)
        self._size = rounds * batch_size + next(
            number for number in range(batch_size + 1) if number * (number + 1) // 2 >= left
        )

    def size(self) -> int:
        return self._size

    def batch(self, number: int, key: Key) -> IndexArray:
        rounds, place = divmod(number, self._batch_size)
        first = rounds * self._stride + place * (place + 1) // 2
        return np.arange(first, min(first + place + 1, self._samples), dtype=np.int64)
