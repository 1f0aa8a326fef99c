"""A private PostgreSQL server for the tests that need one, removed afterwards."""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.datasets.formats.sql.people import COUNT, make_duckdb, make_postgres, make_sqlite


def _binaries() -> Path | None:
    """Return the folder of the newest installed server; Debian keeps it off the PATH."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"), key=lambda path: float(Path(path).parts[4]))
    on_path = shutil.which("initdb")
    return Path(found[-1]).parent if found else Path(on_path).parent if on_path else None


class Server:
    """A private cluster, reached through a socket in its folder."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._binaries = binaries
        self._folder = folder
        # The server refuses to run as root.
        self._user = "postgres" if os.geteuid() == 0 else None
        self.user = self._user or pwd.getpwuid(os.geteuid()).pw_name

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), *arguments]
        log = self._folder / "commands.log"
        with log.open("a") as output:  # a file: the server would hold on to a pipe
            done = subprocess.run(
                command, user=self._user, stdout=output, stderr=output, cwd="/", timeout=100, check=False
            )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {log.read_text()[-1000:]}")

    def start(self) -> None:
        data = str(self._folder / "data")
        self._run("initdb", "-D", data, "-A", "trust", "-N", "-E", "UTF8", "--locale=C")
        options = (
            f"-c listen_addresses='' -c unix_socket_directories='{self._folder}' -c fsync=off -c max_connections=60"
        )
        self._run("pg_ctl", "-D", data, "-w", "-l", str(self._folder / "server.log"), "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-w", "-m", "immediate", "stop")

    def restart(self) -> None:
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-w", "-m", "fast", "restart")

    def address(self, password: str = "") -> str:
        user = f"{self.user}:{password}" if password else self.user
        return f"postgresql://{user}@/postgres?host={self._folder}"

    @contextlib.contextmanager
    def connection(self) -> Iterator[Any]:
        import psycopg

        with psycopg.connect(self.address(), autocommit=True) as connection:
            yield connection


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    pytest.importorskip("psycopg")
    binaries = _binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL server is installed: python -m tests.servers")
    folder = Path(tempfile.mkdtemp(prefix="feedline-postgres-"))
    try:
        server = Server(binaries, folder)
        if os.geteuid() == 0:
            shutil.chown(folder, server.user)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., str]:
    """Makes a database of a kind, with a table of people, and returns its address."""

    def make(kind: str, count: int = COUNT) -> str:
        if kind == "sqlite":
            return make_sqlite(tmp_path / "people.db", count)
        if kind == "duckdb":
            pytest.importorskip("duckdb")
            return make_duckdb(tmp_path / "people.duckdb", count)
        return make_postgres(request.getfixturevalue("postgres"), count)

    return make


@pytest.fixture(params=["sqlite", "duckdb", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def address(kind: str, make: Callable[..., str]) -> str:
    return make(kind)


@pytest.fixture
def sqlite(make: Callable[..., str]) -> str:
    return make("sqlite")
