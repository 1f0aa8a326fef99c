"""Where the samples of a shard are: found by reading its headers once, and cached on disk.

`feedline pack` writes the index of each shard beside the shards. Such an index is read when its shard is first used.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.formats.tar.grouping import Grouping
from feedline.datasets.formats.tar.members import NO_SUM, Members
from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.datasets.framework.checksums import Compared
from feedline.datasets.framework.file_index import entry_of, kept_index
from feedline.datasets.framework.shards import Found
from feedline.datasets.framework.store import Cache, Entry
from feedline.datasets.storage.addresses import identity_of, shown_address
from feedline.datasets.storage.blob import Blob, Version
from feedline.datasets.storage.content import ByteReader, packing_of
from feedline.datasets.storage.ranges import side_by_side
from feedline.datasets.storage.storage import Storage, local_path, protocol_of
from feedline.errors import BadOption, CorruptSource
from feedline.memory.sharing import records
from feedline.system.handle import Handle
from feedline.types import JsonObject

_FORMAT = 4
_MOST_INDEX = 1 << 30
"""Largest index of one shard, in bytes: a damaged file may claim any size."""
_HELD = 1 << 28
"""Bytes of indices that a process holds, of those that can be read again. About four million samples."""
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class ShardIndex:
    """The samples of one shard. Their fields are stored consecutively, those of sample i from `first[i]` on."""

    size: int
    tag: str
    names: list[str]
    """Names of fields."""
    keys: NDArray[np.uint8]
    """Keys of samples, one after the other, in UTF-8."""
    key_ends: Numbers
    first: Numbers
    fields: Numbers
    """Positions in `names`."""
    offsets: Numbers
    sizes: Numbers
    has_sum: NDArray[np.bool_]
    """Which fields have a checksum; empty if none has."""
    sums: NDArray[np.uint32]
    """Checksums; empty if no field has one."""

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.key_ends)

    @classmethod
    def of(cls, kept: JsonObject) -> ShardIndex:
        """Return the index whose `vars` were cached.

        Raises TypeError, ValueError, LookupError or AttributeError: they are damaged.
        """
        found = cls(**kept)
        ends, places = (found.key_ends, len(found.keys)), (found.first, len(found.fields))
        for numbers, last in (ends, places):
            if (np.diff(numbers) < 0).any() or (len(numbers) and (numbers[0] < 0 or numbers[-1] != last)):
                raise ValueError("its numbers do not follow each other")
        columns = (found.fields, found.offsets, found.sizes, *((found.has_sum, found.sums) if len(found.sums) else ()))
        if len(found.first) != found.count + 1 or len({len(column) for column in columns}) != 1:
            raise ValueError("its columns have different lengths")
        if (found.has_sum.dtype.str, found.sums.dtype.str) != ("|b1", "<u4") or len(found.has_sum) != len(found.sums):
            raise ValueError("its checksums are of another type or number")
        if len(found.fields) and not 0 <= found.fields.min() <= found.fields.max() < len(found.names):
            raise ValueError("a field has no name")
        if (found.offsets < 0).any() or (found.sizes < 0).any() or (found.offsets > found.size - found.sizes).any():
            raise ValueError("a field lies outside of its shard")
        return found


def encode(index: ShardIndex, crc32: int) -> bytes:
    """Return the index of a shard with this checksum as bytes, to be stored beside it."""
    columns = {name: _narrow(value) for name, value in vars(index).items()}
    content = zlib.compress(records.encode({**columns, "tag": f"{crc32:08x}"}))
    return content + struct.pack("<I", zlib.crc32(content))


def _narrow(value: object) -> object:
    """Return integers in the smallest type that holds them."""
    if not isinstance(value, np.ndarray) or value.dtype != np.int64:
        return value
    return value.astype(np.min_scalar_type(int(value.max(initial=0))))


def decode(content: bytes, size: int, crc32: int) -> ShardIndex | None:
    """Return the index of a shard of this size and checksum; None if it is damaged, or belongs to another shard."""
    if len(content) < 4 or struct.unpack("<I", content[-4:])[0] != zlib.crc32(memoryview(content)[:-4]):
        return None
    unpacker = zlib.decompressobj()
    try:
        kept = records.decode(unpacker.decompress(memoryview(content)[:-4], _MOST_INDEX))
        wide = {
            name: value.astype(np.int64) if isinstance(value, np.ndarray) and name in _NUMBERS else value
            for name, value in kept.items()
        }
        found = ShardIndex.of(wide)
    except (ArithmeticError, AttributeError, CorruptSource, LookupError, TypeError, ValueError, zlib.error):
        return None
    return found if (found.size, found.tag) == (size, f"{crc32:08x}") and unpacker.eof else None


_NUMBERS = ("key_ends", "first", "fields", "offsets", "sizes")


class Seeking(ByteReader):
    """The bytes of a blob, for a reader that skips most of them."""

    def __init__(self, blob: Blob, window: int) -> None:
        super().__init__(bytes)
        self._blob = blob
        self._window = window

    def take(self, count: int) -> bytes:
        if self._used + count > len(self._piece):
            start = self.offset
            stop = min(self._blob.size, start + max(count, self._window))
            self._piece = self._blob.read(start, stop) if start < stop else b""
            self._base, self._used = start, 0
        data = self._piece[self._used : self._used + count]
        self._used += len(data)
        return data

    def skip(self, count: int) -> int:
        found = min(count, max(0, self._blob.size - self.offset))
        self._used += found
        if self._used > len(self._piece):
            self._base, self._used, self._piece = self.offset, 0, b""
        return found


def scan(blob: Blob, *, unique: bool) -> ShardIndex:
    """Build the index of a shard by reading its headers.

    Raises CorruptSource: it is damaged, or a field or a key occurs twice; BadOption: it is compressed.
    """
    packing = packing_of(blob.read(0, min(8, blob.size)))
    if packing is not None:
        raise BadOption(
            f"{blob.name} is compressed as a whole ({packing}), so that a sample in the middle cannot be read without "
            "all before it. Use .stream(), or unpack the shards: what is in them is usually compressed already."
        )
    # Headers are every few KB; over a network, reading a window costs less than a request for each.
    members = Members(Seeking(blob, 1 << 13 if blob.is_local else 1 << 20), blob.name, size=blob.size, limit=None)
    grouping = Grouping(members, blob.name, unique=unique, take=attrgetter("offset", "size", "checksum"))
    names: dict[str, int] = {}
    keys: list[bytes] = []
    first, fields = [0], list[tuple[int, int, int, int]]()
    while (raw := grouping.next()) is not None:
        keys.append(raw.data.pop("__key__").encode("utf-8", "surrogateescape"))
        del raw.data["__url__"]
        fields += [(names.setdefault(name, len(names)), *place) for name, place in raw.data.items()]
        first.append(len(fields))
    blob.check()
    columns = np.array(fields, np.int64).reshape(-1, 4)
    has_sum = columns[:, 3] != NO_SUM
    if not has_sum.any():
        has_sum = has_sum[:0]
    return ShardIndex(
        blob.size,
        blob.tag,
        list(names),
        np.frombuffer(b"".join(keys), np.uint8),
        np.cumsum([len(key) for key in keys], dtype=np.int64),
        np.array(first, np.int64),
        fields=np.ascontiguousarray(columns[:, 0]),
        offsets=np.ascontiguousarray(columns[:, 1]),
        sizes=np.ascontiguousarray(columns[:, 2]),
        has_sum=has_sum,
        sums=columns[: len(has_sum), 3].astype(np.uint32),
    )


def index_of(blob: Blob, cache: Cache, *, unique: bool) -> ShardIndex:
    """Return the index of a shard: the cached one if it is still valid, or a new one, which is then cached.

    Raises CorruptSource: the shard is damaged.
    """
    entry = entry_of(blob, cache, "tar-index", unique, _FORMAT)
    return kept_index(entry, ShardIndex.of, partial(scan, blob, unique=unique))


@dataclass(frozen=True)
class Unread:
    """What a manifest says of a shard whose index is read when it is needed."""

    version: Version
    """With an empty tag if only the size is known."""
    count: int
    sum_count: int
    names: list[str]


class Index:
    """The indices of all shards, one after the other.

    Args:
        shards: the index of each shard, or what is known of it.
        load: returns the index of a shard, given its number; called by threads.
    """

    def __init__(self, shards: Sequence[ShardIndex | Unread], load: Callable[[int], ShardIndex] | None = None) -> None:
        self._shards = shards
        self._load = load
        self._loaded = BoundedCache[int, ShardIndex](_HELD)
        self.starts: Numbers = np.cumsum([0, *(shard.count for shard in shards)], dtype=np.int64)
        """The number of the first sample of each shard, and the total."""
        self.names = list(dict.fromkeys(name for shard in shards for name in shard.names))
        sums = (shard.sum_count if isinstance(shard, Unread) else len(shard.sums) for shard in shards)
        self._sums_from = np.cumsum([0, *sums]).tolist()
        """The number of the first checksum of each shard, and the total."""
        self._compared = Compared(self._sums_from[-1])
        """Which checksums have been compared."""

    def __len__(self) -> int:
        return len(self._shards)

    def shard(self, number: int) -> ShardIndex:
        """Return the index of a shard. Raises what `load` raises."""
        found, load = self._shards[number], self._load
        if not isinstance(found, Unread):
            return found
        assert load is not None

        def make() -> tuple[ShardIndex, int]:
            made = load(number)
            return made, sum(value.nbytes for value in vars(made).values() if isinstance(value, np.ndarray))

        return self._loaded.load(number, make)

    def version(self, number: int) -> tuple[Version, bool]:
        """Return the version that a shard must have, and whether a manifest says so."""
        found = self._shards[number]
        if isinstance(found, Unread):
            return found.version, True
        return Version(found.size, found.tag), False

    def prepare(self, numbers: Iterable[int], requests: int) -> None:
        """Read indices that are missing, several at a time."""
        missing = [
            number
            for number in numbers
            if isinstance(self._shards[number], Unread) and self._loaded.get(number) is None
        ]
        side_by_side(self.shard, missing, requests)

    def key(self, shard: int, place: int) -> str:
        one = self.shard(shard)
        start = one.key_ends[place - 1] if place else 0
        return one.keys[start : one.key_ends[place]].tobytes().decode("utf-8", "surrogateescape")

    def fields(self, shard: int, place: int) -> list[tuple[int, str, int, int, int]]:
        """Return the fields of a sample: number in the shard, name, offset, size, and checksum.

        The checksum is -1 if there is none, or it has already been compared.
        """
        one = self.shard(shard)
        first, stop = int(one.first[place]), int(one.first[place + 1])
        names, own = one.names, slice(first, stop)
        return [
            (number, names[name], offset, size, checksum)
            for number, name, offset, size, checksum in zip(
                range(first, stop),
                one.fields[own].tolist(),
                one.offsets[own].tolist(),
                one.sizes[own].tolist(),
                self._to_compare(shard, own),
                strict=True,
            )
        ]

    def _to_compare(self, shard: int, fields: slice) -> list[int]:
        """Return the checksums of some fields; -1 for those without one, or already compared."""
        one = self.shard(shard)
        if not len(one.sums):
            return [NO_SUM] * (fields.stop - fields.start)
        begin = self._sums_from[shard]
        wanted = one.has_sum[fields] > self._compared.flags[begin + fields.start : begin + fields.stop]
        return [
            checksum if is_wanted else NO_SUM
            for checksum, is_wanted in zip(one.sums[fields].tolist(), wanted.tolist(), strict=True)
        ]

    def note_compared(self, shard: int, number: int) -> None:
        """Record that a field's checksum matched: no process that shares the flags compares it again."""
        self._compared.flags[self._sums_from[shard] + number] = True


class PackedIndexes:
    """The indexes that were packed with shards; each is read when it is needed.

    Args:
        shards: addresses of all shards.
        found: the manifests beside them.
        storage: opens shards and indexes.
        cache: whether and where indexes from stores are kept, as the option of `TarDataset`.
        unique_keys: as the option of `TarDataset`.
    """

    def __init__(
        self, shards: Sequence[str], found: Found, storage: Handle[Storage], cache: Cache, *, unique_keys: bool
    ) -> None:
        self._shards = shards
        self._found = found
        self._unique_keys = unique_keys
        self._cache = cache
        self._storage = storage

    def announced(self, shard: str) -> Unread | None:
        """Return what a manifest says of a shard; None if there is none, or a local shard was replaced."""
        packed = self._found.packed(shard)
        if packed is None:
            return None
        manifest, entry = packed
        names = manifest.stored.get("members")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return None
        if not protocol_of(shard) and os.path.getsize(local_path(shard)) != entry.bytes:
            return None
        version = manifest.version_of(entry) or Version(entry.bytes, "")
        return Unread(version, entry.samples, entry.samples * len(manifest.stored["fields"]), names)

    def read(self, number: int) -> ShardIndex:
        """Return the index of a shard that was announced, from this machine's cache if it is there.

        If it is missing or damaged, read the headers of the shard instead. Raises CorruptSource: the shard has another
        number of samples than the manifest says.
        """
        shard = self._shards[number]
        packed = self._found.packed(shard)
        assert packed is not None
        manifest, entry = packed
        storage, own = self._storage.get(), None
        if protocol_of(shard):
            own = Entry.within(self._cache, "tar-index", ["packed", identity_of(shard)], f"{entry.bytes}-{entry.crc32}")
        content = None if own is None else own.load(bytes)
        if content is None:
            content = storage.contents(manifest.index_of(entry))
            if own is not None and content is not None:
                own.save(content)
        found = None if content is None else decode(content, entry.bytes, entry.crc32)
        if found is None:
            with closing(storage.open(shard, manifest.version_of(entry))) as blob:
                found = scan(blob, unique=self._unique_keys)
        if found.count != entry.samples:
            raise CorruptSource(
                f"{shown_address(shard)} has {found.count} samples, but {entry.samples} were packed. Get another copy, "
                "or pack it again."
            )
        return found
