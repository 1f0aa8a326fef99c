"""Servers on the loopback for tests: a web server that supports ranges and can misbehave, and one that speaks S3."""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import importlib
import importlib.util
import re
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import pytest

S = TypeVar("S", "WebServer", "Proxy", "StoreProxy")

needs_s3 = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("s3fs", "moto")), reason="s3fs and moto are not installed"
)
"""The packages are searched for but not imported, or every test process and its forks would have them loaded."""

Fault = Callable[["Request"], str | None]


class Request(NamedTuple):
    """A request that arrived: which file, which bytes, and how many requests came before it."""

    path: str
    start: int
    stop: int
    number: int


class _Server(ThreadingHTTPServer):
    """A server on a free port, which ends with the connections that are open."""

    daemon_threads = True
    block_on_close = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # the tests include clients that disconnect early

    def close_all(self) -> None:
        """Do nothing: a connection serves one request."""


class _QuietHandler(BaseHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


class WebServer(_Server):
    """Serves a folder by ranges. `fault` returns what goes wrong with a request, or None:

    "drop" sends half of the range and closes the connection, "refuse" closes it at once, a number is the status of the
    answer, "whole" ignores the range, "/..." redirects, "lie" answers with another range, "beyond" with a longer one,
    "bytes ..." with this one, "surplus" sends more than the range, and a redirect to "...flood..." has a large body.
    """

    def __init__(self, folder: Path, certificate: Path | None = None) -> None:
        super().__init__(_Handler)
        self.certificate = certificate
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            # The handshake runs in the connection's thread: a client that aborts it must not stop the server.
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.folder = folder
        self.flooded = 0
        """How many unrequested bytes were sent."""
        self.fault: Fault = lambda request: None
        self.requests: list[Request] = []
        self.tags: dict[str, str] = {}
        self.lock = threading.Lock()
        self.connections = 0
        self._open: set[Any] = set()

    @property
    def address(self) -> str:
        return f"{'https' if self.certificate else 'http'}://127.0.0.1:{self.server_port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        with self.lock:
            self.connections += 1
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self.lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def close_all(self) -> None:
        """Close connections that clients keep open, so that their threads end."""
        with self.lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(2)


SURPLUS = 1 << 26
"""How many unrequested bytes a server sends."""


class _Handler(_QuietHandler):
    protocol_version = "HTTP/1.1"
    server: WebServer
    redirected: ClassVar[int] = 302

    def _flood(self) -> None:
        piece = bytes(1 << 16)
        for _ in range(SURPLUS // len(piece)):
            self.wfile.write(piece)
            self.server.flooded += len(piece)

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
            self.send_header("Content-Length", str(SURPLUS if "flood" in fault else 0))
            self.end_headers()
            if "flood" in fault:
                self._flood()
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
        last = stop if fault == "beyond" else stop - 1 + shift
        range_header = f"bytes {start + shift}-{last}/{len(data)}"
        self.send_header("Content-Range", fault if fault and fault.startswith("bytes") else range_header)
        self.send_header("Content-Length", str(stop - start + (SURPLUS if fault == "surplus" else 0)))
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
        if fault == "surplus":
            self._flood()


class Proxy(_Server):
    """Forwards requests to the web servers of the hosts that it knows, through a tunnel or one by one."""

    def __init__(self, hosts: dict[str, WebServer]) -> None:
        super().__init__(_ProxyHandler)
        self.hosts = hosts
        self.asked: list[tuple[str, str, str | None]] = []
        """Method, target and user of every request."""


class _ProxyHandler(_QuietHandler):
    server: Proxy

    def _web_server(self, host: str) -> WebServer | None:
        self.server.asked.append((self.command, self.path, self.headers.get("Proxy-Authorization")))
        found = self.server.hosts.get(host)
        if found is None:
            self.send_error(502)
        return found

    def do_CONNECT(self) -> None:
        server = self._web_server(self.path)
        if server is None:
            return
        with socket.create_connection(("127.0.0.1", server.server_port)) as there:
            self.send_response(200)
            self.end_headers()
            ends = {self.connection: there, there: self.connection}
            while True:
                for end in select.select(list(ends), [], [])[0]:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    ends[end].sendall(data)

    def do_GET(self) -> None:
        host, _, path = self.path.removeprefix("http://").partition("/")
        server = self._web_server(host)
        if server is None:
            return
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
        with contextlib.closing(connection):
            connection.request("GET", f"/{path}", headers={"Range": self.headers["Range"], "Connection": "close"})
            answer = connection.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.read())


class StoreProxy(_Server):
    """Stands in front of a store. `fault` takes the method, path and headers of a request, and returns what goes wrong:

    "reset" sends half of the body and closes the connection, "stall" sends half of it and waits until `release` is
    set, "drop" closes the connection without an answer, and a code such as "SlowDown" becomes an error answer of S3.
    None forwards the request.
    Objects of S3 are listed `page` at a time.
    """

    statuses: ClassVar[dict[str, int]] = {
        "SlowDown": 503,
        "ExpiredToken": 400,
        "InternalError": 500,
        "AccessDenied": 403,
        "NotFound": 404,
    }

    def __init__(self, behind: str) -> None:
        super().__init__(_StoreHandler)
        self.behind = behind.removeprefix("http://")
        self.fault: Callable[[str, str, Any], str | None] = lambda method, path, headers: None
        self.asked: list[tuple[str, str]] = []
        self.ranges: list[tuple[str, int]] = []
        """Path and size in bytes of each range that was sent."""
        self.page = 10
        self.release = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def close_all(self) -> None:
        """Release the requests that wait: a connection serves one request."""
        self.release.set()


class _StoreHandler(_QuietHandler):
    server: StoreProxy

    def do_GET(self) -> None:
        if "Expect" in self.headers:
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        size = int(self.headers.get("Content-Length", 0))
        sent = self.rfile.read(size)
        self.server.asked.append((self.command, self.path))
        if len(sent) < size:  # the client was killed, and the store would wait for the rest of its request
            return
        fault = self.server.fault(self.command, self.path, self.headers)
        if fault in self.server.statuses:
            self._send(
                self.server.statuses[fault], [], f"<Error><Code>{fault}</Code><Message>no</Message></Error>".encode()
            )
            return
        if fault == "drop":
            return
        connection = http.client.HTTPConnection(self.server.behind)
        with contextlib.closing(connection):
            path = f"{self.path}&max-keys={self.server.page}" if "list-type=2" in self.path else self.path
            passed = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
            # Google Cloud Storage also takes the content of an upload session by POST; the server behind us does not.
            method = "PUT" if self.command == "POST" and "upload_id=" in path else self.command
            connection.request(method, path, sent or None, {**passed, "Connection": "close"})
            answer = connection.getresponse()
            headers = [
                pair for pair in answer.getheaders() if pair[0].lower() not in ("transfer-encoding", "connection")
            ]
            self._send(answer.status, headers, answer.read(), fault)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def _send(self, status: int, headers: list[tuple[str, str]], body: bytes, fault: str | None = None) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if status == 206:
            self.server.ranges.append((self.path, len(body)))
        self.wfile.write(body[: len(body) // 2] if fault else body)
        if fault == "stall":
            self.wfile.flush()
            self.server.release.wait()


def store_proxy(behind: str) -> contextlib.AbstractContextManager[StoreProxy]:
    """Run a proxy in front of a store."""
    return _serving(StoreProxy(behind))


def web_server(folder: Path, certificate: Path | None = None) -> contextlib.AbstractContextManager[WebServer]:
    """Serve a folder, over https if there is a file with a certificate and its key."""
    return _serving(WebServer(folder, certificate))


def proxy_for(hosts: dict[str, WebServer]) -> contextlib.AbstractContextManager[Proxy]:
    """Run a proxy."""
    return _serving(Proxy(hosts))


@contextlib.contextmanager
def _serving(server: S) -> Iterator[S]:
    """Run a server, and leave no thread and no socket behind."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, name="test-web-server")
    thread.start()
    try:
        yield server
    finally:
        server.close_all()
        server.shutdown()
        thread.join()
        server.close_all()
        server.server_close()


ONCE = {"retries": {"max_attempts": 0}}
"""No retries by botocore, since the tests are about those of feedline."""


def first(count: int, fault: str, method: str = "GET") -> Any:
    """Return a proxy fault for the first `count` requests of a method."""
    left = [fault] * count
    return lambda asked, path, headers: left.pop() if asked == method and left else None


def refuse_old(method: str, path: str, headers: Any) -> str | None:
    """Act as a proxy fault that refuses the credentials of "old-key"."""
    return "ExpiredToken" if method == "GET" and "old-key" in headers.get("Authorization", "") else None


# Any: a file system of gcsfs.
def knows_generations(system: Any) -> Any:
    """Return a proxy fault that refuses ranges of an object's older generations: the server behind it ignores them."""

    def fault(method: str, path: str, headers: Any) -> str | None:
        name, _, asked = path.partition("&generation=")
        key = name.partition("?")[0].rpartition("/")[2].replace("%2F", "/")
        return "NotFound" if asked and system.info(f"bucket/{key}")["generation"] != asked else None

    return fault


def options_for(proxy: StoreProxy) -> dict[str, Any]:
    """Return options that make fsspec use a proxy in front of a store that speaks S3."""
    return {**S3_OPTIONS, "endpoint_url": proxy.address, "config_kwargs": ONCE}


# Every client would read the certificates of all authorities, although nothing here uses https.
S3_OPTIONS = {"key": "user", "secret": "secret", "client_kwargs": {"region_name": "us-east-1", "verify": False}}


# Any: boto3 creates the classes of its clients at run time.
@contextlib.contextmanager
def s3_bucket() -> Iterator[Any]:
    """Run moto's server with a bucket named "bucket", and yield a client to fill it with."""
    import functools
    import logging

    from moto import backends
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    names = tuple(backends.list_of_moto_modules())  # it would look for it twice per request, a third of its time
    backends.list_of_moto_modules = lambda: names
    # Every client has its own session, which would read the description of S3 again.
    sessions: Any = importlib.import_module("botocore.session")
    sessions.create_loader = functools.cache(sessions.create_loader)
    start_fsspec()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        with contextlib.closing(_client_of(f"http://{host}:{port}")) as client:
            client.create_bucket(Bucket="bucket")
            yield client
    finally:
        server.stop()


@contextlib.contextmanager
def gs_server() -> Iterator[str]:
    """Run a server that imitates Google Cloud Storage, with a bucket named "bucket", and yield its address.

    Skips the test if the packages for it are not installed.
    """
    pytest.importorskip("gcsfs")
    create_server = pytest.importorskip("gcp_storage_emulator.server").create_server
    start_fsspec()
    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
    server.start()
    api = server._api
    api._httpd.handle_error = lambda request, client_address: None  # clients that disconnect early
    try:
        yield f"http://127.0.0.1:{api._httpd.server_port}"
    finally:
        server.stop()
        threading.Thread.join(api)  # its own method does not wait


def start_fsspec() -> None:
    """Start the threads that fsspec keeps as long as a process runs, so they do not look like a leak of a test."""
    from concurrent.futures import ThreadPoolExecutor

    import fsspec.asyn

    loop = fsspec.asyn.get_loop()
    executor = ThreadPoolExecutor(1, "fsspec-helper")
    executor.submit(int).result()
    loop.call_soon_threadsafe(loop.set_default_executor, executor)


def _client_of(address: str) -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=address,
        aws_access_key_id=S3_OPTIONS["key"],
        aws_secret_access_key=S3_OPTIONS["secret"],
        region_name="us-east-1",
    )
