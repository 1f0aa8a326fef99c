"""Open databases of this process, each of them once.

LMDB must not open a database twice in a process, and its Python package refuses to; but several datasets, or several
threads of one, may well read the same. So they share it here, by file. A process that was forked closes what it has
inherited before it opens its own, which is safe because databases are opened read-only and without locks.

An environment is closed when the last of its users has given it back. Reading is a use of its own: another thread that
closes the dataset in the middle of a read does not take the memory away that is being read.

Readers take no locks, so nobody may write to the database at the same time. Whether somebody did is seen by the number
of the last transaction, before and after each read.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from feedline._optional import require
from feedline.datasets.lmdb.calls import calls
from feedline.errors import CorruptSource, SourceChanged, SourceError
from feedline.failures import words
from feedline.system.process import lock_of_process

MOST_PAGES = 4096
"""Pages that are looked at, 3 to 10 microseconds each. A guess: enough for the keys of half a million large values."""
_WINDOW_BYTES = 256 << 10
"""What is read and looked at together."""

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _DIRTY = 0x01, 0x02, 0x10
_META = struct.Struct("<16xII16xI44xIHH32xQQQ")
"""Magic, version; of the free pages: size of a page; of the data: pad, flags, depth, root; last page, transaction."""
_HEAD_BYTES, _NODE_BYTES = 16, 8
_IS_FAR = 0x01
"""A node's value lies in pages of its own."""
_NO_PAGE = (1 << 64) - 1


@dataclass(frozen=True)
class _Meta:
    page_bytes: int
    depth: int
    root: int
    last: int
    transaction: int


def check_pages(file: str, most: int = MOST_PAGES) -> int | None:
    """Go through the pages of a database, as its last transaction left them.

    LMDB follows the numbers in its pages without looking at them: a damaged one ends the process (SIGBUS, or an
    assertion). So the tree of pages is gone through before a database is mapped: from its root down, level by level, up
    to `most` pages. It is read as a file, so that this itself cannot end the process. What lies beyond is believed, and
    so is what is written to the file later: databases have to come from someone who is trusted. The format is that of
    LMDB 0.9 (version 1 of its data), with 64 bits and little-endian byte order; of another one, nothing is checked.

    Returns:
        The number of that transaction; None if the file is of another format. If somebody wrote to the file meanwhile,
        the pages may have been written over, and the number says nothing: the file has another one by then.
    """
    with open(file, "rb", buffering=0) as opened:
        meta = _newest(opened)
        if meta is None:
            return None
        if meta.root == _NO_PAGE or os.fstat(opened.fileno()).st_size < (meta.last + 1) * meta.page_bytes:
            return meta.transaction  # it is empty; or cut off, which the environment tells
        damaged = _first_damaged(opened, meta, most)
        if damaged is not None and _newest(opened) == meta:
            raise CorruptSource(
                f"{file} is damaged: page {damaged} of the database in it is not a page of its tree, or leads to where "
                "there is none. LMDB would end this process. Write or copy it again."
            )
        return meta.transaction


def _newest(file: IO[bytes]) -> _Meta | None:
    """Return what the last transaction wrote about the database; None if it is of another format."""
    found = []
    place = 0
    for _ in range(2):
        file.seek(place)
        content = file.read(_META.size)
        if len(content) < _META.size:
            break
        magic, version, page_bytes, _, _, depth, root, last, transaction = _META.unpack(content)
        if (magic, version) != (_MAGIC, _VERSION) or page_bytes not in (1 << power for power in range(9, 17)):
            break
        found.append(_Meta(page_bytes, depth, root, last, transaction))
        place = page_bytes
    return max(found, key=lambda meta: meta.transaction, default=None)


def _first_damaged(file: IO[bytes], meta: _Meta, most: int) -> int | None:
    if meta.root > meta.last:
        return meta.root
    level = np.array([meta.root])
    for height in range(meta.depth, 0, -1):
        level = np.sort(level[:most])
        most -= len(level)
        below = [np.empty(0, np.int64)]
        for numbers, pages in _windows(file, level, meta.page_bytes):
            is_damaged, found = _look(pages, numbers, meta.last, is_leaf=height == 1)
            if is_damaged.any():
                return int(numbers[is_damaged.argmax()])
            below.append(found)
        level = np.concatenate(below)
    return None


def _windows(
    file: IO[bytes], numbers: NDArray[np.int64], size: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
    """Yield the pages of these numbers, which are sorted; neighbours are read at once."""
    count = max(1, _WINDOW_BYTES // size)
    for start in range(0, len(numbers), count):
        part = numbers[start : start + count]
        pages = np.zeros((len(part), size), np.uint8)
        starts = [0, *(np.flatnonzero(np.diff(part) != 1) + 1).tolist(), len(part)]
        for first, end in itertools.pairwise(starts):
            file.seek(int(part[first]) * size)
            file.readinto(pages[first:end].reshape(-1).data)  # type: ignore[attr-defined]
        yield part, pages


def _look(
    pages: NDArray[np.uint8], numbers: NDArray[np.int64], last: int, *, is_leaf: bool
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Look at some pages of one level.

    Returns:
        Which are damaged; and, if none is, the pages that these lead to.
    """
    none = np.empty(0, np.int64)
    size = pages.shape[1]
    words = pages.view("<u2")
    flags, lower, upper = words[:, 5:8].astype(np.int64).T
    damaged = pages.view("<u8")[:, 0] != numbers.astype(np.uint64)
    damaged |= flags & ~_DIRTY != (_LEAF if is_leaf else _BRANCH)
    damaged |= (lower <= _HEAD_BYTES) | (lower > upper) | (upper > size)
    if damaged.any():
        return damaged, none
    counts = (lower - _HEAD_BYTES) // 2
    page = np.repeat(np.arange(len(pages)), counts)
    """Of each node."""

    def refuse(wrong: NDArray[np.bool_]) -> bool:
        damaged[page[wrong]] = True
        return bool(wrong.any())

    begins = page * (size // 2)
    slots = np.arange(len(page)) - np.repeat(np.cumsum(counts) - counts, counts)
    flat = words.reshape(-1)
    nodes = flat[begins + _HEAD_BYTES // 2 + slots].astype(np.int64)
    if refuse((nodes % 2 != 0) | (nodes < upper[page]) | (nodes > size - _NODE_BYTES)):
        return damaged, none
    places = begins + nodes // 2
    low, high, kind, key_bytes = (flat[places + part].astype(np.int64) for part in range(4))
    ends = nodes + _NODE_BYTES + key_bytes
    if not is_leaf:
        below: NDArray[np.int64] = low | high << 16 | kind << 32
        refuse((ends > size) | (below > last))
        return damaged, below
    value_bytes, is_far = low | high << 16, (kind & _IS_FAR).astype(bool)
    if refuse(ends + np.where(is_far, 8, value_bytes) > size) or not is_far.any():
        return damaged, none
    addresses = (page * size + ends)[is_far][:, None] + np.arange(8)
    firsts = pages.reshape(-1)[addresses].view("<u8")[:, 0].astype(np.float64)
    wrong = np.zeros(len(page), np.bool_)
    wrong[is_far] = firsts + (value_bytes[is_far] + _HEAD_BYTES + size - 1) // size > last + 1
    refuse(wrong)
    return damaged, none


FileId = tuple[int, int]
_MOST_TRIES = 5
"""How often a database is opened of which somebody writes the next transaction meanwhile. A guess."""


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
            environment = _open[key] = _checked(path, file, key)
        else:
            environment.users += 1
        return environment


def _checked(path: str, file: str, file_id: FileId) -> Environment:
    """Open a database whose pages have been gone through: those of the transaction that is the last one, still."""
    for _ in range(_MOST_TRIES):
        try:
            transaction = check_pages(file)
        except CorruptSource:
            raise
        except OSError as exc:
            raise SourceError(exc.errno, f"{file} cannot be read: {exc.strerror}", path) from exc
        environment = Environment(path, file, file_id)
        if transaction in (None, environment.version):
            return environment
        environment.close()
    raise SourceChanged(
        f"{path} is being written to: transactions ended while it was opened, {_MOST_TRIES} times in a row. It is read "
        "without locks, so values could change while they are read. Open it when the other program is done."
    )


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
        size = os.stat(file).st_size
        raise CorruptSource(f"{file} ({size} bytes) is no LMDB database, or a damaged one: {words(exc)}.") from exc
