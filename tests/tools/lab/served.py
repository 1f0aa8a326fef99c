"""A lab that is served for a test, and the requests of a browser that knows its token."""

import asyncio
import os
import queue
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

from feedline.tools.lab.app import app_of
from feedline.tools.lab.controls import Number, Switch, Values
from feedline.tools.lab.guard import HEADER
from feedline.tools.lab.pictures import Event, buttons, doing, figures, say
from feedline.tools.lab.server import Server
from feedline.tools.lab.view import Actions, View

TOKEN = "a-token-of-a-test"


def _count(values: Values, actions: Actions) -> Iterator[Event]:
    for number in range(values["events"]):
        yield figures({"number": number})
    if values["fails"]:
        raise ValueError("this view fails")
    yield say("counted")


def counting() -> View:
    """Return a view that tells as many events as it is asked for."""
    return View(
        "counting",
        "Counting",
        "It counts.",
        "Numbers go up.",
        (Number("events", "Events", 0, 100_000, 3), Switch("fails", "Fails", default=False)),
        lambda values: f"count({values['events']})",
        _count,
    )


class Waiting:
    """A view that goes on until it is clicked on or left."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.told = 0

    def view(self) -> View:
        return View("waiting", "Waiting", "It waits.", "For a click.", (), lambda values: "wait()", self._run)

    def _run(self, values: Values, actions: Actions) -> Iterator[Event]:
        try:
            yield doing("Waiting for a click.")
            yield buttons({"go": "Go"})
            while True:
                self.told += 1
                yield figures({"told": self.told})
                try:
                    yield say(f"clicked: {actions.get(timeout=0.05)}")
                    return
                except queue.Empty:
                    continue
        finally:
            self.closed.set()


class Connections(set[object]):
    """The connections of a server, for a test that waits until some have come or all have gone."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def add(self, connection: object) -> None:
        with self._changed:
            super().add(connection)
            self._changed.notify_all()

    def discard(self, connection: object) -> None:
        with self._changed:
            super().discard(connection)
            self._changed.notify_all()

    def wait_until(self, is_so: Callable[[int], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: is_so(len(self)), 60)


@contextmanager
def serving(*views: View) -> Iterator[tuple[str, Connections]]:
    """Serve views on a thread; give the address, and the connections to it."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # requests that come before the server has started wait for it
        port = listening.getsockname()[1]
        app = app_of(views, token=TOKEN, port=port)
        server, connections = Server(app), Connections()
        server.server_state.connections = connections  # type: ignore[assignment]  # what uvicorn puts into it is its own
        server.config.headers.append(("connection", "close"))  # a browser would keep connections for the next test
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        thread.start()
        try:
            with client(f"http://127.0.0.1:{port}") as asking:
                asking.get("/")  # which is answered when the server has started
            connections.wait_until(lambda count: not count)
            yield f"http://127.0.0.1:{port}", connections
        finally:
            server.should_exit = True
            thread.join()


def has_ended(pid: int) -> bool:
    """Wait until a process has ended, reaped or not; False if it has not after a minute."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 60)[0])
    finally:
        os.close(handle)


@contextmanager
def served(*views: View) -> Iterator[str]:
    """Serve views on a thread, at the address that is given."""
    with serving(*views) as (address, _):
        yield address


@contextmanager
def client(address: str, **headers: str) -> Iterator[httpx.Client]:
    """Return what asks as the lab's own page does."""
    with httpx.Client(base_url=address, headers={HEADER: TOKEN, **headers}, timeout=120, trust_env=False) as asking:
        yield asking
