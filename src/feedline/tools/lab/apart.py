"""Runs of views in a process of their own: where workers are started and killed, or memory is measured.

The processes come from Python's fork server, which has feedline and torch imported and nothing else: no threads, no
lock that somebody holds. Each leads a session, so that one signal ends it together with its workers.
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
from feedline.tools.lab.controls import Values
from feedline.tools.lab.pictures import Event, doing, failure
from feedline.tools.lab.view import Actions

Run = Callable[[Values, Actions], Iterator[Event]]
_LOOK_S = 0.2
_PRELOADED = ("feedline.tools.lab.preloaded",)


class ViewFailed(FeedlineError):
    """The process of a run has ended before the run had."""


def apart(run: Run) -> Run:
    """Return a run that does the same in a process of its own. `run` must be found in its module by name."""

    def begin(values: Values, actions: Actions) -> Iterator[Event]:
        yield doing("Starting a process for this run. The first one imports torch.")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_PRELOADED))
        ours, theirs = context.Pipe()
        # What a process that is killed has in there would stay.
        with tempfile.TemporaryDirectory(prefix="feedline-lab-", ignore_cleanup_errors=True) as folder:
            process = context.Process(target=_work, args=(theirs, run, values, folder), name="feedline-lab-run")
            process.start()
            theirs.close()
            try:
                yield from _told(ours, actions, process.is_alive)
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended, with all its workers
                    os.killpg(process.pid or 0, signal.SIGKILL)
                process.kill()  # it has no group of its own, and no workers, if it has just been started
                process.join()
                ours.close()
                process.close()

    return begin


def _told(ours: Connection, actions: Actions, is_alive: Callable[[], bool]) -> Iterator[Event]:
    """Yield events until the run has ended; hand on what is clicked."""
    while True:
        with contextlib.suppress(queue.Empty):
            while True:
                ours.send(actions.get_nowait())
        lives = is_alive()
        if not ours.poll(_LOOK_S) and lives:
            yield {"kind": "still"}  # so that whoever reads may leave
            continue
        try:
            if not lives and not ours.poll():  # a worker that was left behind holds the other end
                raise EOFError
            event: Event | None = ours.recv()
        except EOFError:
            raise ViewFailed(
                "The process of this run has ended in the middle of it. The terminal of `feedline lab` may say why."
            ) from None
        if event is None:
            return
        yield event


def _work(theirs: Connection, run: Run, values: Values, folder: str) -> None:
    """Do the run. In its own process."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the lab, which ends its runs itself
    # As in a user's script. The only other thread is `_listen`, which holds nothing that a worker could want.
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
            os.killpg(0, signal.SIGKILL)  # the lab has gone, however that came about: nothing of this run may stay
