"""Handles that must not be shared, by process or by thread: what they are called, what goes wrong, what to do.

A library that the program has not imported cannot have opened anything, and is not imported for this.
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
_ONE_STREAM = "All processes would speak over one connection, and each would hear a part of the answers."


@dataclass(frozen=True)
class Library:
    """A library whose handles belong to the process, or the thread, that opened them."""

    module: str
    names: tuple[str, ...]
    """Its classes of handles, by the names that the module has for them; their own `__name__` may be another."""
    # Any: a handle of whatever library.
    is_open: Callable[[Any], bool]
    """False, or an exception, for one that is closed, or that may be shared."""
    trouble: str = _ONE_STREAM
    advice: str = _CONNECT_LAZILY
    called: str = "an open {}"
    """How a handle is called; {} stands for the class."""


Known = tuple[Library, str]
"""The library of a class of handles, and the name that it has for it."""

Kinds = dict[type, Known]


def kinds_of(libraries: Iterable[Library]) -> Kinds:
    """Return the classes of handles, of those libraries that the program has imported."""
    kinds: Kinds = {}
    for library in libraries:
        module = sys.modules.get(library.module)
        for name in library.names if module is not None else ():
            kind = vars(module).get(name)
            if isinstance(kind, type):
                kinds[kind] = library, name
    return kinds


def lookup(kind: type, kinds: Kinds) -> Known | None:
    """Return what is known of a class, or of the nearest one that it is derived from."""
    return next((kinds[base] for base in kind.__mro__ if base in kinds), None)


def raw_file(value: Any) -> io.FileIO | None:
    """Return the file of the system that a file object reads or writes; None if it is none, or of another make."""
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


def is_read(value: Any) -> bool:
    """True for a file that is open and is read from a position, or from a pipe; not for devices and the terminal."""
    raw = raw_file(value)
    if raw is None or not io.FileIO.readable(raw):
        return False
    fd = io.FileIO.fileno(raw)
    mode = os.fstat(fd).st_mode
    return fd > 2 and (stat.S_ISREG(mode) or stat.S_ISFIFO(mode))


def _is_connected(handle: Any) -> bool:
    return socket.socket.fileno(handle) >= 0


def _sqlite_is_open(handle: Any) -> bool:
    connection = getattr(handle, "connection", handle)  # a cursor is as open as what it belongs to
    return isinstance(connection.in_transaction, bool)  # an error if it is closed


def _lmdb_is_open(handle: Any) -> bool:
    return handle.path() is not None  # an error if it is closed


def _duckdb_is_open(handle: Any) -> bool:
    handle.cursor().close()  # an error if it is closed; leaves its result as it is
    return True


def _not_closed(handle: Any) -> bool:
    return not handle.closed


def _always(handle: Any) -> bool:
    return True


DATABASES = (
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
        "LMDB must not be used after a fork by other processes than the one that opened it: its locks and its table of "
        "readers go wrong, and it may crash.",
        _LAZILY,
    ),
    Library(
        "sqlite3",
        ("Connection", "Cursor"),
        _sqlite_is_open,
        "SQLite must not be carried over a fork: its locks do not hold any more, which gives wrong data and may damage "
        "the database.",
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
    Library("pymongo", ("MongoClient",), _always, called="a {}"),
)
_FILE = "an open file ({})"
_FILES = ("FileIO", "BufferedReader", "BufferedRandom", "TextIOWrapper")
FORKED = (
    *DATABASES,
    Library(
        "io",
        _FILES,
        is_read,
        "All processes would share one position in it: where one of them reads, the others read on, which gives wrong "
        "samples.",
        _LAZILY,
        _FILE,
    ),
    Library("socket", ("socket",), _is_connected),
)
"""What must not be inherited by a fork."""

CUDA = Library(
    "torch",
    ("Tensor",),
    lambda tensor: bool(tensor.is_cuda),
    "CUDA cannot be initialised again in a forked process, so that the worker fails when it uses it.",
    "Keep it on the CPU, and move the batches to the device in the training loop; or start the workers with "
    'multiprocessing_context="spawn".',
    "a {} on a CUDA device",
)

_PER_THREAD = (
    "Open one per thread, in __getitem__, and keep it in a threading.local(); or hold a threading.Lock, kept beside "
    'it, while it is used; or use engine="process".'
)
_ONE_POSITION = (
    "All threads share its position: where one of them reads, the others read on, which gives wrong samples."
)
THREADED = (
    Library("io", _FILES, is_read, _ONE_POSITION, _PER_THREAD, _FILE),
    # Whoever takes slices of a map never moves its position.
    Library(
        "mmap", ("mmap",), lambda m: m.tell() > 0, _ONE_POSITION, _PER_THREAD, "a {} that is read by seek and read"
    ),
    Library("tarfile", ("TarFile",), _not_closed, _ONE_POSITION, _PER_THREAD),
    Library(
        "socket",
        ("socket",),
        _is_connected,
        "All threads speak over one connection, and each hears a part of the answers.",
        _PER_THREAD,
    ),
    *(
        Library(module, names, is_open, "One thread's query takes the place of another's.", _PER_THREAD)
        for module, names, is_open in (
            ("duckdb", ("DuckDBPyConnection",), _duckdb_is_open),
            ("psycopg", ("Cursor",), _not_closed),
            ("psycopg2.extensions", ("cursor",), _not_closed),
        )
    ),
)
"""What threads must not use at the same time. Of SQLite, h5py and LMDB they may, or the library itself says no."""
