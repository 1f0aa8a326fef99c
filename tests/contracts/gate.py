"""A gate blocks a worker inside a task; a journal records what workers did.

Both are files on disk (two FIFOs, a text file), so the same object works for threads and for forked and spawned
workers: only its path is sent.
"""

from __future__ import annotations

import os
import select
from pathlib import Path

TIMEOUT_S = 30.0
"""How long a test waits for something that must happen. Generous: a spawned worker first imports its modules."""


class Gate:
    """Holds every worker that passes through until the test opens it.

    Args:
        folder: an empty or missing folder for the gate's two FIFOs.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        for name in ("reached", "opened"):
            os.mkfifo(self._folder / name)
        # Open for reading and writing, so that neither end waits for the other and no byte is lost.
        self._reached = os.open(self._folder / "reached", os.O_RDWR)
        self._opened = os.open(self._folder / "opened", os.O_RDWR)

    @classmethod
    def at(cls, folder: str | os.PathLike[str]) -> Gate:
        """Return the worker's side of a gate that another process has made."""
        gate = cls.__new__(cls)
        gate._folder = Path(folder)
        gate._reached = gate._opened = -1
        return gate

    def __getstate__(self) -> dict[str, object]:
        return {"_folder": self._folder}

    def pass_through(self) -> None:
        """Notify the test, then wait until it opens the gate. Called by the worker."""
        # Open both FIFOs before notifying the test, so nothing it writes afterwards is lost, even if it closes its end.
        opened = os.open(self._folder / "opened", os.O_RDWR)
        reached = os.open(self._folder / "reached", os.O_RDWR)
        try:
            os.write(reached, b".")
            os.read(opened, 1)
        finally:
            os.close(reached)
            os.close(opened)

    def wait_until_reached(self, times: int = 1) -> None:
        """Wait until `times` more workers have reached the gate."""
        for _ in range(times):
            ready, _, _ = select.select([self._reached], [], [], TIMEOUT_S)
            assert ready, f"no worker reached the gate within {TIMEOUT_S} s"
            os.read(self._reached, 1)

    def open(self, times: int = 1) -> None:
        """Let `times` workers through, now or when they arrive."""
        os.write(self._opened, b"." * times)

    def close(self) -> None:
        """Let all held workers through, and close the test's descriptors."""
        if self._opened >= 0:
            self.open(64)
            os.close(self._opened)
            os.close(self._reached)
            self._opened = self._reached = -1

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Journal:
    """A log of what workers did, one line each, in the order in which it happened."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._path.touch()

    def write(self, line: object) -> None:
        """Append a line. Any number of workers may call this at the same time."""
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(fd, f"{line}\n".encode())
        finally:
            os.close(fd)

    def read(self) -> list[str]:
        """Return the lines so far."""
        return self._path.read_text().splitlines()
