"""A simulated remote store for benchmarks: serves a folder over HTTP on the loopback interface, with delays.

Every request waits before it is answered. Each connection has a speed limit, and so do all of them together; there can
be any number of connections. S3 clients can use it as their endpoint: each folder in the served folder is a bucket,
whose objects they can list, measure, and read in whole or by range. Signatures are not checked.

`GET /-/counts` answers at once with what was sent so far, in JSON. The program prints its port, and ends when its
standard input is closed.
"""

from __future__ import annotations

import argparse
import contextlib
import email.utils
import json
import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PIECE = 256 << 10
COUNTS = "/-/counts"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Link:
    """The bandwidth that all connections share. It gives every piece a time at which it has passed.

    Args:
        bytes_per_s: the bandwidth.
        clock: a clock in seconds.
    """

    BURST_S = 0.01
    """A sleeper wakes up late. The link makes up for that much time in which nothing was sent."""

    def __init__(self, bytes_per_s: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.bytes_per_s = bytes_per_s
        self._clock = clock
        self._free_s = -math.inf
        self._lock = threading.Lock()

    def reserve(self, count: int) -> float:
        """Reserve the link for `count` bytes; return how many seconds from now they have passed, at most 0 if now."""
        with self._lock:
            now = self._clock()
            self._free_s = max(self._free_s, now - self.BURST_S) + count / self.bytes_per_s
            return self._free_s - now


@dataclass
class Counts:
    """What was sent. Threads may share it."""

    requests: int = 0
    sent: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *, requests: int = 0, sent: int = 0) -> None:
        with self._lock:
            self.requests += requests
            self.sent += sent

    def as_json(self) -> bytes:
        """Return the counts, and the CPU seconds of this process."""
        return json.dumps({"requests": self.requests, "bytes": self.sent, "cpu_s": time.process_time()}).encode()


@dataclass(frozen=True)
class Store:
    """What is served, and how fast."""

    folder: Path
    latency_s: float
    bytes_per_s: float
    """The speed limit of each connection."""
    link: Link
    counts: Counts = field(default_factory=Counts)


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def do_GET(self) -> None:
        if self.path == COUNTS:
            return self._send_bytes(self.server.store.counts.as_json(), "application/json")
        self._answer(with_content=True)

    def _answer(self, *, with_content: bool) -> None:
        store, address = self.server.store, urlsplit(self.path)
        name = unquote(address.path).strip("/")
        store.counts.add(requests=1)
        time.sleep(store.latency_s)
        path = store.folder / name
        if path.is_dir() and name and "/" not in name:
            prefix = parse_qs(address.query).get("prefix", [""])[0]
            return self._send_bytes(listing(path, prefix) if with_content else b"", "application/xml")
        if not path.is_file():
            return self.send_error(404)
        status = path.stat()
        size = status.st_size
        found = _RANGE.fullmatch(self.headers.get("Range", ""))
        first, last = (int(found[1]), min(int(found[2] or size - 1), size - 1)) if found else (0, size - 1)
        self.send_response(206 if found else 200)
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", tag_of(path))
        self.send_header("Last-Modified", email.utils.formatdate(status.st_mtime, usegmt=True))
        if found:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        if with_content:
            self._send_file(path, first, last - first + 1)

    def _send_bytes(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _send_file(self, path: Path, offset: int, count: int) -> None:
        store = self.server.store
        began, sent = time.perf_counter(), 0
        self.wfile.flush()
        with path.open("rb") as file:
            while sent < count:
                piece = min(PIECE, count - sent)
                _sleep(store.link.reserve(piece))
                piece = self.connection.sendfile(file, offset + sent, piece)
                store.counts.add(sent=piece)
                sent += piece
                _sleep(sent / store.bytes_per_s - (time.perf_counter() - began))

    def handle(self) -> None:
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError):  # the client has closed the connection
            self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  (the name is the base class's)
        """Say nothing of single requests."""


class Server(ThreadingHTTPServer):
    """Takes any number of connections at once."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, store: Store) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.store = store


def listing(bucket: Path, prefix: str) -> bytes:
    """Return the objects of a bucket whose names begin with `prefix`, as S3 lists them. All are on one page."""
    names = sorted(path.relative_to(bucket).as_posix() for path in bucket.rglob("*") if path.is_file())
    entries = [
        f"<Contents><Key>{escape(name)}</Key><Size>{(bucket / name).stat().st_size}</Size>"
        f"<ETag>{escape(tag_of(bucket / name))}</ETag><LastModified>{_date(bucket / name)}</LastModified>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
        for name in names
        if name.startswith(prefix)
    ]
    head = f"<Name>{bucket.name}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(entries)}</KeyCount>"
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"{head}<MaxKeys>{len(entries)}</MaxKeys><IsTruncated>false</IsTruncated>{''.join(entries)}</ListBucketResult>"
    ).encode()


def tag_of(path: Path) -> str:
    """Return the tag of a file's present content."""
    status = path.stat()
    return f'"{status.st_mtime_ns}-{status.st_size}"'


def _date(path: Path) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(path.stat().st_mtime))


def _sleep(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)


@contextlib.contextmanager
def serving(folder: Path, *, latency_ms: float, mb_per_s: float, link_mb_per_s: float) -> Iterator[int]:
    """Run the server in a process of its own; yields its port."""
    speed = ["--latency-ms", latency_ms, "--mb-per-s", mb_per_s, "--link-mb-per-s", link_mb_per_s]
    command = [sys.executable, "-m", "benchmarks.store_program", "--folder", str(folder), *map(str, speed)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.stdin.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--latency-ms", type=float, required=True)
    parser.add_argument("--mb-per-s", type=float, default=math.inf, help="of one connection")
    parser.add_argument("--link-mb-per-s", type=float, default=math.inf, help="of all connections together")
    arguments = parser.parse_args()
    link = Link(arguments.link_mb_per_s * 1e6)
    server = Server(Store(arguments.folder, arguments.latency_ms / 1e3, arguments.mb_per_s * 1e6, link))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
