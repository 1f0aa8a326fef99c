"""Samples as bytes, each under its index, in memory or in a file that several processes share.

    head, 4096 bytes | an entry of 32 bytes per index | the bytes of the samples, one after the other

A sample is written once and stays: nothing is moved, evicted or overwritten until the whole store is emptied. Writers
hold the lock, readers do not. A writer killed at any moment leaves unused space, or an entry with a wrong checksum. The
checksum covers the bytes, the entry, the index and the fingerprint. A sample that passes it was stored under this index
for this dataset, regardless of the order in which memory or disk saw the writes, and also after a power failure, when
the head may be older than the entries.

A process that creates or empties a store gives it a new generation, a random number, before samples are overwritten.
Processes that opened an older generation then see no samples and no room until they open the store again. In memory,
where each process checks a sample only once, a reader compares the generation before and after it copies a sample. On
disk, where the checksum is compared every time, it does so only to distinguish an emptied store from damage.

The file may be replaced by another store of the same name. Programs that have the old one open keep using it; processes
that open the name again, such as workers, see another generation.
"""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import struct
import zlib
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.derived.cache.shared_bytes import NUMBER, SharedBytes, SharedFile, SharedMemory
from feedline.datasets.framework.store import check_own
from feedline.errors import BadOption, CorruptSource, SourceError
from feedline.memory.sharing import records

FORMAT = 2

_HEAD = struct.Struct("<8sIIQ32s")
"""Magic, format, checksum of the rest, number of indices, fingerprint."""
_MAGIC = b"FDLVAULT"
_NEXT, _STORED, _GENERATION, _WHOLE = 128, 136, 144, 152
_ENTRY = struct.Struct("<QQII8x")
"""Place, size, 1 for a record or 2 for a pickle, checksum."""
_NO_ENTRY = bytes(_ENTRY.size)
_HEAD_BYTES = 4096
_OWN = struct.Struct("<QQQI")


class Encoded(NamedTuple):
    """A sample as bytes: a record, or a pickle."""

    data: bytes | bytearray | memoryview
    is_pickle: bool = False


def encode(sample: object, *, pickles: bool) -> Encoded:
    """Return a sample as bytes. Raises NotARecord: a record cannot hold it, and `pickles` is False."""
    try:
        return Encoded(records.encode(sample))
    except records.NotARecord as exc:
        if not pickles:
            raise records.NotARecord(
                f"{exc} Or pass pickle=True: anyone who can write to the store can then run code in your program."
            ) from None
    return Encoded(pickle.dumps(sample, pickle.HIGHEST_PROTOCOL), is_pickle=True)


# Any: a sample of any form.
def decode(encoded: Encoded, *, pickles: bool) -> Any:
    """Return a sample.

    Arrays are writable if the bytes are a bytearray, which the caller owns; otherwise they are read-only views. Raises
    CorruptSource: these bytes are not a sample, or it was pickled and `pickles` is False.
    """
    if not encoded.is_pickle:
        return records.decode(encoded.data)
    if not pickles:
        raise CorruptSource("It was stored with pickle. If you trust the store, pass pickle=True.")
    return pickle.loads(encoded.data)


@dataclass(frozen=True)
class Head:
    """Identifies the dataset of a store."""

    fingerprint: bytes
    count: int


class SampleStore:
    """Samples as bytes in memory or in a file."""

    def __init__(self, shared: SharedBytes, *, limit: int) -> None:
        self._shared = shared
        self.limit = limit
        self._head: Head | None = None
        self._generation = 0
        """The generation that was opened."""
        self._checked: NDArray[np.bool_] | None = None
        """Which samples this process has checked; only for memory, which does not decay as disks do."""
        self.damaged: set[int] = set()
        """Samples that were found damaged; `put` replaces them."""
        self.is_full = False
        """True once this process found no room for a sample."""

    # object: as pickle defines it.
    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_checked": None}

    def head(self) -> Head | None:
        """Return the head; None if there is none, or it is damaged or of another format."""
        data = self._shared.read(0, _HEAD.size)
        if len(data) < _HEAD.size:
            return None
        magic, version, checksum, count, fingerprint = _HEAD.unpack(data)
        if magic != _MAGIC or version != FORMAT or checksum != _head_checksum(count, fingerprint):
            return None
        # There must be room for that many entries.
        return Head(fingerprint, count) if self.least_bytes(count) <= self._shared.end else None

    def open(self, head: Head) -> bool:
        """Open the store for use; create it if it is missing or damaged.

        Returns False if it belongs to another dataset. It then has no samples and no room, unless it was opened before
        and has not been emptied since.
        """
        if self.head() is None:  # otherwise do not lock: the file may be read-only
            with self.locked():
                if self.head() is None:
                    self._make(head)
        generation = self._generation_now  # read before the head, which is cleared first when a store is emptied
        if self.head() != head:
            return False
        if (self._head, self._generation) != (head, generation):
            self._adopt(head, generation)
        return True

    def empty(self, head: Head) -> None:
        """Drop all samples, and assign the store to `head`."""
        with self.locked():
            self._make(head)
            self._adopt(head, self._generation_now)

    def locked(self) -> AbstractContextManager[None]:
        """Exclude all others that create or write the store."""
        return self._shared.locked()

    def _make(self, head: Head) -> None:
        self._shared.write(0, bytes(_HEAD.size))
        self._write_number(_GENERATION, int.from_bytes(os.urandom(7), "little") + 1)
        self._write_number(_WHOLE, 0)
        start = self.least_bytes(head.count)
        self._shared.clear(_HEAD_BYTES, start)
        self._write_number(_NEXT, start)
        self._write_number(_STORED, 0)
        checksum = _head_checksum(head.count, head.fingerprint)
        self._shared.write(0, _HEAD.pack(_MAGIC, FORMAT, checksum, head.count, head.fingerprint))

    def _adopt(self, head: Head, generation: int) -> None:
        self._head = head
        self._generation = generation
        self._checked = None
        self.damaged = set()
        self.is_full = False

    def is_current(self) -> bool:
        """True if the store has not been emptied since it was opened."""
        return self._generation_now == self._generation != 0

    @staticmethod
    def least_bytes(count: int) -> int:
        """Return the size of a store before its first sample."""
        return -(-_entry_offset(count) // 4096) * 4096

    def get(self, index: int, *, view: bool = False) -> Encoded | None:
        """Return the checked sample at an index; None if it is missing, or damaged and then added to `damaged`.

        With `view`, a store in memory returns the memory itself instead of a copy: valid until the store is emptied.
        """
        memory = self._shared if isinstance(self._shared, SharedMemory) else None
        if self._head is None or index >= self._head.count or (memory is not None and not self.is_current()):
            return None
        entry = self._shared.read(_entry_offset(index), _ENTRY.size)
        if entry == _NO_ENTRY:
            return None
        found = self._found(index, entry, memory if view else None)
        if (found is None or memory is not None) and not self.is_current():
            return None
        if found is None:
            self.damaged.add(index)
        return found

    def _found(self, index: int, entry: bytearray, viewed: SharedMemory | None) -> Encoded | None:
        """Return the sample that an entry points to; None if it is damaged."""
        if len(entry) < _ENTRY.size:
            return None
        place, size, number, checksum = _ENTRY.unpack(entry)
        end = place + size
        if number not in (1, 2) or (end > self.limit and end > self._shared.number(_NEXT)):
            return None
        data: bytearray | memoryview
        if viewed is not None:
            data = viewed.view[place:end].toreadonly()
        else:
            data = self._shared.read(place, size)
        if self._checked is None or not self._checked[index]:
            assert self._head is not None
            if len(data) != size or checksum != _checksum(self._head, index, place, size, number, data):
                return None
            if isinstance(self._shared, SharedMemory):
                if self._checked is None:
                    self._checked = np.zeros(self._head.count, np.bool_)
                self._checked[index] = True
        return Encoded(data, number == 2)

    def put(self, index: int, encoded: Encoded) -> bool:
        """Store a sample; False if there is no room. Samples that others have stored meanwhile stay."""
        shared, data, number = self._shared, bytes(encoded.data), 1 + encoded.is_pickle
        again = index in self.damaged
        with self.locked():
            if self._head is None or index >= self._head.count or not self.is_current():
                return False
            if not again and any(shared.read(_entry_offset(index), _ENTRY.size)):
                return True
            place = shared.number(_NEXT)
            if place + len(data) > self.limit:
                self.is_full = True
                return False
            self._write_number(_NEXT, place + -(-len(data) // 8) * 8)
            try:
                shared.write(place, data)
            except OSError as exc:
                if exc.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                    raise
                self.is_full = True  # the disk is full, or a system limit was reached
                return False
            checksum = _checksum(self._head, index, place, len(data), number, data)
            shared.write(_entry_offset(index), _ENTRY.pack(place, len(data), number, checksum))
            self._write_number(_STORED, self.stored + (0 if again else 1))
            self.damaged.discard(index)
        return True

    def _write_number(self, offset: int, value: int) -> None:
        self._shared.write(offset, NUMBER.pack(value))

    @property
    def _generation_now(self) -> int:
        return self._shared.number(_GENERATION)

    @property
    def stored(self) -> int:
        """Number of stored samples."""
        return self._shared.number(_STORED)

    @property
    def used_bytes(self) -> int:
        """Bytes from the head to the end of the last sample."""
        return self._shared.number(_NEXT)

    @property
    def is_whole(self) -> bool:
        """True if a process has checked that every sample is present."""
        return self._shared.number(_WHOLE) == 1

    def note_whole(self) -> None:
        """Record that every sample is present and checked, after syncing them to disk."""
        assert isinstance(self._shared, SharedFile)
        self._shared.sync()
        self._write_number(_WHOLE, 1)
        self._shared.sync()

    def close(self) -> None:
        """Close what this process has opened. The next use opens it again."""
        self._shared.close()


def _head_checksum(count: int, fingerprint: bytes) -> int:
    return zlib.crc32(fingerprint, count & 0xFFFFFFFF)


def _checksum(head: Head, index: int, place: int, size: int, kind: int, data: bytes | bytearray | memoryview) -> int:
    return zlib.crc32(data, zlib.crc32(_OWN.pack(index, place, size, kind) + head.fingerprint))


def _entry_offset(index: int) -> int:
    return _HEAD_BYTES + index * _ENTRY.size


FILE = "samples.feedline"
"""The file with the samples; it also marks its folder as a store."""


def has_store(folder: Path) -> bool:
    """True if a folder holds a store, for any dataset."""
    path = folder / FILE
    return path.exists() and path.stat().st_size > 0  # empty: a process was killed before it created the store


def read_store(folder: Path) -> SampleStore:
    """Return the store in a folder, read-only; its head may be damaged."""
    return SampleStore(SharedFile(folder / FILE, readonly=True), limit=0)


def head_of(folder: Path) -> Head | None:
    """Return the head of the store in a folder; None if there is none, or it is damaged."""
    if not has_store(folder):
        return None
    with closing(read_store(folder)) as store:
        return store.head()


def refuse_whole(folder: Path) -> None:
    """Refuse a folder that holds samples stored by `feedline.precompute`. Raises BadOption: it does."""
    if not has_store(folder):
        return
    with closing(read_store(folder)) as store:
        if store.is_whole:
            raise BadOption(
                f"{folder} contains samples that feedline.precompute stored, which a cache does not delete. Give the "
                "cache a folder of its own, or remove this one if you no longer need it."
            )


def write_store(folder: Path, head: Head, limit: int | None) -> tuple[SampleStore, bool]:
    """Return the open store in a folder, which is created if needed, and whether that of another dataset was dropped.

    Programs that have the other one open keep using it. If several programs drop it at the same time, only one does.
    Raises BadOption: the folder holds other files; SourceError: it cannot be written to.

    Args:
        folder: where.
        head: of the dataset.
        limit: in bytes; None for the current size plus half of the free disk space.
    """
    dropped = False
    check_own(folder, FILE)
    try:
        if has_store(folder) and head_of(folder) != head:
            with closing(read_store(folder)) as store, store.locked():
                if has_store(folder) and head_of(folder) != head:  # otherwise another program was first
                    (empty := folder / f"{FILE}.new").touch()
                    os.replace(empty, folder / FILE)  # not removed: this file marks the folder
                    dropped = True
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).touch()
        if limit is None:
            limit = (folder / FILE).stat().st_blocks * 512 + shutil.disk_usage(folder).free // 2
    except OSError as exc:
        raise SourceError(
            f"A store of samples cannot be created in {folder}: {exc.strerror or exc}. Choose a folder that you can "
            "write to."
        ) from exc
    store = SampleStore(SharedFile(folder / FILE), limit=limit)
    store.open(head)
    return store, dropped
