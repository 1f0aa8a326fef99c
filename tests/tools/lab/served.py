"""Serves a lab for a test, and sends the requests of a browser that knows its token."""

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
    """Return a view that emits as many events as its setting says."""
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
    """A view that runs until its button is clicked or the reader leaves."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.emitted = 0

    def view(self) -> View:
        return View("waiting", "Waiting", "It waits.", "For a click.", (), lambda values: "wait()", self._run)

    def _run(self, values: Values, actions: Actions) -> Iterator[Event]:
        try:
            yield doing("Waiting for a click.")
            yield buttons({"go": "Go"})
            while True:
                self.emitted += 1
                yield figures({"emitted": self.emitted})
                try:
                    yield say(f"clicked: {actions.get(timeout=0.05)}")
                    return
                except queue.Empty:
                    continue
        finally:
            self.closed.set()


class Connections(set[object]):
    """The connections of a server; tests can wait until some are open or all are closed."""

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

    def wait_until(self, is_reached: Callable[[int], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: is_reached(len(self)), 60)


@contextmanager
def serving(*views: View) -> Iterator[tuple[str, Connections]]:
    """Serve views on a thread; yield the address, and the connections to it."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # requests that come before the server has started wait for it
        port = listening.getsockname()[1]
        app = app_of(views, token=TOKEN, port=port)
        server, connections = Server(app), Connections()
        server.server_state.connections = connections  # type: ignore[assignment]  # uvicorn's own type is private
        server.config.headers.append(("connection", "close"))  # a browser would keep connections for the next test
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        thread.start()
        try:
            with client(f"http://127.0.0.1:{port}") as asking:
                asking.get("/")  # answered once the server has started
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
    """Serve views on a thread; yield the address."""
    with serving(*views) as (address, _):
        yield address


@contextmanager
def client(address: str, **headers: str) -> Iterator[httpx.Client]:
    """Yield a client that sends requests as the lab's own page does."""
    with httpx.Client(base_url=address, headers={HEADER: TOKEN, **headers}, timeout=120, trust_env=False) as asking:
        yield asking
