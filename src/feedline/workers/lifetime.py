"""Start and end worker processes, however they are connected to the training process.

fork: OpenMP's idle threads are dismissed first. They would not exist in the child, and a parallel region there would
wait for them forever. They come back in the parent when needed.
"""

from __future__ import annotations

import errno
import multiprocessing
import multiprocessing.process
import os
import pickle
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from feedline.abc.engine import Engine
from feedline.abc.worker_spec import WorkerSpec
from feedline.errors import NotPicklable, TooManyOpenFiles, WorkerDied, WorkerStartError, warn_user
from feedline.memory import forks
from feedline.system.failures import words
from feedline.system.references import References
from feedline.workers import forkserver, handles
from feedline.workers.failure import UNPICKLABLE

_PATIENCE_S = 0.15
"""How long workers that are no longer needed may take to finish their work, until SIGTERM interrupts it."""

_LAST_PATIENCE_S = 5.0
"""How long the user's finalizers may take then, until SIGKILL. torch's loader waits as long before its SIGTERM."""

_PICKLE_WARNING = (
    "Got pickle error when attempting to start a worker Process. "
    "This might be because the worker Process arguments are not picklable. "
    "Python 3.14+ changed the multiprocessing start method in non-Mac POSIX platforms "
    "to 'forkserver', which requires the worker Process arguments to be picklable. "
    "You can also try multiprocessing.set_start_method('fork')."
)


_GUARD = '`if __name__ == "__main__":`'

_IMPORTED = 103
"""Exit code of a worker that would have started its own workers while importing the program. Rarely used otherwise."""

_NAME = "feedline-worker-"


def process_name(number: int) -> str:
    """Return the name of a worker process."""
    return f"{_NAME}{number}"


def leave_if_imported() -> None:
    """End this process if it is a worker that is importing the main program: the program lacks the guard.

    It ends without a traceback, since every worker would print one; the training process reports it, once.
    """
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False) and process.name.startswith(_NAME):
        os._exit(_IMPORTED)


def start_method(context: BaseContext | None) -> str:
    """Return the name of the start method of `context`, or of the default."""
    method: str | None = (context or multiprocessing).get_start_method()
    return method or "fork"


@contextmanager
def explained_start(engine: Engine, spec: WorkerSpec | None, *, closes: bool = True) -> Iterator[None]:
    """If workers cannot be started, close the engine if `closes`, and raise an error with advice."""
    try:
        yield
    except BaseException as exc:
        if closes:
            engine.close()
        code = exc.errno if isinstance(exc, OSError) else None
        if code in (errno.EMFILE, errno.ENFILE):
            raise TooManyOpenFiles(f"starting {engine.worker_count} workers") from exc
        if code in (errno.EAGAIN, errno.ENOMEM):
            raise WorkerStartError(
                f"{engine.worker_count} workers could not be started: {words(exc)}. The limit on processes (`ulimit "
                "-u`) or memory is reached; use fewer workers or engine='thread'."
            ) from exc
        if isinstance(exc, (EOFError, ConnectionError)):
            raise WorkerStartError(
                f"The fork server ended while it started one of {engine.worker_count} workers. Its output above shows "
                "why. The usual cause is the limit on processes (`ulimit -u`) or memory, or a program whose work is "
                f"not under {_GUARD}. Use fewer workers, the start method 'fork', or engine='thread'."
            ) from exc
        if isinstance(exc, NotPicklable):
            raise  # its message already explains it
        if isinstance(exc, (TypeError, AttributeError, pickle.PicklingError)):
            warn_user(_PICKLE_WARNING, UserWarning)
        if spec is not None and isinstance(exc, UNPICKLABLE):
            from feedline.workers import unpicklable

            raise unpicklable.explain(spec, exc) from exc
        raise


def start_forkserver(spec: WorkerSpec, worker_module: str) -> None:
    """Start the fork server, which imports once what every worker would otherwise import itself."""
    sent = [value for _, value in handles.objects_in(spec.dataset)]
    forkserver.start(worker_module, [spec.framework, spec.collate, spec.init, *sent])


workers: References[BaseProcess] = References()
"""The workers of this process. Its forks do not treat them as their own children."""


def _disown_workers() -> None:
    # At exit, multiprocessing ends the daemons it knows of. After os.fork() in the user's code, the child knows its
    # parent's daemons.
    # Test: tests/faults/test_forked.py::test_a_child_that_exits_changes_nothing
    children: set[BaseProcess] = multiprocessing.process._children  # type: ignore[attr-defined]
    children.difference_update(workers)
    workers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_workers)


def end_of(process: BaseProcess) -> int:
    """Return what becomes readable when a process ends: a new descriptor; on Windows a handle that the process keeps.

    The sentinel of a forked process may be open in processes that it started itself, and is then of no use.
    """
    if os.name != "posix":
        return process.sentinel
    try:
        return os.pidfd_open(process.pid or 0)
    except (AttributeError, OSError):  # not on Linux, an old kernel, or the fork server has reaped it
        return os.dup(process.sentinel)


def is_asleep(pid: int) -> bool:
    """True if a process waits for something, and is not stopped; False where the system does not say."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "S"
    except OSError:
        return False


def is_over(process: BaseProcess) -> bool:
    """True if a worker has ended; its files are closed then.

    The process's own `close` would do that too, but then all its methods raise, and users may hold the object.
    """
    if not _has_ended(process):
        return False
    _close_files(process)
    return True


# Any: a private part of a multiprocessing process.
def _close_files(process: Any) -> None:
    process.is_alive()  # makes multiprocessing forget a process that has ended
    process._popen.close()
    vars(process).pop("_sentinel", None)  # another file may get this number


_UNKNOWN = 255
"""The value that multiprocessing itself uses for an unknown exit code."""


# Any: a private part of a multiprocessing process.
def _has_ended(process: Any) -> bool:
    """True if a worker has ended, also if other code has taken its exit status.

    That happens in a program that ignores SIGCHLD, or waits for any child. multiprocessing then considers the process
    alive forever, and keeps its files. A process that was our child and no longer is has ended.
    """
    if not process.is_alive():
        return True
    popen = process._popen
    if popen.method not in ("fork", "spawn"):
        return False  # it is a child of the fork server
    try:
        pid, status = os.waitpid(popen.pid, os.WNOHANG)
    except ChildProcessError:
        popen.returncode = _UNKNOWN
        return True
    if pid:
        popen.returncode = os.waitstatus_to_exitcode(status)
    return bool(pid)


def end(processes: Iterable[BaseProcess]) -> None:
    """Wait for workers that were requested to end; interrupt, and at last kill, those that take too long.

    SIGTERM makes a worker leave the user's code and run its finalizers (`processes/worker.py`).
    """
    left = list(processes)
    _wait_for(left, _PATIENCE_S)
    for force, patience_s in ((BaseProcess.terminate, _LAST_PATIENCE_S), (BaseProcess.kill, 1.0)):
        left = [process for process in left if not _has_ended(process)]
        for process in left:
            force(process)
        _wait_for(left, patience_s)
    for process in left:
        _has_ended(process)
    forks.release_ended(at_once=True)  # free batches that only they could see


def _wait_for(processes: Iterable[BaseProcess], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))


_SENT = ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2")
"""Signals that do not come from a crash. Nor does SIGKILL."""


def death_error(process: BaseProcess, number: int) -> WorkerDied | WorkerStartError:
    """Return an error with how a worker died and why; WorkerStartError if a replacement would end the same way."""
    process.join(1.0)
    code = process.exitcode
    if code == _IMPORTED:
        return WorkerStartError(
            "The main program starts workers while it is being imported. Workers that are started by spawn or "
            f"forkserver import the program, so its work must be under {_GUARD}. Move it there, or into a function "
            'that is called there; or choose multiprocessing_context="fork" or engine="thread", which import nothing.'
        )
    name = ""
    if code is None and _has_ended(process):
        how = "ended with an unknown exit status"
        hint = (
            "This program ignores SIGCHLD, or waits for any of its children (os.wait()), so the exit status of a "
            "worker is lost. Look at what the worker printed above."
        )
    elif code is not None and code < 0:
        name = next((known.name for known in signal.Signals if known == -code), "real-time")
        how = f"was killed by signal {-code} ({name})"
        hint = (
            "The system running out of memory is the usual cause: try fewer workers, a smaller batch or a smaller "
            "prefetch_factor."
            if name == "SIGKILL"
            else "Another process sent it: a scheduler, a script or a user's command."
            if name in _SENT
            else "A crash in native code that the dataset calls is the usual cause: num_workers=0 shows where."
        )
    else:
        how = f"ended with exit code {code}"
        hint = "Look for sys.exit() or os._exit() in the dataset, or for an error the worker printed above."
    death = WorkerDied(f"DataLoader worker (pid(s) {process.pid}) exited unexpectedly: worker {number} {how}. {hint}")
    death.was_killed = name in ("SIGKILL", *_SENT)
    return death
