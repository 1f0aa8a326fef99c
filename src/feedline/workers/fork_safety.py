"""A safe moment to fork: no other thread holds a lock that the child would inherit, with no thread to release it.

A fork copies all memory, but only one thread. A lock that another thread held stays locked in the child for good: a
lock of torch's generator, of OpenBLAS, of a module that is being imported, of a log file. Acquiring it there blocks
forever. So, if the program has other Python threads, feedline does three things before it forks:

1. It waits until no other thread imports a module.
2. It takes the locks that can be taken from here (NumPy's global generator, the handlers of `logging`) and holds them.
3. It keeps the GIL and waits until no other thread runs: threads in C code leave it and wait for the GIL, and by then
   they have released the locks of that code.

Python without the GIL stops its own threads while it forks, but there is no GIL to keep in step 3. Threads run until
then, also in C code that holds a lock, so a fork is not safe. Use forkserver or spawn there.

Each of these waits has a limit: the fork does not wait for a thread that computes for seconds in one call, and the next
workers do not wait for it again. Without other Python threads nothing is done. Test: tests/faults/test_fork_safety.py
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import math
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from feedline.system.attributes import held_by
from feedline.system.openmp import is_forked

if os.name == "posix":
    import fcntl

_IMPORT_S = 5.0
"""How long to wait for imports of other threads, which come to an end."""
_LOCK_S = 1.0
"""How long to wait for each lock."""
_RUNNING_S = 0.5
"""How long to wait for other threads to stop running. OpenBLAS's idle threads spin for 70 ms, OpenCV's for 160 ms."""
_VAIN_S = 2.0
"""How long no fork waits again after such a wait in vain: all workers of a start would wait for the same thread."""
_TASKS = "/proc/self/task"
_FILES = "/proc/self/fd"


class _Mine(threading.local):
    held: ExitStack | None = None
    """The locks held while this thread forks a worker; None at any other time."""
    switch_interval_s: float | None = None
    gave_up_s: float = -math.inf
    """When a wait for other threads to stop running was last in vain."""
    positions: dict[int, int] | None = None
    """Positions of the files open for reading only, by descriptor, while this thread forks a worker."""


_mine = _Mine()
_opencv_is_cut_off = "cv2" in sys.modules and is_forked()
"""True if other code forked this process while OpenCV was loaded: OpenCV may rely on threads that do not exist here."""
_libc: Any = ctypes.PyDLL(None) if os.name == "posix" else None  # its calls keep the GIL
_text = ctypes.create_string_buffer(512)


@contextmanager
def quiesce_threads() -> Iterator[None]:
    """Wait for a safe moment to fork, and keep it so in the block."""
    with ExitStack() as safe:
        if "cv2" in sys.modules and not _opencv_is_cut_off:
            safe.enter_context(_opencv_without_threads(sys.modules["cv2"]))
        _mine.positions = read_positions()
        safe.callback(setattr, _mine, "positions", None)
        if threading.active_count() > 1 and Path(_TASKS).is_dir():
            safe.enter_context(_stop_other_threads())
        yield


def read_positions() -> dict[int, int]:
    """Return the positions of all regular files that are open for reading only, by descriptor.

    Once a child runs, this process may read on and move the position of both.
    """
    positions = {}
    others = os.O_WRONLY | os.O_RDWR | getattr(os, "O_PATH", 0)  # O_PATH does not even allow reading
    try:
        files = os.listdir(_FILES)
    except OSError:  # no /proc
        return {}
    for fd in map(int, files):
        try:
            is_only_read = fd > 2 and not fcntl.fcntl(fd, fcntl.F_GETFL) & others
            if is_only_read and stat.S_ISREG(os.fstat(fd).st_mode):
                positions[fd] = os.lseek(fd, 0, os.SEEK_CUR)
        except OSError:  # closed since, such as the one used for the listing
            continue
    return positions


@contextmanager
def _opencv_without_threads(cv2: ModuleType) -> Iterator[None]:
    """End the idle threads of OpenCV's pool for a moment.

    A child that sets another number of threads would wait forever for threads to end that it does not have. So would
    this process, if it is such a child. Otherwise the threads come back when needed.
    """
    count = cv2.getNumThreads() if hasattr(cv2, "getNumThreads") else 0
    if count <= 1:
        yield
        return
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(count)


@contextmanager
def _stop_other_threads() -> Iterator[None]:
    """Wait until other threads hold no locks that matter, and keep it so in the block."""
    _wait_for_imports()
    with ExitStack() as held:
        for lock in _locks():
            if lock.acquire(timeout=_LOCK_S):
                held.callback(lock.release)
        _mine.held = held
        try:
            yield
        finally:
            _mine.held = None


def opened_again(fd: int) -> int:
    """Open a file once more, with a position of its own: the very same file, even if its path has changed."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NOFOLLOW  # paths in /proc are links
    return os.open(f"{_FILES}/{fd}", flags | os.O_CLOEXEC)


def reset_in_child(dataset: object) -> None:
    """Repair what this process, just forked, has inherited.

    Locks held by threads that do not exist here are freed. Every file that is open for reading only gets a position of
    its own, under the same descriptor, whatever refers to it.
    """
    positions = _mine.positions or {}
    for fd in positions.keys() & read_positions().keys():  # another thread may have closed one just before the fork
        with contextlib.suppress(OSError):  # permissions have changed; `handles` warns about files in the dataset
            _give_own_position(fd, positions[fd])
    reset: Any = _numpy_lock()  # Any: locks have a method that their type does not name
    reset._at_fork_reinit()
    for value in held_by(dataset):
        if type(value) in _LOCKS:  # the user's own: it could never be released here
            lock: Any = value
            lock._at_fork_reinit()


def _give_own_position(fd: int, position: int) -> None:
    own = opened_again(fd)
    try:
        os.lseek(own, position, os.SEEK_SET)
        os.dup2(own, fd, inheritable=os.get_inheritable(fd))
    finally:
        os.close(own)


_LOCKS = (type(threading.Lock()), type(threading.RLock()))


def _numpy_lock() -> Any:
    return np.random.mtrand.get_bit_generator().lock


def _locks() -> Iterator[Any]:
    yield _numpy_lock()
    for reference in list(vars(logging)["_handlerList"]):
        handler = reference()
        if handler is not None and handler.lock is not None:
            yield handler.lock


def _wait_for_imports() -> None:
    locks: Any = vars(vars(importlib)["_bootstrap"]).get("_module_locks", {})
    me = threading.get_ident()
    deadline_s = time.monotonic() + _IMPORT_S
    while time.monotonic() < deadline_s:
        owners = [lock.owner for reference in list(locks.values()) if (lock := reference()) is not None]
        if not any(owner not in (None, me) for owner in owners):
            return
        time.sleep(0.001)  # gives other threads the GIL


def _before_fork() -> None:
    if _mine.held is None:
        return
    own = threading.get_native_id()
    with contextlib.suppress(FileNotFoundError):
        paths = [f"{_TASKS}/{task}/stat".encode() for task in os.listdir(_TASKS) if int(task) != own]
        interval_s = sys.getswitchinterval()
        if interval_s != _RUNNING_S:  # another thread that forks may have set it, and will restore it
            _mine.switch_interval_s = interval_s
            sys.setswitchinterval(_RUNNING_S)  # so that no thread requests the GIL and makes us give it up
        began_s = time.monotonic()
        deadline_s = began_s + (_RUNNING_S if began_s - _mine.gave_up_s > _VAIN_S else 0.0)
        quiet_checks = 0
        while quiet_checks < 2 and time.monotonic() < deadline_s:  # twice: a thread may be between two states
            quiet_checks = 0 if any(_runs(path) for path in paths) else quiet_checks + 1
            _libc.usleep(100)
        if quiet_checks < 2 and deadline_s > began_s:
            _mine.gave_up_s = deadline_s
    if type(_numpy_lock()) is not _LOCKS[1]:
        # NumPy before 2.3: a user's fork hook that draws random numbers would wait for this thread itself. It needs a
        # free lock; a thread that has been waiting may take it in this moment, which is rare.
        _mine.held.close()


def _runs(path: bytes) -> bool:
    """True if a thread computes or is in a system call that cannot be interrupted."""
    fd = _libc.open(path, os.O_RDONLY)
    if fd < 0:
        return False  # it has ended
    size = _libc.read(fd, _text, len(_text) - 1)
    _libc.close(fd)
    state = _text.raw[: max(0, size)].rpartition(b")")[2].split()[:1]
    return state in ([b"R"], [b"D"])


def _after_fork() -> None:
    if _mine.switch_interval_s is not None:
        sys.setswitchinterval(_mine.switch_interval_s)
        _mine.switch_interval_s = None


def _after_fork_in_child() -> None:
    global _opencv_is_cut_off
    _after_fork()
    _opencv_is_cut_off = _opencv_is_cut_off or (_mine.positions is None and "cv2" in sys.modules)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
