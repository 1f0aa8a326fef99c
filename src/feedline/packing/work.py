"""The folder beside an output in which it is built, until it is complete and gets its name."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

from feedline.errors import BadOption
from feedline.packing.writers.contract import sync_folder, write_durably

ENDING = ".packing"
_JOB = "job.json"
_OWN = ("lock", _JOB)
"""What is in the folder before anything of an output is."""


class WorkFolder:
    """Holds what an output is built from: the job, the writer's files, a lock. Survives the process.

    Args:
        out: the output.
        job: what is being done, in values that JSON keeps. What was left by another job is not gone on with.
        restart: True to begin again, whatever was left.

    Raises:
        BadOption: another process is at work there, or another job was.
    """

    def __init__(self, out: Path, job: dict[str, Any], *, restart: bool) -> None:
        self.path = out.with_name(out.name + ENDING)
        self._out = out
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._begin(job, restart=restart)
        except BaseException:
            self.close()
            raise

    @classmethod
    def is_left(cls, out: Path) -> bool:
        """True if something was left that a run into `out` would go on with."""
        folder = out.with_name(out.name + ENDING)
        return (folder / _JOB).exists() and any(path.name not in _OWN for path in folder.iterdir())

    def _begin(self, job: dict[str, Any], *, restart: bool) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise BadOption(f"Another process is packing into {self._out}: {self.path} is locked.") from exc
        job_path = self.path / _JOB
        job = json.loads(json.dumps(job))
        left = json.loads(job_path.read_bytes()) if job_path.exists() else None
        if left is not None and not restart and not self.is_empty:
            changed = [name for name in {**left, **job} if left.get(name) != job.get(name)]
            if changed:
                name = changed[0]
                raise BadOption(
                    f"{self.path} was left by a run with {_difference(name, left, job)} Run again with --restart "
                    "(restart=True) to begin again, or exactly as then to go on."
                )
            return
        for path in self.path.iterdir():
            if path.name == "lock":
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        write_durably(job_path, json.dumps(job).encode())

    @property
    def is_empty(self) -> bool:
        """True if nothing of an output is there."""
        return all(path.name in _OWN for path in self.path.iterdir())

    @property
    def done(self) -> dict[str, Any] | None:
        """What was noted when the output was complete; None if it is not."""
        path = self.path / "done.json"
        found: dict[str, Any] | None = json.loads(path.read_bytes()) if path.exists() else None
        return found

    def note_done(self, facts: dict[str, Any]) -> None:
        """Note that the output is complete and checked, and only lacks its name."""
        write_durably(self.path / "done.json", json.dumps(facts).encode())

    def deliver(self, built: Path) -> None:
        """Give the output its name, in the place of what was there, and remove the folder."""
        if built.exists():
            if self._out.is_dir():
                # A folder is not replaced in one step. Whoever looks in between finds nothing, not half of something.
                os.rename(self._out, self.path / "replaced")
            os.replace(built, self._out)
            sync_folder(self._out.parent)
        self.remove()

    def remove(self) -> None:
        """Remove the folder, and give up the lock."""
        # First the job: a folder without one is never gone on with, whatever else is still in it.
        (self.path / _JOB).unlink()
        shutil.rmtree(self.path)
        self.close()

    def close(self) -> None:
        """Give up the lock. May be called twice."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


def _difference(name: str, left: dict[str, Any], job: dict[str, Any]) -> str:
    if name == "dataset":  # a fingerprint, which tells nobody anything
        return (
            "another dataset: what it consists of, or the code that makes its samples, is not the same now. (In "
            "Python, source= names a dataset, and is all that has to stay the same.)"
        )
    return f"{name}={left.get(name)!r}, but now it is {job.get(name)!r}."
