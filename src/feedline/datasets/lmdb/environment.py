"""Open databases of this process, each of them once.

LMDB must not open a database twice in a process, and its Python package refuses to; but several datasets, or several
threads of one, may well read the same. So they share it here, by file. A process that was forked closes what it has
inherited before it opens its own, which is safe because databases are opened read-only and without locks.

An environment is closed when the last of its users has given it back. Reading is a use of its own: another thread that
closes the dataset in the middle of a read does not take the memory away that is being read.

Readers take no locks, so nobody may write to the database at the same time. Whether somebody did is seen by the number
of the last transaction, before and after each read.

LMDB follows the numbers in its pages without checking them: a wrong one can end the process. Only the size of the file
is compared with the one that the database declares, when it is opened and before each read.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from feedline.datasets.lmdb.calls import calls
from feedline.errors import CorruptSource, SourceChanged, SourceError
from feedline.system.failures import words
from feedline.system.optional import require
from feedline.system.process import lock_of_process

FileId = tuple[int, int]


class Environment:
    """A database that is open in this process."""

    def __init__(self, path: str, file: str, file_id: FileId) -> None:
        self.path = path
        self.file = file
        self._id = file_id
        # Any: objects of a library that is loaded when it is needed.
        self._lmdb: Any = require("lmdb", extra="lmdb", purpose="Reading an LMDB database")
        self._env: Any = _opened(self._lmdb, path, file)
        try:
            info = self._env.info()
            self._least_bytes = (info["last_pgno"] + 1) * self._env.stat()["psize"]
            self.version: int = info["last_txnid"]
            """The number of the last transaction: it changes whenever the database does."""
            self._check_file()
        except BaseException:
            self._env.close()
            raise
        self.users = 1

    def _check_file(self) -> None:
        """Refuse a file that is shorter than the database in it: reading what is missing would kill the process."""
        try:
            found = os.stat(self.file)
        except FileNotFoundError:
            return  # what is open stays as it is
        size = found.st_size
        if (found.st_dev, found.st_ino) != self._id:
            raise SourceChanged(
                f"{self.path} was replaced by another database since it was opened. Make another dataset."
            )
        if size < self._least_bytes:
            raise CorruptSource(
                f"{self.file} is cut off: it has {size} bytes, but the database in it {self._least_bytes}. Copying or "
                "writing it was interrupted; get it again."
            )

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """Give a transaction whose values are views of the database's memory, not to be used after it.

        Raises SourceChanged: somebody wrote to the database since it was opened; CorruptSource: it is damaged.
        """
        self._check_file()
        lmdb = self._lmdb
        try:
            with calls:
                transaction = self._env.begin(buffers=True)
            try:
                self._check_version(transaction.id())
                yield transaction
                self.check_unchanged()
            finally:
                with calls:
                    transaction.abort()
        except lmdb.MapResizedError as exc:
            raise self._changed("another one") from exc
        except lmdb.Error as exc:
            raise CorruptSource(f"{self.path} cannot be read: {words(exc)}. The database is damaged.") from exc

    def check_unchanged(self) -> None:
        """Make sure that nobody has written since this was opened: pages that are read may be used again otherwise.

        Raises SourceChanged: somebody has.
        """
        with calls:
            version = self._env.info()["last_txnid"]
        self._check_version(version)

    def _check_version(self, version: int) -> None:
        if version != self.version:
            raise self._changed(f"transaction {version}")

    def _changed(self, what: str) -> SourceChanged:
        return SourceChanged(
            f"{self.path} was written to while it was open: {what} came after transaction {self.version}. It is read "
            "without locks, so values could change while they are read. Do not write to it during training; make "
            "another dataset to see what is there now."
        )

    def count(self) -> int:
        """Return how many keys there are."""
        with calls:
            count: int = self._env.stat()["entries"]
        return count

    def close(self) -> None:
        """Close the database; views of its memory must be gone."""
        self._env.close()


_open: dict[FileId, Environment] = {}
_inherited: list[Environment] = []
_lock = lock_of_process()


def _before_fork() -> None:
    _lock.acquire()  # first: whoever has it opens or closes a database, and may be about to call LMDB
    calls.before_fork()


def _after_fork() -> None:
    calls.after_fork()
    _lock.release()


def _after_fork_in_child() -> None:
    calls.after_fork_in_child()
    _inherited.extend(_open.values())
    _open.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


def acquire(path: str) -> Environment:
    """Return the environment for a path, a file or a folder; opens it unless it is open."""
    file = os.path.join(path, "data.mdb") if os.path.isdir(path) else path
    try:
        found = os.stat(file)
    except OSError as exc:
        inside = " in it" if file != path else ""
        raise SourceError(
            exc.errno, f"There is no LMDB database: no such {'file data.mdb' + inside if inside else 'file'}", path
        ) from exc
    key = found.st_dev, found.st_ino
    with _lock:
        environment = _open.get(key)
        if environment is None:
            while _inherited:  # what this process must not use, and could not open the same files besides
                _inherited.pop().close()
            environment = _open[key] = Environment(path, file, key)
        else:
            environment.users += 1
        return environment


def release(environment: Environment) -> None:
    """Give an environment back; the last one to do so closes it."""
    with _lock:
        environment.users -= 1
        if environment.users > 0:
            return
        for key in [key for key, one in _open.items() if one is environment]:
            del _open[key]
            environment.close()  # those that were inherited are in the list no more, and closed already


def retain(environment: Environment) -> bool:
    """Use an environment once more; False if another thread has closed it meanwhile. Give it back with `release`."""
    with _lock:
        if environment.users > 0:
            environment.users += 1
            return True
        return False


def _opened(lmdb: Any, path: str, file: str) -> Any:
    try:
        return lmdb.open(path, subdir=file != path, readonly=True, lock=False, create=False, readahead=False)
    except lmdb.MapResizedError as exc:
        raise SourceChanged(f"{path} grew while it was opened. Open it when the other program is done.") from exc
    except lmdb.Error as exc:
        if "already open" in str(exc):
            raise SourceError(
                f"{path} is open in this process already, by other code than feedline's. LMDB cannot open a database "
                "twice in one process: close the other environment first."
            ) from exc
        if os.strerror(errno.EACCES) in str(exc):
            raise SourceError(errno.EACCES, f"{file} cannot be read: {os.strerror(errno.EACCES)}", path) from exc
        size = os.stat(file).st_size
        raise CorruptSource(f"{file} ({size} bytes) is no LMDB database, or a damaged one: {words(exc)}.") from exc
