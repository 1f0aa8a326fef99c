"""Runs of views in processes of their own: for views that start and kill workers, or measure memory.

The processes come from Python's fork server, which has feedline and torch imported and nothing else: no threads, and no
held locks. Each process leads a session, so one signal ends it together with its workers.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import shutil
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from feedline.errors import FeedlineError
from feedline.system import socket_folder
from feedline.tools.lab.controls import Values
from feedline.tools.lab.pictures import Event, doing, failure
from feedline.tools.lab.view import Actions

Run = Callable[[Values, Actions], Iterator[Event]]
_POLL_S = 0.2
_PRELOADED = ("feedline.tools.lab.preloaded",)


class ViewFailed(FeedlineError):
    """Raised if the process of a run ends before the run does."""


def apart(run: Run) -> Run:
    """Return a run that does the same in a process of its own. `run` must be importable by name from its module."""

    def begin(values: Values, actions: Actions) -> Iterator[Event]:
        yield doing("Starting a process for this run. The first one imports torch.")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_PRELOADED))
        socket_folder.use_short_paths()
        ours, theirs = context.Pipe()
        # A process that is killed does not delete its temporary files, so the lab does.
        with tempfile.TemporaryDirectory(prefix="feedline-lab-", ignore_cleanup_errors=True) as folder:
            process = context.Process(target=_work, args=(theirs, run, values, folder), name="feedline-lab-run")
            process.start()
            theirs.close()
            try:
                yield from _receive_events(ours, actions, process.is_alive)
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):  # the process and its workers have ended
                    os.killpg(process.pid or 0, signal.SIGKILL)
                process.kill()  # one that has just started has no group of its own yet, and no workers
                process.join()
                ours.close()
                process.close()

    return begin


def _receive_events(ours: Connection, actions: Actions, is_alive: Callable[[], bool]) -> Iterator[Event]:
    """Yield events until the run has ended; forward clicks to it."""
    while True:
        with contextlib.suppress(queue.Empty):
            while True:
                ours.send(actions.get_nowait())
        lives = is_alive()
        if not ours.poll(_POLL_S) and lives:
            yield {"kind": "still"}  # so that the caller can stop reading
            continue
        try:
            if not lives and not ours.poll():  # a worker that was left behind may keep the other end open
                raise EOFError
            event: Event | None = ours.recv()
        except EOFError:
            raise ViewFailed(
                "The process of this run ended unexpectedly. The terminal of `feedline lab` may show the reason."
            ) from None
        if event is None:
            return
        yield event


def _work(theirs: Connection, run: Run, values: Values, folder: str) -> None:
    """Run the view, in its own process."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the lab handles Ctrl-C, and ends its runs itself
    # As in a user's script. The only other thread is `_listen`, which holds no lock that a worker could need.
    multiprocessing.set_start_method("fork", force=True)
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # workers here mostly sleep
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    actions: Actions = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(theirs, actions, folder), daemon=True).start()
    try:
        for event in run(values, actions):
            theirs.send(event)
    except Exception as error:
        theirs.send(failure(error))
    theirs.send(None)


def _listen(theirs: Connection, actions: Actions, folder: str) -> None:
    while True:
        try:
            actions.put(theirs.recv())
        except (EOFError, OSError):
            shutil.rmtree(folder, ignore_errors=True)
            os.killpg(0, signal.SIGKILL)  # the lab has ended, for whatever reason: leave nothing of this run behind
