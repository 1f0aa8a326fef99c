"""When each piece of remote files is needed next. The order of every epoch is known, so the future is.

A stream reads shards in turn: whole files (`ShardForesight`), or parts of files, such as row groups (`PartForesight`).
Times are counted in epochs: 3.25 is a quarter into epoch 3. A cache that has to make room drops what is needed latest,
which no other rule can beat (Belady, 1966).

Random access needs every sample once per epoch, at any time (`RandomAccess`). Of the samples of an epoch, a cache can
serve those that it held when the epoch began. So a full cache that never changes serves as many as any other.

Pure: no I/O and no clock. The cache asks while it reads, and the cost table and the simulation ask the same code.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feedline.datasets.storage.addresses import identity_of

Times = NDArray[np.float64]
NAME_LENGTH = 16
"""Characters of the name of a blob."""
_EPOCHS = 8
"""How many epochs to look ahead for the next one in which a shard is read on this machine. A guess."""


@dataclass(frozen=True)
class Readers:
    """The parts of a stream: workers of ranks. The parts take shards in turn, part after part."""

    own: int = 0
    """The number of this part."""
    count: int = 1
    ranks: int = 1
    """Ranks; part n belongs to rank n modulo this."""
    ranks_here: int = 1
    """Ranks on each machine."""

    def on_this_machine(self, count: int) -> NDArray[np.bool_]:
        """Return for each turn of an epoch of `count` shards whether this machine reads its shard.

        The last shards, fewer than there are parts, are each divided among several parts: see `shares.shared_out`.
        """
        parts = np.arange(self.count)
        is_here: NDArray[np.bool_] = parts % self.ranks // self.ranks_here == self.own % self.ranks // self.ranks_here
        turns = np.arange(count)
        found: NDArray[np.bool_] = is_here[turns % self.count]
        left = count % self.count
        if left:
            found[count - left :] = np.bincount(parts[is_here] % left, minlength=left) > 0
        return found


def name_of(address: str) -> str:
    """Return the name of a blob in caches, whatever its version."""
    return hashlib.blake2b(identity_of(address).encode(), digest_size=NAME_LENGTH // 2).hexdigest()


class Foresight(Protocol):
    """When pieces are needed next, as a cache asks for it."""

    worth: float
    """What share of a piece must be needed now, for it to replace other pieces."""

    def place_of(self, name: str, number: int) -> int:
        """Return the place of a blob's piece in `times`; -1 if it is unknown."""

    def after(self, place: int) -> float:
        """Return when a piece that is being read now is needed again."""

    def times(self) -> Times:
        """Return when the pieces at each place are needed next: infinity if never, minus infinity if they stay."""


class RandomAccess:
    """Files that are read at random, or always in the same order: what a cache holds of them stays.

    Args:
        files: their addresses.
    """

    worth = math.inf

    def __init__(self, files: Sequence[str] = ()) -> None:
        self.files = files

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(map(name_of, self.files))

    def place_of(self, name: str, number: int) -> int:
        return 0 if name in self._names else -1

    def after(self, place: int) -> float:
        return 0.0

    def times(self) -> Times:
        return np.array([-math.inf])


class ShardForesight:
    """When shards are needed next, as seen by one part of a stream that reads them from beginning to end.

    Args:
        names: identifies each shard: the name of its blob.
        order: returns the shards in the order of an epoch.
        epoch: the epoch that is being read.
        readers: who reads.
        shared: True if parts may share any shard in this epoch, as after a change of their number.
    """

    worth = 0.0

    def __init__(
        self,
        names: Sequence[object],
        order: Callable[[int], ArrayLike],
        epoch: int,
        readers: Readers | None = None,
        *,
        shared: bool = False,
    ) -> None:
        self.count = len(names)
        """Number of shards."""
        self.turn = 0
        """The turn in the order of the epoch that this part has reached. Set it while reading."""
        self._names = names
        self._order = order
        self._epoch = epoch
        self._readers = readers or Readers()
        self._shared = shared
        self._turns: dict[int, NDArray[np.int64]] = {}

    @cached_property
    def _places(self) -> dict[object, int]:
        return {name: place for place, name in enumerate(self._names)}

    def place_of(self, name: str, number: int) -> int:
        """Return the place of a blob's piece in `times`; -1 if it is unknown."""
        return self._places.get(name, -1)

    def after(self, place: int) -> float:
        """Return when a shard that is being read now is needed again."""
        turn = int(self._turns_of(self._epoch)[place])
        if turn in self._divided:
            return self._epoch + turn / self.count  # other parts are still reading it
        return float(self._later[place])

    def times(self) -> Times:
        """Return when each shard is needed next; infinity if that is many epochs away."""
        turns = self._turns_of(self._epoch)
        is_own = turns % self._readers.count == self._readers.own
        # Other parts may lag behind by a turn each; they have read what lies further back.
        reached = np.where(is_own & (not self._shared), self.turn, self.turn - self._readers.count)
        is_ahead = turns > reached
        if self._divided:
            is_ahead |= turns >= self._divided.start
        return np.where(is_ahead, self._epoch + turns / self.count, self._later)

    @cached_property
    def _divided(self) -> range:
        """The turns whose shards several parts read together."""
        return range(0 if self._shared else self.count - self.count % self._readers.count, self.count)

    @cached_property
    def _later(self) -> Times:
        """When each shard is needed in later epochs."""
        times = np.full(self.count, math.inf)
        is_here = self._readers.on_this_machine(self.count)
        is_alone = self._readers.ranks <= self._readers.ranks_here  # then every shard is read here in every epoch
        for epoch in range(self._epoch + (1 if is_alone else _EPOCHS), self._epoch, -1):
            turns = self._turns_of(epoch)
            times = np.where(is_here[turns], epoch + turns / self.count, times)
        return times

    def _turns_of(self, epoch: int) -> NDArray[np.int64]:
        """Return the turn of each shard in an epoch."""
        if epoch not in self._turns:
            turns = np.empty(self.count, np.int64)
            turns[np.asarray(self._order(epoch), np.int64)] = np.arange(self.count)
            self._turns[epoch] = turns
        return self._turns[epoch]


@dataclass(frozen=True)
class Parts:
    """The parts of one blob that are shards, in ascending order."""

    first: int
    """The number of the first one among all shards."""
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    """Where each begins and ends in the blob. An estimate will do."""
    size: int
    """Bytes of the blob."""


def _shards_of_pieces(parts: Parts, count: int, piece_bytes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first shard that needs each piece of a blob, and the one after the last.

    A shard that has half of a piece is the only one that needs it: the others fetch just their own bytes.
    """
    at = np.arange(count) * piece_bytes
    stops = np.minimum(at + piece_bytes, parts.size)
    begins = np.searchsorted(parts.stops, at, side="right")
    ends = np.searchsorted(parts.starts, stops, side="left")
    if not len(parts.starts):
        return begins, ends
    # A shard with half of a piece has the middle of it.
    middle = np.minimum(np.searchsorted(parts.stops, (at + stops) // 2, side="right"), len(parts.stops) - 1)
    shared = np.minimum(parts.stops[middle], stops) - np.maximum(parts.starts[middle], at)
    is_alone = 2 * shared >= stops - at
    return np.where(is_alone, middle, begins), np.where(is_alone, middle + 1, ends)


class PartForesight(ShardForesight):
    """When pieces of blobs are needed next, if shards are parts of blobs: with the first of the shards that need it.

    Args:
        count: number of shards, of which some may be in local files.
        blobs: the shards in each remote blob, by its name.
        order: returns the shards in the order of an epoch.
        epoch: the epoch that is being read.
        readers: who reads.
        piece_bytes: the size of a piece.
    """

    worth = 0.5

    def __init__(
        self,
        count: int,
        blobs: Mapping[str, Parts],
        order: Callable[[int], ArrayLike],
        epoch: int,
        readers: Readers | None = None,
        *,
        piece_bytes: int,
    ) -> None:
        super().__init__(range(count), order, epoch, readers)
        counts = [-(-parts.size // piece_bytes) for parts in blobs.values()]
        self._first_pieces = dict(zip(blobs, np.cumsum([0, *counts]).tolist(), strict=False))
        self._piece_counts = dict(zip(blobs, counts, strict=True))
        begins, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for parts, pieces in zip(blobs.values(), counts, strict=True):
            begin, end = _shards_of_pieces(parts, pieces, piece_bytes)
            begins.append(parts.first + begin)
            ends.append(parts.first + end)
        self._begins, self._ends = np.concatenate(begins), np.concatenate(ends)
        """The first shard that needs each piece, and the one after the last."""

    def place_of(self, name: str, number: int) -> int:
        first = self._first_pieces.get(name)
        return -1 if first is None or number >= self._piece_counts[name] else first + number

    def after(self, place: int) -> float:
        return float(self.times()[place])

    def times(self) -> Times:
        shards = np.append(super().times(), math.inf)
        firsts = np.minimum.reduceat(shards, np.stack([self._begins, self._ends], axis=1).ravel())[::2]
        return np.where(self._begins < self._ends, firsts, math.inf)
