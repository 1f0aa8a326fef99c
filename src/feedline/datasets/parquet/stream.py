"""Row groups one after the other: an iterable dataset.

The order of an epoch follows from seed and epoch: row groups in random order; of every window of them, the samples in
random order. So where a place of the stream lies can be computed, and an iteration can be entered anywhere.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.source import EpochAware, Repeatable, StreamSource
from feedline.datasets.torch_data import tell_torch, torch_worker
from feedline.errors import BadOption, BadState, SourceError
from feedline.randomness.bijection import Bijection
from feedline.randomness.keys import epoch_key, mix
from feedline.randomness.scope import is_in_loader

if TYPE_CHECKING:
    from feedline.datasets.parquet.table import RowGroupSource

_RUN = 128
"""Samples that are read at a time. A guess: few enough to be in a cache, enough to be taken together."""


class RowGroupStream(StreamSource, EpochAware):
    """The samples of a Parquet or Arrow dataset, row group by row group; `ParquetDataset.stream` makes it.

    A loader of feedline shares them out over workers and ranks: each sample comes once, in an order that does not
    depend on them. In torch's own loader workers share the row groups out among themselves. States are exact.
    """

    # Any: samples are of any form, states come from anywhere.
    def __init__(self, source: RowGroupSource, *, shuffle: bool, seed: int, window: int) -> None:
        if not isinstance(shuffle, bool):
            raise BadOption(f"shuffle={shuffle!r} is not True or False.")
        _check_window(window)
        self.source = source
        self.shuffle = shuffle
        self.seed = operator.index(seed)
        self.window = int(window)
        self.epoch = 0
        tell_torch(RowGroupStream)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next: each has another order."""
        self.epoch = operator.index(epoch)

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Any]:
        return Reading(self, *_own_part())

    def close(self) -> None:
        """Forget what this process has read."""
        self.source.close()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        tell_torch(RowGroupStream)

    def __repr__(self) -> str:
        order = f"shuffle=True, seed={self.seed}, window={self.window}" if self.shuffle else "in order"
        return f"RowGroupStream({self.source!r}, {order})"


class Reading(Repeatable):
    """One iteration over a stream. After an exception it goes on with the next sample.

    Args:
        stream: the stream.
        part: which of `part_count` parts of the row groups.
        part_count: into how many the row groups are shared out.
    """

    def __init__(self, stream: RowGroupStream, part: int = 0, part_count: int = 1) -> None:
        self._stream = stream
        self._part = part
        self._part_count = part_count
        self._place = 0
        self._ahead: list[Any] = []
        """Samples that were read already, before their transform."""
        self._first = 0
        """The place of the first of them."""
        self._begin(stream.epoch)

    def _begin(self, epoch: int) -> None:
        stream = self._stream
        starts = stream.source._layout.starts
        key = epoch_key(stream.seed, epoch)
        self._epoch = epoch
        numbers = np.arange(len(starts) - 1)
        groups = Bijection(len(numbers), mix(key, 0))(numbers) if stream.shuffle and len(numbers) else numbers
        self._groups = groups[self._part :: self._part_count]
        self._key = mix(key, 1)
        self._starts = starts
        self._ends = np.cumsum((starts[1:] - starts[:-1])[self._groups])
        """Where the row groups end, in places of this iteration."""

    def __iter__(self) -> Reading:
        return self

    def __next__(self) -> Any:
        count = len(self)
        if self._place >= count:
            raise StopIteration
        place = self._place
        self._place += 1
        if not self._first <= place < self._first + len(self._ahead):
            self._ahead, self._first = self._read(place, count), place
        sample = self._ahead[place - self._first]
        transform = self._stream.source.transform
        return sample if transform is None else transform(sample)

    def _read(self, place: int, count: int) -> list[Any]:
        """Read the sample at a place and some after it; it alone if one of them cannot be read."""
        source, places = self._stream.source, np.arange(place, min(place + _RUN, count))
        try:
            return source._read(self._indices(places))
        except SourceError:
            return source._read(self._indices(places[:1]))

    def try_again(self) -> bool:
        """Go back to the sample that raised an exception."""
        self._place -= 1
        self._ahead = []  # a transform may have changed what it was given
        return True

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def skip(self, count: int) -> int:
        """Leave out so many samples, without reading them; return how many there were."""
        skipped = min(count, len(self) - self._place)
        self._place += skipped
        return skipped

    def _indices(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which samples stand at these places."""
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
        sizes = self._starts[groups + 1] - self._starts[groups]
        found: NDArray[np.int64] = self._starts[groups] + (places - (ends[turns] - sizes))
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return where the iteration is: after the last sample that it gave."""
        return {"epoch": self._epoch, "place": self._place, "of": len(self), "order": self._order()}

    def _order(self) -> list[Any]:
        stream = self._stream
        return [stream.shuffle, stream.seed, stream.window if stream.shuffle else 0, self._part_count]

    def load_state_dict(self, state: Any) -> None:
        """Go on where a state was taken.

        Raises:
            BadState: it is not the state of such a stream.
        """
        if not isinstance(state, dict) or not {"epoch", "place", "of", "order"} <= state.keys():
            raise BadState(f"This is not the state of a stream of row groups: {state!r:.200}")
        if list(state["order"]) != self._order():
            raise BadState(
                f"The state is that of a stream in another order: shuffle, seed, window and parts were "
                f"{list(state['order'])} and are {self._order()}. Give the stream the options that it was saved with."
            )
        self._begin(state["epoch"])
        if state["of"] != len(self):
            raise BadState(
                f"The state is that of {state['of']} samples, but these are {len(self)}. Were files or filters changed?"
            )
        self._place = state["place"]
        self._ahead = []  # of another epoch, perhaps


# Any: whatever the user gave.
def _check_window(window: Any) -> None:
    if isinstance(window, bool) or not isinstance(window, (int, np.integer)) or window < 1:
        raise BadOption(f"window={window!r} is not a positive number of row groups.")


def _own_part() -> tuple[int, int]:
    """Return which part of the row groups is this worker's: all of them, unless it is one of torch's own.

    Loaders of feedline share out samples themselves; torch's leaves it to the dataset.
    """
    return (0, 1) if is_in_loader() else torch_worker()
