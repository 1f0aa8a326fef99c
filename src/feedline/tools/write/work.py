"""The place where an output is built, and the note from which an interrupted run resumes.

The place of a local output is the folder OUT.packing beside it. That of an output in a store is the store itself: see
`store.py`. Both hold the job, the note, and the list of complete shards. The list is divided into pages, so that a note
stays small however many shards there are.

The first file in OUT.packing is `lock`, which says that the folder was made for OUT. It is the last file to be deleted.
A folder without it, or of another name, belongs to somebody else: nothing in it is changed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from feedline.datasets.framework.manifest import INDEX_FOLDER, JOB, WORK_FOLDER
from feedline.datasets.framework.store import read_stored, write_stored
from feedline.errors import BadOption
from feedline.system.failures import add_note
from feedline.system.files import drop_abandoned, sync, write_durably
from feedline.types import JsonObject

NOTE, LOCK = "note.json", "lock"
_OUTPUT, _REPLACED = "output", "replaced"
"""Complete shards; the older output, from the moment when it loses its name until the new one has it."""
_OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_PAGE = 256
"""Shards in one page of the list."""
_PIECE = 1 << 20

Indexing = Callable[[Path, int], bytes]
"""Returns the index of a shard, given its file and checksum; no bytes if it needs none."""


class Work(ABC):
    """Where an output is built. It outlives the process if there is something to resume."""

    path: Path
    """The local folder in which the next shard is written."""
    name: str
    """The place, as messages show it."""
    is_remote = False
    prefix = "shard-"
    """How the names of shards begin."""
    _page_count = 0
    """Pages of the list that were written."""

    @abstractmethod
    def _load(self, name: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist."""

    @abstractmethod
    def _save(self, name: str, data: bytes) -> None:
        """Write a small file: at any moment it has either all of the old or all of the new content."""

    @abstractmethod
    def has_note(self) -> bool:
        """True if there is something to resume."""

    # object: JSON-compatible values.
    @abstractmethod
    def keep(self, shard: Path, entry: dict[str, object], index_of: Indexing) -> None:
        """Give a complete shard its name, and complete its entry: checksum, and version where the store has some."""

    def settle(self) -> None:  # noqa: B027  (local shards are complete at once)
        """Wait until all shards that were kept are safe, and their entries complete."""

    @abstractmethod
    def deliver(self, built: Path) -> None:
        """Give the output its name, replacing any older output."""

    @abstractmethod
    def close(self) -> None:
        """Release everything, and remove what is not needed to resume. May be called twice."""

    @property
    def note(self) -> JsonObject | None:
        """The most recent note, with the entries of all complete shards; None if there is nothing to resume."""
        content = self._load(NOTE) if self.has_note() else None
        if content is None:
            return None
        note: JsonObject = json.loads(content)
        if "pages" in note:
            self._page_count = note.pop("pages")
            pages = (self._load(_page(number)) for number in range(self._page_count))
            note["entries"] = [one for page in pages for one in json.loads(page or b"[]")] + note["entries"]
            if len(note["entries"]) != note["shards"]:  # a page is lost
                return None
        return note

    def write_note(self, note: dict[str, object], entries: Sequence[object] | None = None) -> None:
        """Record the run's position and the complete shards, in JSON-compatible values."""
        if entries is not None:
            count = len(entries) // _PAGE
            for number in range(self._page_count, count):
                self._save(_page(number), json.dumps(entries[number * _PAGE : (number + 1) * _PAGE]).encode())
            self._page_count = count
            note = {**note, "pages": count, "entries": entries[count * _PAGE :]}
        self._save(NOTE, json.dumps(note).encode())

    def _check_job(self, job: dict[str, object]) -> None:
        """Refuse to resume what a different job left. Raises BadOption."""
        difference = self._changed(job)
        if difference:
            raise BadOption(
                f"{self.name} was left by a run with {difference} Run with --restart (restart=True) to start over, or "
                "with everything as it was to resume."
            )

    def _changed(self, job: dict[str, object]) -> str:
        """Return how the job that was left differs from this one; empty if it is the same."""
        left = json.loads(self._load(JOB) or b"{}")
        changed = [name for name in {**left, **job} if left.get(name) != job.get(name)]
        return _difference(changed[0], left, job) if changed else ""


def _page(number: int) -> str:
    return f"shards-{number:06d}.json"


class WorkFolder(Work):
    """The local folder in which an output is built.

    Raises BadOption: another process is working there, a different job left data there, or something else is there.

    Args:
        out: the output.
        job: description of the job, in JSON-compatible values. Only the same job can be resumed.
        restart: True to start over, discarding what an earlier run left.
        check: raises an error if what is at `out` may not be replaced.
    """

    def __init__(self, out: Path, job: dict[str, object], *, restart: bool, check: Callable[[], object]) -> None:
        self.path = out.with_name(out.name + WORK_FOLDER)
        self.name = str(self.path)
        self._out = out
        self._check = check
        self._is_undelivered = False
        self._lock = self._locked()
        try:
            self._begin(json.loads(json.dumps(job)), restart=restart)
        except BaseException:
            os.close(self._lock)
            raise

    @classmethod
    def is_left(cls, out: Path) -> bool:
        """True if an interrupted run into `out` can be resumed."""
        return (out.with_name(out.name + WORK_FOLDER) / NOTE).exists()

    def has_note(self) -> bool:
        return (self.path / NOTE).exists()

    def _load(self, name: str) -> bytes | None:
        return read_stored(self.path / name)

    def _save(self, name: str, data: bytes) -> None:
        write_stored(self.path / name, [data])

    def _locked(self) -> int:
        """Make the folder if it is missing, lock it, and check that it was made for this output."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise self._foreign("is not a folder")
        self.path.mkdir(parents=True, exist_ok=True)
        names = os.listdir(self.path)
        if names and LOCK not in names:
            raise self._foreign(f"holds {min(names)!r}")
        try:
            lock = os.open(self.path / LOCK, _OPEN_LOCK, 0o666)
        except FileNotFoundError as exc:  # the run that had locked it has just removed the folder
            raise self._busy() from exc
        except OSError as exc:
            if exc.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):  # a link, a folder or a socket
                raise self._foreign(f"holds {LOCK!r}") from exc
            raise
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(lock), os.stat(self.path / LOCK)):
                raise FileNotFoundError
            self._mark(lock)
        except BaseException as exc:
            os.close(lock)
            if isinstance(exc, (BlockingIOError, FileNotFoundError)):
                raise self._busy() from exc
            raise
        return lock

    def _mark(self, lock: int) -> None:
        """Record in a new folder for which output it is. Raises BadOption: it was made for something else."""
        mark = json.dumps({"feedline": "pack", "out": self._out.name}).encode()
        found = os.pread(lock, len(mark) + 1, 0)
        others = [name for name in os.listdir(self.path) if name != LOCK]
        if found != mark and (found or others):
            raise self._foreign(f"holds {min(others, default=LOCK)!r}")
        if not found:  # a new folder, or its run was killed before this
            os.pwrite(lock, mark, 0)
            os.fsync(lock)

    def _busy(self) -> BadOption:
        return BadOption(
            f"Another process is packing into {self._out}: {self.path} is locked. Wait for it or give another name."
        )

    def _foreign(self, why: str) -> BadOption:
        return BadOption(
            f"{self._out.name} would be built in {self.path}, which is not a folder that feedline made for it: it "
            f"{why}. Nothing was changed. Give the output another name, or move what is there."
        )

    def _begin(self, job: dict[str, object], *, restart: bool) -> None:
        note = None if restart else self.note
        if note is not None:
            self._check_job(job)
            if all(map(self._has, note.get("entries", ()))):
                output = self.path / _OUTPUT
                for folder in filter(Path.is_dir, (output, output / INDEX_FOLDER)):
                    drop_abandoned(folder, after_s=0.0)  # the lock says that nobody else is writing
                return
            self._page_count = 0
        self._restore()
        self._check()
        self._empty()
        self._save(JOB, json.dumps(job).encode())

    def _has(self, entry: JsonObject) -> bool:
        """True if a shard that the note lists is there."""
        path = self.path / _OUTPUT / entry["name"]
        return path.is_file() and bool(path.stat().st_size == entry["bytes"])

    def _restore(self) -> None:
        """Return its name to an older output, if its run was killed before the new one got the name."""
        if (self.path / _REPLACED).exists() and not self._out.exists():
            os.rename(self.path / _REPLACED, self._out)

    def _empty(self) -> None:
        (self.path / NOTE).unlink(missing_ok=True)  # the rest means nothing then
        for path in self.path.iterdir():
            if path.name != LOCK:
                remove(path)

    def keep(self, shard: Path, entry: dict[str, object], index_of: Indexing) -> None:
        keep_in(self.path / _OUTPUT, shard, entry, index_of)

    def deliver(self, built: Path) -> None:
        replaced = self.path / _REPLACED
        try:
            self._check()  # hours may have passed since the first time
        except BadOption as exc:
            self._is_undelivered = True
            add_note(exc, f"The new output is complete: {built}. Rename it before the next run starts over.")
            raise
        if self._out.is_dir():
            remove(replaced)  # its run was killed after the new output had got its name
            # A folder cannot be replaced in one step. In between, readers find no output, never a partial one.
            os.rename(self._out, replaced)
        try:
            os.replace(built, self._out)
        except BaseException:
            self._restore()
            raise
        sync(self._out.parent)
        (self.path / NOTE).unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock, and remove the folder if there is nothing to resume. May be called twice."""
        if self._lock < 0:
            return
        if not self.has_note() and not self._is_undelivered:
            self._restore()
            self._empty()
            (self.path / LOCK).unlink()  # after everything else: without it, nothing here may be deleted
            self.path.rmdir()
        os.close(self._lock)
        self._lock = -1


# object: JSON-compatible values.
def keep_in(folder: Path, shard: Path, entry: dict[str, object], index_of: Indexing) -> None:
    """Move a complete shard into a local folder, with its index, and complete its entry."""
    entry["crc32"] = crc32 = crc32_of(shard)
    index = index_of(shard, crc32)
    folder.mkdir(exist_ok=True)
    if index:
        (folder / INDEX_FOLDER).mkdir(exist_ok=True)
        write_durably(folder / INDEX_FOLDER / str(entry["name"]), index)
    os.replace(shard, folder / str(entry["name"]))
    sync(folder)


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


def _difference(name: str, left: dict[str, object], job: dict[str, object]) -> str:
    if name == "dataset":  # the value is a fingerprint, which means nothing to a reader
        return (
            "another dataset: its contents, or the code that makes its samples, have changed. (In Python, you can name "
            "the dataset with source=; then only the name has to stay the same.)"
        )
    return f"{name}={left.get(name)!r}, but now it is {job.get(name)!r}."
