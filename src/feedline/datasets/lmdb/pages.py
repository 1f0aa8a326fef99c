"""Checks the pages of a database before LMDB reads them.

LMDB follows the numbers in its pages without looking at them: a damaged one ends the process (SIGBUS, or an assertion).
So the tree of pages is gone through before a database is mapped: from its root down, level by level, as far as a
bounded number of pages goes. It is read as a file, so that this itself cannot end the process. What lies beyond is
believed, and so is what is written to the file later: databases have to come from someone who is trusted.

The format is that of LMDB 0.9 (version 1 of its data), on a machine of 64 bits and little-endian byte order; of another
one, nothing is checked.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np
from numpy.typing import NDArray

from feedline.errors import CorruptSource

MOST_PAGES = 4096
"""Pages that are looked at, 3 to 10 microseconds each. A guess: enough for the keys of half a million large values."""
_WINDOW_BYTES = 256 << 10
"""What is read and looked at together."""

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _DIRTY = 0x01, 0x02, 0x10
_META = struct.Struct("<16xII16xI44xIHH32xQQQ")
"""Magic, version; of the free pages: size of a page; of the data: pad, flags, depth, root; last page, transaction."""
_HEAD_BYTES, _NODE_BYTES = 16, 8
_IS_FAR = 0x01
"""A node's value lies in pages of its own."""
_NO_PAGE = (1 << 64) - 1


@dataclass(frozen=True)
class _Meta:
    page_bytes: int
    depth: int
    root: int
    last: int
    transaction: int


def check_pages(file: str, most: int = MOST_PAGES) -> int | None:
    """Go through the pages of a database, as its last transaction left them.

    Raises CorruptSource: a page is damaged.

    Returns:
        The number of that transaction; None if the file is of another format. If somebody wrote to the file meanwhile,
        the pages may have been written over, and the number says nothing: the file has another one by then.
    """
    with open(file, "rb", buffering=0) as opened:
        meta = _newest(opened)
        if meta is None:
            return None
        if meta.root == _NO_PAGE or os.fstat(opened.fileno()).st_size < (meta.last + 1) * meta.page_bytes:
            return meta.transaction  # it is empty; or cut off, which the environment tells
        damaged = _first_damaged(opened, meta, most)
        if damaged is not None and _newest(opened) == meta:
            raise CorruptSource(
                f"{file} is damaged: page {damaged} of the database in it is not a page of its tree, or leads to where "
                "there is none. LMDB would end this process. Write or copy it again."
            )
        return meta.transaction


def _newest(file: IO[bytes]) -> _Meta | None:
    """Return what the last transaction wrote about the database; None if it is of another format."""
    found = []
    place = 0
    for _ in range(2):
        file.seek(place)
        content = file.read(_META.size)
        if len(content) < _META.size:
            break
        magic, version, page_bytes, _, _, depth, root, last, transaction = _META.unpack(content)
        if (magic, version) != (_MAGIC, _VERSION) or page_bytes not in (1 << power for power in range(9, 17)):
            break
        found.append(_Meta(page_bytes, depth, root, last, transaction))
        place = page_bytes
    return max(found, key=lambda meta: meta.transaction, default=None)


def _first_damaged(file: IO[bytes], meta: _Meta, most: int) -> int | None:
    if meta.root > meta.last:
        return meta.root
    level = np.array([meta.root])
    for height in range(meta.depth, 0, -1):
        level = np.sort(level[:most])
        most -= len(level)
        below = [np.empty(0, np.int64)]
        for numbers, pages in _windows(file, level, meta.page_bytes):
            is_damaged, found = _look(pages, numbers, meta.last, is_leaf=height == 1)
            if is_damaged.any():
                return int(numbers[is_damaged.argmax()])
            below.append(found)
        level = np.concatenate(below)
    return None


def _windows(
    file: IO[bytes], numbers: NDArray[np.int64], size: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
    """Yield the pages of these numbers, which are sorted; neighbours are read at once."""
    count = max(1, _WINDOW_BYTES // size)
    for start in range(0, len(numbers), count):
        part = numbers[start : start + count]
        pages = np.zeros((len(part), size), np.uint8)
        starts = [0, *(np.flatnonzero(np.diff(part) != 1) + 1).tolist(), len(part)]
        for first, end in itertools.pairwise(starts):
            file.seek(int(part[first]) * size)
            file.readinto(pages[first:end].reshape(-1).data)  # type: ignore[attr-defined]
        yield part, pages


def _look(
    pages: NDArray[np.uint8], numbers: NDArray[np.int64], last: int, *, is_leaf: bool
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Look at some pages of one level.

    Returns:
        Which are damaged; and, if none is, the pages that these lead to.
    """
    none = np.empty(0, np.int64)
    size = pages.shape[1]
    words = pages.view("<u2")
    flags, lower, upper = words[:, 5:8].astype(np.int64).T
    damaged = pages.view("<u8")[:, 0] != numbers.astype(np.uint64)
    damaged |= flags & ~_DIRTY != (_LEAF if is_leaf else _BRANCH)
    damaged |= (lower <= _HEAD_BYTES) | (lower > upper) | (upper > size)
    if damaged.any():
        return damaged, none
    counts = (lower - _HEAD_BYTES) // 2
    page = np.repeat(np.arange(len(pages)), counts)
    """Of each node."""

    def refuse(wrong: NDArray[np.bool_]) -> bool:
        damaged[page[wrong]] = True
        return bool(wrong.any())

    begins = page * (size // 2)
    slots = np.arange(len(page)) - np.repeat(np.cumsum(counts) - counts, counts)
    flat = words.reshape(-1)
    nodes = flat[begins + _HEAD_BYTES // 2 + slots].astype(np.int64)
    if refuse((nodes % 2 != 0) | (nodes < upper[page]) | (nodes > size - _NODE_BYTES)):
        return damaged, none
    places = begins + nodes // 2
    low, high, kind, key_bytes = (flat[places + part].astype(np.int64) for part in range(4))
    ends = nodes + _NODE_BYTES + key_bytes
    if not is_leaf:
        below: NDArray[np.int64] = low | high << 16 | kind << 32
        refuse((ends > size) | (below > last))
        return damaged, below
    value_bytes, is_far = low | high << 16, (kind & _IS_FAR).astype(bool)
    if refuse(ends + np.where(is_far, 8, value_bytes) > size) or not is_far.any():
        return damaged, none
    addresses = (page * size + ends)[is_far][:, None] + np.arange(8)
    firsts = pages.reshape(-1)[addresses].view("<u8")[:, 0].astype(np.float64)
    wrong = np.zeros(len(page), np.bool_)
    wrong[is_far] = firsts + (value_bytes[is_far] + _HEAD_BYTES + size - 1) // size > last + 1
    refuse(wrong)
    return damaged, none
