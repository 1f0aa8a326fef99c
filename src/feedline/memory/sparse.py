"""Memory that maps far more addresses than are ever used: only written pages exist.

Three system behaviours would allocate the rest, and the mappings here are protected from all of them. A core dump reads
every page of shared memory, which creates the missing ones: a crash would fill first the memory, then the disk. So
mappings are excluded from dumps. `mlockall` fills every new mapping at once: so the first page is mapped and unlocked,
and the mapping grows from there. A limit on file size (`ulimit -f`) applies to shared memory too: files are no longer
than it allows.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform

import numpy as np

from feedline.errors import TooManyOpenFiles, TransportError
from feedline.system.limits import limits_of
from feedline.system.process import leave_out_of_dumps

_PAGE = mmap.PAGESIZE
_HUGE_PAGE = 2 << 20
_LARGEST_MAPPING = 256 << 30
"""Address space to request, not memory. Small enough for 39-bit address spaces; halved if refused."""

_SMALLEST_SLOT = 1 << 20
_SMALLEST_FILE = 1 << 20

_NO_RESERVE = 0x4000 if platform.machine() in ("x86_64", "aarch64", "arm64", "riscv64") else 0
"""MAP_NORESERVE, which Python's mmap module does not define: tells the kernel not to count address space as memory.
Otherwise it may refuse to fork this process. Where the value is unknown, less address space is granted and used."""

_MAP_FIXED = 0x10

_NO_LIMIT = 1 << 62


def map_sparse(slot_count: int, *, shared: bool) -> tuple[mmap.mmap, int, int]:
    """Map as much address space as the system grants.

    Returns:
        The mapping, the size of one slot, and the descriptor of the memory if it is shared, else -1.

    Raises:
        TooManyOpenFiles: no descriptor is left.
        TransportError: the system refuses even small slots.
    """
    size = min(_LARGEST_MAPPING, _addresses_left() // 4, _longest_file() if shared else _NO_LIMIT)
    mapping, fd = _map_most(max(size, slot_count * _PAGE), slot_count * _SMALLEST_SLOT, shared=shared)
    slot_bytes = len(mapping) // slot_count
    slot_bytes -= slot_bytes % (_HUGE_PAGE if slot_bytes >= _HUGE_PAGE else _PAGE)
    return mapping, slot_bytes, fd


def map_file(most: int) -> tuple[mmap.mmap, int]:
    """Map a new unnamed file of up to `most` bytes: as many as the system grants.

    Returns:
        The mapping, and the descriptor of the file. The caller closes it, and truncates the file to the used size.

    Raises:
        TooManyOpenFiles: no descriptor is left.
        TransportError: the system refuses even a small one.
    """
    return _map_most(max(_PAGE, min(most, _longest_file())), _SMALLEST_FILE, shared=True)


def _map_most(most: int, least: int, *, shared: bool) -> tuple[mmap.mmap, int]:
    """Map up to `most` bytes, half as many whenever the system refuses; returns the mapping and its file, or -1."""
    size = most
    while True:
        size -= size % _PAGE
        fd = -1
        try:
            if shared:
                fd = create_memfd(_PAGE)
            return _map(fd, size), fd
        except (OSError, OverflowError) as exc:
            if fd >= 0:
                os.close(fd)
            if isinstance(exc, OSError) and exc.errno in (errno.EMFILE, errno.ENFILE):
                raise TooManyOpenFiles("creating the memory for batches") from exc
            if size <= least:
                raise TransportError(
                    f"The system refused {size} bytes of address space for batches ({exc}). {_usual_cause(exc)} "
                    "Or use fewer workers."
                ) from exc
            size //= 2


def map_again(fd: int, size: int, *, offset: int = 0, private: bool = False) -> mmap.mmap:
    """Map memory that another process made, or that is already mapped elsewhere; `private` for copy-on-write."""
    access = mmap.ACCESS_COPY if private else mmap.ACCESS_DEFAULT
    mapping = mmap.mmap(fd, size, access=access, offset=offset)
    leave_out_of_dumps(mapping)
    return mapping


def map_private(address: int, size: int, fd: int, offset: int) -> None:
    """Replace shared memory of this process with a copy-on-write view of the same file, at the same addresses."""
    _map_over(address, size, _NO_RESERVE, fd, offset)


def make_private(address: int, size: int, contents: bytes | None = None) -> None:
    """Replace shared memory of this process with a private copy at the same addresses.

    Args:
        address: a page boundary.
        size: its bytes.
        contents: what it contains; None for what is there now.
    """
    contents = ctypes.string_at(address, size) if contents is None else contents
    _map_over(address, size, mmap.MAP_ANONYMOUS, -1, 0)
    ctypes.memmove(address, contents, size)


if os.name == "posix":  # looked up here, because a forked process may find the lock of the dynamic loader taken
    _mmap = ctypes.CDLL(None, use_errno=True).mmap
    _mmap.restype = ctypes.c_void_p
    _mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def _map_over(address: int, size: int, flags: int, fd: int, offset: int) -> None:
    flags |= mmap.MAP_PRIVATE | _MAP_FIXED
    if _mmap(address, -(-size // _PAGE) * _PAGE, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, offset) != address:
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)} while making the memory of a batch private to a process")


def why_no_more(size: int, most: int) -> str:
    """Return a sentence on why `map_file` granted no more than `size` bytes, and what to do about it."""
    if size == most:
        return "That is the most that feedline sends in one piece."
    if size + _PAGE > _longest_file():
        return _FILE_LIMIT.format(size=_longest_file())
    return _ADDRESS_LIMIT


def create_memfd(size: int) -> int:
    """Create a sparse unnamed file of `size` bytes that child processes do not inherit unless asked to."""
    fd = os.memfd_create("feedline", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd


def _map(fd: int, size: int) -> mmap.mmap:
    """Map a file of one page and grow it to `size`; without a descriptor, map private memory."""
    mapping = _map_at_once(fd, _PAGE)
    try:
        _unlock(mapping, _PAGE)
        mapping.resize(size)  # grows the file too
    except (OSError, SystemError):  # refused, perhaps with a clearer error below; or not supported
        mapping.close()
        if fd >= 0:
            os.ftruncate(fd, size)
        mapping = _map_at_once(fd, size)
    leave_out_of_dumps(mapping)
    return mapping


def _map_at_once(fd: int, size: int) -> mmap.mmap:
    if fd >= 0:
        return mmap.mmap(fd, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)


def _unlock(mapping: mmap.mmap, size: int) -> None:
    """Allow the pages of a mapping locked by `mlockall` to be freed; has no effect on others."""
    address = np.frombuffer(mapping, np.uint8, 1).__array_interface__["data"][0]
    # If this fails, the mapping stays as it was.
    ctypes.CDLL(None).munlock(ctypes.c_void_p(address), ctypes.c_size_t(size))


_FILE_LIMIT = (
    "The limit on file size (`ulimit -f`), which applies to shared memory too, is {size} bytes here: raise it."
)
_ADDRESS_LIMIT = "A limit on virtual memory (`ulimit -v`) is the usual cause: raise it."
_LOCK_LIMIT = "This process locks its memory (mlockall), and the limit on that (`ulimit -l`) is reached: raise it."


def _usual_cause(refusal: Exception) -> str:
    """Return the usual cause of a refusal, and what to do about it."""
    code = refusal.errno if isinstance(refusal, OSError) else None
    if code == errno.EFBIG:
        return _FILE_LIMIT.format(size=_longest_file())
    return _LOCK_LIMIT if code == errno.EAGAIN else _ADDRESS_LIMIT


def _longest_file() -> int:
    """Return the largest size of a file that this process may create, including files in memory."""
    limit = limits_of("RLIMIT_FSIZE")[0]
    return _NO_LIMIT if limit is None else limit


def _addresses_left() -> int:
    """Return how many addresses this process may still map, for all purposes."""
    limit = limits_of("RLIMIT_AS")[0]
    if limit is None:
        return _NO_LIMIT
    try:
        with open("/proc/self/statm") as file:
            return max(0, limit - int(file.read().split()[0]) * _PAGE)
    except OSError:
        return limit


HUGE_PAGES_FROM = 8 << 20
"""Batches of this size are written faster into huge pages; for smaller ones, the last page would waste too much."""


def advise_huge_pages(mapping: mmap.mmap) -> None:
    """Request huge pages where the system leaves the choice to the program."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        try:
            mapping.madvise(advice)
        except OSError as exc:  # a kernel without huge pages returns EINVAL; small pages work as well
            if exc.errno != errno.EINVAL:
                raise
