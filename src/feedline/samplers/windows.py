"""Windows: an order of samples, dealt into the steps of all ranks one part at a time.

Think of the samples that are left of an epoch in one row. A window is the next part of the row, as long as a few steps
of all ranks. Its samples are dealt into these steps, so the delivered samples are a prefix of the row only between
windows.

A saved position therefore holds where the row began, and how the window that was entered since then was dealt. If the
same number of ranks resumes, it deals the window again in the same way and continues with the next step. Otherwise the
samples of the window that were not delivered become the beginning of a new row, in their old order, which is dealt in
windows of another length. The position then lists how each was dealt: `dealt` has an entry for each such change, until
a window ends behind all samples that were left over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from feedline.abc.sampler import IndexArray, Sampler
from feedline.errors import BadOption, BadState
from feedline.randomness.keys import epoch_key, mix, mix_array
from feedline.samplers.costs import SampleCosts
from feedline.samplers.dealing import deal, fitted, pack, rounded
from feedline.samplers.steps import Steps
from feedline.system.ranks import Share
from feedline.types import Key, State

_FULL = 0.97
"""The part of `max_cost` that batches have on average. The samples of a window are as many as would fill all batches
to this part; a window that does not fit gets one more step."""

_KEPT = 2
"""Windows that are kept: a batch may be requested again soon."""

_SUMMARIES = 1 << 8
"""Windows of which a summary is kept: while workers prefetch batches, positions in earlier windows are saved."""


_WINDOWS = 0x57696E
"""Mixed into the key of an epoch, so that dealing is independent of the order of the samples."""

# Any: what `Dealing.as_state` returns, the window, the step in it, and what `Windows._checksum` returns.
Entry: TypeAlias = list[Any]


@dataclass(frozen=True)
class Dealing:
    """Into what the samples of windows are dealt."""

    world_size: int
    batch_size: int | None
    """Samples in a batch; None if `max_cost` limits them."""
    max_cost: tuple[float, ...] | None
    window: int
    """Steps of a window."""
    micro_batches: int
    """Batches of a rank in a step."""
    tail: str
    drop_last: bool

    def as_state(self) -> list[object]:
        """Return plain values, the same after JSON."""
        limits = None if self.max_cost is None else list(self.max_cost)
        sizes = [self.world_size, self.batch_size, limits, self.window, self.micro_batches]
        return [*sizes, self.tail, self.drop_last]

    @classmethod
    # Any: a part of a state, which was checked against changes as a whole.
    def of_state(cls, state: Any) -> Dealing:
        """Return what `as_state` described."""
        world_size, batch_size, limits, *others = state
        return cls(world_size, batch_size, None if limits is None else tuple(limits), *others)


class _Summary(NamedTuple):
    """What positions in a window need."""

    steps: int
    ends: NDArray[np.int64]
    """How many of its samples were delivered after each step."""
    checksum: int
    """A checksum of how it was dealt."""


@dataclass(frozen=True)
class Window:
    """A part of the row, dealt."""

    places: IndexArray
    """Where its samples are in the order of all samples."""
    indices: IndexArray
    batches: list[NDArray[np.int64]]
    """What each batch has: step by step, and in a step rank by rank. The values are positions in `places`."""
    padding: int
    """How many of the last positions repeat samples from the beginning of the order."""

    def summary(self, world_size: int) -> _Summary:
        """Return what positions in this window need."""
        sizes = np.array([len(batch) for batch in self.batches], np.int64).reshape(-1, world_size).sum(1)
        dealt = np.concatenate([self.indices, *self.batches])
        return _Summary(len(sizes), np.cumsum(sizes), crc32(dealt.data))

    def left(self, batches: int) -> IndexArray:
        """Return the places of the samples that the first batches do not have, in the order of all samples."""
        is_left = np.ones(len(self.places), np.bool_)
        is_left[len(self.places) - self.padding :] = False
        if batches:
            is_left[np.concatenate(self.batches[:batches])] = False
        return self.places[is_left]


class Windows:
    """The windows of one epoch, from a position on.

    Args:
        order: the samples of an epoch.
        costs: of the samples.
        dealing: into what they are dealt.
        key: of the epoch.
        shuffle: False to leave steps, ranks, and the samples of a batch in the order in which they were dealt.
        endless: True to go on with the next epoch's order where one ends.
        state: where to begin; empty or None for the beginning of the epoch.

    Raises:
        BadOption: the samples cannot be dealt in this way to so many ranks.
        BadState: the state does not fit the costs.
    """

    def __init__(
        self,
        order: Sampler,
        costs: SampleCosts,
        dealing: Dealing,
        key: Key,
        *,
        shuffle: bool = True,
        endless: bool = False,
        state: State | None = None,
    ) -> None:
        self._order = order
        self._costs = costs
        self.dealing = dealing
        self._key = key
        self._shuffle = shuffle
        self._endless = endless
        self._size = costs.count
        self._kept: dict[int, Window] = {}
        self._summaries: dict[int, _Summary] = {}
        state = state or {}
        self._row_began = self._origin = int(state.get("origin", 0))
        """The first place in the order of all samples behind `_left_over`, where the first row began, and now."""
        self._left_over: IndexArray = np.empty(0, np.int64)
        """Places before that, which were left over when an earlier window was not completed."""
        self._dealt: list[Entry] = list(state.get("dealt", []))
        """How the windows were dealt of which these were left over."""
        self._first = 0, 0
        """The window and the step in it to begin with."""
        checksum = 0
        if self._dealt and Dealing.of_state(self._dealt[-1][0]) == dealing:
            _, number, step, checksum = self._dealt.pop()
            self._first = number, step
        for entry in self._dealt:
            self._continue_after(entry)
        self._lay_out()
        self._check(*self._first, checksum)

    def _continue_after(self, entry: Entry) -> None:
        """Begin another row with what was left over of the present one."""
        state, number, step, checksum = entry
        row = Windows(
            self._order, self._costs, Dealing.of_state(state), self._key, shuffle=self._shuffle, endless=self._endless
        )
        row._left_over, row._origin = self._left_over, self._origin
        row._lay_out()
        row._check(number, step, checksum)
        end, _ = row._bounds(number)
        left: IndexArray = np.empty(0, np.int64)
        if step:
            window = row.window(number)
            left = window.left(step * row.dealing.world_size)
            end += len(window.places) - window.padding
        elif row._total is not None:
            end = min(end, row._total)
        self._origin += max(0, end - len(self._left_over))
        self._left_over = np.concatenate([left, self._left_over[end:]])

    def _checksum(self, number: int, step: int) -> int:
        """Return what a position depends on: how its window was dealt, or before its first step, where it begins."""
        return self._summary(number).checksum if step else self._bounds(number)[0]

    def _check(self, number: int, step: int, checksum: object) -> None:
        if self._checksum(number, step) != checksum:
            raise BadState(
                "The state was saved inside a window of samples that was dealt in another way: their costs have "
                "changed since. With other costs, samples would be lost or come twice. Resume with the same costs, or "
                "begin an epoch."
            )

    def _lay_out(self) -> None:
        """Find how long the row is, and its windows."""
        dealing = self.dealing
        self._total = None if self._endless else len(self._left_over) + max(0, self._size - self._origin)
        self._in_window = dealing.window * dealing.micro_batches
        self._starts = [0]
        """Steps before each window from the first one on, as far as they are known, if there is no batch size."""
        self._steps: Steps | None = None
        if dealing.batch_size is not None:
            share = Share(0, dealing.world_size, dealing.tail)
            self._steps = Steps(self._total, dealing.batch_size, share, drop_last=dealing.drop_last)
            return
        assert dealing.max_cost is not None
        mean = self._costs.relative_mean(dealing.max_cost)
        samples = self._in_window * _FULL / mean if mean * self._size > self._in_window else self._size
        self._length = max(1, int(samples)) * dealing.world_size

    def count(self) -> int:
        """Return how many steps are left; without a batch size, about how many."""
        if self._steps is not None:
            assert self._steps.count is not None, "an endless order has no number of steps"
            return max(0, self._steps.count - self._first[0] * self._in_window - self._first[1])
        return -(-(self._total or 0) * self._in_window // self._length)

    def _bounds(self, number: int) -> tuple[int, int]:
        """Return where a window begins and ends in the row; with padding, the end may be behind that of the row."""
        if self._steps is not None:
            return self._steps.start(number * self._in_window), self._steps.start((number + 1) * self._in_window)
        begin, end = number * self._length, (number + 1) * self._length
        return (begin, end) if self._total is None else (min(begin, self._total), min(end, self._total))

    def locate(self, step: int) -> tuple[int, int]:
        """Return the window of a step, counted from where the row was entered, and the number of the step there."""
        first, skipped = self._first
        step += skipped
        if self._steps is not None:
            number, within = divmod(step, self._in_window)
            return first + number, within
        starts = self._starts
        while step >= starts[-1]:
            steps = self._summary(first + len(starts) - 1).steps
            if steps == 0:  # the end: step is behind the last step of the window before
                return first + max(0, len(starts) - 2), step - starts[max(0, len(starts) - 2)]
            starts.append(starts[-1] + steps)
        number = int(np.searchsorted(starts, step, side="right")) - 1
        return first + number, step - starts[number]

    def batch(self, step: int, rank: int) -> IndexArray | None:
        """Return a rank's samples in a step, counted from where the row was entered; None behind the end."""
        number, within = self.locate(step)
        window = self.window(number)
        place = within * self.dealing.world_size + rank
        return window.indices[window.batches[place]] if place < len(window.batches) else None

    def samples_before(self, step: int) -> int:
        """Return how many samples all ranks have consumed before a step, since the beginning of the epoch."""
        number, within = self.locate(step)
        if self._steps is not None:
            begin = self._steps.start(number * self._in_window + within)
        else:
            begin, _ = self._bounds(number)
            if within:
                begin += int(self._summary(number).ends[within - 1])
        return self._origin - len(self._left_over) + begin

    def state(self, step: int) -> State:
        """Return the position before a step, counted from where the row was entered."""
        number, within = self.locate(step)
        begin, _ = self._bounds(number)
        checksum = self._checksum(number, within)
        consumed, origin = self.samples_before(step), self._row_began
        if begin < len(self._left_over):
            dealt = [*self._dealt, [self.dealing.as_state(), number, within, checksum]]
        else:  # nothing is left over any more: a row begins with this window
            origin = self._origin + begin - len(self._left_over)
            dealt = [[self.dealing.as_state(), 0, within, checksum if within else 0]]
        if self._total is not None:
            origin, consumed = min(origin, self._size), min(consumed, self._size)
        return {"consumed": consumed, "origin": origin, "dealt": dealt}

    def window(self, number: int) -> Window:
        """Return a window; it is dealt when it is entered, and kept for a while."""
        kept = self._kept  # read once: other threads may replace it
        if number not in kept:
            window = self._window_of_batches(number) if self._steps is not None else self._window_of_costs(number)
            self._kept = {**dict(list(kept.items())[1 - _KEPT :]), number: window}
            self._summaries[number] = window.summary(self.dealing.world_size)
            if len(self._summaries) > _SUMMARIES:
                del self._summaries[next(iter(self._summaries))]
            return window
        return kept[number]

    def _summary(self, number: int) -> _Summary:
        if number not in self._summaries:
            self.window(number)
        return self._summaries[number]

    def _window_of_batches(self, number: int) -> Window:
        steps, dealing = self._steps, self.dealing
        assert steps is not None
        ranks, size = dealing.world_size, dealing.batch_size
        assert size is not None
        first = number * self._in_window
        last = first + self._in_window if steps.count is None else min(first + self._in_window, steps.count)
        starts = [steps.start(step) for step in range(first, max(first, last) + 1)]
        places, padding = self._places(starts[0], starts[-1])
        indices = self._indices(places)
        if len(indices) == 0:
            return Window(places, indices, [], padding)
        costs, key = rounded(self._costs.at(indices)), self._window_key(places)
        begin, real = starts[0], starts[-1] - padding
        # Steps that are not full are dealt by themselves, as is the last one if it repeats samples.
        full = 0
        while full < len(starts) - 1 and starts[full + 1] - starts[full] == ranks * size and starts[full + 1] <= real:
            full += 1
        batches: list[NDArray[np.int64]] = []
        if full:
            rows = deal(costs[: full * ranks * size], full * ranks, ranks * dealing.micro_batches)
            batches += self._arranged(rows, key)
        for step in range(full, len(starts) - 1):
            offset = starts[step] - begin
            rows = deal(costs[offset : starts[step + 1] - begin], ranks, ranks)
            batches += [offset + row[row >= 0] for row in self._arranged(rows, mix(key, step + 1))]
        return Window(places, indices, batches, padding)

    def _window_of_costs(self, number: int) -> Window:
        dealing = self.dealing
        assert dealing.max_cost is not None
        ranks = dealing.world_size
        begin, end = self._bounds(number)
        places, padding = self._places(begin, end)
        indices = self._indices(places)
        if len(indices) == 0:
            return Window(places, indices, [], padding)
        rows = self._packed(indices)
        if rows is None and dealing.tail == "exact":
            raise BadOption(
                f"tail='exact' is not possible: the last {end - begin} samples cannot be dealt to {ranks} ranks "
                f"within max_cost={dealing.max_cost} so that every rank has as many batches. Use tail='pad' or 'drop'."
            )
        key, last = self._window_key(places), list[NDArray[np.int64]]()
        if rows is None:  # one sample in each batch always fits
            rest = len(places) % ranks
            end = end - rest if dealing.tail == "drop" else end + ranks - rest
            places, padding = self._places(begin, end)
            indices = self._indices(places)
            if padding:  # the last step has one sample in each batch, so that no other one repeats any
                last = list(np.arange(len(places))[-ranks:, None])
            packed = len(places) - len(last)
            rows = self._packed(indices[:packed]) if packed else []
            assert rows is not None
        return Window(places, indices, [*self._arranged(rows, key), *last], padding)

    def _packed(self, indices: IndexArray) -> list[NDArray[np.int64]] | None:
        """Return batches within `max_cost`, as few as possible for each rank; None if one sample is too many."""
        assert self.dealing.max_cost is not None
        limits, ranks = np.array(self.dealing.max_cost), self.dealing.world_size
        values = self._costs.at(indices)
        costs, limit = fitted(values, limits)
        if int(costs.max()) > limit:
            place = int(costs.max(1).argmax())
            raise BadOption(
                f"Sample {indices[place]} costs {values[place].tolist()}, more than max_cost={limits.tolist()}, so it "
                "fits into no batch. Raise max_cost, or leave such samples out."
            )
        least = max(1, -(-int(costs.sum(0).max()) // (ranks * limit)))
        for steps in range(least, len(indices) // ranks + 1):
            packed = pack(costs, steps * ranks, limit)
            if packed is not None:
                return [np.array(row, np.int64) for row in packed]
        return None

    def _places(self, begin: int, end: int) -> tuple[IndexArray, int]:
        """Return the places in the order of all samples of a part of the row, and how many of them are padding."""
        left_over = self._left_over[begin:end]
        rest = np.arange(max(begin - len(self._left_over), 0), end - len(self._left_over)) + self._origin
        if self._total is None or end <= self._total:
            return np.concatenate([left_over, rest]), 0
        padding = end - max(begin, self._total)
        rest = rest[: len(rest) - padding]
        return np.concatenate([left_over, rest, np.arange(padding) % self._size]), padding

    def _indices(self, places: IndexArray) -> IndexArray:
        if len(places) == 0:
            return places
        passes = places // self._size
        if passes[0] == passes[-1] == 0:
            return self._order.at(places, self._key)
        indices = np.empty_like(places)
        for number in np.unique(passes).tolist():
            own = passes == number
            key = Key(self._key.seed, self._key.epoch + number)
            indices[own] = self._order.at(places[own] - number * self._size, key)
        return indices

    def _window_key(self, places: IndexArray) -> int:
        return mix(mix(epoch_key(self._key.seed, self._key.epoch), _WINDOWS), int(places[0]))

    def _arranged(self, rows: NDArray[np.int64] | list[NDArray[np.int64]], key: int) -> list[NDArray[np.int64]]:
        """Return batches, sorted by cost, in random order: groups, the steps in a group, ranks, samples of a batch."""
        if len(rows) == 0 or not self._shuffle:
            return [np.sort(row) for row in rows]
        ranks, numbers = self.dealing.world_size, np.arange(len(rows))
        groups = numbers // (ranks * self.dealing.micro_batches)
        by_group = mix_array(mix(key, 0), groups) >> np.uint64(1)
        if len(rows) % (ranks * self.dealing.micro_batches):
            by_group[groups == groups[-1]] = 1 << 63  # a group that is not full comes last
        by_step = mix_array(mix(key, 1), numbers // ranks)
        order = np.lexsort((mix_array(mix(key, 2), numbers), by_step, by_group))
        if isinstance(rows, np.ndarray):
            by_sample = np.argsort(mix_array(mix(key, 3), rows.reshape(-1)).reshape(rows.shape), axis=1)
            return list(np.take_along_axis(rows, by_sample, axis=1)[order])
        return [rows[number][np.argsort(mix_array(mix(key, 3), rows[number]))] for number in order.tolist()]
