"""`mix`: datasets in given proportions, which may change over time."""

from __future__ import annotations

import bisect
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from feedline.errors import BadOption
from feedline.pipes.calling import agree, name_of
from feedline.pipes.cursor import Cursor
from feedline.pipes.lap import CursorState, Lap, Places, Samples
from feedline.pipes.operators.concat import Gathered
from feedline.pipes.operators.slice import SliceCursor, own_slice
from feedline.pipes.stage import MapStage, Stage, StreamStage
from feedline.pipes.weaving import TurnsCursor, buffers
from feedline.randomness.keys import epoch_key, mix
from feedline.randomness.turns import Turns

# Any: a sample of any kind.
Measure = Callable[[Any], int]
Weights = Sequence[float] | Mapping[int, Sequence[float]]
"""One weight for each dataset; or, for a schedule, the weights from each position on."""


class Schedule:
    """The weights of a mixture: one list, or several that apply one after the other.

    Args:
        weights: as a user gives them.
        members: the number of datasets.

    Raises:
        BadOption: these are not valid weights for this number of datasets.
    """

    def __init__(self, weights: Weights | None, members: int) -> None:
        given = [1.0] * members if weights is None else weights
        steps = dict(given) if isinstance(given, Mapping) else {0: given}
        self.starts = sorted(map(_position, steps))
        if not self.starts or self.starts[0] != 0:
            raise BadOption(f"weights={weights!r} has no weights for the beginning: add some for position 0.")
        self.weights = [_checked(steps[start], members) for start in self.starts]

    def at(self, place: float) -> list[float]:
        """Return the weights that apply at a position."""
        return self.weights[bisect.bisect_right(self.starts, place) - 1]

    def __str__(self) -> str:
        texts = [f"[{', '.join(f'{weight:g}' for weight in weights)}]" for weights in self.weights]
        if len(texts) == 1:
            return texts[0]
        return "{" + ", ".join(f"{start}: {text}" for start, text in zip(self.starts, texts, strict=True)) + "}"


def _position(value: object) -> int:
    try:
        place = operator.index(value)  # type: ignore[arg-type]  # checked by this
    except TypeError:
        raise BadOption(f"weights has the key {value!r}. Its keys are positions: 0, and later ones.") from None
    if place < 0:
        raise BadOption(f"weights has the key {place}. Its keys are positions: 0, and later ones.")
    return place


def _checked(weights: Sequence[float], members: int) -> list[float]:
    if hasattr(weights, "__len__") and len(weights) != members:  # before they are read: they may be a dataset
        raise BadOption(f"There are {len(weights)} weights for {members} datasets. Pass one for each.")
    try:
        numbers = [float(weights[number]) for number in range(members)]
    except (TypeError, ValueError):
        raise BadOption(f"weights={weights!r:.100} is not a list of numbers, one for each dataset.") from None
    wrong = next((number for number in numbers if not (math.isfinite(number) and number >= 0)), None)
    if wrong is not None:
        raise BadOption(f"weights={numbers} contains {wrong}: a weight must be 0 or more, and finite.")
    if not any(numbers):
        raise BadOption(f"weights={numbers} are all 0, so no dataset would ever be used. Make at least one positive.")
    return numbers


class Order:
    """Whose turn it is at every position of a mixture."""

    def __init__(self, schedule: Schedule, seed: int) -> None:
        key = epoch_key(seed, 0)
        self._starts = np.array(schedule.starts, np.int64)
        self._turns = [Turns(weights, mix(key, number)) for number, weights in enumerate(schedule.weights)]
        done = np.zeros(len(schedule.weights[0]), np.int64)
        self._done = [done]
        """How many turns each dataset has had when each list of weights begins to apply."""
        for turns, length in zip(self._turns, np.diff(self._starts).tolist(), strict=False):
            done = done + turns.before(length)
            self._done.append(done)

    def at(self, places: Places) -> tuple[Places, Places]:
        """Return whose turn it is at each place, and how many turns that dataset has had before."""
        steps = np.searchsorted(self._starts, places, side="right") - 1
        members, numbers = np.empty_like(places), np.empty_like(places)
        for step in np.unique(steps).tolist():
            own = steps == step
            members[own], found = self._turns[step].at(places[own] - self._starts[step])
            numbers[own] = found + self._done[step][members[own]]
        return members, numbers


@dataclass(frozen=True, eq=False)
class MixOptions:
    """How datasets are mixed; see `Pipe.mix`. Raises BadOption: the weights do not fit the datasets."""

    sources: Sequence[Stage]
    weights: Weights | None
    size: int | None
    seed: int

    @functools.cached_property
    def schedule(self) -> Schedule:
        schedule = Schedule(self.weights, len(self.sources))
        for number, (source, *own) in enumerate(zip(self.sources, *schedule.weights, strict=True)):
            if isinstance(source, MapStage) and not len(source) and any(own):
                raise BadOption(f"datasets[{number}] of mix() is empty, but has a weight. Leave it out.")
        return schedule

    @functools.cached_property
    def order(self) -> Order:
        return Order(self.schedule, self.seed)

    def label(self, more: str = "") -> str:
        """Return the operator as code."""
        return f"mix(weights={self.schedule}{more}, seed={self.seed})"


class MixedSamples(Gathered):
    """Map-style stages in given proportions.

    Each one is read in its own order, and again once it is used up. An epoch continues where the previous one ended.
    """

    depends_on_epoch = True

    def __init__(self, sources: tuple[MapStage, ...], options: MixOptions) -> None:
        super().__init__(sources, options.label())
        self.options = options
        self._size = sum(map(len, sources)) if options.size is None else options.size
        self.fixed = {"weights": str(options.schedule), "size": self._size, "seed": options.seed}

    def with_weights(self, weights: Weights | None) -> MixedSamples:
        """Return the same mixture with other weights."""
        return MixedSamples(self.sources, replace(self.options, weights=weights))

    def __len__(self) -> int:
        return self._size

    def _located(self, places: Places, epoch: int) -> tuple[Places, Places, int]:
        # A place of a source is its turn, which continues after a pass, so that the source is shuffled again.
        return *self.options.order.at(places + epoch * self._size), 0


class MixedStream(StreamStage):
    """Streams in given proportions; ends when it is the turn of one that has ended."""

    def __init__(self, sources: tuple[StreamStage, ...], options: MixOptions, measure: Measure | None) -> None:
        size = "" if options.size is None else f", size={options.size}"
        label = options.label(size if measure is None else f"{size}, measure={name_of(measure)}")
        # Weights may change: every stream has its place.
        fixed = {"measure": measure is not None, "size": options.size, "seed": options.seed}
        super().__init__(*sources, label=label, fixed=fixed)
        self.options, self.measure = options, measure
        self.is_endless = self.is_endless and options.size is None

    def with_weights(self, weights: Weights | None) -> MixedStream:
        """Return the same mixture with other weights."""
        own = MixedStream(self.parts, replace(self.options, weights=weights), self.measure)
        own._first = self._first or self
        return own

    def count(self) -> int | None:
        return self.options.size if all(part.is_endless for part in self.parts) else None

    def open(self, lap: Lap) -> Cursor:
        cursor = _MixCursor(self, lap) if self.measure is None else _MeasuredCursor(self, self.measure, lap)
        if self.options.size is None:
            return cursor
        return SliceCursor(cursor, *own_slice(lap.part if self.is_sharded else (0, 1), 0, self.options.size))


class _MixCursor(TurnsCursor):
    def __init__(self, stage: MixedStream, lap: Lap) -> None:
        super().__init__(stage.parts, lap)
        self._order = stage.options.order

    def _turns(self, start: int, count: int) -> Places:
        return self._order.at(np.arange(start, start + count))[0]


class _MeasuredCursor(Cursor):
    """Mixes by the size of samples, such as their tokens, instead of their number.

    Each sample earns every stream its share of the sample's size, and costs the stream that it comes from the whole
    size. The stream with the largest credit is next. So no stream is ever ahead of its share by more than a sample.
    """

    def __init__(self, stage: MixedStream, measure: Measure, lap: Lap) -> None:
        self._stage = stage
        self._measure = measure
        self._buffers = buffers(stage.parts, lap)
        self._credits = [0.0] * len(stage.parts)
        self._total = 0
        """The size of all samples so far; a schedule counts in it."""
        self._at = 0
        """Samples so far that were measured."""
        self._where = stage.identity, lap
        self._last = 0
        self._is_unmeasured = False
        """True if the last sample was read, but `measure` failed."""
        self._ended = False

    def take(self, count: int) -> Samples:
        if self._ended:
            return []
        weights = self._stage.options.schedule.at(self._total)
        number = max(range(len(weights)), key=lambda one: (weights[one] > 0, self._credits[one], weights[one]))
        self._last, self._is_unmeasured = number, False
        try:
            sample = self._buffers[number].pop()
        except StopIteration:
            self._ended = True
            return []
        try:
            size = operator.index(self._measure(sample))
        except Exception:
            self._is_unmeasured = True
            raise
        except BaseException:  # an interrupt: the sample comes next time
            self._buffers[number].put_back()
            raise
        agree(self._where, self._stage.label, self._at, [size])
        self._at += 1
        self._account(number, size, weights)
        return [sample]

    def _account(self, number: int, size: int, weights: list[float]) -> None:
        total = math.fsum(weights)
        for one, weight in enumerate(weights):
            self._credits[one] += size * weight / total
        self._credits[number] -= size
        self._total += size

    def try_again(self) -> bool:
        buffer = self._buffers[self._last]
        if not self._is_unmeasured:
            return buffer.try_again()
        self._is_unmeasured = False
        buffer.put_back()
        return True

    def state(self) -> CursorState:
        return {
            "credits": list(self._credits),
            "at": self._at,
            "total": self._total,
            "ended": self._ended,
            "sources": [buffer.state() for buffer in self._buffers],
        }

    def restore(self, state: CursorState) -> None:
        self._credits, self._total, self._ended = list(state["credits"]), state["total"], state["ended"]
        self._at = state["at"]
        for buffer, own in zip(self._buffers, state["sources"], strict=True):
            buffer.restore(own)
