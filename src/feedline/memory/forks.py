"""Forks of this process, and the memory that they can see.

A forked process has every mapping of its parent, including the batches there. What it writes into them must stay its
own, as in any other memory. So the child replaces each batch that its parent holds by a private view of the same pages
(copy-on-write). It still sees what its parent writes, except on pages that it has written to itself.

If such memory were reused for the next batch, the child would see its own batch change. So memory that is leased at the
time of a fork stays leased until the child and all its descendants have ended or executed another program.

A witness detects this: one page of shared memory that is mapped just before the fork and unmapped in the parent right
after it. From then on only the child and its descendants have it mapped, exactly as long as they have the batches.
Linux refuses to seal memory against writing while any process has it mapped writable. No signal, process id or open
file is involved that a child could close.

A worker holds no leases: as soon as it has sent a batch, its slot may be reused, and later batches are written there.
So a child of a worker gets a private copy of the unfinished batch, made before the fork, and writes nothing more there.
What else a worker refers to is private to it (`BatchMemory.part_with`).

On the portable engine, the training process maps every batch that it receives as private from the beginning (on Linux).
Tests: tests/memory/test_forks.py, tests/faults/test_forked.py
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from feedline.memory.sparse import make_private
from feedline.system.references import References

if TYPE_CHECKING:
    from feedline.memory.codec import Bytes, SlotWriter

if os.name == "posix":
    import fcntl

Arena = Any  # `feedline.memory.arena.Arena`, whose file imports this one

_CHECK_INTERVAL_S = 0.05
"""The shortest interval between checks of the witnesses: each takes a system call."""

_HOLD_S = 1.0
"""How long a fork waits for operations of other threads, which take microseconds. A thread that forks in the middle of
an operation of its own cannot wait for itself."""


SEEN: list[tuple[int | None, list[object]]] = []
"""Witnesses, and the leases that a child can see. Without a witness (no descriptor was left), they are held forever."""

unfinished: SlotWriter | None = None
"""What this worker is making a batch in, if that is shared memory."""

_arenas: References[Arena] = References()
_lock = threading.Lock()
_next_check_s = 0.0


class _Forking(threading.local):
    """What this thread's current fork holds."""

    held: Sequence[Arena] = ()
    seen: Sequence[tuple[Arena, list[Bytes]]] = ()
    page: mmap.mmap | None = None
    unfinished: tuple[SlotWriter, bytes] | None = None


_forking = _Forking()


def watch(arena: Arena) -> None:
    """Hold the leases of an arena when this process forks, as long as the arena lives."""
    _arenas.add(arena)


def release_ended(*, at_once: bool = False) -> None:
    """Release leases that only ended processes could see.

    Args:
        at_once: True if such a process has probably just ended; otherwise witnesses are checked at intervals.
    """
    global _next_check_s
    now_s = time.monotonic()
    if not SEEN or (now_s < _next_check_s and not at_once) or not _lock.acquire(blocking=False):
        return
    try:
        _next_check_s = now_s + _CHECK_INTERVAL_S
        SEEN[:] = [(witness, leases) for witness, leases in SEEN if witness is None or not _close_if_alone(witness)]
    finally:
        _lock.release()


def _close_if_alone(witness: int) -> bool:
    """Close a witness if no forked process has its page mapped any more."""
    try:
        fcntl.fcntl(witness, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    except OSError as exc:
        if exc.errno == errno.EBUSY:
            return False
        raise
    os.close(witness)
    return True


def _before() -> None:
    """Hold the current leases, map a witness, and copy an unfinished batch.

    Nothing is leased or reused until the fork has happened.
    """
    held: list[Arena] = []
    seen: list[tuple[Arena, list[Bytes]]] = []
    leases: list[object] = []
    _forking.held, _forking.seen = held, seen
    for arena in _arenas:
        if arena.hold(_HOLD_S):
            held.append(arena)
        seen.append((arena, arena.leases()))
        leases += seen[-1][1]
    if leases:
        with _lock:
            try:
                _forking.page = mmap.mmap(_witness_for(leases), mmap.PAGESIZE)
            except OSError:  # no descriptor is left; an exception here would be ignored
                SEEN.append((None, leases))
    writer = unfinished
    if writer is not None and writer.used:
        _forking.unfinished = writer, ctypes.string_at(writer.address, writer.used)


def _witness_for(leases: list[object]) -> int:
    # Workers are forked one after the other while the program holds the same batches: one witness serves them all.
    last, before = SEEN[-1] if SEEN else (None, [])
    if last is not None and list(map(id, before)) == list(map(id, leases)):
        return last
    witness = os.memfd_create("feedline-fork", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(witness, mmap.PAGESIZE)
    except OSError:
        os.close(witness)
        raise
    SEEN.append((witness, leases))
    return witness


def _after_in_parent() -> None:
    held, page = _forking.held, _forking.page
    _forking.held, _forking.seen, _forking.page, _forking.unfinished = (), (), None, None
    for arena in held:
        arena.let_go()
    if page is not None:
        page.close()


def _after_in_child() -> None:
    # The leases are held in the parent. The page stays mapped while this process lives.
    global _lock
    _lock = threading.Lock()
    _kept.append(_forking.page)
    seen, made = _forking.seen, _forking.unfinished
    _forking.held, _forking.seen, _forking.page, _forking.unfinished = (), (), None, None
    for witness, _ in SEEN:
        if witness is not None:
            os.close(witness)
    SEEN.clear()
    for arena in _arenas:
        arena.reset_in_child()
    _arenas.clear()
    for arena, arrays in seen:
        arena.make_private(arrays)
    if made is not None:
        writer, contents = made
        writer.end()
        make_private(writer.address, len(contents), contents)


_kept: list[mmap.mmap | None] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
