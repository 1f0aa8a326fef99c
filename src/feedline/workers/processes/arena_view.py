"""The arena as seen by a worker: memory by slot number, without any control over who owns a slot."""

from __future__ import annotations

import ctypes
import mmap
import os
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.memory.codec import MessageWriter, SlotWriter
from feedline.memory.reading import SMALL_BYTES, Bytes
from feedline.memory.sparse import advise_huge_pages, map_again

if TYPE_CHECKING:
    from feedline.memory.arena import Arena


class ArenaView:
    """A worker's view of the arena.

    A forked worker uses the mapping it inherited; others map the same memory again. A closed arena has no free slots,
    so a worker that starts later needs none of its memory, and its descriptor may be another file by then.
    """

    def __init__(self, arena: Arena) -> None:
        self.slot_bytes = arena.slot_bytes
        self._size = arena.slot_bytes * arena.slot_count
        self._arena: Arena | None = arena
        self._map: mmap.mmap | None = arena.mapping
        self.address = arena.address
        self._moved: dict[int, mmap.mmap] = {}
        """Slots that this process has mapped again at other addresses."""
        self._is_advised = False
        self._make_desk()

    def __getstate__(self) -> dict[str, object]:
        fd = self._descriptor
        sent = None if fd < 0 else reduction.DupFd(fd)
        return {"slot_bytes": self.slot_bytes, "_size": self._size, "_fd": sent}

    def __setstate__(self, state: dict[str, Any]) -> None:
        sent = state.pop("_fd")
        self.__dict__.update(state)
        self._arena, self._map, self.address, self._fd = None, None, 0, -1
        if sent is not None:
            self._fd = sent.detach()
            self._map = map_again(self._fd, self._size)
            self.address = np.frombuffer(self._map, np.uint8, 1).__array_interface__["data"][0]
        self._moved = {}
        self._is_advised = False
        self._make_desk()

    @property
    def _descriptor(self) -> int:
        """The descriptor of the arena's memory; negative once the arena is closed."""
        return self._fd if self._arena is None else self._arena.fd

    def _make_desk(self) -> None:
        """Allocate memory for batches without a slot, which travel in a message if they are small enough."""
        self._desk = np.empty(SMALL_BYTES, np.uint8)
        self._desk_address = self._desk.__array_interface__["data"][0]

    def writer(self, slot: int) -> SlotWriter:
        """Return a writer for a slot. Without a slot, it is small."""
        if slot < 0:
            return MessageWriter(self._desk, self._desk_address)
        moved = self._moved.get(slot)
        if moved is None:
            assert self._map is not None
            view: Bytes = np.frombuffer(self._map, np.uint8, self.slot_bytes, slot * self.slot_bytes)
            address = self.address + slot * self.slot_bytes
        else:
            view = np.frombuffer(moved, np.uint8, self.slot_bytes)
            address = view.__array_interface__["data"][0]
        return SlotWriter(view, address, None if self._is_advised else self._advise)

    def _advise(self) -> None:
        """Make this process write into huge pages: this depends on its own mapping."""
        self._is_advised = True
        if self._map is not None:
            advise_huge_pages(self._map)

    def part_with(self, slot: int, address: int, used: int) -> None:
        """Leave a slot's memory to the objects in this process that refer to it; map the slot at other addresses.

        Otherwise a dataset that caches collated batches, or a collate function that keeps the last batch, would see
        other batches appear there. Test: tests/workers/processes/test_worker.py
        """
        _make_private(address, used)
        self._moved[slot] = map_again(self._descriptor, self.slot_bytes, offset=slot * self.slot_bytes)


_MAP_FIXED = 0x10


def _make_private(address: int, size: int) -> None:
    """Replace shared memory of this process with a private copy at the same addresses."""
    size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    contents = ctypes.string_at(address, size)
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    if call(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != address:
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)} while keeping a batch that the dataset or collate function refers to")
    ctypes.memmove(address, contents, size)
