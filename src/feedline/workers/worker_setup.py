"""The first steps of every worker process, however it is connected to the training process."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import select
import signal
import sys
import threading
from collections.abc import Callable

from feedline.abc.worker_spec import WorkerSpec
from feedline.system import interrupts
from feedline.types import WorkerIdentity
from feedline.workers.heap import keep_heap_warm
from feedline.workers.runner import Runner


def init_worker(
    spec: WorkerSpec,
    number: int,
    generation: int = 0,
    report_alive: Callable[[], None] | None = None,
    has_closed: Callable[[], bool] = lambda: False,
) -> Runner:
    """Set up this process as worker `number`: its signals, its heap, its dataset.

    Args:
        spec: what all workers share.
        number: which worker.
        generation: how many workers had this number before; their random numbers must not be drawn again.
        report_alive: see `Runner`.
        has_closed: returns True if the training process has closed its connection to this worker.
    """
    interrupts.ignore()
    signal.signal(signal.SIGTERM, functools.partial(_leave, has_closed))
    keep_heap_warm()
    seed = spec.base_seed + number + generation * spec.worker_count
    return Runner(spec, WorkerIdentity(number, spec.worker_count, seed, spec.dataset), report_alive=report_alive)


def _leave(has_closed: Callable[[], bool], *_: object) -> None:
    """Leave the user's code if the training process is ending this worker, or die of a signal that somebody else sent.

    `finally` blocks and finalizers run in the first case: they may have to write what the user's code has gathered.
    """
    if has_closed():
        finish()
        sys.exit()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def finish() -> None:
    """Let the user's finalizers run to their end. Called when there is no more work."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


_PR_SET_PDEATHSIG = 1


def end_with(trainer_pid: int, trainer_fd: int, *, started_by_main_thread: bool) -> None:
    """Have this process killed when the training process ends, even if it is stuck in the user's code then.

    Linux can do that for a child, but watches the thread that started it, which may end before the process does. So use
    that only if it was the main thread; otherwise a thread of this process waits for the end.
    Test: tests/faults/test_trainer_killed.py
    """
    if started_by_main_thread and os.getppid() == trainer_pid:
        prctl = getattr(ctypes.CDLL(None), "prctl", None)
        if prctl is not None and prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0:
            if os.getppid() != trainer_pid:  # it ended in between
                os.kill(os.getpid(), signal.SIGKILL)
            return
    # Where the limit on processes forbids a thread, the worker notices the end when its task is done.
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=_follow, args=(trainer_fd,), name="feedline-end", daemon=True).start()


def _follow(trainer_fd: int) -> None:
    waiting = select.poll()
    waiting.register(trainer_fd, select.POLLIN)
    waiting.poll()
    os.kill(os.getpid(), signal.SIGKILL)
