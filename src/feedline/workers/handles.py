"""Handles in a dataset that workers must not share: files, sockets, connections.

A forked worker inherits the dataset with every open handle, and threads share whatever the dataset refers to. Many
handles then return wrong data, crash or hang without an explanation. So the dataset is searched just before workers
start, and a warning names each handle that cannot be shared. A file that is open for reading only needs no warning in
forked workers: each worker gives it a position of its own (`fork_safety.py`), wherever the file object is.

The search is short and runs none of the user's code: it reads instance dictionaries and slots, never a property and
never `__getattr__`.
"""

from __future__ import annotations

import io
import itertools
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from feedline.errors import DataWarning, warn_user
from feedline.system.attributes import MOST, attributes_of, held_by
from feedline.system.handle import Handle
from feedline.workers.fork_safety import opened_again, read_positions
from feedline.workers.handle_kinds import CUDA, DATABASES, FORKED, THREADED, Known, Library, kinds_of, lookup, raw_file

_DEPTH = 6
"""Maximum number of steps from the dataset. `dataset.dataset.datasets[0].reader.file` has five."""

_OBJECTS = MOST
"""Maximum number of objects to examine, those nearest to the dataset first."""

_ITEMS = 100
"""Items of one container that are searched. Of the items after these, up to `_OBJECTS`, only handles are found."""

_NAMED = 3
"""Maximum number of paths that one warning names."""

_ATOMS = frozenset((str, bytes, bytearray, int, float, complex, bool, type(None)))
_LEAVES = (type, ModuleType, FunctionType, BuiltinFunctionType, weakref.ref, Handle)
"""Types that hold no handles, hold them outside of a dictionary or slots, or open others in every process."""

_CONTAINERS: tuple[Any, ...] = (dict, list, tuple, deque, set, frozenset)


_LOCKS = (type(threading.Lock()), type(threading.RLock()))

_NEAR = 2
"""Maximum number of steps to a socket. One further away belongs to a client, or an event loop, that manages it."""


def warn_about(dataset: object) -> None:
    """Warn of handles in the dataset that do not survive a fork, once for each place.

    Call this just before workers are forked. It examines a bounded number of objects.
    """
    found = inherited(dataset)
    if found:
        shared = [(path, *known) for path, handle, known in found if not _gets_own_position(handle)]
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
    if not holds(dataset, tuple(kinds)):
        return found
    for path, value in objects_in(dataset, "dataset", tuple(kinds)):
        known = lookup(type(value), kinds)
        if known is not None and _is_open(known[0], value) and not _is_far(path, known[0]):
            found.append((path, value, known))
    return found


def warn_about_threads(dataset: object) -> None:
    """Warn of handles in the dataset that threads must not use at the same time, once for each place."""
    _warn(dataset, used_by_threads(dataset), "worker threads share it")


def used_by_threads(dataset: object) -> list[tuple[str, Library, str]]:
    """Return the open handles in the dataset that threads must not use at the same time: path, library, name."""
    kinds = kinds_of(THREADED)
    zipfile = sys.modules.get("zipfile")
    # zipfile's archives have a lock for their file, and attributes of a `threading.local` belong to one thread.
    whole = (*kinds, threading.local, *(() if zipfile is None else (zipfile.ZipFile,)))
    found: list[tuple[str, Library, str]] = []
    guarded: list[str] = []
    if not holds(dataset, tuple(kinds), whole):
        return found
    for path, value in objects_in(dataset, "dataset", whole):
        if type(value) in _LOCKS:
            guarded.append(path.rpartition(".")[0])
        known = lookup(type(value), kinds)
        if known is not None and _is_open(known[0], value) and not _is_far(path, known[0]):
            found.append((path, *known))
    return [place for place in found if not any(_is_inside(place[0], holder) for holder in guarded)]


def _is_far(path: str, library: Library) -> bool:
    return library.module == "socket" and path.count(".") + path.count("[") > _NEAR


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


def _warn(dataset: object, found: list[tuple[str, Library, str]], shared: str) -> None:
    if not found:
        return
    warned = _warned_paths(dataset)
    for library in dict.fromkeys(library for _, library, _ in found):
        new = [(path, f"{library.module}.{name}") for path, of, name in found if of is library and path not in warned]
        if new:
            warn_user(_message(library, new, shared), DataWarning)
            warned.update(path for path, _ in new)  # only now: a warning that was turned into an error comes again


def database_handle(kind: type) -> str | None:
    """Return the name of this type of handle, such as "h5py.File"; None if it is not a database's handle."""
    known = lookup(kind, kinds_of(DATABASES))
    return None if known is None else f"{known[0].module}.{known[1]}"


def item_of(path: str, key: object, place: int) -> str:
    """Return the path of a value in the dictionary at `path`: by its key, or by its position if the key is not plain.

    >>> item_of("dataset.files", "train", 0)
    "dataset.files['train']"
    >>> item_of("dataset.files", object(), 2)
    'list(dataset.files.values())[2]'
    """
    return f"{path}[{key!r}]" if type(key) in _ATOMS else f"list({path}.values())[{place}]"


def holds(root: object, kinds: tuple[type, ...], whole: tuple[type, ...] = ()) -> bool:
    """True if an object is an instance of one of these classes, or holds one, directly or indirectly.

    Args:
        root: the object.
        kinds: the classes; their instances are not searched.
        whole: other classes whose instances are not searched.
    """
    return any(issubclass(type(value), kinds) for _, value in objects_in(root, "", (*kinds, *whole), named=False))


def objects_in(root: object, path: str, whole: tuple[type, ...], *, named: bool = True) -> list[tuple[str, object]]:
    """Return an object and all that it holds, directly and indirectly, with paths: a bounded number, nearest first.

    Args:
        root: the object.
        path: the path of the object.
        whole: classes whose instances are not searched.
        named: False if the names of attributes are not needed: then the objects' attributes stay as fast as they are.
    """
    # By id: a comparison would run the user's code. The values are kept, so that no id is reused.
    seen = {id(root): root}
    closed = (*whole, *_LEAVES, *_owners())
    found: list[tuple[str, object, int]] = [(path, root, 0)]
    for path, value, depth in found:  # which grows meanwhile
        if depth == _DEPTH or issubclass(type(value), closed):
            continue
        parts = _items(path, value, whole) if issubclass(type(value), _CONTAINERS) else []
        if named:
            parts += [(f"{path}.{name}", part) for name, part in attributes_of(value)]
        else:
            parts += zip(itertools.repeat(""), held_by(value), strict=False)
        for place, part in parts:
            if len(seen) >= _OBJECTS:
                break
            if id(part) in seen:
                continue
            seen[id(part)] = part
            if type(part) not in _ATOMS and not issubclass(type(part), _LEAVES):
                found.append((place, part, depth + 1))
    return [(path, value) for path, value, _ in found]


def _is_open(library: Library, handle: object) -> bool:
    try:
        return library.is_open(handle)
    except Exception:  # each library has its own error for a closed handle
        return False


def _owners() -> list[type]:
    """Return the imported classes that manage the handles they hold: event loops, Pillow's images."""
    owners = []
    for module, name in (("asyncio.events", "AbstractEventLoop"), ("PIL.Image", "Image")):
        if module in sys.modules:
            owners.append(vars(sys.modules[module])[name])
    return owners


def _items(path: str, value: Any, whole: tuple[type, ...]) -> list[tuple[str, object]]:
    """Return the paths and items of a container."""
    kind = type(value)
    found: list[tuple[str, object]] = []
    if issubclass(kind, dict):
        entries = list(itertools.islice(dict.items(value), _OBJECTS))
        for place in _looked_at([item for _, item in entries], whole):
            found.append((item_of(path, entries[place][0], place), entries[place][1]))
    for base in _CONTAINERS[1:]:
        if issubclass(kind, base):
            source = f"list({path})" if base in (set, frozenset) else path
            # By the base's own method: a subclass may override it.
            items = list(itertools.islice(base.__iter__(value), _OBJECTS))
            found += [(f"{source}[{place}]", items[place]) for place in _looked_at(items, whole)]
    return found


def _looked_at(items: list[object], whole: tuple[type, ...]) -> Iterator[int]:
    """Yield the positions of the first items, and of the handles after them."""
    yield from range(min(len(items), _ITEMS))
    kinds = {kind for kind in set(map(type, items[_ITEMS:])) if issubclass(kind, whole)}
    if kinds:
        yield from (place for place in range(_ITEMS, len(items)) if type(items[place]) in kinds)


_warned: dict[int, tuple[weakref.ref[object], set[str]]] = {}
"""Paths in warnings that were issued, by the id of the dataset, while it lives."""


def _warned_paths(dataset: object) -> set[str]:
    """Return the paths in warnings that were issued for this very dataset; the caller adds to them."""
    key = id(dataset)
    paths: set[str] = set()
    try:
        reference = weakref.ref(dataset, lambda _: _warned.pop(key, None))
    except TypeError:
        return paths  # such as a list. Python, too, shows a warning of the same text from the same line only once
    return _warned.setdefault(key, (reference, paths))[1]


def _message(library: Library, places: list[tuple[str, str]], shared: str) -> str:
    path, name = places[0]
    others = [other for other, _ in places[1:_NAMED]]
    if len(places) > _NAMED:
        others.append(f"{len(places) - _NAMED} more")
    also = f" (others: {', '.join(others)})" if others else ""
    return f"{path} is {library.called.format(name)}{also}, and {shared}. {library.trouble} {library.advice}"
