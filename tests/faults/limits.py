"""System limits, for the duration of a block or for a program that is started with a command prefix."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process open only `count` more file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] < highest:  # leave no gap below the limit
        taken.append(os.dup(taken[0]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1 + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


SHARED_MEMORY = {
    "64 MB": "mount -t tmpfs -o size=64m tmpfs /dev/shm",
    # In effect 0 bytes: tmpfs treats a size of 0 as no limit, so leave no inode for a file instead.
    "0 bytes": "mount -t tmpfs -o size=4k,nr_inodes=1 tmpfs /dev/shm",
    # /dev itself is shared with the rest of the system, so mount another one without shm.
    "absent": "mkdir -p $0 && mount -t tmpfs tmpfs $0 && for name in null zero random urandom; do "
    "touch $0/$name && mount --bind /dev/$name $0/$name || exit 1; done && mount --move $0 /dev",
}
"""Kinds of /dev/shm, and how to create them in a separate mount namespace; $0 is an empty folder."""


def with_shared_memory(kind: str, folder: os.PathLike[str]) -> list[str]:
    """Return a command prefix that runs a program with another /dev/shm; skip the test where that is not allowed."""
    unshare = shutil.which("unshare")
    words = [unshare or "", "-m", "sh", "-c", f'{SHARED_MEMORY[kind]} && exec "$@"', str(folder)]
    if unshare is None or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount another /dev/shm")
    return words
