"""How a batch is written into memory and read out of it again.

A batch becomes a small header (a pickle, protocol 5) and large buffers beside it. Arrays that a collate function
already placed in the slot are only referenced; other large data is copied into the slot once. A header that is too
large for a message goes into the slot as well, after the buffers.

A program that keeps a label must not keep the images stored beside it. So no array that is read keeps another alive:

- a small array is copied; it never holds a slot;
- a large array is a view with its own lease, and the memory beside it can go back to the system;
- arrays that overlap, such as a tensor and a view of it, still share one piece of memory.
"""

from __future__ import annotations

import marshal
import mmap
import pickle
import struct
from collections.abc import Callable, Iterable
from ctypes import memmove, string_at
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.framework import Framework
from feedline.abc.memory import on_this_thread
from feedline.errors import NotPicklable
from feedline.memory.batch_pickler import BatchPickler
from feedline.memory.sparse import HUGE_PAGES_FROM
from feedline.system.failures import words

Bytes = NDArray[np.uint8]

LARGE_BYTES = 64 << 10
"""Arrays of at least this size are not copied when their batch is delivered. A copy of this size takes about as long as
the lease that it saves (4 us), and a page lost at each end is small beside a larger array."""

SMALL_BYTES = 16 << 10
"""A batch up to this size can be sent inside its message: all of its arrays are copied anyway, and a slot would have to
be found, read and given back. The size is a guess; half of it and twice as much were not tried."""

ALIGNMENT = 64
"""The alignment of every array in a slot: a cache line, which also suits vector instructions and devices."""

_PAGE = mmap.PAGESIZE

_INLINE_HEADER_BYTES = 32 << 10
"""Longer headers are stored in the slot. Half of what a socket accepts in one message on a small system."""

_REMEMBERED = 32
"""How many copies later tensors of a batch are compared with; a limit keeps batches of very many tensors fast."""

_SPAN = struct.Struct("<QQ")
_COUNTS = struct.Struct("<II")

_PICKLED, _DESCRIBED, _IN_SLOT = range(3)
"""How a header begins: before a pickle, before a description, or before the span of the slot that has the header."""


class SlotFull(Exception):
    """The batch does not fit into its memory; caught where other memory can be provided."""


class SlotWriter:
    """Fills one piece of memory from the front; the current `Memory` of a task.

    Args:
        view: the memory.
        address: where it starts, if that is known.
        prepare: called before the first array that is large enough for huge pages is written.
        shared: True if another process will read the batch here.
    """

    __slots__ = ("_copied", "_end", "_prepare", "_spans", "address", "shared", "used", "view")

    crosses = True
    has_space = True

    def __init__(
        self,
        view: Bytes,
        address: int | None = None,
        prepare: Callable[[], None] | None = None,
        *,
        shared: bool = False,
    ) -> None:
        self._prepare = prepare
        self.shared = shared
        self.view = view
        self.address: int = view.__array_interface__["data"][0] if address is None else address
        self.used = 0
        self._end = view.nbytes
        self._copied: list[tuple[int, int, int]] = []
        self._spans: list[tuple[int, int]] = []

    def allocate(self, size: int) -> tuple[Bytes, int] | None:
        try:
            return self.view, self._reserve(size)
        except SlotFull:
            return None

    def _reserve(self, size: int) -> int:
        """Reserve `size` bytes and return their offset. Raises SlotFull."""
        # A large array shares no page with another, so that its memory can be given back while the other is kept.
        alignment = ALIGNMENT if size < LARGE_BYTES else _PAGE
        start = -(-self.used // alignment) * alignment
        if start + size > self._end:
            raise SlotFull
        if size >= HUGE_PAGES_FROM and self._prepare is not None:
            self._prepare()
            self._prepare = None
        self.used = start + size
        return start

    def offset_of(self, address: int, size: int) -> int | None:
        """Return the offset of memory at `address` if it was allocated or copied here, else None."""
        offset = address - self.address
        if offset >= 0 and offset + size <= self.used:
            self._spans.append((offset, size))
            return offset
        for start, end, place in self._copied:
            if start <= address and address + size <= end:
                self._spans.append((place + address - start, size))
                return place + address - start
        return None

    def overlaps(self) -> list[tuple[int, int]]:
        """Return ranges (start, size) that several arrays of the batch share."""
        end = 0
        for start, size in self._spans:  # nearly always in ascending order
            if start < end:
                return overlapping(self._spans)
            end = start + size
        return []

    def end(self) -> None:
        """Reserve nothing more."""
        self._end = self.used

    def begin_again(self) -> None:
        """Forget which arrays the batch consists of, before it is encoded in another way."""
        self._spans.clear()

    def copy(self, address: int, size: int, *, lasting: bool = True) -> int:
        """Copy memory into the slot, unless it is there already; returns its offset.

        Args:
            address: where the memory starts.
            size: its bytes.
            lasting: True if the memory neither changes nor is freed until the batch is written, so it is not temporary:
                views of it then become views of the copy.

        Raises:
            SlotFull: there is not enough space.
        """
        if self.used and (known := self.offset_of(address, size)) is not None:
            return known
        start = self._reserve(size)
        memmove(self.address + start, address, size)
        self._spans.append((start, size))
        if lasting and len(self._copied) < _REMEMBERED:
            self._copied.append((address, address + size, start))
        return start

    def write_anew(self, data: bytes) -> int:
        """Copy bytes into the slot even if memory at their address was copied before: it may have been freed since."""
        start = self._reserve(len(data))
        self.view[start : start + len(data)] = np.frombuffer(data, np.uint8)
        return start


class MessageWriter(SlotWriter):
    """Memory for a batch that is sent inside a message. The batch is copied here when it is finished, not made here.

    Making arrays over existing memory costs more than copying those of a small batch.
    """

    __slots__ = ()

    has_space = False

    def allocate(self, size: int) -> None:
        return None

    def contents(self) -> bytes:
        """Return the bytes written so far."""
        return string_at(self.address, self.used)


def overlapping(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge overlapping ranges (start, size); returns those that were merged from several."""
    joined: list[tuple[int, int]] = []
    first, end, several = 0, 0, False
    for start, size in sorted(spans):
        if start < end:
            end, several = max(end, start + size), True
            continue
        if several:
            joined.append((first, end - first))
        first, end, several = start, start + size, False
    if several:
        joined.append((first, end - first))
    return joined


class Reader:
    """Hands out the memory of the arrays of one batch.

    Args:
        view: the memory of the batch.
        lease: returns a part (start, size) of this memory that may be kept; called for large parts. None to copy
            everything, because the memory is reused at once.
    """

    __slots__ = ("_joined", "_lease", "_view")

    def __init__(self, view: Bytes, lease: Callable[[int, int], Bytes] | None = None) -> None:
        self._view = view
        self._lease = lease
        self._joined: dict[tuple[int, int], Bytes | None] | None = None

    @property
    def copies(self) -> bool:
        """True if all arrays are copies."""
        return self._lease is None

    def join(self, spans: Iterable[tuple[int, int]]) -> None:
        """Note ranges (start, size) that several arrays share."""
        self._joined = dict.fromkeys(spans) or None

    def take(self, start: int, size: int) -> tuple[Bytes, int]:
        """Return memory that contains the `size` bytes of the batch from `start` on, and their offset in it.

        An array built on this memory keeps it alive, and nothing else of the batch.
        """
        if self._joined:
            for span, known in self._joined.items():
                if span[0] <= start and start + size <= span[0] + span[1]:
                    part = self._joined[span] = self._part(*span) if known is None else known
                    return part, start - span[0]
        return self._part(start, size), 0

    # Any: the type of the elements.
    def array(self, start: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> NDArray[Any]:
        """Return an array of the batch that begins at `start`."""
        array: NDArray[np.generic] = np.ndarray(shape, dtype, self._view, start)
        if self._joined is None and (self._lease is None or array.nbytes < LARGE_BYTES):
            return array.copy()
        return np.ndarray(shape, dtype, *self.take(start, array.nbytes))

    def peek(self, start: int, size: int) -> memoryview:
        """Return bytes that the caller reads at once and does not keep."""
        return self._view[start : start + size].data

    def _part(self, start: int, size: int) -> Bytes:
        """Return the memory of one array, or of several that overlap."""
        if self._lease is None or size < LARGE_BYTES:
            return self._view[start : start + size].copy()
        return self._lease(start, size)


class Views(Reader):
    """Returns everything as a view: for memory that is not reused."""

    __slots__ = ()

    def take(self, start: int, size: int) -> tuple[Bytes, int]:
        return self._view, start

    def array(self, start: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> NDArray[Any]:
        return np.ndarray(shape, dtype, self._view, start)


def segment_reader(view: Bytes, most_held: float = 1.25) -> Reader:
    """Read memory that can only be freed as a whole: an array that makes up nearly all of it is a view.

    Args:
        view: the memory of the batch.
        most_held: how many times its own size a view may keep alive.
    """

    def lease(start: int, size: int) -> Bytes:
        part = view[start : start + size]
        return part if most_held * size >= view.nbytes else part.copy()

    return Reader(view, lease)


class Codec:
    """Writes and reads batches of one framework. One instance per worker or consumer thread."""

    def __init__(
        self,
        framework: Framework,
        reducers: dict[type, Callable[[object], object]] | None = None,
        override: Callable[[object], object] | None = None,
    ) -> None:
        self._framework = framework
        self._pickler = BatchPickler(framework.reducers(), reducers or {}, override)
        self._description: object = None
        """The description of the last batch of a common form that was written."""
        self._described = b""
        """The header made from `_description`."""
        self._last_header = b""
        """The header of the last batch that arrived behind its header."""
        self._last_memory: Bytes = np.empty(0, np.uint8)
        """The memory that a batch with the same header is laid in."""
        self._copy_last: Callable[[], object] | None = None
        """Copies a batch out of `_last_memory`; None if the next one has to be built from its description."""

    def encode(self, batch: object, writer: SlotWriter) -> bytes:
        """Write `batch` and return the header that `decode` needs.

        Raises:
            SlotFull: the batch does not fit; nothing usable was written.
            NotPicklable: the batch holds something that cannot be sent.
        """
        description = self._framework.describe(batch, writer)
        if description is not None and not writer.overlaps():
            if description != self._description:  # otherwise the batch has the form of the last one
                self._description, self._described = description, bytes((_DESCRIBED,)) + marshal.dumps(description)
            return _short(self._described, writer)
        try:
            return self.encode_object(batch, writer)
        except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as exc:
            raise NotPicklable(
                f"The batch (a {type(batch).__name__}) cannot be sent from a worker process to the training loop: "
                f"{words(exc)}. Return tensors, arrays, numbers, strings and containers of these from the dataset and "
                "collate function, or use engine='thread', which sends nothing."
            ) from exc

    def encode_object(self, value: object, writer: SlotWriter) -> bytes:
        """Write any object; exceptions of pickle pass through unchanged."""
        writer.begin_again()
        body, buffers = self._pickler.pickled(value, writer)
        joined = writer.overlaps()
        spans = [_SPAN.pack(*span) for span in buffers + joined]
        return _short(b"".join([bytes((_PICKLED,)), _COUNTS.pack(len(buffers), len(joined)), *spans, body]), writer)

    def decode(self, header: bytes, reader: Reader) -> Any:
        """Read a batch; each array keeps alive the memory that the reader returned for it."""
        packed = memoryview(header)
        if packed[0] == _IN_SLOT:
            packed = reader.peek(*_SPAN.unpack_from(packed, 1))
        if packed[0] == _DESCRIBED:
            return self._framework.rebuild(marshal.loads(packed[1:]), reader)
        count, joined_count = _COUNTS.unpack_from(packed, 1)
        start = 1 + _COUNTS.size
        end = start + (count + joined_count) * _SPAN.size
        spans = list(_SPAN.iter_unpack(packed[start:end]))
        reader.join(spans[count:])
        on_this_thread.being_read = reader
        try:
            return pickle.loads(packed[end:], buffers=[_buffer(reader, *span) for span in spans[:count]])
        finally:
            on_this_thread.being_read = None

    def decode_packed(self, packed: bytes, used: int, *, ahead: bool = False) -> Any:
        """Read a batch of `used` bytes that follows its header; each of its arrays gets its own memory.

        A small batch usually has the form of the last one. Then its bytes are laid where that one's were, and its
        arrays are copied from there. Building each array from its description takes longer (`benchmarks.w1_tiny`,
        column "consumer CPU us").

        Args:
            packed: header and batch.
            used: bytes of the batch.
            ahead: True if the batch has not been requested yet. Then it is read only if it has the form of the last
                one; otherwise None is returned.
        """
        size = len(packed) - used
        header = packed[:size]
        if header != self._last_header:
            if ahead:
                return None
            self._last_header, self._copy_last = header, None
        elif header and header[0] == _DESCRIBED:  # other headers hold no description
            if self._copy_last is None:
                if ahead:
                    return None
                self._last_memory = np.empty(used, np.uint8)
                self._copy_last = self._framework.copier(marshal.loads(header[1:]), self._last_memory)
            self._last_memory.data[:] = packed[size:]
            batch = self._copy_last()
            if batch is not None:
                return batch
            self._copy_last = None
        return None if ahead else self.decode(header, Reader(np.frombuffer(packed, np.uint8, used, size)))


def _short(header: bytes, writer: SlotWriter) -> bytes:
    """Return a header that fits into a message: a long one goes into the slot."""
    if len(header) <= _INLINE_HEADER_BYTES:
        return header
    return bytes((_IN_SLOT,)) + _SPAN.pack(writer.write_anew(header), len(header))


def _buffer(reader: Reader, start: int, size: int) -> Bytes:
    memory, offset = reader.take(start, size)
    return memory if memory.nbytes == size else memory[offset : offset + size]
