"""What the system supports beyond what Python has everywhere. The only place that checks."""

from __future__ import annotations

import errno
import functools
import mmap
import os
import select
import socket

_FOR_SHARED_ARENAS = (
    (os, "memfd_create"),
    (os, "pidfd_open"),
    (select, "poll"),
    (socket, "SOCK_SEQPACKET"),
    (socket, "MSG_CMSG_CLOEXEC"),
)
_REFUSALS = (errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EINVAL)


@functools.cache
def can_share_arenas() -> bool:
    """True if worker processes can share an arena: nameless memory, descriptors of processes, packets (Linux)."""
    if not all(hasattr(module, name) for module, name in _FOR_SHARED_ARENAS):
        return False
    try:
        os.close(os.memfd_create("feedline", os.MFD_CLOEXEC))
        os.close(os.pidfd_open(os.getpid()))
    except OSError as exc:
        # An old kernel, or a sandbox that forbids the call. Other errors, such as too many open files, say nothing
        # about support; the engine reports them better.
        return exc.errno not in _REFUSALS
    return True


def can_map_sparsely() -> bool:
    """True if a process can reserve far more addresses than it has memory, for an arena of its own (not Windows)."""
    return hasattr(mmap, "MAP_PRIVATE") and hasattr(mmap, "MAP_ANONYMOUS")
