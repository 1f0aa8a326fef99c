"""Handles that processes or threads must not share: their names, what goes wrong, what to do.

A library that the program has not imported cannot have opened anything, so it is not imported for this check.
"""

from __future__ import annotations

import io
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

_LAZILY = (
    "Keep the path instead, and open it in __getitem__ when it is first used, so that each worker has its own; or "
    "close it before the loader is iterated."
)
_CONNECT_LAZILY = (
    "Keep the address instead, and connect in __getitem__ when the connection is first used, so that each worker has "
    "its own; or close it before the loader is iterated."
)
_ONE_STREAM = "All processes would use one connection, and each would receive a part of the answers."


@dataclass(frozen=True)
class Library:
    """A library whose handles belong to the process, or the thread, that opened them."""

    module: str
    names: tuple[str, ...]
    """Its handle classes, by their names in the module; their `__name__` may differ."""
    # Any: a handle of any library.
    is_open: Callable[[Any], bool]
    """False, or an exception, for a handle that is closed or may be shared."""
    trouble: str = _ONE_STREAM
    advice: str = _CONNECT_LAZILY
    called: str = "an open {}"
    """Description of a handle; {} stands for the class."""


Known = tuple[Library, str]
"""The library of a handle class, and its name in that library."""

Kinds = dict[type, Known]


def kinds_of(libraries: Iterable[Library]) -> Kinds:
    """Return the handle classes of those libraries that the program has imported."""
    kinds: Kinds = {}
    for library in libraries:
        module = sys.modules.get(library.module)
        for name in library.names if module is not None else ():
            kind = vars(module).get(name)
            if isinstance(kind, type):
                kinds[kind] = library, name
    return kinds


def lookup(kind: type, kinds: Kinds) -> Known | None:
    """Return the entry for a class, or for its nearest base class that has one."""
    return next((kinds[base] for base in kind.__mro__ if base in kinds), None)


def raw_file(value: Any) -> io.FileIO | None:
    """Return the system file behind one of Python's file objects; None for any other object."""
    kind = type(value)
    try:
        if issubclass(kind, io.TextIOWrapper):
            value = vars(io.TextIOWrapper)["buffer"].__get__(value)
            kind = type(value)
        for buffered in (io.BufferedReader, io.BufferedRandom):
            if issubclass(kind, buffered):
                value = vars(buffered)["raw"].__get__(value)
                kind = type(value)
    except ValueError:  # detached
        return None
    return value if issubclass(kind, io.FileIO) else None


def is_read(value: object) -> bool:
    """True for an open file with a read position, or a pipe; not for devices and the terminal."""
    raw = raw_file(value)
    if raw is None or not io.FileIO.readable(raw):
        return False
    fd = io.FileIO.fileno(raw)
    mode = os.fstat(fd).st_mode
    return fd > 2 and (stat.S_ISREG(mode) or stat.S_ISFIFO(mode))


def _is_connected(handle: socket.socket) -> bool:
    return socket.socket.fileno(handle) >= 0


def _sqlite_is_open(handle: Any) -> bool:
    connection = getattr(handle, "connection", handle)  # a cursor is open as long as its connection
    return isinstance(connection.in_transaction, bool)  # raises if it is closed


def _lmdb_is_open(handle: Any) -> bool:
    return handle.path() is not None  # raises if it is closed


def _duckdb_is_open(handle: Any) -> bool:
    handle.cursor().close()  # raises if it is closed; leaves its result unchanged
    return True


def _not_closed(handle: Any) -> bool:
    return not handle.closed


_FILE = "an open file ({})"
_FILES = ("FileIO", "BufferedReader", "BufferedRandom", "TextIOWrapper")
FORKED = (
    Library(
        "h5py",
        ("File", "Group", "Dataset"),
        bool,
        "All processes would share one file position, and each a copy of the HDF5 library's cache, which gives wrong "
        "data or errors.",
        _LAZILY,
    ),
    Library(
        "lmdb",
        ("Environment",),
        _lmdb_is_open,
        "After a fork, only the process that opened it may use LMDB. In others its locks and its reader table become "
        "inconsistent, and it may crash.",
        _LAZILY,
    ),
    Library(
        "sqlite3",
        ("Connection", "Cursor"),
        _sqlite_is_open,
        "SQLite must not be carried over a fork: its locks no longer hold, which gives wrong data and may damage the "
        "database.",
        _LAZILY,
    ),
    Library(
        "duckdb",
        ("DuckDBPyConnection",),
        _duckdb_is_open,
        "DuckDB must not be carried over a fork: its threads do not exist in the worker, which hangs or gives wrong "
        "data.",
        _LAZILY,
    ),
    Library("psycopg", ("Connection", "Cursor"), _not_closed),
    Library("psycopg2.extensions", ("connection", "cursor"), _not_closed),
    Library("pymysql.connections", ("Connection",), lambda handle: handle.open),
    Library("pymongo", ("MongoClient",), lambda client: True, called="a {}"),
    Library(
        "io",
        _FILES,
        is_read,
        "All processes would share one position in it: a read in one of them moves it for the others, which gives "
        "wrong samples.",
        _LAZILY,
        _FILE,
    ),
    Library("socket", ("socket",), _is_connected),
)
"""Handles that a fork must not inherit."""

CUDA = Library(
    "torch",
    ("Tensor",),
    lambda tensor: bool(tensor.is_cuda),
    "CUDA cannot be initialised again in a forked process, so a worker that uses it fails.",
    "Keep it on the CPU, and move the batches to the device in the training loop; or start the workers with "
    'multiprocessing_context="spawn".',
    "a {} on a CUDA device",
)

_PER_THREAD = (
    "Open one per thread, in __getitem__, and keep it in a threading.local(); or hold a threading.Lock, kept beside "
    'it, while it is used; or use engine="process".'
)
_ONE_POSITION = (
    "All threads share its position: a read in one of them moves it for the others, which gives wrong samples."
)
THREADED = (
    Library("io", _FILES, is_read, _ONE_POSITION, _PER_THREAD, _FILE),
    # Code that slices a map never moves its position.
    Library(
        "mmap", ("mmap",), lambda m: m.tell() > 0, _ONE_POSITION, _PER_THREAD, "a {} that is read by seek and read"
    ),
    Library("tarfile", ("TarFile",), _not_closed, _ONE_POSITION, _PER_THREAD),
    Library("gzip", ("GzipFile",), _not_closed, _ONE_POSITION, _PER_THREAD),
    Library(
        "socket",
        ("socket",),
        _is_connected,
        "All threads use one connection, and each receives a part of the answers.",
        _PER_THREAD,
    ),
    *(
        Library(module, names, is_open, "One thread's query replaces another's.", _PER_THREAD)
        for module, names, is_open in (
            ("duckdb", ("DuckDBPyConnection",), _duckdb_is_open),
            ("psycopg", ("Cursor",), _not_closed),
            ("psycopg2.extensions", ("cursor",), _not_closed),
        )
    ),
)
"""Handles that threads must not use at the same time. They may share those of SQLite, h5py and LMDB, or the library
itself raises an error.
"""
