"""Forks of this process, and the memory that they can see.

A forked process has every mapping of its parent, including the batches there. If such memory were reused for the next
batch, the child would see its own batch change. So memory that is leased at the time of a fork stays leased until the
child and all its descendants have ended or executed another program.

A witness detects this: one page of shared memory that is mapped just before the fork and unmapped in the parent right
after it. From then on only the child and its descendants have it mapped, exactly as long as they have the batches.
Linux refuses to seal memory against writing while any process has it mapped writable. No signal, process id or open
file is involved that a child could close.
Test: tests/memory/test_forks.py
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from feedline.system.references import References

if os.name == "posix":
    import fcntl

_CHECK_INTERVAL_S = 0.05
"""The shortest interval between checks of the witnesses: each takes a system call."""

_HOLD_S = 1.0
"""How long a fork waits for operations of other threads, which take microseconds. A thread that forks in the middle of
an operation of its own cannot wait for itself."""


class Leaser(Protocol):
    """Memory with leased parts."""

    def leases(self) -> Sequence[object]:
        """Return the current leases; holding one keeps its memory from being reused."""

    def hold(self, timeout_s: float) -> bool:
        """Keep other threads from leasing or reusing memory until `let_go`; False on timeout."""

    def let_go(self) -> None:
        """Release the lock that `hold` took."""

    def reset_in_child(self) -> None:
        """Reset locks and state in a forked process."""


class _Witness:
    """Detects whether a process that was forked while the page was mapped is still alive.

    Raises:
        OSError: no descriptor is left, or the system does not support sealing.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("feedline-fork", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._fd, mmap.PAGESIZE)
        except OSError:
            os.close(self._fd)
            raise

    def map(self) -> mmap.mmap:
        """Map the page, for a fork that is about to happen."""
        return mmap.mmap(self._fd, mmap.PAGESIZE)

    def is_alone(self) -> bool:
        """True if no forked process has the page mapped any more; the witness is closed then."""
        if self._fd < 0:
            return True
        try:
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        except OSError as exc:
            if exc.errno == errno.EBUSY:
                return False
            raise
        self.close()
        return True

    def close(self) -> None:
        """Close the descriptor. May be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


SEEN: list[tuple[_Witness | None, list[object]]] = []
"""Leases that a child process can see, and the witness that detects its end; with None they are held forever."""


class _Forks:
    """Holds the memory that forked processes can see until they have ended."""

    def __init__(self) -> None:
        self.leasers: References[Leaser] = References()
        self._own = threading.local()
        self._lock = threading.Lock()
        self._next_s = 0.0

    def before(self) -> None:
        """Hold the current leases and map a witness. Nothing is leased or reused until the fork has happened."""
        held: list[Leaser] = []
        self._own.held = held
        leases: list[object] = []
        for leaser in self.leasers:
            if leaser.hold(_HOLD_S):
                held.append(leaser)
            leases += leaser.leases()
        if not leases:
            return
        with self._lock:
            try:
                self._own.page = self._witness_for(leases).map()
            except OSError:  # no descriptor is left; an exception here would be ignored
                SEEN.append((None, leases))

    def _witness_for(self, leases: list[object]) -> _Witness:
        # Workers are forked one after the other while the program holds the same batches: one witness serves them all.
        witness, before = SEEN[-1] if SEEN else (None, [])
        if witness is None or list(map(id, before)) != list(map(id, leases)):
            witness = _Witness()
            SEEN.append((witness, leases))
        return witness

    def after_in_parent(self) -> None:
        held: list[Leaser] = getattr(self._own, "held", [])
        self._own.held = []
        for leaser in held:
            leaser.let_go()
        page: mmap.mmap | None = getattr(self._own, "page", None)
        if page is not None:
            self._own.page = None
            page.close()

    def after_in_child(self) -> None:
        # The page stays mapped while this process lives. The leases are held in the parent.
        _kept.append(getattr(self._own, "page", None))
        for witness, _ in SEEN:
            if witness is not None:
                witness.close()
        SEEN.clear()
        for leaser in self.leasers:
            leaser.reset_in_child()
        self.leasers.clear()
        self._own = threading.local()
        self._lock = threading.Lock()

    def settle(self, *, at_once: bool = False) -> None:
        """Release leases that only ended processes could see.

        Args:
            at_once: True if such a process has probably just ended; otherwise witnesses are checked at intervals.
        """
        if not SEEN:
            return
        now_s = time.monotonic()
        if (now_s < self._next_s and not at_once) or not self._lock.acquire(blocking=False):
            return
        try:
            self._next_s = now_s + _CHECK_INTERVAL_S
            SEEN[:] = [(witness, held) for witness, held in SEEN if witness is None or not witness.is_alone()]
        finally:
            self._lock.release()


_kept: list[mmap.mmap | None] = []
_forks = _Forks()
settle = _forks.settle


def watch(leaser: Leaser) -> None:
    """Hold the leases of some memory when this process forks, as long as the memory lives."""
    _forks.leasers.add(leaser)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_forks.before, after_in_parent=_forks.after_in_parent, after_in_child=_forks.after_in_child
    )
