"""`batch`: several samples as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from feedline.pipes.calling import Caller, name_of
from feedline.pipes.cursor import Cursor, OperatorCursor, Stopped
from feedline.pipes.lap import CursorState, Draws, Lap, Places, Samples
from feedline.pipes.stage import MapStage, Stage, StreamStage, depth_after

Collate = Callable[[Samples], object]


@dataclass(frozen=True)
class BatchOptions:
    """How batches are made; see `Pipe.batch`."""

    size: int
    drop_last: bool
    function: Collate

    @property
    def fixed(self) -> dict[str, object]:
        return {"size": self.size, "drop_last": self.drop_last}

    def __str__(self) -> str:
        shown = "" if getattr(self.function, "is_default", False) else f", collate_fn={name_of(self.function)}"
        return f"batch({self.size}{', drop_last=True' if self.drop_last else ''}{shown})"

    def collate(self, source: Stage) -> Caller:
        """Return what makes the batches."""
        return Caller(str(self), self.function, depth_after(source))

    def count(self, samples: int) -> int:
        """Return the number of batches."""
        return samples // self.size if self.drop_last else -(-samples // self.size)


class BatchedSamples(MapStage):
    """Batches of a map-style stage. Batch i is that of the samples from i * size on."""

    def __init__(self, source: MapStage, options: BatchOptions) -> None:
        super().__init__(source, label=str(options), fixed=options.fixed)
        self._source = source
        self._options = options
        self.collate = options.collate(source)

    def __len__(self) -> int:
        return self._options.count(len(self._source))

    def read(self, places: Places, epoch: int, draws: Draws) -> Samples:
        count, size, own = len(self._source), self._options.size, max(len(self), 1)
        passes, numbers = np.divmod(places, own)
        starts = passes * count + numbers * size
        lengths = np.minimum(size, count - numbers * size)
        total = int(lengths.sum())
        rows = np.repeat(np.arange(len(places)), lengths)
        columns = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        within = zip(rows.tolist(), columns.tolist(), strict=True)
        positions = [draws.numbers[row] * size + column for row, column in within]
        samples = self._source.read(starts[rows] + columns, epoch, replace(draws, numbers=positions))
        ends = np.cumsum(lengths).tolist()
        groups = [samples[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
        try:
            return self.collate(groups, draws, numbers.tolist())
        except Stopped as stop:
            raise stop.reason  # noqa: B904  its context is itself


class BatchedStream(StreamStage):
    """Batches of a stream."""

    def __init__(self, source: StreamStage, options: BatchOptions) -> None:
        super().__init__(source, label=str(options), fixed=options.fixed)
        self.options = options
        self.collate = options.collate(source)

    def count(self) -> int | None:
        count = self.parts[0].count()
        return None if count is None else self.options.count(count)

    def open(self, lap: Lap) -> Cursor:
        return _BatchCursor(self.parts[0].open(lap), lap, self)


class _BatchCursor(OperatorCursor):
    """Makes batches. If a sample fails, its exception is raised at once, in place of the batch, and may be retried.

    Otherwise the batch is completed and dropped. So batch i always has the samples from i * size on.
    """

    def __init__(self, source: Cursor, lap: Lap, stage: BatchedStream) -> None:
        super().__init__(source, lap)
        self._stage = stage
        self._group: Samples = []
        """Samples of a batch that is not complete yet, because one after them failed; `_FAILED` for that one."""
        self._is_failing = False
        """True after a sample has failed, until the next one is read."""

    def _holds(self) -> bool:
        return bool(self._group) or self._is_failing

    def _need(self, count: int) -> int:
        return count * self._stage.options.size - len(self._group) - self._is_failing

    def _taken(self, count: int) -> Samples:
        if self._is_failing:
            self._is_failing = False
            count = self._append_failed(count)
        while True:
            try:
                return self._source.take(count)
            except Exception:
                if not _has_failed(self._group):
                    self._is_failing = True
                    raise
                self._number += 1
                count = self._append_failed(count - 1)  # another one of the same batch

    def _append_failed(self, count: int) -> int:
        """Note a sample that failed; return how many samples to read, `count` unless this has completed the batch."""
        self._group.append(_FAILED)
        if len(self._group) < self._stage.options.size:
            return count
        self._group = []
        return count + self._stage.options.size

    def _process(self, items: Samples, first: int) -> Samples:
        size = self._stage.options.size
        first -= len(self._group)
        before, samples = self._group, self._group + items
        whole = len(samples) // size * size
        self._group = samples[whole:]
        groups = [samples[start : start + size] for start in range(0, whole, size)]
        return self._collated(groups, first, before)

    def _finish(self) -> Samples:
        group, self._group = self._group, []
        if not group or self._stage.options.drop_last:
            return []
        return self._collated([group], self._number - len(group), group)

    def _collated(self, groups: list[Samples], first: int, before: Samples) -> Samples:
        """Return the batches; after an interrupt, `before` is the incomplete batch again."""
        size = self._stage.options.size
        if groups and _has_failed(groups[0]):  # its exception was raised
            groups, first = groups[1:], first + size
        draws = self._lap.draws(first, len(groups) * size)
        numbers = range(first, first + len(groups) * size, size)
        try:
            return self._stage.collate(groups, replace(draws, numbers=draws.numbers[::size]), numbers)
        except Stopped as stop:
            (failed,), group, self._group = stop.items, self._group, []
            rest = [sample for samples in stop.rest for sample in samples]
            raise Stopped(stop.reason, stop.made, failed, rest + group) from None
        except BaseException:  # an interrupt
            self._group = before
            raise

    def try_again(self) -> bool:
        is_failing, self._is_failing = self._is_failing, False
        if super().try_again():
            return True
        self._is_failing = is_failing
        return False

    def skip(self, count: int) -> int:
        if self._pending_drop or not self._kept.is_empty or self._waiting or self._holds():
            return super().skip(count)
        options, size = self._stage.options, self._stage.options.size
        is_checked = options.drop_last and self._lap.is_followed
        before = self._source.state() if is_checked else {}
        past = self._source.skip(count * size)
        if not is_checked or not past % size:
            self._number += past
            self._mark()
            return options.count(past)
        # A sample of the last batch may fail, which takes up a position although this batch is dropped: read it.
        self._source = self._stage.parts[0].open(self._lap)
        self._source.restore(before)
        self._number += self._source.skip(past - past % size)
        self._mark()
        return past // size + super().skip(1)

    def restore(self, state: CursorState) -> None:
        super().restore(state)
        self._group, self._is_failing = [], False


_FAILED = object()
"""Stands for a sample that failed."""


def _has_failed(group: Samples) -> bool:
    return any(sample is _FAILED for sample in group)  # `in` would compare arrays
