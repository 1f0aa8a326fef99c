"""Handles in a dataset that workers must not share: files, sockets, connections.

A forked worker inherits the dataset with every open handle, and threads share whatever the dataset refers to. Many
handles then return wrong data, crash or hang without an explanation. So the dataset is searched just before workers
start, and a warning names each handle that cannot be shared. A file that is open for reading only needs no warning in
forked workers: each worker gives it a position of its own (`fork_safety.py`), wherever the file object is.

The search looks at attributes and at attributes of these, such as `dataset.reader.file`. Containers, and the datasets
of torch and feedline that wrap others, do not count as a step. It runs none of the user's code: it reads instance
dictionaries and slots, never a property and never `__getattr__`.

A library that the program has not imported cannot have opened anything, so it is not imported for this check.
"""

from __future__ import annotations

import io
import itertools
import os
import stat
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

from feedline.errors import DataWarning, warn_user
from feedline.system.attributes import MOST, attributes_of, held_by
from feedline.system.handle import Handle
from feedline.system.references import References
from feedline.workers.fork_safety import opened_again, read_positions

# -- kinds of handles ---

_ONE_POSITION = "They would share its position: a read by one moves it for the others, which gives wrong samples."
_ONE_STREAM = "They would use one connection, and each would receive a part of the answers."
_ONE_QUERY = "One thread's query replaces another's."
_LATE = (
    "Keep the path or the address instead, and open it in __getitem__ when it is first used, so that each worker has "
    "its own; or close it before the loader is iterated."
)
_PER_THREAD = (
    "Open one per thread, in __getitem__, and keep it in a threading.local(); or hold a threading.Lock, kept beside "
    'it, while it is used; or use engine="process".'
)


class Kind(NamedTuple):
    """A kind of handle that belongs to the process, or the thread, that opened it."""

    module: str
    names: tuple[str, ...]
    """Its classes, by their names in the module; their `__name__` may differ."""
    # Any: a handle of any library.
    is_open: Callable[[Any], object]
    """False, or an exception, for a handle that is closed or may be shared."""
    forked: str = ""
    """What goes wrong if forked workers inherit one; empty if nothing does."""
    threaded: str = ""
    """What goes wrong if threads use one at the same time."""
    advice: str = _LATE
    """What to do before a fork."""
    form: str = "an open {}"


class Shared(NamedTuple):
    """A handle in a dataset that workers would share."""

    path: str
    called: str
    """Its class, in words."""
    trouble: str
    advice: str
    value: object


def raw_file(value: object) -> io.FileIO | None:
    """Return the system file behind one of Python's file objects; None for any other object."""
    try:
        while isinstance(value, (io.TextIOWrapper, io.BufferedReader, io.BufferedRandom)):
            value = value.buffer if isinstance(value, io.TextIOWrapper) else value.raw
    except ValueError:  # detached
        return None
    return value if isinstance(value, io.FileIO) else None


def _is_read(value: object) -> bool:
    """True for an open file with a read position, or a pipe; not for devices and the terminal."""
    raw = raw_file(value)
    if raw is None or not raw.readable():
        return False
    mode = os.fstat(raw.fileno()).st_mode
    return raw.fileno() > 2 and (stat.S_ISREG(mode) or stat.S_ISFIFO(mode))


def _not_closed(handle: Any) -> bool:
    return not handle.closed


KINDS = (
    Kind(
        "h5py",
        ("File", "Group", "Dataset"),
        bool,
        "All processes would share one file position, and each a copy of the HDF5 library's cache, which gives wrong "
        "data or errors.",
    ),
    Kind(
        "lmdb",
        ("Environment",),
        lambda handle: handle.path() is not None,
        "After a fork, only the process that opened it may use LMDB. In others its locks and its reader table become "
        "inconsistent, and it may crash.",
    ),
    Kind(
        "sqlite3",
        ("Connection", "Cursor"),
        lambda handle: getattr(handle, "connection", handle).in_transaction is not None,
        "SQLite must not be carried over a fork: its locks no longer hold, which gives wrong data and may damage the "
        "database.",
    ),
    Kind(
        "duckdb",
        ("DuckDBPyConnection",),
        lambda handle: handle.cursor().close() is None,
        "DuckDB must not be carried over a fork: its threads do not exist in the worker, which hangs or gives wrong "
        "data.",
        _ONE_QUERY,
    ),
    Kind("psycopg", ("Connection",), _not_closed, _ONE_STREAM),
    Kind("psycopg", ("Cursor",), _not_closed, _ONE_STREAM, _ONE_QUERY),
    Kind("psycopg2.extensions", ("connection",), _not_closed, _ONE_STREAM),
    Kind("psycopg2.extensions", ("cursor",), _not_closed, _ONE_STREAM, _ONE_QUERY),
    Kind("pymysql.connections", ("Connection",), lambda handle: handle.open, _ONE_STREAM),
    Kind("pymongo", ("MongoClient",), lambda handle: True, _ONE_STREAM),
    Kind("socket", ("socket",), lambda handle: handle.fileno() >= 0, _ONE_STREAM, _ONE_STREAM),
    Kind(
        "io",
        ("FileIO", "BufferedReader", "BufferedRandom", "TextIOWrapper"),
        _is_read,
        _ONE_POSITION,
        _ONE_POSITION,
        form="an open file ({})",
    ),
    Kind("mmap", ("mmap",), lambda handle: handle.tell() > 0, threaded=_ONE_POSITION),  # slices never move it
    Kind("tarfile", ("TarFile",), _not_closed, threaded=_ONE_POSITION),
    Kind("gzip", ("GzipFile",), _not_closed, threaded=_ONE_POSITION),
)
"""Threads may share handles of SQLite, h5py and LMDB, or the library itself raises an error."""

_CUDA = Kind(
    "torch",
    ("Tensor",),
    lambda tensor: tensor.is_cuda,
    "CUDA cannot be initialised again in a forked process, so a worker that uses it fails.",
    advice="Keep it on the CPU, and move the batches to the device in the training loop; or start the workers with "
    'multiprocessing_context="spawn".',
    form="a {} on a CUDA device",
)


# -- handles in a dataset ---

_LOCKS = (type(threading.Lock()), type(threading.RLock()))


def inherited(dataset: object) -> list[Shared]:
    """Return the open handles in the dataset that must not be shared by a fork.

    They include files that are open for reading, which feedline's own workers give a position of their own.
    """
    kinds = [kind for kind in KINDS if kind.forked]
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():  # else no tensor can be on a device
        kinds.append(_CUDA)
    _, found = _open_in(dataset, kinds)
    return [Shared(path, called, kind.forked, kind.advice, value) for path, called, kind, value in found]


def used_by_threads(dataset: object) -> list[Shared]:
    """Return the open handles in the dataset that threads must not use at the same time.

    A handle beside a lock is left out: the dataset takes turns.
    """
    zipfile = sys.modules.get("zipfile")
    # zipfile's archives have a lock for their file, and attributes of a `threading.local` belong to one thread.
    whole = (threading.local, *(() if zipfile is None else (zipfile.ZipFile,)))
    objects, found = _open_in(dataset, [kind for kind in KINDS if kind.threaded], whole)
    holders = [path.rpartition(".")[0] for path, value in objects if type(value) in _LOCKS]
    guarded = tuple(start for one in holders if one for start in (f"{one}.", f"{one}[", f"list({one}."))
    return [
        Shared(path, called, kind.threaded, _PER_THREAD, value)
        for path, called, kind, value in found
        if not path.startswith(guarded)
    ]


def _open_in(
    dataset: object, kinds: list[Kind], whole: tuple[type, ...] = ()
) -> tuple[list[tuple[str, object]], list[tuple[str, str, Kind, object]]]:
    """Return the objects in a dataset if some are handles, and path, description, kind and value of the open ones."""
    classes: dict[type, tuple[Kind, str]] = {}
    for kind in kinds:
        for name in kind.names if kind.module in sys.modules else ():
            made = vars(sys.modules[kind.module]).get(name)
            if isinstance(made, type):
                classes[made] = kind, kind.form.format(f"{kind.module}.{name}")
    handles, closed = tuple(classes), (*classes, *whole)
    # Without names first: looking them up makes the dataset's attributes slower.
    if not any(issubclass(type(value), handles) for _, value in objects_in(dataset, closed, named=False)):
        return [], []
    objects, found = objects_in(dataset, closed), []
    for path, value in objects:
        for base in type(value).__mro__:
            if base in classes:
                kind, called = classes[base]
                with suppress(Exception):  # each library has its own error for a closed handle
                    if kind.is_open(value):
                        found.append((path, called, kind, value))
                break
    return objects, found


# -- warnings ---

_warned: dict[str, References[object]] = {}
"""The datasets that a warning was issued for, by the kind of sharing: each epoch may start workers."""


def warn_about(dataset: object, *, threaded: bool = False) -> None:
    """Warn of handles in the dataset that forked workers, or threads, must not share; once for each dataset.

    Call this just before they are started. It examines a bounded number of objects.
    """
    if threaded:
        _warn(dataset, used_by_threads(dataset), "worker threads share it")
    else:
        found = [one for one in inherited(dataset) if not _gets_own_position(one.value)]
        _warn(dataset, found, "forked workers inherit it")


def _gets_own_position(value: object) -> bool:
    """True for a file that forked workers open again: it is open for reading only, and may still be opened."""
    raw = raw_file(value)
    if raw is None or raw.fileno() not in read_positions():
        return False
    try:
        os.close(opened_again(raw.fileno()))
    except OSError:  # no /proc, or permissions have changed
        return False
    return True


def _warn(dataset: object, found: list[Shared], shared: str) -> None:
    warned = _warned.setdefault(shared, References())
    if not found or any(other is dataset for other in warned):
        return
    for trouble in dict.fromkeys(one.trouble for one in found):
        first, *others = [one for one in found if one.trouble == trouble]
        also = f" (and {len(others)} more)" if others else ""
        warn_user(f"{first.path} is {first.called}{also}, and {shared}. {trouble} {first.advice}", DataWarning)
    try:
        warned.add(dataset)  # only now: a warning that was turned into an error comes again
    except TypeError:  # such as a list
        return


# -- the search ---

_LEVELS = 2
"""Attributes of attributes: steps through the user's objects, from the dataset or from one that is wrapped."""

_ITEMS = 100
"""Items of one container that are searched."""

_ATOMS = frozenset((str, bytes, bytearray, int, float, complex, bool, type(None)))
_LEAVES = (type, ModuleType, FunctionType, BuiltinFunctionType, weakref.ref, Handle)
"""Types that hold no handles, hold them outside of a dictionary or slots, or open others in every process."""

_CONTAINERS: tuple[Any, ...] = (dict, list, tuple, deque, set, frozenset)


def objects_in(
    dataset: object,
    whole: tuple[type, ...] = (),
    *,
    name: str = "dataset",
    levels: int = _LEVELS,
    named: bool = True,
) -> list[tuple[str, object]]:
    """Return a dataset and what it holds, nearest first, with paths: a bounded number of objects.

    Args:
        dataset: the dataset.
        whole: classes whose instances are not searched.
        name: how paths begin.
        levels: how many steps through the user's objects.
        named: False if paths are not needed: then the objects' attributes stay as fast as they are.
    """
    # By id: a comparison would run the user's code. The values are kept, so that no id is reused.
    seen = {id(dataset): dataset}
    found: list[tuple[str, object, int]] = [(name, dataset, levels)]
    for path, value, left in found:  # which grows meanwhile
        kind = type(value)
        if issubclass(kind, (*whole, *_LEAVES)):
            continue
        is_container = issubclass(kind, _CONTAINERS)
        parts = _items(path, value) if is_container else []
        if left and named:
            parts += [(f"{path}.{attribute}", part) for attribute, part in attributes_of(value)]
        elif left:
            parts += zip(itertools.repeat(""), held_by(value), strict=False)
        # A dataset of feedline or torch, such as `Subset`, may wrap the user's.
        is_ours = f"{kind.__module__}.".startswith(("feedline.", "torch.utils.data."))
        for place, part in parts:
            if len(seen) < MOST and id(part) not in seen and type(part) not in _ATOMS:
                seen[id(part)] = part
                found.append((place, part, left if is_container or is_ours else left - 1))
    return [(path, value) for path, value, _ in found]


def _items(path: str, value: Any) -> list[tuple[str, object]]:
    """Return the paths and the first items of a container, by its base's own methods: a subclass may override them."""
    kind = type(value)
    if issubclass(kind, dict):
        entries = itertools.islice(dict.items(value), _ITEMS)
        return [(f"{path}[{key!r}]" if type(key) in _ATOMS else f"{path}[...]", item) for key, item in entries]
    base = next(base for base in _CONTAINERS if issubclass(kind, base))
    source = f"list({path})" if base in (set, frozenset) else path
    return [(f"{source}[{place}]", item) for place, item in enumerate(itertools.islice(base.__iter__(value), _ITEMS))]
