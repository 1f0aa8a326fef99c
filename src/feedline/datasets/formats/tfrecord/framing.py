"""Records in TFRecord files: where they are, and their checksums.

A record is its length (8 bytes), a checksum of the length, the data, and a checksum of the data. Checksums are CRC-32C,
rotated and shifted by a constant. Those of lengths are always compared, all at once. Those of data need the package
google-crc32c to be fast.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.framework.file_index import entry_of
from feedline.datasets.framework.store import Cache
from feedline.datasets.storage.blob import Blob, Version
from feedline.datasets.storage.content import packing_of
from feedline.errors import BadOption, CorruptSource, MissingExtra
from feedline.system.optional import require
from feedline.system.sizes import check_size

HEADER = struct.Struct("<QI")
"""Length of a record, and the checksum of the length."""
TRAILER = struct.Struct("<I")
_DELTA = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78
_WINDOW, _REMOTE_WINDOW = 1 << 16, 1 << 20
"""Bytes to read at a time while looking for records: over a network, reading more costs less than another request."""
_KEPT = 100_000
"""The fewest records for which positions are cached. Fewer are found in a tenth of a second."""
_FORMAT = 1


@dataclass(frozen=True, eq=False)
class Records:
    """Where the records of a file are."""

    version: Version
    stamp: str
    """That of the file, as `Blob.stamp`."""
    starts: NDArray[np.int64]
    """Where their data begin."""
    sizes: NDArray[np.int64]


def find_records(blob: Blob, cache: Cache) -> Records:
    """Find the records of a file: from the cache, or by reading all lengths.

    Raises SourceError: it cannot be read; CorruptSource: it is cut off or damaged; BadOption: it is compressed.
    """
    kept = entry_of(blob, cache, "tfrecord", _FORMAT)
    found = None if kept is None else kept.load(functools.partial(_kept, blob))
    if found is None:
        found = scan(blob)
        if kept is not None and len(found.starts) >= _KEPT:
            kept.save({"starts": found.starts, "sizes": found.sizes})
    return found


# Any: what a cache file holds.
def _kept(blob: Blob, value: Any) -> Records:
    found = Records(Version(blob.size, blob.tag), blob.stamp, value["starts"], value["sizes"])
    ends = found.starts + found.sizes + TRAILER.size
    after = np.concatenate([[0], ends[:-1]]) + HEADER.size
    is_right = found.starts.dtype == found.sizes.dtype == np.int64 and (found.starts == after).all()
    if not is_right or (found.sizes < 0).any() or (len(ends) and ends[-1] != blob.size):
        raise ValueError("these are not the records of the file")
    return found


def scan(blob: Blob) -> Records:
    """Find the records of a file by reading all lengths. Raises what `find_records` raises."""
    head = blob.read(0, min(HEADER.size, blob.size))
    packing = packing_of(head)
    if packing is not None and not is_record(head):
        raise BadOption(
            f"{blob.name} is compressed ({packing}), so a record cannot be read without all records before it. Use "
            ".stream(), or decompress the file."
        )
    starts, lengths, sums = list[int](), list[int](), list[int]()
    at, base, window = 0, 0, b""
    while at < blob.size:
        if at + HEADER.size > base + len(window):
            size = _WINDOW if blob.is_local else _REMOTE_WINDOW
            base, window = at, blob.read(at, min(at + size, blob.size))
            check_size(f"{blob.name}, at byte {at},", HEADER.size, held=len(window))
        length, checksum = HEADER.unpack_from(window, at - base)
        at += HEADER.size
        check_size(f"{blob.name}, at byte {at},", length + TRAILER.size, held=blob.size - at)
        starts.append(at)
        lengths.append(length)
        sums.append(checksum)
        at += length + TRAILER.size
    blob.check()
    sizes = np.array(lengths, np.int64)
    wrong = np.flatnonzero(sums_of_lengths(sizes) != np.array(sums, np.uint32))
    if len(wrong):
        raise damaged_record(blob.name, starts[wrong[0]], "its length")
    return Records(Version(blob.size, blob.tag), blob.stamp, np.array(starts, np.int64), sizes)


def is_record(head: bytes) -> bool:
    """True if a file that begins with these bytes begins with a record, even if they look like a compressed file."""
    return len(head) >= HEADER.size and bool(sum_of(head[:8]) == HEADER.unpack_from(head)[1])


def damaged_record(path: str, start: int, what: str) -> CorruptSource:
    """Return the error for a record whose checksum differs."""
    return CorruptSource(
        f"The record of {path} whose data begin at byte {start} is damaged: the checksum of {what} differs. Write or "
        "copy the file again."
    )


@functools.cache
def _table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


def sums_of_lengths(sizes: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the masked checksums of the lengths of records.

    Example:
        >>> [hex(value) for value in sums_of_lengths(np.array([0, 3])).tolist()]
        ['0x7980329', '0xe4999b0']
    """
    crc: NDArray[np.uint32] = np.full(len(sizes), 0xFFFFFFFF, np.uint32)
    for digits in sizes.astype("<i8").view(np.uint8).reshape(-1, 8).T:
        crc = _table()[(crc ^ digits) & 0xFF] ^ (crc >> np.uint32(8))
    crc ^= np.uint32(0xFFFFFFFF)
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(_DELTA)


def data_sum(*, needed: bool) -> Callable[[bytes], int] | None:
    """Return the function for checksums of data; None if google-crc32c is not installed and not needed.

    Raises MissingExtra: it is needed.
    """
    try:
        package: ModuleType = require("google_crc32c", extra="tfrecord", purpose="comparing checksums")
    except MissingExtra:
        if needed:
            raise
        return None
    return functools.partial(_sum_by, package.value)


def _sum_by(value: Callable[[bytes], int], data: bytes) -> int:
    crc = value(data)
    return (((crc >> 15) | (crc << 17)) + _DELTA) & 0xFFFFFFFF


def sum_of(data: bytes) -> int:
    """Return the masked checksum of a few bytes; a megabyte would take half a second.

    Example:
        >>> hex(sum_of(bytes(8)))
        '0x7980329'
    """
    return _sum_by(_crc, data)


def _crc(data: bytes) -> int:
    table, crc = _numbers(), 0xFFFFFFFF
    for digits in data:
        crc = table[(crc ^ digits) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


@functools.cache
def _numbers() -> list[int]:
    return [int(value) for value in _table()]
