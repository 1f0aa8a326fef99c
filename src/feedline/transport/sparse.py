"""Memory of which far more is mapped than is ever used: only pages that are written exist."""

from __future__ import annotations

import errno
import mmap
import os
import platform

from feedline.errors import TooManyOpenFiles, TransportError

_PAGE = mmap.PAGESIZE
_LARGEST_MAPPING = 256 << 30
"""Address space to ask for, not memory. Small enough for 39-bit address spaces; halved where it is refused."""

_SMALLEST_SLOT = 1 << 20

_NO_RESERVE = 0x4000 if platform.machine() in ("x86_64", "aarch64", "arm64", "riscv64") else 0
"""MAP_NORESERVE, which Python's mmap module does not name: the kernel is not to count address space as memory. Counted,
a fork of this process may be refused. Where the number is not known, less address space is granted and used."""


def map_sparse(slot_count: int, *, shared: bool) -> tuple[mmap.mmap, int, int]:
    """Map as much address space as the system grants.

    Returns:
        The mapping, the size of one slot, and the descriptor of the memory if it is shared, else -1.

    Raises:
        TooManyOpenFiles: no descriptor is left.
        TransportError: the system refuses even small slots.
    """
    size = max(min(_LARGEST_MAPPING, _addresses_left() // 4), slot_count * _PAGE)
    while True:
        slot_bytes = (size // slot_count) & ~(_PAGE - 1)
        fd = -1
        try:
            if shared:
                fd = create_memfd(slot_bytes * slot_count)
                mapping = mmap.mmap(fd, slot_bytes * slot_count)
            else:
                flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
                mapping = mmap.mmap(-1, slot_bytes * slot_count, flags=flags)
        except (OSError, OverflowError) as exc:
            if fd >= 0:
                os.close(fd)
            if isinstance(exc, OSError) and exc.errno in (errno.EMFILE, errno.ENFILE):
                raise TooManyOpenFiles("making the memory for batches") from exc
            if slot_bytes <= _SMALLEST_SLOT:
                raise TransportError(
                    f"The system refused {slot_bytes * slot_count >> 20} MiB of address space for batches ({exc}). "
                    "A limit on virtual memory (`ulimit -v`) is the usual cause: raise it, or use fewer workers."
                ) from exc
            size //= 2
            continue
        return mapping, slot_bytes, fd


def _addresses_left() -> int:
    """Return how many addresses this process may still map: others need some as well."""
    if os.name != "posix":
        return 1 << 62
    import resource  # not on Windows

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return 1 << 62
    try:
        with open("/proc/self/statm") as file:
            return max(0, limit - int(file.read().split()[0]) * _PAGE)
    except OSError:
        return limit


def create_memfd(size: int) -> int:
    """Make a sparse file of `size` bytes that has no name and is inherited by nobody by accident."""
    fd = os.memfd_create("feedline", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd


def advise_huge_pages(mapping: mmap.mmap) -> None:
    """Ask for huge pages where the system leaves the choice to the program."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        try:
            mapping.madvise(advice)
        except OSError as exc:  # a kernel built without huge pages says EINVAL, and small pages do as well
            if exc.errno != errno.EINVAL:
                raise
