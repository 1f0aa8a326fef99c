"""Servers on the loopback, for tests: a web server that knows ranges and can misbehave, and one that speaks S3."""

from __future__ import annotations

import contextlib
import email.utils
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

Fault = Callable[["Request"], str | None]


class Request:
    """One that arrived: which file, from where to where, and how many came before it."""

    def __init__(self, path: str, start: int, stop: int, number: int) -> None:
        self.path = path
        self.start = start
        self.stop = stop
        self.number = number


class WebServer(ThreadingHTTPServer):
    """Serves a folder by ranges. `fault` says of a request what goes wrong with it, if anything:

    "drop" sends half of the range and closes the connection, "refuse" closes it at once, a number is the status of an
    answer, "whole" ignores the range, "/..." redirects, "lie" answers with another range.
    """

    daemon_threads = True
    block_on_close = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.fault: Fault = lambda request: None
        self.requests: list[Request] = []
        self.tags: dict[str, str] = {}
        self.lock = threading.Lock()
        self.connections = 0
        self._open: set[Any] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        with self.lock:
            self.connections += 1
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self.lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that leave early are what is tested

    def close_all(self) -> None:
        """Close connections that clients keep, so that the threads behind them end."""
        with self.lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(2)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WebServer
    redirected: ClassVar[int] = 302

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = self.server.folder / self.path.lstrip("/").partition("?")[0].replace("%20", " ")
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, stop = (int(found[1]), min(int(found[2]) + 1, len(data))) if found else (0, len(data))
        with self.server.lock:
            request = Request(path.name, start, stop, len(self.server.requests))
            self.server.requests.append(request)
        fault = self.server.fault(request)
        if fault == "refuse":
            self.close_connection = True
            return
        if fault is not None and fault.isdecimal():
            self.send_error(int(fault))
            return
        if fault is not None and fault.startswith(("/", "http", "ftp")):
            self.send_response(self.redirected)
            self.send_header("Location", fault)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if fault == "whole":
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            return
        if start >= len(data):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(data)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206)
        shift = 1 if fault == "lie" else 0
        self.send_header("Content-Range", f"bytes {start + shift}-{stop - 1 + shift}/{len(data)}")
        self.send_header("Content-Length", str(stop - start))
        tag = self.server.tags.get(path.name)
        if tag is None:
            self.send_header("Last-Modified", email.utils.formatdate(path.stat().st_mtime, usegmt=True))
        elif tag:
            self.send_header("ETag", tag)
        self.end_headers()
        if fault == "drop":
            self.wfile.write(data[start : start + (stop - start) // 2])
            self.close_connection = True
            return
        self.wfile.write(data[start:stop])


@contextlib.contextmanager
def web_server(folder: Path) -> Iterator[WebServer]:
    """Serve a folder; afterwards no thread and no socket is left."""
    server = WebServer(folder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, name="test-web-server")
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.close_all()
        server.server_close()


S3_OPTIONS = {"key": "user", "secret": "secret", "client_kwargs": {"region_name": "us-east-1"}}


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Run moto's server; yields its address."""
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def start_fsspec() -> None:
    """Start the threads that fsspec keeps for the life of a process, so that no test seems to leave them behind."""
    from concurrent.futures import ThreadPoolExecutor

    import fsspec.asyn

    loop = fsspec.asyn.get_loop()
    executor = ThreadPoolExecutor(1, "fsspec-helper")
    executor.submit(int).result()
    loop.call_soon_threadsafe(loop.set_default_executor, executor)


# Any: boto3 makes its clients' classes as it goes.
def bucket_at(address: str) -> Any:
    """Make a bucket named "bucket" and return a client to fill it with; close it afterwards."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=address,
        aws_access_key_id=S3_OPTIONS["key"],
        aws_secret_access_key=S3_OPTIONS["secret"],
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="bucket")
    return client
