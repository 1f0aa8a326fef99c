"""Runs of views: one request reads each run as lines of JSON, and a run makes its next event when it is read.

A slow page, or one in the background, slows down its own run and nothing else. When the page is closed, the view's
generator is closed, which releases its resources.
"""

from __future__ import annotations

import itertools
import json
import queue
from collections.abc import AsyncIterator, Generator
from contextlib import closing

from starlette.concurrency import iterate_in_threadpool

from feedline.errors import BadOption
from feedline.tools.lab.controls import Values
from feedline.tools.lab.pictures import Event, failure
from feedline.tools.lab.view import Actions, View

MOST = 4
"""Maximum runs at a time. Browsers open six connections to a server, and pages and clicks need free ones."""


class Runs:
    """The runs in progress. Used on the event loop's thread only."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._running: dict[str, _Run] = {}

    def begin(self, view: View, values: Values) -> _Run:
        """Start a run.

        Raises:
            BadOption: the maximum number of runs is in progress.
        """
        if len(self._running) >= MOST:
            raise BadOption(
                f"The lab does {MOST} runs at a time, and all of them are in progress. Close a tab or wait."
            )
        return _Run(str(next(self._numbers)), view, values, self._running)

    def act(self, number: str, action: str) -> None:
        """Send a click to a run.

        Raises:
            BadOption: the run has ended, or has no such button.
        """
        run = self._running.get(number)
        if run is None:
            raise BadOption("This run has ended. Start it again.")
        if action not in run.offered:
            raise BadOption(f"This run has no button {action!r}.")
        run.actions.put(action)

    def close(self) -> None:
        """Make all runs end at their next event."""
        for run in self._running.values():
            run.is_stopped = True


class _Run:
    def __init__(self, number: str, view: View, values: Values, running: dict[str, _Run]) -> None:
        self.actions: Actions = queue.SimpleQueue()
        self.offered: frozenset[str] = frozenset()
        """The actions of the buttons that the page shows now."""
        self.is_stopped = False
        self._number = number
        self._view = view
        self._values = values
        self._running = running

    async def lines(self) -> AsyncIterator[str]:
        """Yield events as lines of JSON, until the run has ended or the reader has disconnected."""
        self._running[self._number] = (
            self  # not before: if the reader has already disconnected, nothing would remove it
        )
        try:
            with closing(self._events()) as events:
                async for event in iterate_in_threadpool(events):
                    if self.is_stopped:
                        return
                    if event["kind"] == "buttons":
                        self.offered = frozenset(event["actions"])
                    if event["kind"] != "still":
                        yield json.dumps(event, separators=(",", ":"), allow_nan=False, default=str) + "\n"
        except ValueError as error:  # a number that JSON cannot represent
            yield json.dumps(failure(error)) + "\n"
        finally:
            del self._running[self._number]

    def _events(self) -> Generator[Event, None, None]:
        """Run the view, on the thread that reads the next event."""
        try:
            yield {"kind": "run", "number": self._number, "code": self._view.code(self._values)}
            yield from self._view.run(self._values, self.actions)
            yield {"kind": "done"}
        except Exception as error:
            yield failure(error)
