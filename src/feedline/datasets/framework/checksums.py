"""Checksums in the files that `feedline pack` writes: how they are computed, and how readers verify them.

All are CRC-32, which zlib computes at one to two gigabytes per second and which detects every error burst of up to 32
bits. Memory-mapped stores have one checksum per sample or block of rows. A process verifies it on the first read of
that sample or block, not on every read. Forked processes share the flags that mark what was verified.

Metadata stored as JSON holds its own checksum under `SEAL`.
"""

from __future__ import annotations

import base64
import json
import mmap
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import CorruptSource

SEAL = "crc32"
"""The key under which metadata stores its own checksum."""
KIND = "crc32"
"""The value of "checksum" in metadata if the samples have checksums."""

# Any: anything with a buffer of bytes.
Buffer = Any


# object, from here on: values that JSON keeps.
def sealed(metadata: dict[str, object]) -> dict[str, object]:
    """Return metadata with its checksum."""
    return {**metadata, SEAL: zlib.crc32(json.dumps(metadata).encode())}


_BEGIN = b'{"feedline"'
"""How the metadata of `feedline pack` begins."""


def check_seal(name: str, stored: str | bytes, *, is_own: bool = False) -> None:
    """Verify the checksum of metadata, if it has one.

    Data that does not begin like such metadata is ignored unless `is_own`, as another program may have put it there.

    Raises CorruptSource if the metadata is damaged; the message names the file it belongs to.

    Example:
        >>> metadata = json.dumps(sealed({"feedline": 1, "count": 3}))
        >>> check_seal("a.h5", metadata)
        >>> check_seal("a.h5", metadata.replace('"count": 3', '"count": 8'))
        Traceback (most recent call last):
        feedline.errors.CorruptSource: The metadata of a.h5 is damaged: ...
    """
    content = stored.encode("utf-8", "surrogateescape") if isinstance(stored, str) else stored
    if not (is_own or content.startswith(_BEGIN)):
        return
    try:
        metadata = json.loads(content)
        seal = metadata.pop(SEAL, None)
    except (ValueError, RecursionError, AttributeError, TypeError) as exc:
        raise _damaged(name, "it cannot be read") from exc
    if seal is not None and seal != zlib.crc32(json.dumps(metadata).encode()):
        raise _damaged(name, "its checksum differs")


def _damaged(name: str, why: str) -> CorruptSource:
    return CorruptSource(f"The metadata of {name} is damaged: {why}. {AGAIN}")


AGAIN = "Get another copy, or pack it again."


class BlockSums:
    """Checksums of consecutive blocks of a byte stream.

    Example:
        >>> sums = BlockSums(4)
        >>> sums.add(b"abc")
        >>> sums.add(b"defg")
        >>> sums.finish().tolist() == [zlib.crc32(b"abcd"), zlib.crc32(b"efg")]
        True
    """

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self._sums: list[int] = []
        self._sum = 0
        self._held = 0
        """Bytes in the incomplete block."""

    def add(self, data: Buffer) -> None:
        """Append bytes."""
        view = memoryview(data).cast("B")
        while len(view):
            piece = view[: self.block_bytes - self._held]
            self._sum = zlib.crc32(piece, self._sum)
            self._held += len(piece)
            if self._held == self.block_bytes:
                self._sums.append(self._sum)
                self._sum = self._held = 0
            view = view[len(piece) :]

    def finish(self) -> NDArray[np.uint32]:
        """Return the checksums of all blocks; the last block may be shorter."""
        return np.array([*self._sums, *([self._sum] if self._held else [])], np.uint32)


def as_text(sums: NDArray[np.uint32]) -> str:
    """Return checksums as text for JSON."""
    return base64.b64encode(sums.astype("<u4").tobytes()).decode("ascii")


def from_text(text: str) -> NDArray[np.uint32]:
    """Invert `as_text`. Raises ValueError for any other text."""
    return np.frombuffer(base64.b64decode(text, validate=True), "<u4").astype(np.uint32)


class Compared:
    """Flags for blocks that were verified, shared with forked processes.

    Workers that restart in each epoch do not verify again what others have verified. Another machine, or a process that
    maps the file later, may read other bytes: a pickle holds only the number of flags, and all become False again.

    Example:
        >>> compared = Compared(3)
        >>> compared.flags[1] = True
        >>> compared.flags.tolist()
        [False, True, False]
    """

    def __init__(self, count: int) -> None:
        # Memory that is never written takes no space.
        self.flags: NDArray[np.bool_] = np.frombuffer(mmap.mmap(-1, max(1, count)), np.bool_, count)

    # object: as pickle wants it.
    def __reduce__(self) -> tuple[object, ...]:
        return Compared, (len(self.flags),)


class Checked:
    """Verifies the checksum of each block when it is first read.

    Threads and forked processes may use it concurrently: at worst one block is verified twice.

    Args:
        sums: of all blocks.
        read: returns the bytes of a block, given its number.
        name: returns the name of a block for error messages.
        compared: blocks that were verified before; none by default.
    """

    def __init__(
        self,
        sums: Sequence[int] | NDArray[np.uint32],
        read: Callable[[int], Buffer],
        name: Callable[[int], str],
        compared: Compared | None = None,
    ) -> None:
        self._sums = np.asarray(sums, np.uint32)
        self._read = read
        self._name = name
        self._done = (compared or Compared(len(self._sums))).flags
        self.is_complete = bool(self._done.all())
        """True if all blocks were verified."""

    def check(self, blocks: NDArray[np.int64]) -> None:
        """Verify the checksums of blocks that were not verified before. Raises CorruptSource if one differs."""
        if self.is_complete:
            return
        left = blocks[~self._done[blocks]]
        if not len(left):
            return
        for block in np.unique(left).tolist():
            if zlib.crc32(self._read(block)) != self._sums[block]:
                raise damaged(self._name(block))
            self._done[block] = True
        self.is_complete = bool(self._done.all())


def damaged(name: str) -> CorruptSource:
    """Return the error for samples whose checksum does not match."""
    return CorruptSource(
        f"{name} is damaged: its bytes differ from what `feedline pack` wrote there (the checksums differ). {AGAIN}"
    )
