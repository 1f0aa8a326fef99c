"""Memory of the object store: what is writable, and how much batches take."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from feedline.memory.reading import Copies, SegmentReader
from feedline.workers.ray.store import Store, writable

SIZE = 1 << 20


def read_only_array(memory: mmap.mmap | None = None) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return a read-only array over writable memory, as Ray does."""
    array = np.zeros(SIZE, np.uint8) if memory is None else np.frombuffer(memory, np.uint8)
    array.flags.writeable = False
    return array


def in_two_pieces() -> mmap.mmap:
    memory = mmap.mmap(-1, SIZE)
    memory.madvise(mmap.MADV_DONTDUMP, SIZE // 2, SIZE // 2)  # from here on it is a separate mapping
    return memory


@pytest.mark.parametrize("memory", [lambda: None, in_two_pieces], ids=["a piece", "two pieces"])
def test_arrays_over_writable_mappings_become_writable(memory: Callable[[], mmap.mmap | None]) -> None:
    array = read_only_array(memory())
    view = writable(array)
    assert view is not None
    view[:] = 7
    assert (array == 7).all()


def test_partly_writable_memory_is_copied() -> None:
    array = read_only_array(mmap.mmap(-1, SIZE))
    address = array.__array_interface__["data"][0]
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + SIZE // 2), SIZE // 2, mmap.PROT_READ)
    assert writable(array) is None


def test_read_only_mappings_are_copied(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.write_bytes(b"\7" * SIZE)
    store = Store(1 << 30)
    with open(path, "rb") as file:
        array = np.frombuffer(mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ), np.uint8)
    assert writable(array) is None
    reader = store.open(array)
    assert type(reader) is Copies
    copy = reader.array(0, (SIZE,), np.dtype(np.uint8))
    copy += 1
    assert (copy == 8).all()


def test_batches_count_until_the_last_array_over_them_is_dropped() -> None:
    store = Store(3 * SIZE)
    reader = store.open(read_only_array())
    array = reader.array(0, (SIZE,), np.dtype(np.uint8))
    array[:] = 1
    del reader
    assert store.held == SIZE
    assert store.has_space(in_flight=1)
    assert not store.has_space(in_flight=2)
    del array
    assert store.held == 0


def test_batches_are_copied_while_the_program_keeps_too_much() -> None:
    store = Store(SIZE)
    kept = [store.open(read_only_array()) for _ in range(2)]
    assert type(store.open(read_only_array())) is Copies
    assert all(type(reader) is SegmentReader for reader in kept)


def test_adjacent_mappings_are_not_merged() -> None:
    pieces = [mmap.mmap(-1, SIZE) for _ in range(8)]  # which the system maps side by side
    known: list[tuple[int, int]] = []
    for piece in pieces:
        assert writable(read_only_array(piece), known) is not None
    assert [end - first for first, end in known] == [SIZE] * 8
