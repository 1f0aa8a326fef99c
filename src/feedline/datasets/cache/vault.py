"""A vault: samples as bytes, each under its index, on a ground that several processes share.

    head, 4096 bytes | an entry of 32 bytes per index | the bytes of the samples, one after the other

A sample is written once and stays: nothing is moved, evicted or overwritten until the whole vault is emptied. So a
writer needs the lock only to get a place for its bytes; it then writes these and, last, the entry that points to them.
A writer killed at any moment leaves a place that nobody uses, or an entry whose checksum is wrong. The checksum is over
the bytes, the entry, the index and the fingerprint: what passes it is what was put there under this index for this
dataset, in whatever order memory or disk saw the writes, and also after a power failure, when the head may be older
than the entries.

A file is found by its name, and another vault may have been put there since. So the head is compared whenever the
ground was opened anew, by a worker for example. To those who find something else the vault has no samples and no room.

Why the first that come are kept, and not the last: an epoch in random order asks for every sample once, so the one that
was used last is the one that is needed last. Evicting by age throws out what is about to come and hits next to nothing;
keeping a fixed part hits that part in every epoch, which is the most that can be had.

Emptying (`empty`) counts the generation up before anything is overwritten. To those who have opened an older generation
the vault has no samples and no room from then on, until they open it again; a reader that finds this out after it has
copied a sample drops the copy.
"""

from __future__ import annotations

import errno
import struct
import zlib
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.cache.ground import NUMBER, Ground, MemoryGround

FORMAT = 2

_HEAD = struct.Struct("<8sIIQ32s")
"""Magic, format, checksum of the rest, number of indices, fingerprint."""
_MAGIC = b"FDLVAULT"
_NEXT, _STORED, _GENERATION, _WHOLE = 128, 136, 144, 152
_ENTRY = struct.Struct("<QQII8x")
"""Place, size, kind, checksum. All zero: nothing is there."""
_HEAD_BYTES = 4096
_OWN = struct.Struct("<QQQI")


class Kind(Enum):
    """How a sample was made bytes."""

    RECORD = 1
    PICKLE = 2


class Missing(Enum):
    """Why a vault has no sample."""

    ABSENT = "absent"
    DAMAGED = "damaged"


@dataclass(frozen=True)
class Found:
    """A sample as bytes."""

    kind: Kind
    data: bytearray | memoryview


@dataclass(frozen=True)
class Head:
    """What a vault is about."""

    fingerprint: bytes
    count: int


class Vault:
    """Samples as bytes on a ground.

    Args:
        ground: where.
        base: the offset at which the vault begins.
        limit: the offset at which it has to end.
        trusts: True to check a sample once per process only: memory does not decay, disks do.
    """

    def __init__(self, ground: Ground, *, base: int = 0, limit: int, trusts: bool = False) -> None:
        self._ground = ground
        self._base = base
        self.limit = limit
        self._trusts = trusts
        self._head: Head | None = None
        self._openings = 0
        """Of the ground, when the head was last compared."""
        self._is_same = False
        self._checked: NDArray[np.bool_] | None = None
        self._generation = 0
        """The one that was opened."""
        self.is_full = False
        """True once there was no room for a sample, as far as this process knows."""

    def head(self) -> Head | None:
        """Return what the vault is about; None if there is none on this ground, or a damaged or another one."""
        data = self._ground.read(self._base, _HEAD.size)
        if len(data) < _HEAD.size:
            return None
        magic, version, checksum, count, fingerprint = _HEAD.unpack(data)
        if magic != _MAGIC or version != FORMAT or checksum != _head_checksum(count, fingerprint):
            return None
        if _data_start(self._base, count) > self._ground.end:
            return None  # there is no room for so many entries
        return Head(fingerprint, count)

    def make(self, head: Head) -> None:
        """Become an empty vault. The ground is new, or this process has locked it."""
        self._write_number(_GENERATION, self.generation + 1)
        self._write_number(_NEXT, _data_start(self._base, head.count))
        self._write_number(_STORED, 0)
        self._write_number(_WHOLE, 0)
        checksum = _head_checksum(head.count, head.fingerprint)
        self._ground.write(self._base, _HEAD.pack(_MAGIC, FORMAT, checksum, head.count, head.fingerprint))
        self._adopt(head)

    def _adopt(self, head: Head) -> None:
        self._head = head
        self._openings, self._is_same = self._ground.openings, True
        self._generation = self.generation
        self._checked = None
        self.is_full = False

    def open(self, head: Head) -> bool:
        """Get ready to be used; makes the vault if there is none. False if it is about something else."""
        found = self.head()
        if found is None:
            with self._ground.locked():
                found = self.head()
                if found is None:
                    self.make(head)
                    found = head
        if found != head:
            return False
        if self._generation != self.generation or self._head != head or not self.is_same():
            self._adopt(head)
        return True

    def reopen(self, head: Head) -> None:
        """Let go of the ground, behind whose name another vault may have been put, and get ready to use what is there.

        If it is neither of this head nor of the one that was opened before, it has no samples and no room.
        """
        self._ground.close()
        if self.head() == head:
            self._adopt(head)

    def is_same(self) -> bool:
        """Return True if what lies on the ground is still what was opened."""
        openings = self._ground.openings
        if openings != self._openings:
            self._is_same = self._head is not None and self.head() == self._head
            self._openings = openings  # last: other threads rely on it
        return self._is_same

    def empty(self, head: Head) -> None:
        """Drop all samples and be about something else from now on; readers in other processes notice."""
        with self._ground.locked():
            old = self.head()
            # First of all: who has begun to read will find another generation when it is done.
            self._write_number(_GENERATION, self.generation + 1)
            self._clear_entries(max(head.count, 0 if old is None else old.count))
            self.make(head)

    def _clear_entries(self, count: int) -> None:
        piece = bytes(1 << 20)
        offset, end = self._base + _HEAD_BYTES, self._base + _HEAD_BYTES + count * _ENTRY.size
        while offset < end:
            size = min(len(piece), end - offset)
            self._ground.write(offset, piece[:size])
            offset += size

    @staticmethod
    def least_bytes(count: int) -> int:
        """Return how many bytes a vault takes before the first sample."""
        return _data_start(0, count)

    # Any: what pickle takes.
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_checked": None, "_openings": 0, "_is_same": False}

    # -- samples -----------------------------------------------------------------------------------------------------

    def get(self, index: int, *, view: bool = False) -> Found | Missing:
        """Return the sample of an index, checked.

        Args:
            index: not negative.
            view: True for the memory itself instead of a copy, on a ground that is memory. It is valid until the vault
                is emptied.
        """
        if not self.is_same() or (self._trusts and self.generation != self._generation):
            return Missing.ABSENT
        assert self._head is not None
        if self._is_beyond(index):
            return Missing.ABSENT
        entry = self._ground.read(self._entry_offset(index), _ENTRY.size)
        if len(entry) < _ENTRY.size:
            return Missing.DAMAGED
        place, size, number, checksum = _ENTRY.unpack(entry)
        if number == 0:
            return Missing.DAMAGED if any(entry) else Missing.ABSENT
        end = place + size
        if number not in _KINDS or place < self._base or (end > self.limit and end > self._next):
            return Missing.DAMAGED
        data: bytearray | memoryview
        if view and isinstance(self._ground, MemoryGround):
            data = self._ground.view(place, size)
        else:
            data = self._ground.read(place, size)
        if self._checked is None or not self._checked[index]:
            if len(data) != size or checksum != _checksum(self._head, index, place, size, number, data):
                return Missing.DAMAGED
            if self._trusts:
                if self._checked is None:
                    self._checked = np.zeros(self._head.count, np.bool_)
                self._checked[index] = True
        if self._trusts and self.generation != self._generation:
            return Missing.ABSENT
        return Found(_KINDS[number], data)

    def has(self, index: int) -> bool:
        """True if there is a sample, whole or not."""
        return any(self._ground.read(self._entry_offset(index), _ENTRY.size))

    def put(self, index: int, kind: Kind, data: bytes, *, again: bool = False) -> bool:
        """Store a sample; False if there is no room for it. What others have stored meanwhile stays.

        Args:
            index: whose sample.
            kind: how it was made bytes.
            data: the bytes.
            again: True to replace one that is damaged.
        """
        ground = self._ground
        with ground.locked():
            if not self.is_same() or self.generation != self._generation or self._is_beyond(index):
                return False
            if not again and self.has(index):
                return True
            place = self._next
            if place + len(data) > self.limit:
                self.is_full = True
                return False
            self._write_number(_NEXT, place + -(-len(data) // 8) * 8)
            self._write_number(_STORED, self.stored + (0 if again else 1))
        try:
            ground.write(place, data)
        except OSError as exc:
            if exc.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            self.is_full = True  # the disk is, or a limit of the system was reached
            return False
        assert self._head is not None
        checksum = _checksum(self._head, index, place, len(data), kind.value, data)
        with ground.locked():
            # Otherwise the place belongs to somebody else by now.
            if self.is_same() and self.generation == self._generation:
                ground.write(self._entry_offset(index), _ENTRY.pack(place, len(data), kind.value, checksum))
        return True

    def _is_beyond(self, index: int) -> bool:
        """True if there is no entry for an index: the dataset has grown since, and nobody has dropped the vault yet."""
        return self._head is None or index >= self._head.count

    def _entry_offset(self, index: int) -> int:
        return self._base + _HEAD_BYTES + index * _ENTRY.size

    # -- numbers of the head -----------------------------------------------------------------------------------------

    def _number(self, offset: int) -> int:
        return self._ground.number(self._base + offset)

    def _write_number(self, offset: int, value: int) -> None:
        self._ground.write(self._base + offset, NUMBER.pack(value))

    @property
    def _next(self) -> int:
        return self._number(_NEXT)

    @property
    def generation(self) -> int:
        """How often the vault was made."""
        return self._number(_GENERATION)

    @property
    def stored(self) -> int:
        """How many samples were stored."""
        return self._number(_STORED)

    @property
    def used_bytes(self) -> int:
        """Bytes from the head to the end of the last sample."""
        return max(0, self._next - self._base)

    @property
    def is_whole(self) -> bool:
        """True if somebody has checked that every sample is there."""
        return self._number(_WHOLE) == 1

    def note_whole(self) -> None:
        """Note that every sample is there, and has been checked; not before the disk has them."""
        self._ground.sync()
        self._write_number(_WHOLE, 1)
        self._ground.sync()

    def close(self) -> None:
        """Close what this process has opened. It is opened again when it is used."""
        self._ground.close()


_KINDS = {kind.value: kind for kind in Kind}


def _head_checksum(count: int, fingerprint: bytes) -> int:
    return zlib.crc32(fingerprint, count & 0xFFFFFFFF)


def _checksum(head: Head, index: int, place: int, size: int, kind: int, data: bytes | bytearray | memoryview) -> int:
    return zlib.crc32(data, zlib.crc32(_OWN.pack(index, place, size, kind) + head.fingerprint))


def _data_start(base: int, count: int) -> int:
    return base + -(-(_HEAD_BYTES + count * _ENTRY.size) // 4096) * 4096
