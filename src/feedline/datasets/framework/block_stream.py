"""An iterable dataset that reads row groups in sequence.

Seed and epoch determine the order of an epoch: row groups come in random order, and the samples of each window of row
groups are shuffled together. So any position in the stream can be computed, and a pass can start anywhere.

While a pass over remote files returns the samples of one window, the row groups of the next one arrive.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from feedline.abc import memory
from feedline.abc.source import StreamSource
from feedline.datasets.framework.passes import Epochs, Part, ResumablePass, Stream, names_sum, torch_worker
from feedline.datasets.framework.shard_order import order_of
from feedline.datasets.framework.source import TableSource
from feedline.errors import BadState, SourceError
from feedline.randomness.bijection import Bijection
from feedline.randomness.keys import checked_seed, epoch_key, mix
from feedline.randomness.scope import is_in_loader
from feedline.system.options import checked_count, checked_flag
from feedline.types import State

_RUN = 128
"""Samples read at a time. A guess: few enough to stay in the CPU cache, enough to be worth reading together."""
_ORDERED = 8192
"""Positions whose indices are computed at a time: for the 256 of a batch, most of the time would be NumPy's calls."""


class BlockStream(Stream, StreamSource, Epochs):
    """The samples of a dataset, row group by row group, or piece by piece; created by `ParquetDataset.stream`.

    A feedline loader assigns samples to workers and ranks: each sample comes once, and the order does not depend on
    their number. In torch's own loader, workers divide the row groups among themselves. States are exact.
    """

    # Any: the `RowGroupSource` that creates this stream.
    def __init__(self, source: Any, *, shuffle: bool, seed: int, window: int) -> None:
        super().__init__()
        self.source = source
        self.shuffle = checked_flag("shuffle", shuffle)
        self.seed = checked_seed(seed)
        self.window = checked_count("window", window, 1)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def hands_on_images(self) -> bool:
        """As `Source.hands_on_images`."""
        hands_on: bool = self.source.hands_on_images
        return hands_on

    @property
    def draws_nothing(self) -> bool:  # type: ignore[override]  # a transform can be anything
        return self.source.transform is None

    def __iter__(self) -> BlockPass:
        return BlockPass(self, self._part())

    def _part(self) -> Part:
        # feedline loaders distribute samples themselves; torch's loader leaves it to the dataset.
        return (0, 1) if is_in_loader() else torch_worker()

    @functools.cached_property
    def names_sum(self) -> list[int]:
        """Number of the files, and a checksum of their names."""
        return names_sum(self.source._addresses())

    def close(self) -> None:
        """Drop the row groups that this process has cached."""
        self.source.close()

    def __repr__(self) -> str:
        order = f"shuffle=True, seed={self.seed}, window={self.window}" if self.shuffle else "in order"
        return f"BlockStream({self.source!r}, {order})"


def _key_of(group: int) -> bytes:
    """Return what identifies a row group that is read ahead."""
    return b"row group %d" % group


class BlockPass(ResumablePass[int]):
    """One pass over the row groups of a part. Its items are positions in the pass."""

    _name = "row groups"

    def __init__(self, stream: BlockStream, part: Part = (0, 1)) -> None:
        super().__init__(part, stream.source.transform)
        self._stream = stream
        self._place = 0
        self._ahead: list[object] = []
        """Samples already read, before their transform."""
        self._first = 0
        """The position of the first one."""
        self._window = -1
        """The window of row groups that was read last; -1 before the first."""
        self._begin(stream.epoch)

    def _begin(self, epoch: int) -> None:
        stream = self._stream
        sizes = stream.source.row_group_sizes
        self._epoch = epoch
        groups = np.array(order_of(len(sizes), stream.seed if stream.shuffle else None, 1, epoch), np.int64)
        self._groups = groups[self._part[0] :: self._part[1]]
        self._key = mix(epoch_key(stream.seed, epoch), 1)
        self._window = -1
        self._known_from, self._known = 0, np.empty(0, np.int64)
        """Indices of samples at positions from `_known_from` on."""
        self._sizes = sizes
        # In order, and in one part, positions do not depend on where row groups begin.
        is_divided = stream.shuffle or self._part[1] > 1
        self._sizes_sum = [len(sizes), crc32(np.ascontiguousarray(sizes, np.int64).data)] if is_divided else []
        self._starts = np.cumsum(sizes) - sizes
        self._ends = np.cumsum(sizes[self._groups])
        """Where each row group ends, as a position in this pass."""
        self._count = int(self._ends[-1]) if len(self._ends) else 0

    def __len__(self) -> int:
        return self._count

    def _take(self) -> int:
        if self._place >= self._count:
            raise StopIteration
        self._place += 1
        return self._place - 1

    def _make(self, item: int) -> object:
        if not self._first <= item < self._first + len(self._ahead):
            self._ahead, self._first = self._read(item), item
        return self._ahead[item - self._first]

    def _read(self, place: int) -> list[object]:
        """Read the sample at a position and some after it; only that sample if one of the others cannot be read."""
        places = np.arange(place, min(place + _RUN, len(self)))
        try:
            return self._samples(places)
        except SourceError:
            return self._samples(places[:1])

    def _samples(self, places: NDArray[np.int64]) -> list[object]:
        """Return the samples at some positions, and begin to read the row groups after them."""
        source = self._stream.source

        def read(indices: NDArray[np.int64]) -> list[object]:
            if not isinstance(source, TableSource):
                return list(source._read(indices))
            return source._samples_of(source._columns_in_blocks(indices, np.empty))

        return list(self._read_with(read, places))

    # Any: columns in the form of a sample.
    def columns(self, offsets: NDArray[np.int64], count: int) -> Any:
        """Return some of the next `count` samples as columns, as `ColumnSource.read_columns` does.

        Does not move. Raises IndexError: there are fewer than `count`.
        """
        source = self._stream.source
        if not isinstance(source, TableSource) or self._transform is not None or self._again is not None:
            return None
        places = self._place + offsets
        if self._place + count > len(self):
            raise IndexError(f"{len(self) - self._place} samples are left")
        return source._built(self._read_with(lambda indices: source._columns_in_blocks(indices, memory.empty), places))

    # Any: what `read` returns.
    def _read_with(self, read: Callable[[NDArray[np.int64]], Any], places: NDArray[np.int64]) -> Any:
        source = self._stream.source
        if not source.is_remote or not len(places):
            return read(self._indices(places))
        window = self._window_of(int(places[-1]))
        is_new = window != self._window
        if is_new:
            for group in self._groups_of(window):
                source._upcoming.get().take(_key_of(group))  # waits for it
        found = read(self._indices(places))
        if is_new:
            self._window = window
            if 2 * self._stream.window <= source._groups_in_memory():
                for group in self._groups_of(window + 1):
                    start, count = int(self._starts[group]), int(self._sizes[group])
                    load = functools.partial(source._load_range, start, start + count)
                    source._upcoming.get().begin(_key_of(group), load, at_once=source._groups_at_once)
        return found

    def _window_of(self, place: int) -> int:
        return int(np.searchsorted(self._ends, place, side="right")) // self._stream.window

    def _groups_of(self, window: int) -> list[int]:
        groups: list[int] = self._groups[window * self._stream.window : (window + 1) * self._stream.window].tolist()
        return groups

    # Any: samples of any kind.
    def take(self, count: int) -> list[Any]:
        """Return the next `count` samples; fewer at the end, or before one that fails: the next call raises then."""
        if self._again is None and self._transform is None:
            self._failed = None
            places = np.arange(self._place, min(self._place + count, len(self)))
            try:
                samples = self._samples(places)
            except SourceError:
                pass  # one by one, to return those before it
            else:
                self._place += len(samples)
                return samples
        return self._one_by_one(count)

    def _one_by_one(self, count: int) -> list[object]:
        place, samples = self._place if self._again is None else self._again, list[object]()
        while len(samples) < count:
            try:
                samples.append(next(self))
            except StopIteration:
                break
            except Exception:
                if not samples:
                    raise
                self._place, self._failed = place + len(samples), None
                break
            except BaseException:  # an interrupt: return these samples next time
                self._forget_made()
                self._place, self._again = place, None
                raise
        return samples

    def _forget_made(self) -> None:
        self._ahead = []

    def skip(self, count: int) -> int:
        """Skip up to `count` samples without reading them; return how many were skipped."""
        skipped = min(count, len(self) - self._place)
        self._place += skipped
        return skipped

    def _indices(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the sample at each of some ascending positions."""
        if not len(places):
            return places
        low, high = int(places[0]), int(places[-1])
        if not self._known_from <= low <= high < self._known_from + len(self._known):
            self._known_from = low
            self._known = self._order(np.arange(low, min(max(low + _ORDERED, high + 1), len(self))))
        return self._known[places - self._known_from]

    def _order(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        ends, window = self._ends, self._stream.window
        if self._stream.shuffle:
            windows = np.searchsorted(ends, places, side="right") // window
            shuffled = places.copy()
            for number in np.unique(windows).tolist():
                low = int(ends[number * window - 1]) if number else 0
                high = int(ends[min((number + 1) * window, len(ends)) - 1])
                own = windows == number
                shuffled[own] = low + Bijection(high - low, mix(self._key, number))(places[own] - low)
            places = shuffled
        turns = np.searchsorted(ends, places, side="right")
        groups = self._groups[turns]
        found: NDArray[np.int64] = self._starts[groups] + (places - (ends[turns] - self._sizes[groups]))
        return found

    def _position(self) -> dict[str, object]:
        place = self._place if self._again is None else self._again
        return {"epoch": self._epoch, "place": place, "of": len(self), "groups": self._sizes_sum}

    def _options(self) -> dict[str, object]:
        stream = self._stream
        return {
            "shuffle": stream.shuffle,
            "seed": stream.seed,
            "window": stream.window if stream.shuffle else 0,
            "files": stream.names_sum,
        }

    def _enter(self, state: State) -> None:
        self._begin(state["epoch"])
        if state["of"] != len(self):
            raise BadState(
                f"The state is that of {state['of']} samples, but these are {len(self)}. Were files or filters changed?"
            )
        if state["groups"] != self._sizes_sum:
            raise BadState(
                f"The state was saved with {self._name} of other sizes, so it means other samples. Were files written "
                "again, or was part_bytes changed? Use the same data and options as when it was saved."
            )
        self._place = state["place"]
        self._ahead = []  # may be from another epoch
