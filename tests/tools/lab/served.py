"""Serves a lab for a test, and sends the requests of a browser that knows its token."""

import asyncio
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

from feedline.tools.lab.server import HEADER, Server
from feedline.tools.lab.view import View

TOKEN = "a-token-of-a-test"


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
        server, connections = Server(views, token=TOKEN, port=port), Connections()
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
