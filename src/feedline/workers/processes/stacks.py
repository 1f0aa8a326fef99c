"""A worker's Python stacks, written by a signal handler in C, even if the worker is stuck."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select

from feedline.workers.processes.link import STACK_SIGNAL

_PATIENCE_S = 0.5
"""How long a worker may take to write its stacks. It takes a millisecond, unless the process is swapped out."""


class Stacks:
    """A pipe into which an engine's workers write their stacks on request, one at a time."""

    def __init__(self) -> None:
        self._near, self.far = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # The handler in the worker writes once and does not retry.
        with contextlib.suppress(OSError):  # refused where a user has many pipes: then the usual 64 KB must do
            fcntl.fcntl(self.far, fcntl.F_SETPIPE_SZ, 1 << 18)

    def of(self, pid: int) -> str | None:
        """Return the stacks of a worker; None if it does not answer."""
        if not _listens(pid):
            return None
        self.read()  # discard late answers to earlier requests
        try:
            os.kill(pid, STACK_SIGNAL)
        except ProcessLookupError:
            return None
        poll = select.poll()
        poll.register(self._near, select.POLLIN)
        text = ""
        wait_s = _PATIENCE_S
        while poll.poll(wait_s * 1000):
            text += self.read()
            wait_s = 0.02  # the rest follows at once
        return text or None

    def read(self) -> str:
        """Return what was written and not read yet, for example by a worker that crashed."""
        parts = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._near, 1 << 16):
                parts.append(data)
        return b"".join(parts).decode(errors="replace")

    def close(self) -> None:
        """Close the descriptors. May be called twice."""
        for fd in {self._near, self.far} - {-1}:
            os.close(fd)
        self._near = self.far = -1


def _listens(pid: int) -> bool:
    """True if the worker has installed its handler, so that the signal does not end it."""
    try:
        with open(f"/proc/{pid}/status") as file:
            caught = next((line.split()[1] for line in file if line.startswith("SigCgt:")), "0")
    except OSError:
        return False
    return bool(int(caught, 16) >> (STACK_SIGNAL - 1) & 1)
