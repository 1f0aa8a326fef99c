"""Checks the pages of a database before LMDB reads them.

LMDB follows the numbers in its pages without looking at them: a damaged one ends the process (SIGBUS, or an assertion).
So the tree of pages is gone through when a dataset is first used: from its root down, level by level, as far as a
bounded number of pages goes. Nothing is mapped, so that this itself cannot end the process. What lies beyond is
believed, and so is what is written to the file later: databases have to come from someone who is trusted.

The format is that of LMDB 0.9 (version 1 of its data), on a machine of 64 bits and little-endian byte order; of another
one, nothing is checked.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import IO

import numpy as np
from numpy.typing import NDArray

from feedline.errors import CorruptSource

MOST_PAGES = 4096
"""Pages that are looked at, some 50 microseconds each. A guess: enough for the keys of half a million large values."""

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _DIRTY = 0x01, 0x02, 0x10
_META = struct.Struct("<16xII16xI44xIHH32xQQQ")
"""Magic, version; of the free pages: size of a page; of the data: pad, flags, depth, root; last page, transaction."""
_HEAD = struct.Struct("<QHHHH")
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


def check_pages(file: str, most: int = MOST_PAGES) -> None:
    """Go through the pages of a database.

    Args:
        file: the file.
        most: how many pages are looked at.

    Raises:
        CorruptSource: a page is damaged.
    """
    with open(file, "rb", buffering=0) as opened:
        meta = _newest(opened)
        if meta is None or meta.root == _NO_PAGE:
            return
        level = [meta.root]
        for height in range(meta.depth, 0, -1):
            below: list[int] = []
            for number in level[:most]:
                found = _below(opened, number, meta, is_leaf=height == 1)
                if found is None:
                    raise CorruptSource(
                        f"{file} is damaged: page {number} of the database in it is not a page of its tree, or leads "
                        "to where there is none. LMDB would end this process. Write or copy it again."
                    )
                below += found
            most = max(0, most - len(level))
            level = below


def _read(file: IO[bytes], place: int, size: int) -> bytes:
    file.seek(place)
    return file.read(size)


def _newest(file: IO[bytes]) -> _Meta | None:
    """Return what the last transaction wrote about the database; None if it is of another format."""
    found = []
    place = 0
    for _ in range(2):
        content = _read(file, place, _META.size)
        if len(content) < _META.size:
            break
        magic, version, page_bytes, _, _, depth, root, last, transaction = _META.unpack(content)
        if (magic, version) != (_MAGIC, _VERSION) or page_bytes not in (1 << power for power in range(9, 17)):
            break
        found.append(_Meta(page_bytes, depth, root, last, transaction))
        place = page_bytes
    return max(found, key=lambda meta: meta.transaction, default=None)


def _below(file: IO[bytes], number: int, meta: _Meta, *, is_leaf: bool) -> list[int] | None:
    """Return the pages that a page leads to; None if it is damaged."""
    size = meta.page_bytes
    page = _read(file, number * size, size) if number <= meta.last else b""
    if len(page) < size:
        return None
    own, _, flags, lower, upper = _HEAD.unpack_from(page)
    if own != number or flags & ~_DIRTY != (_LEAF if is_leaf else _BRANCH) or not _HEAD_BYTES < lower <= upper <= size:
        return None
    nodes = np.frombuffer(page, "<u2", (lower - _HEAD_BYTES) // 2, _HEAD_BYTES).astype(np.int64)
    if (nodes % 2).any() or nodes.min() < upper or nodes.max() > size - _NODE_BYTES:
        return None
    words = np.frombuffer(page, "<u2").astype(np.int64)
    low, high, kind, key_bytes = (words[nodes // 2 + part] for part in range(4))
    ends = nodes + _NODE_BYTES + key_bytes
    if not is_leaf:
        pages: NDArray[np.int64] = low | high << 16 | kind << 32
        return pages.tolist() if (ends <= size).all() and (pages <= meta.last).all() else None
    value_bytes, far = low | high << 16, (kind & _IS_FAR).astype(bool)
    if (ends + np.where(far, 8, value_bytes) > size).any():
        return None
    places = np.frombuffer(page, np.uint8)[ends[far][:, None] + np.arange(8)].view("<u8")[:, 0].astype(np.float64)
    counts = (value_bytes[far] + _HEAD_BYTES + size - 1) // size
    return [] if (places + counts <= meta.last + 1).all() else None
