"""What a worker is doing: its Python stacks, written by a signal handler in C, even if it is stuck."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select

from feedline.workers.processes.worker import STACK_SIGNAL

_PATIENCE_S = 0.5
"""How long a worker may take to write its stacks. It takes a millisecond, unless the process is swapped out."""


class Stacks:
    """A pipe into which the workers of an engine write, one at a time, when they are asked to."""

    def __init__(self) -> None:
        self._near, self.far = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # The handler in the worker writes in one go and does not try again.
        with contextlib.suppress(OSError):  # refused where a user has many pipes: then the usual 64 KB have to do
            fcntl.fcntl(self.far, fcntl.F_SETPIPE_SZ, 1 << 18)

    def of(self, pid: int) -> str | None:
        """Return the stacks of a worker; None if it does not say."""
        if not _listens(pid):
            return None
        self.read()  # what was asked earlier and came too late
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
            wait_s = 0.02  # the rest of it follows at once
        return text or None

    def read(self) -> str:
        """Return what was written and not read yet: by a worker that crashed, for one."""
        parts = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._near, 1 << 16):
                parts.append(data)
        return b"".join(parts).decode(errors="replace")

    def close(self) -> None:
        """Give the descriptors back. May be called twice."""
        for fd in {self._near, self.far} - {-1}:
            os.close(fd)
        self._near = self.far = -1


def _listens(pid: int) -> bool:
    """True if the worker has got so far that the signal does not end it, and is not stopped."""
    facts = _status(pid)
    caught = int(facts.get("SigCgt", "0"), 16)
    return bool(caught >> (STACK_SIGNAL - 1) & 1) and facts.get("State", "").split()[:1] != ["T"]


def is_asleep(pid: int) -> bool:
    """True if a process waits for something, and is not stopped."""
    return _status(pid).get("State", "").split()[:1] == ["S"]


def _status(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/status") as file:
            return dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return {}
