"""Fetchers of streams: what they share, and the one that cuts a worker's own stream into batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from feedline.abc.worker_spec import WorkerSpec
from feedline.randomness.scope import Scope
from feedline.types import CollateFunction
from feedline.workers.fetch.guard import Failed, Guard
from feedline.workers.fetch.streams import Stream


class FetcherOfStream(ABC):
    """Makes batches of a stream, and seeds the process-wide generators for code that draws from them."""

    def __init__(
        self,
        stream: Stream,
        collate: CollateFunction,
        spec: WorkerSpec,
        scope: Scope,
        guard: Guard | None = None,
    ) -> None:
        self.stream = stream
        self._guard = guard
        self._collate = collate
        self._batched = spec.batched
        self._scope = scope
        self._collate_draws = not spec.framework.is_default_collate(spec.collate)
        self._seeds = self._collate_draws or stream.seeds_each
        self._begin(spec)

    @property
    @abstractmethod
    def has_ended(self) -> bool:
        """True if the stream has no sample after the last batch."""

    @abstractmethod
    def _begin(self, spec: WorkerSpec) -> None:
        """Prepare for the first batch."""

    def __call__(self, asked: object) -> Any:
        if not self._seeds:
            return self._make(asked)
        with self._scope.kept():
            return self._make(asked)

    @abstractmethod
    def _make(self, asked: Any) -> object:
        """Make the batch for an entry of the plan."""

    def _collated(self, samples: object, places: Iterable[int]) -> object:
        return self._collate(samples) if self._guard is None else self._guard.collate(self._collate, samples, places)


class StreamFetcher(FetcherOfStream):
    """Cuts a worker's own stream into batches."""

    @property
    def left_out(self) -> int:
        """At the end of the stream: how many samples were read for a batch that was not made."""
        return self.stream.place - self._first

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    def _begin(self, spec: WorkerSpec) -> None:
        self._drop_last = spec.drop_last
        self._has_ended = self.stream.is_at_end
        self._first = 0
        """Where the last batch began."""

    def _make(self, count: int) -> object:
        count = count if self._batched else 1
        self._first = self.stream.next_place
        samples: list[object] = []
        if not self._has_ended:
            try:
                with self.stream.generators:
                    self._fill(samples, count)
            except StopIteration:
                self._has_ended = True  # an iterator may continue after its end: that is the next epoch
        if not samples or (self._drop_last and self._batched and len(samples) < count):
            raise StopIteration
        self._scope.collate(self._first, draws=self._collate_draws)
        return self._collated(samples if self._batched else samples[0], range(self._first, self.stream.place))

    def _fill(self, samples: list[object], count: int) -> None:
        stream, guard = self.stream, self._guard
        if guard is None or stream.goes_in_one:
            stream.fill(samples, count)
            return
        while len(samples) < count:
            sample = stream.read()
            try:
                if type(sample) is not Failed:
                    samples.append(sample)
                elif sample.is_last or not guard.leaves_out(sample, stream.place - 1):
                    raise sample.reason
            finally:
                del sample  # avoid a reference cycle: a failure's traceback refers to this frame
