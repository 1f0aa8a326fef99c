"""A private Redis server in a temporary folder, reached through a socket."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class Server:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{folder}/redis.sock"

    def start(self) -> None:
        """Start the server with the data it has saved, and wait until it answers."""
        program = shutil.which("redis-server")
        assert program is not None
        self._process = subprocess.Popen(
            [
                program,
                *("--port", "0"),
                *("--unixsocket", str(self._folder / "redis.sock")),
                *("--dir", str(self._folder)),
                *("--appendonly", "yes"),
                *("--appendfsync", "always"),
                *("--save", ""),
                *("--ignore-warnings", "ARM64-COW-BUG"),
            ],
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        output = b""
        for line in self._process.stdout:
            output += line
            if b"eady to accept connections" in line:
                return
        raise RuntimeError(f"redis-server did not start: {output.decode(errors='replace')}")

    def client(self) -> Any:
        import redis

        return redis.Redis.from_url(self.url)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def add(self, stream: str, *numbers: int) -> None:
        with self.client() as client:
            for number in numbers:
                client.xadd(stream, {"number": str(number), "ü": b"\x00\xff"})

    def pending(self, stream: str, group: str = "feedline") -> int:
        with self.client() as client:
            return int(client.xpending(stream, group)["pending"])


@contextlib.contextmanager
def started_server(folder: Path) -> Iterator[Server | None]:
    """Run a server in a folder; None if none is installed."""
    if not has_server():
        yield None
        return
    server = Server(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def has_server() -> bool:
    return shutil.which("redis-server") is not None


def find_server() -> None:
    """Skip the test if there is no server."""
    if not has_server():
        pytest.skip("no redis-server is installed: python -m tests.servers")
