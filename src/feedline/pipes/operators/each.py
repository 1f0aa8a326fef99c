"""Operators that make one sample from each: `map`, `enumerate`, and `feedline.text.tokenize`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feedline.pipes.cursor import Cursor, OperatorCursor, Stopped
from feedline.pipes.lap import CursorState, Draws, Lap, Places, Samples
from feedline.pipes.origins import as_stream
from feedline.pipes.stage import MapStage, Stage, StreamStage

Step = Callable[[Samples, Draws, Sequence[int]], Samples]
"""Makes samples from others, given their random numbers and their numbers in the source; raises `Stopped`."""


def each(source: Stage, label: str, step: Step, fixed: Mapping[str, Any] | None = None, least: int = 1) -> Stage:
    """Return what a step makes from each sample of a stage.

    Args:
        source: the stage.
        label: names the operator.
        step: makes the samples.
        fixed: its options.
        least: how many samples of a stream that splits itself to make at a time at least.
    """
    if isinstance(source, MapStage):
        return EachOfMap(source, label, step, fixed)
    return EachOfStream(as_stream(source), label, step, fixed, least)


@dataclass(frozen=True)
class Numbers:
    """The step of `enumerate`."""

    start: int

    def __call__(self, samples: Samples, draws: Draws, places: Sequence[int]) -> Samples:
        return [(self.start + place, sample) for place, sample in zip(places, samples, strict=True)]


class EachOfMap(MapStage):
    """What a step makes from each sample of a map-style stage."""

    # Any: plain values.
    def __init__(self, source: MapStage, label: str, step: Step, fixed: Mapping[str, Any] | None) -> None:
        super().__init__(source, label=label, fixed=fixed)
        self._source = source
        self._step = step

    def __len__(self) -> int:
        return len(self._source)

    def origin(self, place: int, epoch: int) -> tuple[object, int]:
        return self._source.origin(place, epoch)

    def read(self, places: Places, epoch: int, draws: Draws) -> Samples:
        samples = self._source.read(places, epoch, draws)
        try:
            return self._step(samples, draws, (places % max(len(self), 1)).tolist())
        except Stopped as stop:
            raise stop.reason  # noqa: B904  its context is itself


class EachOfStream(StreamStage):
    """What a step makes from each sample of a stream."""

    # Any: plain values.
    def __init__(
        self, source: StreamStage, label: str, step: Step, fixed: Mapping[str, Any] | None, least: int
    ) -> None:
        super().__init__(source, label=label, fixed=fixed)
        self.step = step
        self.least = least if source.is_sharded else 1

    def count(self) -> int | None:
        return self.parts[0].count()

    def open(self, lap: Lap) -> Cursor:
        return _EachCursor(self.parts[0].open(lap), lap, self)


class _EachCursor(OperatorCursor):
    """It makes one sample from each sample of its source, so it can skip without making any."""

    def __init__(self, source: Cursor, lap: Lap, stage: EachOfStream) -> None:
        super().__init__(source, lap)
        self._stage = stage

    def _need(self, count: int) -> int:
        return max(count, self._stage.least)

    def _process(self, items: Samples, first: int) -> Samples:
        # Parts of a stream that splits itself are numbered in turn, as in `slice`.
        part, parts = self._lap.part if self._stage.is_sharded else (0, 1)
        start, stop = (place * parts + part for place in (first, first + len(items)))
        return self._stage.step(items, self._lap.draws(first, len(items)), range(start, stop, parts))

    def skip(self, count: int) -> int:
        kept = self._kept
        ready = len(kept.samples) - kept.at + (kept.failure is not None) + len(self._waiting)
        skipped = super().skip(min(count, ready)) if ready else 0
        if skipped < count:
            past = self._source.skip(count - skipped)
            self._number += past
            self._mark()
            skipped += past
        return skipped

    def restore(self, state: CursorState) -> None:
        super().restore({**state, "given": 0})
        self._number += self._source.skip(state["given"])
