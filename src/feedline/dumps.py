"""Core dumps, as far as memory is concerned of which far more is mapped than is used."""

from __future__ import annotations

import errno
import mmap


def leave_out_of_dumps(mapping: mmap.mmap) -> None:
    """Keep a mapping out of core dumps.

    Linux dumps every page of shared memory, and makes those for it that did not exist: with room for hundreds of
    gigabytes mapped, one crash would fill the memory and then the disk. Test: tests/faults/test_dumps.py
    """
    advice = getattr(mmap, "MADV_DONTDUMP", None)  # Linux only
    if advice is None:
        return
    try:
        mapping.madvise(advice)
    except OSError as exc:  # a kernel or sandbox that does not know it
        if exc.errno != errno.EINVAL:
            raise
