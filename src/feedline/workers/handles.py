"""Handles in a dataset that workers must not share: files, sockets, connections.

A forked worker inherits the dataset with every open handle, and threads share whatever the dataset refers to. Many
handles then return wrong data, crash or hang without an explanation. So the dataset is searched just before workers
start, and a warning names each handle that cannot be shared. A file that is open for reading only needs no warning in
forked workers: each worker gives it a position of its own (`fork_safety.py`), wherever the file object is.

The search looks at attributes and at attributes of these, such as `dataset.reader.file`. Containers, and the datasets
of torch and feedline that wrap others, do not count as a step. It runs none of the user's code: it reads instance
dictionaries and slots, never a property and never `__getattr__`.
"""

from __future__ import annotations

import io
import itertools
import os
import sys
import threading
import weakref
from collections import deque
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from feedline.errors import DataWarning, warn_user
from feedline.system.attributes import MOST, attributes_of, held_by
from feedline.system.handle import Handle
from feedline.system.references import References
from feedline.workers.fork_safety import opened_again, read_positions
from feedline.workers.handle_kinds import CUDA, FORKED, THREADED, Known, Library, kinds_of, lookup, raw_file

_LEVELS = 2
"""Attributes of attributes: steps through the user's objects, from the dataset or from one that is wrapped."""

_ITEMS = 100
"""Items of one container that are searched."""

_NAMED = 3
"""Maximum number of paths that one warning names."""

_ATOMS = frozenset((str, bytes, bytearray, int, float, complex, bool, type(None)))
_LEAVES = (type, ModuleType, FunctionType, BuiltinFunctionType, weakref.ref, Handle)
"""Types that hold no handles, hold them outside of a dictionary or slots, or open others in every process."""

_CONTAINERS: tuple[Any, ...] = (dict, list, tuple, deque, set, frozenset)

_LOCKS = (type(threading.Lock()), type(threading.RLock()))


def warn_about(dataset: object) -> None:
    """Warn of handles in the dataset that do not survive a fork, once for each dataset.

    Call this just before workers are forked. It examines a bounded number of objects.
    """
    shared = [(path, *known) for path, handle, known in inherited(dataset) if not _gets_own_position(handle)]
    _warn(dataset, shared, "forked workers inherit it")


def inherited(dataset: object) -> list[tuple[str, object, Known]]:
    """Return the open handles in the dataset that must not be shared by a fork: path, handle, library and name.

    They include files that are open for reading, which feedline's own workers give a position of their own.
    """
    kinds = kinds_of(FORKED)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():  # else no tensor can be on a device
        kinds |= kinds_of((CUDA,))
    found: list[tuple[str, object, Known]] = []
    for path, value in _objects_if_any(dataset, tuple(kinds)):
        known = lookup(type(value), kinds)
        if known is not None and _is_open(known[0], value):
            found.append((path, value, known))
    return found


def warn_about_threads(dataset: object) -> None:
    """Warn of handles in the dataset that threads must not use at the same time, once for each dataset."""
    _warn(dataset, used_by_threads(dataset), "worker threads share it")


def used_by_threads(dataset: object) -> list[tuple[str, Library, str]]:
    """Return the open handles in the dataset that threads must not use at the same time: path, library, name.

    A handle beside a lock is left out: the dataset takes turns.
    """
    kinds = kinds_of(THREADED)
    zipfile = sys.modules.get("zipfile")
    # zipfile's archives have a lock for their file, and attributes of a `threading.local` belong to one thread.
    whole = (threading.local, *(() if zipfile is None else (zipfile.ZipFile,)))
    found: list[tuple[str, Library, str]] = []
    guarded: list[str] = []
    for path, value in _objects_if_any(dataset, tuple(kinds), whole):
        if type(value) in _LOCKS:
            guarded.append(path.rpartition(".")[0])
        known = lookup(type(value), kinds)
        if known is not None and _is_open(known[0], value):
            found.append((path, *known))
    return [place for place in found if not any(_is_inside(place[0], holder) for holder in guarded)]


def _is_inside(path: str, holder: str) -> bool:
    return bool(holder) and path.startswith((f"{holder}.", f"{holder}[", f"list({holder}"))


def _gets_own_position(value: object) -> bool:
    """True for a file that forked workers open again: it is open for reading only, and may still be opened."""
    raw = raw_file(value)
    if raw is None or (fd := io.FileIO.fileno(raw)) not in read_positions():
        return False
    try:
        os.close(opened_again(fd))
    except OSError:  # no /proc, or permissions have changed
        return False
    return True


_warned: dict[str, References[object]] = {}
"""The datasets that a warning was issued for, by the kind of sharing: each epoch may start workers."""


def _warn(dataset: object, found: list[tuple[str, Library, str]], shared: str) -> None:
    warned = _warned.setdefault(shared, References())
    if not found or any(other is dataset for other in warned):
        return
    for library in dict.fromkeys(library for _, library, _ in found):
        places = [(path, f"{library.module}.{name}") for path, of, name in found if of is library]
        warn_user(_message(library, places, shared), DataWarning)
    try:
        warned.add(dataset)  # only now: a warning that was turned into an error comes again
    except TypeError:  # such as a list
        return


def _message(library: Library, places: list[tuple[str, str]], shared: str) -> str:
    path, name = places[0]
    others = [other for other, _ in places[1:_NAMED]]
    if len(places) > _NAMED:
        others.append(f"{len(places) - _NAMED} more")
    also = f" (others: {', '.join(others)})" if others else ""
    return f"{path} is {library.called.format(name)}{also}, and {shared}. {library.trouble} {library.advice}"


def _is_open(library: Library, handle: object) -> bool:
    try:
        return library.is_open(handle)
    except Exception:  # each library has its own error for a closed handle
        return False


def _objects_if_any(dataset: object, kinds: tuple[type, ...], whole: tuple[type, ...] = ()) -> list[tuple[str, object]]:
    """Return the objects in a dataset if some are of these kinds: looking up names makes attributes slower."""
    closed = (*kinds, *whole)
    if not any(issubclass(type(value), kinds) for _, value in objects_in(dataset, closed, named=False)):
        return []
    return objects_in(dataset, closed)


def objects_in(dataset: object, whole: tuple[type, ...] = (), *, named: bool = True) -> list[tuple[str, object]]:
    """Return a dataset and what it holds, nearest first, with paths: a bounded number of objects.

    Args:
        dataset: the dataset.
        whole: classes whose instances are not searched.
        named: False if paths are not needed: then the objects' attributes stay as fast as they are.
    """
    # By id: a comparison would run the user's code. The values are kept, so that no id is reused.
    seen = {id(dataset): dataset}
    closed = (*whole, *_LEAVES)
    found: list[tuple[str, object, int]] = [("dataset", dataset, _LEVELS)]
    for path, value, levels in found:  # which grows meanwhile
        kind = type(value)
        if issubclass(kind, closed):
            continue
        is_container = issubclass(kind, _CONTAINERS)
        parts = _items(path, value) if is_container else []
        if levels and named:
            parts += [(f"{path}.{name}", part) for name, part in attributes_of(value)]
        elif levels:
            parts += zip(itertools.repeat(""), held_by(value), strict=False)
        for place, part in parts:
            if len(seen) < MOST and id(part) not in seen and type(part) not in _ATOMS:
                seen[id(part)] = part
                if not issubclass(type(part), _LEAVES):
                    found.append((place, part, levels if is_container or _is_ours(kind) else levels - 1))
    return [(path, value) for path, value, _ in found]


def _is_ours(kind: type) -> bool:
    """True for a class of feedline, or a dataset of torch, such as `Subset`: it may wrap the user's dataset."""
    return f"{kind.__module__}.".startswith(("feedline.", "torch.utils.data."))


def _items(path: str, value: Any) -> list[tuple[str, object]]:
    """Return the paths and the first items of a container."""
    kind = type(value)
    found: list[tuple[str, object]] = []
    if issubclass(kind, dict):
        entries = itertools.islice(dict.items(value), _ITEMS)
        found += [(item_of(path, key, place), item) for place, (key, item) in enumerate(entries)]
    for base in _CONTAINERS[1:]:
        if issubclass(kind, base):
            source = f"list({path})" if base in (set, frozenset) else path
            # By the base's own method: a subclass may override it.
            items = itertools.islice(base.__iter__(value), _ITEMS)
            found += [(f"{source}[{place}]", item) for place, item in enumerate(items)]
    return found


def item_of(path: str, key: object, place: int) -> str:
    """Return the path of a value in the dictionary at `path`: by its key, or by its position if the key is not plain.

    >>> item_of("dataset.files", "train", 0)
    "dataset.files['train']"
    >>> item_of("dataset.files", object(), 2)
    'list(dataset.files.values())[2]'
    """
    return f"{path}[{key!r}]" if type(key) in _ATOMS else f"list({path}.values())[{place}]"
