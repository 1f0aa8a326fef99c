"""Runs of views: each on a thread of its own, read by one request as lines of JSON.

The thread makes an event, and waits until the page has taken it when `AHEAD` are under way: a page that is slow, or in
the background, slows its run and nothing else. When the page has gone, the thread closes the view's generator, which
frees what it holds.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import queue
import threading
import traceback
from collections.abc import AsyncIterator
from concurrent.futures import TimeoutError as Late

from feedline.errors import BadOption, FeedlineError
from feedline.lab.controls import Values
from feedline.lab.pictures import Event
from feedline.lab.view import Actions, View

AHEAD = 64
MOST = 4
"""At a time: browsers have six connections to a server, and those for a page and a click have to be free."""


class Runs:
    """The runs that are going on. Used on the event loop's thread only."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._running: dict[int, _Run] = {}

    def begin(self, view: View, values: Values) -> _Run:
        """Start a run.

        Raises:
            BadOption: as many as are allowed are going on.
        """
        if len(self._running) >= MOST:
            raise BadOption(
                f"{MOST} runs of the lab are going on, which is as many as it does at a time. Close a tab or wait."
            )
        return _Run(next(self._numbers), view, values, self._running)

    def act(self, number: int, action: str) -> None:
        """Tell a run what the user has clicked.

        Raises:
            BadOption: the run has ended, or has nothing of this name to click.
        """
        run = self._running.get(number)
        if run is None:
            raise BadOption("This run has ended. Start it again.")
        if action not in dict(run.view.actions):
            raise BadOption(f"There is nothing called {action!r} to click on this view.")
        run.actions.put(action)

    def close(self) -> None:
        """Stop all runs, and wait for their threads."""
        running = list(self._running.values())
        for run in running:
            run.stop()
        for run in running:
            run.join()


class _Run:
    def __init__(self, number: int, view: View, values: Values, running: dict[int, _Run]) -> None:
        self.view = view
        self.actions: Actions = queue.SimpleQueue()
        self._number = number
        self._values = values
        self._running = running
        self._stopped = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(AHEAD)
        self._thread = threading.Thread(target=self._make, name=f"feedline-lab-{view.name}-{number}", daemon=True)

    async def lines(self) -> AsyncIterator[str]:
        """Yield events as lines of JSON, until the run has ended or whoever reads has gone."""
        self._running[self._number] = self  # not before: whoever asked may have gone, and nobody would end it
        self._thread.start()
        try:
            while (line := await self._lines.get()) is not None:
                yield line
        finally:
            self.stop()
            del self._running[self._number]

    def stop(self) -> None:
        """End the run, and `lines`, if somebody still reads them."""
        self._stopped.set()
        while not self._lines.empty():
            self._lines.get_nowait()
        self._lines.put_nowait(None)

    def join(self) -> None:
        self._thread.join(5)

    def _make(self) -> None:
        """Run the view. On its own thread."""
        events = self.view.run(self._values, self.actions)
        try:
            self._put({"kind": "run", "number": self._number, "code": self.view.code(self._values)})
            for event in events:
                if self._stopped.is_set() or (event["kind"] != "still" and not self._put(event)):
                    return
            self._put({"kind": "done"})
        except FeedlineError as error:
            self._put({"kind": "error", "text": str(error)})
        except Exception as error:
            # The lab's own fault, or the user's dataset's: the page shows what it was.
            self._put({"kind": "error", "text": f"{type(error).__name__}: {error}", "more": traceback.format_exc()})
        finally:
            close = getattr(events, "close", None)
            if close is not None:
                close()
            self._put(None)

    def _put(self, event: Event | None) -> bool:
        """Hand an event over; False if nobody reads any more."""
        if self._stopped.is_set():
            return False
        line = None
        if event is not None:
            line = json.dumps(event, separators=(",", ":"), allow_nan=False, default=str) + "\n"
        handed = asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop)
        while not self._stopped.is_set():
            try:
                handed.result(0.2)
            except Late:
                continue
            return True
        handed.cancel()
        return False
