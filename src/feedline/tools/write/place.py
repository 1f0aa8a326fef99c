"""The place where an output is built: the folder OUT.packing beside a local output, or a store (`store.py`).

A place takes complete shards, and keeps one job file: what is being written, which shards are complete, and the
position after the last of them. A run that finds the file continues from there, and throws away what else is there.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from feedline.datasets.framework.checksums import check_seal, sealed
from feedline.datasets.framework.manifest import FACTS, INDEX_FOLDER, JOB, UNFINISHED, WORK_FOLDER
from feedline.errors import BadOption, CorruptSource, PackError
from feedline.system.failures import add_note
from feedline.system.files import sync, write_durably
from feedline.types import JsonObject

LOCK = "lock"
_OUTPUT, _REPLACED = "output", "replaced"
"""Complete shards; the older output, from the moment when it loses its name until the new one has it."""
_PART = r"\..+\.part"
"""The name of a file that is being written, by `replacing`."""
_OWN = {
    "": re.compile(rf"{LOCK}|{re.escape(JOB)}|{_OUTPUT}(\..+)?|{_REPLACED}|{_PART}", re.ASCII),
    _OUTPUT: re.compile(rf"[a-z]+-\d{{6,}}\.\w+|{re.escape(FACTS)}|{re.escape(INDEX_FOLDER)}|{_PART}", re.ASCII),
    f"{_OUTPUT}/{INDEX_FOLDER}": re.compile(rf"[a-z]+-\d{{6,}}\.\w+|{_PART}", re.ASCII),
}
"""The names that feedline gives in each folder of a work folder."""
_OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE = 1 << 20

Indexing = Callable[[Path, int], bytes]
"""Returns the index of a shard, given its file and checksum; no bytes if it needs none."""
# object: JSON-compatible values.
Entry = dict[str, object]
"""What the job file and the manifest say of a shard."""


class Place(ABC):
    """Where an output is built. It outlives the process if there is something to resume.

    Args:
        job: description of the job, in JSON-compatible values. Only the same job can be resumed.
    """

    folder: Path
    """The local folder in which the next shard is written."""
    name: str
    """The place, as messages show it."""
    left: JsonObject | None = None
    """The job file of an interrupted run, with at least one shard; None if there is nothing to resume."""
    version = ""
    """Part of the names of shards that replace others in a store."""

    def __init__(self, job: JsonObject) -> None:
        self._job: JsonObject = json.loads(json.dumps(job))

    @abstractmethod
    def keep(self, shard: Path, entries: list[Entry], index_of: Indexing, note: JsonObject) -> None:
        """Take a complete shard, complete its entry, which is the last one, and record the position after it."""

    @abstractmethod
    def finish(self, built: Path | None, manifest: Callable[[], JsonObject | None]) -> None:
        """Give the output its name, replacing any older output: the file `built`, or the shards, with a manifest."""

    @abstractmethod
    def close(self) -> None:
        """Release everything, and remove what is not needed to resume. May be called twice."""

    @abstractmethod
    def _put(self, name: str, data: bytes) -> None:
        """Write or replace a small file: an index, the job file or the manifest."""

    @abstractmethod
    def _take(self, shard: Path, entry: Entry) -> None:
        """Move a complete shard to its name."""

    def _keep_shard(self, shard: Path, entry: Entry, index_of: Indexing) -> None:
        entry["crc32"] = crc32 = crc32_of(shard)
        if index := index_of(shard, crc32):
            self._put(f"{INDEX_FOLDER}/{entry['name']}", index)
        self._take(shard, entry)

    def _note(self, note: JsonObject, entries: list[Entry]) -> None:
        """Write the job file."""
        self._put(UNFINISHED, json.dumps(sealed({**note, "job": self._job, "shards": entries})).encode())

    def _left_in(self, content: bytes | None) -> JsonObject | None:
        """Return what a job file says; None if there is no shard to resume after, or if it is damaged."""
        try:
            check_seal(UNFINISHED, content or b"{}", is_own=True)
        except CorruptSource:
            return None
        left: JsonObject = json.loads(content or b"{}")
        return left if left.get("shards") else None

    def _check_job(self, left: JsonObject) -> None:
        """Refuse to resume a different job. Raises BadOption."""
        before, job = left["job"], self._job
        name = next((name for name in {**before, **job} if before.get(name) != job.get(name)), None)
        if name is None:
            return
        what = f"{name}={before.get(name)!r}, but now it is {job.get(name)!r}."
        if name == "dataset":  # the value is a fingerprint, which means nothing to a reader
            what = (
                "another dataset: its contents, or the code that makes its samples, have changed. (In Python, you can "
                "name the dataset with source=; then only the name has to stay the same.)"
            )
        raise BadOption(
            f"{self.name} was left by a run with {what} Run with --restart (restart=True) to start over, or with "
            "everything as it was to resume."
        )


class LocalPlace(Place):
    """The folder OUT.packing.

    Its first file is `lock`, which says that the folder was made for OUT. It is the last one to be deleted. If the
    folder lacks it, names another output or holds files of another program, nothing in it is changed.

    Raises BadOption: another process is working there, a different job left data there, or something else is there;
    PackError, later: the folder was moved while it was in use.

    Args:
        out: the output.
        job: as for `Place`.
        restart: True to start over, discarding what an earlier run left.
        verify: True to compare the checksums of the shards that an earlier run left.
        check: raises an error if what is at `out` may not be replaced.
    """

    def __init__(self, out: Path, job: JsonObject, *, restart: bool, verify: bool, check: Callable[[], object]) -> None:
        super().__init__(job)
        self.folder = out.with_name(out.name + WORK_FOLDER)
        self.name = str(self.folder)
        self._out = out
        self._output = self.folder / _OUTPUT
        self._replaced = self.folder / _REPLACED
        self._check = check
        self._is_undelivered = False
        self._lock = self._locked()
        try:
            self._begin(restart=restart, verify=verify)
        except BaseException:
            os.close(self._lock)
            raise

    @classmethod
    def is_left(cls, out: Path) -> bool:
        """True if an interrupted run into `out` can be resumed."""
        return (out.with_name(out.name + WORK_FOLDER) / JOB).exists()

    def _locked(self) -> int:
        """Make the folder if it is missing, lock it, and check that it was made for this output."""
        if self.folder.is_symlink() or (self.folder.exists() and not self.folder.is_dir()):
            raise self._foreign("is not a folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        names, path = os.listdir(self.folder), self.folder / LOCK
        if names and (path.is_symlink() or not path.is_file()):
            raise self._foreign(f"holds {LOCK if LOCK in names else min(names)!r}")
        lock = os.open(path, _OPEN_LOCK, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_here(lock):
                raise BlockingIOError  # another run has just removed it
            self._mark(lock)
        except BaseException as exc:
            os.close(lock)
            if not isinstance(exc, BlockingIOError):
                raise
            raise BadOption(
                f"Another process is packing into {self._out}: {self.folder} is locked. Wait for it or give another "
                "name."
            ) from exc
        return lock

    def _is_here(self, lock: int) -> bool:
        """True if this is the lock of the folder that is now at the path: somebody could have moved the locked one."""
        try:
            return os.path.samestat(os.fstat(lock), os.stat(self.folder / LOCK))
        except FileNotFoundError:
            return False

    def _check_here(self) -> None:
        if not self._is_here(self._lock):
            raise PackError(f"{self.folder} was moved or replaced while it was in use. Run again, and leave it there.")

    def _mark(self, lock: int) -> None:
        """Record in a new folder for which output it is. Raises BadOption: it was made for something else."""
        mark = json.dumps({"feedline": "pack", "out": self._out.name}).encode()
        found = os.pread(lock, len(mark) + 1, 0)
        others = [name for name in os.listdir(self.folder) if name != LOCK]
        if found != mark and (found or others):
            raise self._foreign(f"holds {min(others, default=LOCK)!r}")
        for folder, own in _OWN.items():
            place = self.folder / folder
            strange = [name for name in (os.listdir(place) if place.is_dir() else ()) if not own.fullmatch(name)]
            if strange:
                raise self._foreign(f"holds {os.path.join(folder, min(strange))!r}")
        if not found:  # a new folder, or its run was killed before this
            os.pwrite(lock, mark, 0)
            os.fsync(lock)

    def _foreign(self, why: str) -> BadOption:
        return BadOption(
            f"{self._out.name} would be built in {self.folder}, which is not a folder that feedline made for it: it "
            f"{why}. Nothing was changed. Give the output another name, or move what is there."
        )

    def _begin(self, *, restart: bool, verify: bool) -> None:
        self._restore()
        job = self.folder / JOB
        left = self._left_in(job.read_bytes()) if job.is_file() and not restart else None
        if left is not None:
            self._check_job(left)
            if all(self._has(entry, verify=verify) for entry in left["shards"]):
                self.left = left
                listed = {INDEX_FOLDER, *(entry["name"] for entry in left["shards"])}
                for path in list(self._output.rglob("*")):
                    if path.name not in listed:  # its run was killed before the job file named it
                        remove(path)
                return
        self._check()
        self._empty()

    def _has(self, entry: JsonObject, *, verify: bool) -> bool:
        """True if a shard that the job file lists is there, unchanged."""
        path = self._output / entry["name"]
        is_there = path.is_file() and path.stat().st_size == entry["bytes"]
        return is_there and (not verify or crc32_of(path) == entry["crc32"])

    def _restore(self) -> None:
        """Return its name to an older output, if its run was killed before the new one got the name."""
        if self._replaced.exists() and not self._out.exists():
            os.rename(self._replaced, self._out)

    def _empty(self) -> None:
        (self.folder / JOB).unlink(missing_ok=True)  # the rest means nothing then
        for path in self.folder.iterdir():
            if path.name != LOCK and _OWN[""].fullmatch(path.name):
                remove(path)

    def keep(self, shard: Path, entries: list[Entry], index_of: Indexing, note: JsonObject) -> None:
        self._check_here()
        self._output.mkdir(exist_ok=True)
        self._keep_shard(shard, entries[-1], index_of)
        self._note(note, entries)

    def _put(self, name: str, data: bytes) -> None:
        path = self.folder / JOB if name == UNFINISHED else self._output / name
        if path.parent != self.folder:
            path.parent.mkdir(exist_ok=True)
        write_durably(path, data)

    def _take(self, shard: Path, entry: Entry) -> None:
        os.replace(shard, self._output / str(entry["name"]))
        sync(self._output)

    def finish(self, built: Path | None, manifest: Callable[[], JsonObject | None]) -> None:
        self._check_here()
        if built is None:
            built = self._output
            if (facts := manifest()) is not None:
                self._put(FACTS, json.dumps(facts).encode())
        try:
            self._check()  # hours may have passed since the first time
        except BadOption as exc:
            self._is_undelivered = True
            add_note(exc, f"The new output is complete: {built}. Rename it before the next run starts over.")
            raise
        if self._out.is_dir():
            remove(self._replaced)  # its run was killed after the new output had got its name
            # A folder cannot be replaced in one step. In between, readers find no output, never a partial one.
            os.rename(self._out, self._replaced)
        try:
            os.replace(built, self._out)
        except BaseException:
            self._restore()
            raise
        sync(self._out.parent)
        (self.folder / JOB).unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock, and remove the folder if there is nothing to resume."""
        if self._lock < 0:
            return
        if self._is_here(self._lock) and not (self.folder / JOB).exists() and not self._is_undelivered:
            self._restore()
            self._empty()
            (self.folder / LOCK).unlink()  # after everything else: without it, nothing here may be deleted
            with suppress(OSError):  # another program has put something there
                self.folder.rmdir()
        os.close(self._lock)
        self._lock = -1


def remove(path: Path) -> None:
    """Delete a file, a symbolic link (not what it refers to) or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def crc32_of(path: Path) -> int:
    """Return the checksum of a file."""
    found = 0
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            found = zlib.crc32(piece, found)
    return found
