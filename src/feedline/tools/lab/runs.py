"""Runs of views, each in a process of its own: closing a run ends that process and all workers that it started.

The processes come from Python's fork server, which has feedline and torch imported and nothing else: no threads, and no
held locks. Each process leads a session, so one signal ends it together with its workers. A run waits while its events
are not read, so a slow page slows down its own run and nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import queue
import shutil
import signal
import tempfile
import threading
import warnings
from collections.abc import AsyncIterator, Generator
from contextlib import closing
from multiprocessing import forkserver
from multiprocessing.connection import Connection

from starlette.concurrency import iterate_in_threadpool

from feedline.errors import BadOption, FeedlineError
from feedline.system import socket_folder
from feedline.tools.lab.pictures import Event, failure
from feedline.tools.lab.view import Clicks, View
from feedline.types import JsonObject

MOST = 4
"""Maximum runs at a time. Browsers open six connections to a server, and pages and clicks need free ones."""
_PRELOADED = ("feedline.loader.torch", "feedline.tools.lab.views")
_POLL_S = 0.2


def start_fork_server() -> None:
    """Start the fork server, unless it runs already; it imports torch, which takes seconds, while others go on."""
    multiprocessing.set_forkserver_preload(list(_PRELOADED))
    socket_folder.use_short_paths()
    forkserver.ensure_running()


class Run:
    """One run of a view. It starts when its events are read."""

    def __init__(self, view: View, values: JsonObject) -> None:
        self.is_stopped = False
        """True to end the run at its next event."""
        self._view = view
        self._values = values
        self._offered: frozenset[str] = frozenset()
        self._ours: Connection | None = None

    def click(self, action: str) -> None:
        """Send a click to the view.

        Raises:
            BadOption: the page shows no such button now.
        """
        if self._ours is None or action not in self._offered:
            raise BadOption(f"This run has no button {action!r:.40}.")
        self._ours.send(action)

    def events(self) -> Generator[Event | None, None, None]:
        """Yield the events of the view, and None now and then while there are none, so that the reader can leave."""
        context = multiprocessing.get_context("forkserver")
        start_fork_server()
        # A process that is killed does not delete its temporary files, so the lab does.
        with tempfile.TemporaryDirectory(prefix="feedline-lab-", ignore_cleanup_errors=True) as folder:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, self._view, self._values, folder))
            process.start()
            theirs.close()
            self._ours = ours
            try:
                while not self.is_stopped:
                    lives = process.is_alive()
                    if ours.poll(_POLL_S if lives else 0):
                        event: Event | None = ours.recv()
                        if event is None:
                            return
                        if event["kind"] == "buttons":
                            self._offered = frozenset(event["actions"])
                        yield event
                    elif lives:
                        yield None
                    else:  # a worker that was left behind may keep the other end of the pipe open
                        raise EOFError
            except (EOFError, ConnectionError):
                text = "The process of this run ended unexpectedly. The terminal of `feedline lab` may show the reason."
                yield failure(FeedlineError(text))
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):  # the process and its workers have ended
                    os.killpg(process.pid or 0, signal.SIGKILL)
                process.kill()  # one that has just started has no group of its own yet, and no workers
                process.join()
                process.close()
                ours.close()


class Runs:
    """The runs in progress, by number. Used on the event loop's thread only."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._running: dict[str, Run] = {}

    async def lines(self, view: View, values: JsonObject) -> AsyncIterator[str]:
        """Run a view; yield its events as lines of JSON until it has ended, or the reader has left."""
        number, run = str(next(self._numbers)), Run(view, values)
        self._running[number] = run
        try:
            yield _line({"kind": "run", "number": number})
            with closing(run.events()) as events:
                async for event in iterate_in_threadpool(events):
                    if event is not None:
                        yield _line(event)
            if not run.is_stopped:
                yield _line({"kind": "done"})
        finally:
            del self._running[number]

    def check_room(self) -> None:
        """Check that one more run may start.

        Raises:
            BadOption: the maximum number of runs is in progress.
        """
        if len(self._running) >= MOST:
            raise BadOption(f"The lab does {MOST} runs at a time, and all are in progress. Close a tab or wait.")

    def click(self, number: str, action: str) -> None:
        """Send a click to a run.

        Raises:
            BadOption: the run has ended, or has no such button.
        """
        if number not in self._running:
            raise BadOption("This run has ended. Start it again.")
        self._running[number].click(action)

    def close(self) -> None:
        """Make all runs end at their next event."""
        for run in self._running.values():
            run.is_stopped = True


def _line(event: Event) -> str:
    return json.dumps(event, separators=(",", ":")) + "\n"


def _work(theirs: Connection, view: View, values: JsonObject, folder: str) -> None:
    """Run the view, in its own process."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the lab handles Ctrl-C, and ends its runs itself
    # As in a user's script. The only other thread is `_listen`, which holds no lock that a worker could need.
    multiprocessing.set_start_method("fork", force=True)
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # workers here mostly sleep
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    clicks: Clicks = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(theirs, clicks, folder), daemon=True).start()
    try:
        for event in view.draw(**values, **({"clicks": clicks} if view.takes_clicks else {})):
            theirs.send(json.loads(json.dumps(event, allow_nan=False, default=str)))  # as the page gets it
    except Exception as error:
        theirs.send(failure(error))
    theirs.send(None)


def _listen(theirs: Connection, clicks: Clicks, folder: str) -> None:
    while True:
        try:
            clicks.put(theirs.recv())
        except (EOFError, OSError):
            shutil.rmtree(folder, ignore_errors=True)
            os.killpg(0, signal.SIGKILL)  # the lab has ended, for whatever reason: leave nothing of this run behind
