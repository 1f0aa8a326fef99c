"""Shards read from beginning to end."""

from __future__ import annotations

import functools
import heapq
import itertools
import operator
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from feedline.datasets.handle import Handle
from feedline.datasets.passes import Epochs, Part, PartedStream, ResumablePass
from feedline.datasets.remote.ahead import Ahead
from feedline.datasets.remote.blob import Blob
from feedline.datasets.remote.storage import Storage, protocol_of
from feedline.datasets.source import Transform, checked_count, checked_flag, checked_transform
from feedline.datasets.tar.form import TarForm
from feedline.datasets.tar.grouping import Grouping, RawSample, Selection
from feedline.datasets.tar.members import Bytes, Members
from feedline.datasets.tar.packed import Unpacking, packing_of
from feedline.datasets.tar.shards import Reading
from feedline.randomness.bijection import Bijection
from feedline.randomness.keys import epoch_key, mix
from feedline.values.shown import identity_of

T = TypeVar("T")

Release = tuple[int, int]
"""When a sample comes out, and its number."""


class ShuffleBuffer(Generic[T]):
    """Samples that are held back: a shuffle buffer whose content follows from where it is.

    Sample i of a stream is held back for a random number of places below `width`, which follows from the key and i
    alone. Samples come out in the order of i + delay. So a sample comes at most `width` places away from where it was,
    and about half as many are held at any time. What was given out is told by one pair of numbers: everything up to the
    last one. A buffer is rebuilt by reading again from the oldest sample in it, at most `width` back, leaving out what
    was given out.

    Args:
        key: decides about delays.
        width: the longest delay, and one more; 1 for none.
        first: the number of the first sample that will be added.
        last: what was given out last before this was rebuilt: samples up to it are left out.
    """

    def __init__(self, key: int, width: int, first: int = 0, last: Release = (-1, -1)) -> None:
        self._key = key
        self._width = width
        self.number = first
        """Of the sample that is added next."""
        self.last = last
        self._heap: list[Release] = []
        self._held: dict[int, T] = {}
        """By their numbers, in the order in which they were added."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, item: T) -> None:
        """Add the next sample."""
        release = self.number + mix(self._key, self.number) % self._width, self.number
        self.number += 1
        if release > self.last:
            heapq.heappush(self._heap, release)
            self._held[release[1]] = item

    def is_ready(self, *, ended: bool) -> bool:
        """True if it is known which sample comes next: none that is still to be added can come before it."""
        return bool(self._heap) and (ended or self._heap[0][0] <= self.number)

    def take(self, *, ended: bool) -> T:
        """Give out the next sample; `is_ready` must have said that it is known."""
        assert self.is_ready(ended=ended)
        self.last = heapq.heappop(self._heap)
        return self._held.pop(self.last[1])

    def oldest(self) -> tuple[int, T] | None:
        """Return the number of the oldest sample that is held, and itself; None if there is none."""
        return next(iter(self._held.items()), None)


class TarStream(PartedStream, Epochs):
    """An iterable dataset of the samples in shards; `TarDataset.stream` makes it."""

    def __init__(
        self,
        shards: list[str],
        form: TarForm,
        reading: Reading,
        *,
        transform: Transform | None,
        shuffle: bool,
        buffer: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.shards = shards
        self.form = form
        self.reading = reading
        self.transform = checked_transform(transform)
        self.shuffle = checked_flag("shuffle", shuffle)
        self.buffer = checked_count("buffer", buffer, 0) * shuffle
        self.seed = operator.index(seed)
        self._storage: Handle[Storage] = Handle(reading.open_storage, Storage.close)

    def __iter__(self) -> TarPass:
        return TarPass(self, self._part())

    @property
    def hands_on_images(self) -> bool:
        """As `Source.hands_on_images`."""
        return getattr(self.transform, "defers", False)

    def open(self, address: str) -> Blob:
        """Open a shard; called by threads."""
        return self._storage.get().open(address)

    def close(self) -> None:
        """Close the connections of this process. They are opened again when they are needed."""
        self._storage.close()

    def __repr__(self) -> str:
        shuffle = f", shuffle=True, buffer={self.buffer}, seed={self.seed}" if self.shuffle else ""
        transform = "" if self.transform is None else f", transform={self.transform!r}"
        return f"TarStream({len(self.shards)} shards, each sample {self.form!r}{shuffle}{transform})"


@dataclass(frozen=True)
class ShardShare:
    """A shard that a part reads, alone or with others."""

    shard: int
    place: int = 0
    every: int = 1
    """How many parts read it. Each takes every so-manieth sample, beginning with `place`."""


def shares_of(shard_count: int, part: Part, key: int | None) -> list[ShardShare]:
    """Return what a part reads in an epoch, in order.

    All shards are put in random order first; then every part takes one, and again, while there are enough for all.
    Those left over, or all if there are fewer shards than parts, are each read by several parts.
    """
    number, count = part
    places = np.arange(shard_count)
    order: list[int] = (places if key is None else Bijection(shard_count, key)(places)).tolist()
    whole = shard_count - shard_count % count
    own = [ShardShare(shard) for shard in order[number:whole:count]]
    left = order[whole:]
    if left:
        shared = number % len(left)
        every = (count - shared + len(left) - 1) // len(left)
        own.append(ShardShare(left[shared], number // len(left), every))
    return own


_BEGINNING: dict[str, Any] = {"share": 0, "offset": 0, "ordinal": 0, "number": 0, "last": [-1, -1]}
"""Where to read on: the shard, by its place in this part's order; where in it, and which sample that is; the number of
that sample in the pass; and what was given out last."""


class TarPass(ResumablePass[RawSample]):
    """One pass over the shards of a part.

    After an exception it goes on with the next sample if one could not be decoded, with the next shard if one could not
    be read.
    """

    _name = "tar shards"
    _words: Mapping[str, str] = {**ResumablePass._words, "shards": "shards (number and checksum of names)"}

    def __init__(self, stream: TarStream, part: Part) -> None:
        super().__init__(part, stream.transform)
        self._stream = stream
        self._epoch = stream.epoch
        self._start = _BEGINNING
        self._reader: _Reader | None = None

    def _take(self) -> RawSample:
        if self._reader is None:
            self._reader = _Reader(self._stream, self._part, self._epoch, self._start)
        raw = self._reader.next()
        if raw is None:
            raise StopIteration
        return raw

    def _make(self, item: RawSample) -> Any:
        return self._stream.form.build(item.data, item.names)

    def _position(self) -> dict[str, Any]:
        return {**(self._start if self._reader is None else self._reader.state()), "epoch": self._epoch}

    def _options(self) -> dict[str, Any]:
        stream = self._stream
        # With another signature they are the same shards.
        names = "\n".join(identity_of(shard) if protocol_of(shard) else shard for shard in stream.shards)
        return {
            "seed": stream.seed,
            "shuffle": stream.shuffle,
            "buffer": stream.buffer,
            "shards": [len(stream.shards), zlib.crc32(names.encode("utf-8", "surrogateescape"))],
        }

    def _enter(self, state: dict[str, Any]) -> None:
        self._epoch = state["epoch"]
        self._start = {name: state[name] for name in _BEGINNING}
        self._reader = None


class _Reader:
    """Reads, holds back, gives out."""

    def __init__(self, stream: TarStream, part: Part, epoch: int, begin: dict[str, Any]) -> None:
        key = epoch_key(stream.seed, epoch)
        self._stream = stream
        self._shares = shares_of(len(stream.shards), part, mix(key, 0) if stream.shuffle else None)
        self._buffer: ShuffleBuffer[tuple[int, int, RawSample]] = ShuffleBuffer(
            mix(mix(key, 1), part[0]), max(1, stream.buffer), begin["number"], tuple(begin["last"])
        )
        self._share = begin["share"]
        """The place of the shard that is being read, or is next."""
        self._skip_to = (begin["offset"], begin["ordinal"])
        shards = [stream.shards[share.shard] for share in self._shares[self._share :]]
        starts = [begin["offset"], *[0] * len(shards)]
        reading = stream.reading
        self._ahead = Ahead(
            stream.open,
            zip(shards, starts, strict=False),
            depth=reading.depth(shards),
            chunk_bytes=reading.chunk_bytes(shards),
        )
        self._grouping: Grouping | None = None
        self._enters: Callable[[], bool] = bool
        self._blob: Blob | None = None
        self._ended = self._share >= len(self._shares)

    def next(self) -> RawSample | None:
        buffer = self._buffer
        while not buffer.is_ready(ended=self._ended):
            if self._ended:
                return None
            raw = self._read()
            if raw is not None:
                buffer.add((self._share, raw.start if self._enters() else 0, raw))
        return buffer.take(ended=self._ended)[2]

    def _read(self) -> RawSample | None:
        """Read a sample; None if a shard has ended."""
        try:
            if self._grouping is None:
                self._grouping = self._open()
            raw = self._grouping.next()
            if raw is None and self._blob is not None:
                self._blob.check()
        except Exception:
            self._go_on()
            raise
        if raw is None:
            self._go_on()
        return raw

    def _go_on(self) -> None:
        self._grouping = self._blob = None
        self._share += 1
        self._skip_to = (0, 0)
        if self._share >= len(self._shares):
            self._ended = True
            self._ahead.close()

    def _open(self) -> Grouping:
        blob = self._blob = self._ahead.next_blob()
        assert blob is not None
        share, (offset, ordinal) = self._shares[self._share], self._skip_to
        members = self._members(blob, offset)
        selection = Selection(self._stream.form.wanted, share.place, share.every)
        unique, begun = self._stream.reading.unique_keys, ordinal if offset else 0
        grouping = Grouping(members, blob.name, selection, ordinal=begun, unique=unique)
        grouping.skip_to(ordinal)  # if it could not be entered where it was left
        return grouping

    def _members(self, blob: Blob, offset: int) -> Members:
        reading, ahead = self._stream.reading, self._ahead
        head = ahead.next_chunk()
        packing = None if offset else packing_of(head)
        chunks = itertools.chain([head], iter(ahead.next_chunk, b""))
        next_chunk = functools.partial(next, chunks, b"")
        self._enters = bool
        if packing is not None:
            unpacking = Unpacking(packing, next_chunk, blob.name)
            return Members(Bytes(unpacking.next_chunk), blob.name, size=None, limit=reading.max_field_bytes)
        limit = None if blob.is_local else reading.max_field_bytes  # a server may claim any size
        members = Members(Bytes(next_chunk, offset), blob.name, size=blob.size, limit=limit)
        self._enters = lambda: members.can_be_entered
        return members

    def state(self) -> dict[str, Any]:
        buffer = self._buffer
        oldest = buffer.oldest()
        if oldest is not None:
            number, (share, offset, raw) = oldest
            ordinal = raw.ordinal
        else:
            number, share = buffer.number, self._share
            offset, ordinal = self._skip_to
            if self._grouping is not None:
                offset, ordinal = (self._grouping.start if self._enters() else 0), self._grouping.ordinal
        return {"share": share, "offset": offset, "ordinal": ordinal, "number": number, "last": list(buffer.last)}
