"""`shuffle`: all samples in random order; `window_shuffle`: samples shuffled within windows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from feedline.pipes.cursor import Cursor
from feedline.pipes.lap import CursorState, Lap, Places, Samples
from feedline.pipes.stage import MapStage, Reordered, StreamStage
from feedline.randomness.bijection import SMALL, Bijection, small_orders
from feedline.randomness.keys import epoch_key, mix, mix_array

_BLOCK = 1 << 12
"""Consecutive places whose order is computed at once."""


_bijection = functools.lru_cache(maxsize=256)(Bijection)
"""Samples in random places belong to many passes; an order has 8 KB at most."""


class Shuffle(Reordered):
    """The samples of a map-style stage in another order in each epoch and pass, without a list of indices."""

    depends_on_epoch = True

    def __init__(self, source: MapStage, seed: int) -> None:
        super().__init__(source, f"shuffle(seed={seed})", {"seed": seed})
        self.seed = seed
        self._block: tuple[int, int, Places] | None = None
        """The last block of an order: epoch, number and contents."""

    def _inner(self, places: Places, epoch: int) -> Places:
        first, count = int(places[0]), len(places)
        if count > _BLOCK or not np.array_equal(places, np.arange(first, first + count)):
            return self._order(places, epoch)
        # Consecutive places, as in a stream: a whole block takes hardly longer than a few places of it.
        number, start = divmod(first, _BLOCK)
        found = self._order_of_block(number, epoch)[start : start + count]
        if len(found) < count:
            found = np.concatenate([found, self._order_of_block(number + 1, epoch)[: count - len(found)]])
        return found

    def _order_of_block(self, number: int, epoch: int) -> Places:
        block = self._block
        if block is None or block[:2] != (epoch, number):
            start = number * _BLOCK
            block = self._block = epoch, number, self._order(np.arange(start, start + _BLOCK), epoch)
        return block[2]

    def _order(self, places: Places, epoch: int) -> Places:
        size = len(self._source)
        passes, indices = np.divmod(places, max(size, 1))
        numbers, which = np.unique(passes, return_inverse=True)
        key, found = epoch_key(self.seed, epoch), passes * size
        if size <= SMALL and size * len(numbers) <= 8 * len(places):  # many passes of a few samples
            found += small_orders(size, mix_array(key, numbers))[which, indices]
            return found
        for number in numbers.tolist():
            own = passes == number
            found[own] += _bijection(size, mix(key, number))(indices[own])
        return found

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_block": None}


class WindowShuffledSamples(Reordered):
    """The samples of a map-style stage, shuffled within windows."""

    depends_on_epoch = True

    def __init__(self, source: MapStage, size: int, seed: int) -> None:
        super().__init__(source, f"window_shuffle({size}, seed={seed})", {"size": size, "seed": seed})
        self.size = size
        self.seed = seed

    def _inner(self, places: Places, epoch: int) -> Places:
        count, size = len(self._source), self.size
        passes, indices = np.divmod(places, max(count, 1))
        windows, found = indices // size, np.empty_like(places)
        for number, window in {*zip(passes.tolist(), windows.tolist(), strict=True)}:
            own = (passes == number) & (windows == window)
            start = window * size
            order = _order(min(size, count - start), self.seed, Lap(epoch, number), window)
            found[own] = number * count + start + order(indices[own] - start)
        return found


class WindowShuffledStream(StreamStage):
    """The samples of a stream, shuffled within windows.

    A window is read completely before its first sample is handed out. A position is the beginning of the window, and
    how many of its samples were handed out.
    """

    depends_on_epoch = True

    def __init__(self, source: StreamStage, size: int, seed: int) -> None:
        super().__init__(source, label=f"window_shuffle({size}, seed={seed})", fixed={"size": size, "seed": seed})
        self.size = size
        self.seed = seed

    def count(self) -> int | None:
        return self.parts[0].count()

    def open(self, lap: Lap) -> Cursor:
        return WindowCursor(self.parts[0].open(lap), self.size, self._order, lap)

    def _order(self, window: Samples, lap: Lap, number: int) -> Places:
        return _order(len(window), self.seed, lap, number)(np.arange(len(window)))


def _order(size: int, seed: int, lap: Lap, window: int) -> Bijection:
    return Bijection(size, mix(mix(epoch_key(seed, lap.epoch), lap.number), window))


class WindowCursor(Cursor):
    """The position in a stream of which windows of `size` samples are reordered.

    `order` returns the order of a window's samples, given these, the lap, and the number of the window.
    """

    def __init__(self, source: Cursor, size: int, order: Callable[[Samples, Lap, int], Places], lap: Lap) -> None:
        self._source = source
        self._size = size
        self._order = order
        self._lap = lap
        self._unshuffled: Samples = []
        """Samples of the window that is being read."""
        self._before: CursorState = {}
        """The state of the source before the window."""
        self._window: Samples = []
        self._at = 0
        """How many samples of the window were handed out."""
        self._owed = 0
        """How many of the next window count as handed out, after a restoration."""
        self._number = 0
        """Windows so far."""

    def _fill(self) -> bool:
        """Read a window unless samples are left; False at the end."""
        if self._at < len(self._window):
            return True
        if not self._unshuffled:
            self._before = self._source.state()
        while len(self._unshuffled) < self._size:
            try:
                found = self._source.take(self._size - len(self._unshuffled))
            except Exception as exc:  # raised in its place
                found = [Failed(exc)]
            if not found:
                break
            self._unshuffled += found
        window, self._unshuffled = self._unshuffled, []
        order = self._order(window, self._lap, self._number)
        self._window = [window[index] for index in order.tolist()]
        self._at, self._owed = self._owed, 0
        self._number += bool(window)
        return bool(window)

    def take(self, count: int) -> Samples:
        if not self._fill():
            return []
        found = self._window[self._at : self._at + count]
        good = next((place for place, one in enumerate(found) if type(one) is Failed), len(found))
        self._at += good or 1
        if good == 0:
            raise found[0].reason
        return found[:good]

    def skip(self, count: int) -> int:
        skipped, size = 0, self._size
        while skipped < count:
            is_between = self._at >= len(self._window) and not self._unshuffled and not self._owed
            if is_between and count - skipped >= size:
                past = self._source.skip(size)
                self._number += past > 0
            else:
                past = min(count - skipped, self._left())
                self._at += past
            if not past:
                break
            skipped += past
        return skipped

    def _left(self) -> int:
        return len(self._window) - self._at if self._fill() else 0

    def state(self) -> CursorState:
        if self._at < len(self._window):
            return {"source": self._before, "windows": self._number - 1, "given": self._at}
        source = self._before if self._unshuffled else self._source.state()
        return {"source": source, "windows": self._number, "given": self._owed}

    def restore(self, state: CursorState) -> None:
        self._source.restore(state["source"])
        self._number, self._owed = state["windows"], state["given"]


@dataclass(frozen=True, eq=False)
class Failed:
    """Stands for a sample that failed."""

    reason: Exception
