"""A store that is far away: serves a folder over HTTP on the loopback, and takes its time. `w11_remote` runs this.

Every request waits before it is answered, and no connection is faster than it is allowed to be; there can be any number
of connections. Prints its port, and ends when its standard input is closed.
"""

from __future__ import annotations

import argparse
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PIECE = 256 << 10
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    folder = Path()
    wait_s = 0.0
    bytes_per_s = 0.0

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def _answer(self, *, with_content: bool) -> None:
        time.sleep(self.wait_s)
        path = self.folder / self.path.lstrip("/")
        if not path.is_file():
            return self.send_error(404)
        size = path.stat().st_size
        found = _RANGE.fullmatch(self.headers.get("Range", ""))
        first, last = (int(found[1]), min(int(found[2] or size - 1), size - 1)) if found else (0, size - 1)
        self.send_response(206 if found else 200)
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}-{size}"')
        if found:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        if with_content:
            self._send(path, first, last - first + 1)

    def _send(self, path: Path, offset: int, count: int) -> None:
        began, sent = time.perf_counter(), 0
        self.wfile.flush()
        with path.open("rb") as file:
            while sent < count:
                sent += self.connection.sendfile(file, offset + sent, min(PIECE, count - sent))
                early_s = sent / self.bytes_per_s - (time.perf_counter() - began)
                if early_s > 0:
                    time.sleep(early_s)

    def handle(self) -> None:
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError):  # somebody has seen enough
            self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  (the name is the base class's)
        """Say nothing of single requests."""


class Server(ThreadingHTTPServer):
    """Takes any number of connections at once."""

    daemon_threads = True
    request_queue_size = 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--latency-ms", type=float, required=True)
    parser.add_argument("--mb-per-s", type=float, required=True)
    arguments = parser.parse_args()
    Handler.folder = arguments.folder
    Handler.wait_s = arguments.latency_ms / 1e3
    Handler.bytes_per_s = arguments.mb_per_s * 1e6
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
