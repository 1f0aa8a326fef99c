"""A lab that is served for a test, and the requests of a browser that knows its token."""

import asyncio
import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from feedline.lab.app import app_of
from feedline.lab.controls import Number, Switch, Values
from feedline.lab.guard import HEADER
from feedline.lab.pictures import Event, buttons, doing, figures, say
from feedline.lab.server import Server
from feedline.lab.view import Actions, View

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


@contextmanager
def serving(*views: View) -> Iterator[tuple[str, Server]]:
    """Serve views on a thread; give the address, and what serves there."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        app = app_of(views, token=TOKEN, port=port)
        server = Server(app)
        server.config.headers.append(("connection", "close"))  # a browser would keep connections for the next test
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{port}", server
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def served(*views: View) -> Iterator[str]:
    """Serve views on a thread, at the address that is given."""
    with serving(*views) as (address, _):
        yield address


def wait_until_left(server: Server) -> None:
    """Wait until the server has noticed that whoever asked has gone, and holds no connection any more."""
    until = time.monotonic() + 30
    while server.server_state.connections and time.monotonic() < until:
        time.sleep(0.02)


@contextmanager
def client(address: str, **headers: str) -> Iterator[httpx.Client]:
    """Return what asks as the lab's own page does."""
    with httpx.Client(base_url=address, headers={HEADER: TOKEN, **headers}, timeout=30, trust_env=False) as asking:
        yield asking
