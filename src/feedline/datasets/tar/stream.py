"""Reads shards from beginning to end."""

from __future__ import annotations

import functools
import heapq
import itertools
import operator
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.abc.source import Reshardable
from feedline.datasets.passes import Epochs, Part, PartedStream, ResumablePass
from feedline.datasets.remote.ahead import Ahead
from feedline.datasets.remote.blob import Blob, Version
from feedline.datasets.remote.disk_cache import name_of
from feedline.datasets.remote.foresight import Foresight, Readers
from feedline.datasets.remote.storage import Storage, protocol_of
from feedline.datasets.source import Transform, checked_count, checked_flag, checked_transform
from feedline.datasets.tar.form import TarForm
from feedline.datasets.tar.grouping import Grouping, RawSample, Selection
from feedline.datasets.tar.members import Bytes, Members
from feedline.datasets.tar.packed import Unpacking, packing_of
from feedline.datasets.tar.shards import Reading
from feedline.datasets.tar.shares import ShardShare, read, resharded, shares_of
from feedline.randomness.bijection import Bijection
from feedline.randomness.keys import epoch_key, mix, mix_array
from feedline.system.handle import Handle
from feedline.types import State
from feedline.types.ranks import local_rank_count
from feedline.types.shown import identity_of

T = TypeVar("T")

Release = tuple[int, int]
"""The place at which a sample is released, and its number."""


class ShuffleBuffer(Generic[T]):
    """A shuffle buffer whose content depends only on its position.

    Sample i of a stream is delayed by a random number of places below `width`, which depends only on the key and i.
    Samples are released in the order of i + delay. So a sample moves by at most `width` places, and about half of
    `width` samples are held at any time. One pair of numbers records what was released: everything up to the last
    release. To rebuild a buffer, read again from its oldest sample, at most `width` back, and skip what was released.

    Args:
        key: determines the delays.
        width: the longest delay, plus one; 1 for no delay.
        first: the number of the first sample that will be added.
        last: the last release before the buffer was rebuilt: samples up to it are skipped.
    """

    def __init__(self, key: int, width: int, first: int = 0, last: Release = (-1, -1)) -> None:
        self._key = key
        self._width = width
        self.number = first
        """Number of the next sample to add."""
        self.last = last
        self._heap: list[Release] = []
        self._held: dict[int, T] = {}
        """Samples by number, in the order in which they were added."""

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
        """True if the next sample is known: no sample added later can precede it."""
        return bool(self._heap) and (ended or self._heap[0][0] <= self.number)

    def take(self, *, ended: bool) -> T:
        """Release the next sample; only call this if `is_ready`."""
        assert self.is_ready(ended=ended)
        self.last = heapq.heappop(self._heap)
        return self._held.pop(self.last[1])

    def came(self, first: int, end: int | None) -> NDArray[np.bool_]:
        """Return whether each sample from `first` to `end` was released; `end` defaults to the last release."""
        numbers = np.arange(first, self.last[0] + 1 if end is None else end)
        releases = numbers + (mix_array(self._key, numbers) % np.uint64(self._width)).astype(np.int64)
        came: NDArray[np.bool_] = (releases < self.last[0]) | ((releases == self.last[0]) & (numbers <= self.last[1]))
        return came

    def oldest(self) -> tuple[int, T] | None:
        """Return the number of the oldest held sample, and the sample; None if the buffer is empty."""
        return next(iter(self._held.items()), None)


def shuffled(count: int, seed: int, epoch: int, homes: int = 1) -> list[int]:
    """Return shards in a random order in which turn t has a shard of home t modulo `homes`.

    The homes divide the shards among them, the same way in every epoch. Rank r takes the turns r, r + ranks, ..., so a
    rank with a home of its own reads the same shards in every epoch.

    Example:
        >>> first, second = (shuffled(8, 0, epoch, homes=2) for epoch in (0, 1))
        >>> first != second, set(first[::2]) == set(second[::2])
        (True, True)
    """
    key = mix(epoch_key(seed, epoch), 0)
    if homes == 1:
        return _listed(_shuffled(np.arange(count), key))
    order = _shuffled(np.arange(count), mix(seed, homes))
    for home in range(min(homes, count)):
        order[home::homes] = _shuffled(order[home::homes], mix(key, home))
    return _listed(order)


def _order(count: int, seed: int | None, homes: int, epoch: int) -> list[int]:
    return list(range(count)) if seed is None else shuffled(count, seed, epoch, homes)


def _listed(order: NDArray[np.int64]) -> list[int]:
    found: list[int] = order.tolist()
    return found


def _shuffled(items: NDArray[np.int64], key: int) -> NDArray[np.int64]:
    found: NDArray[np.int64] = items[Bijection(len(items), key)(np.arange(len(items)))]
    return found


class TarStream(PartedStream, Epochs, Reshardable):
    """An iterable dataset of the samples in shards; `TarDataset.stream` makes it."""

    _here: int | None = None
    """Ranks on the machine of the process that pickled this: a worker elsewhere may not know."""

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
        sticky: bool | None = None,
        versions: Mapping[str, Version],
    ) -> None:
        super().__init__()
        self.shards = shards
        self.form = form
        self.reading = reading
        self.transform = checked_transform(transform)
        self.shuffle = checked_flag("shuffle", shuffle)
        self.buffer = checked_count("buffer", buffer, 0) * shuffle
        self.seed = operator.index(seed)
        self.sticky = None if sticky is None else checked_flag("sticky", sticky)
        self._versions = versions
        """The versions that shards must have; of those that are missing, any will do."""
        self._storage: Handle[Storage] = Handle(reading.open_storage, Storage.close)

    def __iter__(self) -> TarPass:
        return TarPass(self, self._part())

    # Any: states may come from anywhere.
    def reshard(self, left: Mapping[int, Any], count: int, into: int, epoch: int) -> list[Any]:
        rest: list[ShardShare] = []
        for number, state in left.items():
            part = TarPass(self, (number, count))
            part.load_state_dict(part.state_dict() | {"epoch": epoch} if state is None else state)
            rest += part.left()
        homes = max((state["homes"] for state in left.values() if state is not None), default=self.homes)
        state = {**TarPass(self, (0, into)).state_dict(), "epoch": epoch, "homes": homes}
        return [
            {**state, **beginning, "part": [number, into]} for number, beginning in enumerate(resharded(rest, into))
        ]

    @property
    def homes(self) -> int:
        """Groups of shards that stay apart: one for each rank if the stream is sticky, otherwise one.

        All ranks must agree on it, so it follows from what all of them know: whether there are several machines.
        """
        ranks = self._place()[1][1]
        is_sticky = self.sticky
        if is_sticky is None:
            is_sticky = self.reading.shard_cache is not None and ranks > self._ranks_here()
        return ranks if is_sticky and self.shuffle else 1

    def _ranks_here(self) -> int:
        return self._here or local_rank_count()

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_here": self._ranks_here()}

    def order(self, epoch: int, homes: int = 1) -> list[int]:
        """Return the shards in the order of an epoch, which all parts share."""
        return self._orders(homes)(epoch)

    def _orders(self, homes: int) -> Callable[[int], list[int]]:
        """Return what gives the order of an epoch, without a reference to this stream: a cache keeps it."""
        return functools.partial(_order, len(self.shards), self.seed if self.shuffle else None, homes)

    @functools.cached_property
    def checksum(self) -> int:
        """Checksum of the names of all shards."""
        # A shard with another signature in its address is the same shard.
        names = "\n".join(identity_of(shard) if protocol_of(shard) else shard for shard in self.shards)
        return zlib.crc32(names.encode("utf-8", "surrogateescape"))

    @property
    def hands_on_images(self) -> bool:
        """As `Source.hands_on_images`."""
        return getattr(self.transform, "defers", False)

    def open(self, address: str, foresight: Foresight | None = None) -> Blob:
        """Open a shard; called by threads."""
        return self._storage.get().open(address, self._versions.get(address), foresight)

    def foresight(self, epoch: int, part: Part, homes: int = 1, *, shared: bool = False) -> Foresight | None:
        """Return when shards are needed next, as a part sees it; None if none are cached."""
        if self.reading.shard_cache is None:
            return None
        _, (_, ranks) = self._place()
        readers = Readers(*part, ranks if part[1] % ranks == 0 else 1, self._ranks_here())
        return Foresight(list(map(name_of, self.shards)), self._orders(homes), epoch, readers, shared=shared)

    def close(self) -> None:
        """Close the connections of this process. They are reopened when needed."""
        self._storage.close()

    def __repr__(self) -> str:
        sticky = "" if self.sticky is None else f", sticky={self.sticky}"
        shuffle = f", shuffle=True, buffer={self.buffer}, seed={self.seed}{sticky}" if self.shuffle else ""
        transform = "" if self.transform is None else f", transform={self.transform!r}"
        return f"TarStream({len(self.shards)} shards, each sample {self.form!r}{shuffle}{transform})"


_BEGINNING: dict[str, Any] = {"share": 0, "offset": 0, "ordinal": 0, "number": 0, "last": [-1, -1], "begun": []}
"""Where to resume: the shard, by its place in this part's order; the offset in it, and the ordinal of the sample there;
the number of that sample in the pass; the last release; and the first sample numbers of the later shards already
started."""


class TarPass(ResumablePass[RawSample]):
    """One pass over the shards of a part.

    After an exception it continues with the next sample if one could not be decoded, or with the next shard if one
    could not be read.
    """

    _name = "tar shards"
    _words: Mapping[str, str] = {**ResumablePass._words, "shards": "shards (number and checksum of names)"}

    def __init__(self, stream: TarStream, part: Part) -> None:
        super().__init__(part, stream.transform)
        self._stream = stream
        self._epoch = stream.epoch
        self._start = _BEGINNING
        self._homes = stream.homes
        self._units: list[list[Any]] | None = None
        """The shares of this part, in the form of a state, if it continues an epoch that other parts started."""
        self._reader: _Reader | None = None

    def _take(self) -> RawSample:
        if self._reader is None:
            is_resharded = self._units is not None
            foresight = self._stream.foresight(self._epoch, self._part, self._homes, shared=is_resharded)
            order, shares = self._stream.order(self._epoch, self._homes), self._shares()
            self._reader = _Reader(self._stream, order, shares, self._buffer(), self._start, foresight)
        raw = self._reader.next()
        if raw is None:
            raise StopIteration
        return raw

    def _shares(self) -> list[ShardShare]:
        count = len(self._stream.shards)
        return shares_of(count, self._part) if self._units is None else read(self._units, count)

    def _buffer(self) -> ShuffleBuffer[Any]:
        key = mix(mix(epoch_key(self._stream.seed, self._epoch), 1), self._part[0])
        start = self._start
        return ShuffleBuffer(key, max(1, self._stream.buffer), start["number"], tuple(start["last"]))

    def left(self) -> list[ShardShare]:
        """Return what remains to be read after the loaded state, by any part."""
        start, shares, buffer = self._start, self._shares(), self._buffer()
        first = start["share"]
        firsts = [start["number"], *start["begun"]][: len(shares) - first]
        shares[first : first + 1] = [
            replace(share, offset=start["offset"], ordinal=start["ordinal"]) for share in shares[first : first + 1]
        ]
        begun = []
        for share, number, end in zip(shares[first:], firsts, [*firsts[1:], None], strict=False):
            came = buffer.came(number, end)
            if end is None or not came.all():
                begun.append(share.without(came))
        return begun + shares[first + len(firsts) :]

    def _name_of(self, item: RawSample) -> str:
        return f"sample {item.data['__key__']!r} in {item.data['__url__']}"

    def _make(self, item: RawSample) -> object:
        return self._stream.form.build(item.data, item.names)

    def _position(self) -> dict[str, object]:
        position = self._start if self._reader is None else self._reader.state()
        units, share = self._units, position["share"]
        while units and share and len(units[0]) > 3:  # shards that others had started are the largest part of a state
            units, share = units[1:], share - 1
        return {**position, "share": share, "epoch": self._epoch, "homes": self._homes, "units": units}

    def _options(self) -> dict[str, object]:
        stream = self._stream
        return {
            "seed": stream.seed,
            "shuffle": stream.shuffle,
            "buffer": stream.buffer,
            "shards": [len(stream.shards), stream.checksum],
        }

    def _enter(self, state: State) -> None:
        self._epoch = state["epoch"]
        self._start = {name: state[name] for name in _BEGINNING}
        self._homes = state["homes"]
        self._units = state["units"]
        self._reader = None


class _Reader:
    """Reads samples, buffers them and releases them."""

    def __init__(
        self,
        stream: TarStream,
        order: list[int],
        shares: list[ShardShare],
        buffer: ShuffleBuffer[tuple[int, int, RawSample]],
        begin: State,
        foresight: Foresight | None,
    ) -> None:
        self._stream = stream
        self._shares = shares
        self._foresight = foresight
        self._buffer = buffer
        self._share = begin["share"]
        """Place of the shard being read, or of the next one."""
        self._begun: dict[int, int] = {}
        """First sample number of each started shard, by place, for shards with samples in the buffer."""
        self._skip_to = (begin["offset"], begin["ordinal"])
        shards = [stream.shards[order[share.turn]] for share in shares[self._share :]]
        starts = [begin["offset"], *(share.offset for share in shares[self._share + 1 :])]
        reading = stream.reading
        self._ahead = Ahead(
            functools.partial(stream.open, foresight=foresight),
            zip(shards, starts, strict=False),
            depth=reading.depth(shards),
            chunk_bytes=reading.chunk_bytes(shards),
            most=reading.most_depth(shards),
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
            if raw is not None and raw.ordinal not in self._shares[self._share].came:
                buffer.add((self._share, raw.start if self._enters() else 0, raw))
        return buffer.take(ended=self._ended)[2]

    def _read(self) -> RawSample | None:
        """Read a sample; None at the end of a shard."""
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
        if self._share >= len(self._shares):
            self._skip_to = (0, 0)
            self._ended = True
            self._ahead.close()
            return
        share = self._shares[self._share]
        self._skip_to = (share.offset, share.ordinal)
        self._begun[self._share] = self._buffer.number

    def _open(self) -> Grouping:
        blob = self._blob = self._ahead.next_blob()
        assert blob is not None
        share, (offset, ordinal) = self._shares[self._share], self._skip_to
        if self._foresight is not None:
            self._foresight.turn = share.turn
        members = self._members(blob, offset)
        selection = Selection(self._stream.form.wanted, share.place, share.every)
        unique, begun = self._stream.reading.unique_keys, ordinal if offset else 0
        grouping = Grouping(members, blob.name, selection, ordinal=begun, unique=unique)
        grouping.skip_to(ordinal)  # if reading could not start where it stopped
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

    def state(self) -> State:
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
        self._begun = {place: first for place, first in self._begun.items() if place > share}
        return {
            "share": share,
            "offset": offset,
            "ordinal": ordinal,
            "number": number,
            "last": list(buffer.last),
            "begun": list(self._begun.values()),
        }
