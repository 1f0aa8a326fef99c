"""The heap of a worker process: keeps freed memory for the next batch, and returns to the system what no batch needs.

glibc would return large blocks at once, and every page of the next one would fault, which costs more than filling it.
So glibc is configured to keep all memory. But then every worker would keep the gigabytes that a single large sample
once needed. So `Heap` returns free memory

- when the worker has been idle for a while. If that happens again and again, because the training loop is slow, it
  waits longer each time;
- at work, when far more is free than batches need. After memory was returned, batches take back what they need, and
  from then on it is left to them. So ordinary work is interrupted once, if batches need much, or never.

Finding out how much is free takes a walk through the heap, so `Heap` first asks the system how much memory the process
has. It does nothing with another C library or allocator, which have policies of their own.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Callable

_MUCH_BYTES = 32 << 20
"""Less than this is not worth returning. It is also the largest block that glibc keeps in its heap."""
_LOOK_S = 0.25
"""How long `Heap.worked` has nothing to do after a call."""
_LOOK_CALLS = 4
"""How many calls make a check: it is due after a second, and long tasks must have been at it several times."""
_MOST_PATIENCE = 32
"""Idle waits before free memory is returned, at most; the first time it is one."""

_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1
_INFO = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def keep_heap_warm() -> None:
    """Configure glibc to keep freed memory: samples and batches of the same size come again and again."""
    if os.name != "posix":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return  # another C library, with a policy of its own
    mallopt(_M_MMAP_THRESHOLD, _MUCH_BYTES)  # the most glibc accepts
    mallopt(_M_TRIM_THRESHOLD, ctypes.c_int(2**31 - 1).value)


class Heap:
    """Returns free memory of this process that no batch needs to the system.

    Args:
        allocator: the source of the memory; None to do nothing.
        clock: returns seconds.
    """

    def __init__(self, allocator: Glibc | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._allocator = allocator
        self._clock = clock
        self._floor = 0
        """Memory of the process when nothing is free."""
        self._usual = 0
        """Memory that batches take above that, again and again."""
        self._is_learning = False
        self._calls = 0
        self.due_s = math.inf if allocator is None else clock() + _LOOK_S
        """When `worked` should be called next, after a task: before, it would do nothing."""
        self._patience = 1
        if allocator is not None:
            # Memory that the training process had freed when it forked, or that is left over from the setup.
            if allocator.free_bytes() > _MUCH_BYTES:
                allocator.trim()
            self._floor = allocator.resident_bytes()

    def worked(self) -> None:
        """Record that a task is done; to be called when `due_s` has come."""
        self.due_s = self._clock() + _LOOK_S
        self._calls += 1
        if self._allocator is None or self._calls < _LOOK_CALLS:
            return
        self._calls = 0
        excess = self._excess(self._allocator)
        needed = 2 * self._usual + _MUCH_BYTES
        if self._is_learning:
            self._is_learning = False
            self._usual = excess
        elif excess > needed and self._allocator.free_bytes() > needed:
            self._give_back(self._allocator)

    def rested(self, waits: int) -> None:
        """Record a wait without work; called again and again while the worker is idle, with their number so far."""
        if self._allocator is None or waits != self._patience:
            return
        if self._excess(self._allocator) > _MUCH_BYTES and self._allocator.free_bytes() > _MUCH_BYTES:
            self._give_back(self._allocator)
            self._patience = min(2 * self._patience, _MOST_PATIENCE)

    def _excess(self, allocator: Glibc) -> int:
        resident = allocator.resident_bytes()
        self._floor = min(self._floor, resident)
        return resident - self._floor

    def _give_back(self, allocator: Glibc) -> None:
        allocator.trim()
        self._floor = allocator.resident_bytes()
        self._is_learning = True


class Glibc:
    """glibc's heap in this process.

    Raises:
        AttributeError: this program has another C library.
        OSError: the system does not report how much memory a process has.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._trim = library.malloc_trim
        kind: type[ctypes.c_size_t | ctypes.c_uint]
        try:
            self._info, kind = library.mallinfo2, ctypes.c_size_t
        except AttributeError:  # glibc before 2.33, which counts modulo 4 GiB
            self._info, kind = library.mallinfo, ctypes.c_uint
        self._info.restype = type("Info", (ctypes.Structure,), {"_fields_": [(name, kind) for name in _INFO]})
        self.resident_bytes()

    def resident_bytes(self) -> int:
        """Return how much private memory, without files, this process has. Takes microseconds."""
        with open("/proc/self/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
        return (int(resident) - int(shared)) * _PAGE

    def free_bytes(self) -> int:
        """Return how much of the heap is free, whether it is backed by memory or not. May take milliseconds."""
        return int(self._info().fordblks)

    def trim(self) -> None:
        """Return all free memory to the system."""
        self._trim(0)


def heap_of_this_process() -> Heap:
    """Return the heap of this process, from now on; one that does nothing if the system is not supported."""
    try:
        return Heap(Glibc() if os.name == "posix" else None)
    except (AttributeError, OSError):
        return Heap(None)
