"""Serves a lab for a test, and sends the requests of a browser that knows its token."""

import asyncio
import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from feedline.tools.lab.server import HEADER, Server
from feedline.tools.lab.view import View

TOKEN = "a-token-of-a-test"


@contextmanager
def served(*views: View) -> Iterator[str]:
    """Serve views on a thread; yield the address."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # requests that come before the server has started wait for it
        port = listening.getsockname()[1]
        server = Server(views, token=TOKEN, port=port)
        server.config.headers.append(("connection", "close"))  # a browser would keep connections for the next test
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        thread.start()
        try:
            with client(f"http://127.0.0.1:{port}") as asking:
                asking.get("/")  # answered once the server has started
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()


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
