"""The databases that this process has open, each opened once.

LMDB must not open a database twice in one process, and its Python package refuses to. But several datasets, or several
threads of one, may read the same database, so they share one environment per file. A forked process closes inherited
environments before it opens its own. This is safe because databases are opened read-only and without locks.

An environment is closed when its last user releases it. Each read counts as a user, so a thread that closes the dataset
during another thread's read does not unmap the memory being read.

Readers take no locks, so the database must not be written at the same time. Writes are detected by comparing the number
of the last transaction before and after each read.

LMDB follows the numbers in its pages without checking them, and a wrong one can crash the process. Only the size of the
file is compared with the size that the database declares, when it is opened and before each read.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from feedline.errors import CorruptSource, SourceChanged, SourceError
from feedline.system.failures import words
from feedline.system.optional import require
from feedline.system.process import lock_of_process

if TYPE_CHECKING:
    import lmdb

FileId = tuple[int, int]

_FORK_S = 1.0
"""How long a fork waits for LMDB calls of other threads. They take microseconds, or as long as the disk takes."""


class _Calls:
    """LMDB calls in progress, by thread. A fork waits for them.

    A call that is interrupted by a fork never ends in the child, and the lmdb package would wait for it when the child
    closes an inherited environment.
    """

    def __init__(self) -> None:
        self._forks = 0
        self._threads: list[int] = []
        self._changed = threading.Condition()

    # No lock, for speed: a thread adds itself to the list before it checks for forks, and a fork announces itself
    # before it checks the list.
    def __enter__(self) -> None:
        own = threading.get_ident()
        self._threads.append(own)
        while self._forks:
            self.__exit__()
            with self._changed:
                self._changed.wait_for(lambda: not self._forks)
            self._threads.append(own)

    def __exit__(self, *_: object) -> None:
        self._threads.remove(threading.get_ident())
        if self._forks:
            with self._changed:
                self._changed.notify_all()

    def before_fork(self) -> None:
        """Block new calls, and wait up to `_FORK_S` for those of other threads to end."""
        own = {threading.get_ident()}
        with self._changed:
            self._forks += 1
            self._changed.wait_for(lambda: own.issuperset(self._threads), _FORK_S)

    def after_fork(self) -> None:
        """Allow calls again."""
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        """Forget the calls of threads that do not exist in the child."""
        self._forks = 0
        self._threads = [one for one in self._threads if one == threading.get_ident()]
        self._changed = threading.Condition()


calls = _Calls()


class Environment:
    """A database that is open in this process."""

    def __init__(self, path: str, file: str, file_id: FileId) -> None:
        self.path = path
        self.file = file
        self._id = file_id
        self._lmdb = require("lmdb", extra="lmdb", purpose="Reading an LMDB database")
        self._env = _opened(self._lmdb, path, file)
        try:
            info = self._env.info()
            self._least_bytes = (info["last_pgno"] + 1) * self._env.stat()["psize"]
            self.version: int = info["last_txnid"]
            """The number of the last transaction, which changes with every write."""
            self._check_file()
        except BaseException:
            self._env.close()
            raise
        self.users = 1

    def _check_file(self) -> None:
        """Check that the file is the one that was opened, and as long as the database needs.

        Reading past the end of a truncated file would kill the process.

        Raises SourceChanged if the file was replaced, CorruptSource if it is too short.
        """
        try:
            found = os.stat(self.file)
        except FileNotFoundError:
            return  # deleted: the open database stays readable
        size = found.st_size
        if (found.st_dev, found.st_ino) != self._id:
            raise SourceChanged(
                f"{self.path} was replaced by another database since it was opened. Create the dataset again."
            )
        if size < self._least_bytes:
            raise CorruptSource(
                f"{self.file} is truncated: it has {size} bytes, but its database needs {self._least_bytes}. Copying "
                "or writing it was probably interrupted: get it again."
            )

    # Any: a transaction of lmdb, whose annotations do not tell that values are views.
    @contextmanager
    def reading(self) -> Iterator[Any]:
        """Yield a transaction whose values are views of the database's memory. Do not use them after it.

        Raises SourceChanged if the database was written to since it was opened, CorruptSource if it is damaged.
        """
        self._check_file()
        module = self._lmdb
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
        except module.MapResizedError as exc:
            raise self._changed("a later one") from exc
        except module.Error as exc:
            raise CorruptSource(f"{self.path} cannot be read: {words(exc)}. The database is damaged.") from exc

    def check_unchanged(self) -> None:
        """Raise SourceChanged if the database was written to since it was opened: a writer may reuse pages in use."""
        with calls:
            version = self._env.info()["last_txnid"]
        self._check_version(version)

    def _check_version(self, version: int) -> None:
        if version != self.version:
            raise self._changed(f"transaction {version}")

    def _changed(self, what: str) -> SourceChanged:
        return SourceChanged(
            f"{self.path} was written to while it was open: {what} came after transaction {self.version}. It is read "
            "without locks, so values could change while they are read. Do not write to it during training. To read "
            "its current contents, create the dataset again."
        )

    def count(self) -> int:
        """Return the number of keys."""
        with calls:
            count: int = self._env.stat()["entries"]
        return count

    def close(self) -> None:
        """Close the database. No views of its memory may be left."""
        self._env.close()


_open: dict[FileId, Environment] = {}
_inherited: list[Environment] = []
_lock = lock_of_process()


def _before_fork() -> None:
    _lock.acquire()  # first: a thread that holds it opens or closes a database, and may be about to call LMDB
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
    """Return the environment for a path to a file or a folder, opening it if necessary."""
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
            while _inherited:  # not usable in this process, and would keep it from opening the same files
                _inherited.pop().close()
            environment = _open[key] = Environment(path, file, key)
        else:
            environment.users += 1
        return environment


def release(environment: Environment) -> None:
    """Give an environment back; the last user closes it."""
    with _lock:
        environment.users -= 1
        if environment.users > 0:
            return
        for key in [key for key, one in _open.items() if one is environment]:
            del _open[key]
            environment.close()  # inherited environments are not in `_open`: `acquire` closes them


def retain(environment: Environment) -> bool:
    """Add a user to an environment, which must `release` it. False if another thread has closed it meanwhile."""
    with _lock:
        if environment.users > 0:
            environment.users += 1
            return True
        return False


def _opened(module: ModuleType, path: str, file: str) -> lmdb.Environment:
    try:
        found: lmdb.Environment = module.open(
            path, subdir=file != path, readonly=True, lock=False, create=False, readahead=False
        )
    except module.MapResizedError as exc:
        raise SourceChanged(f"{path} grew while it was being opened. Open it after its writer has finished.") from exc
    except module.Error as exc:
        if "already open" in str(exc):
            raise SourceError(
                f"{path} is already open in this process, outside feedline. LMDB cannot open a database twice in one "
                "process: close the other environment first."
            ) from exc
        if os.strerror(errno.EACCES) in str(exc):
            raise SourceError(errno.EACCES, f"{file} cannot be read: {os.strerror(errno.EACCES)}", path) from exc
        size = os.stat(file).st_size
        raise CorruptSource(f"{file} ({size} bytes) is not an LMDB database, or is damaged: {words(exc)}.") from exc
    return found
