"""Handles in a dataset that do not survive a fork.

A forked worker inherits the dataset as it is, with every handle that it has opened. Most are harmless; those of some
libraries give wrong data, crash or hang in the worker, and nothing there says why. So the dataset is looked through
just before the fork.

The look is short and runs none of the user's code: it reads instance dictionaries and slots, never a property and never
`__getattr__`. A library that the program has not imported cannot have opened anything, and is not imported for this.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

from feedline.datasets.handle import Handle
from feedline.errors import SharedHandle, tell

_DEPTH = 6
"""Steps from the dataset. `dataset.dataset.datasets[0].reader.file` has five."""

_OBJECTS = 2000
"""Looked at in all, those nearest to the dataset first."""

_ITEMS = 100
"""Looked at in one container. A handle among many objects is usually one of many handles."""

_NAMED = 3
"""Paths that one warning spells out."""

_ATOMS = frozenset((str, bytes, bytearray, int, float, complex, bool, type(None)))
_LEAVES = (type, ModuleType, FunctionType, BuiltinFunctionType, weakref.ref, Handle)
"""What holds no handles, not in a dictionary or slots of its own, or opens others in every process."""

_CONTAINERS: tuple[Any, ...] = (list, tuple, deque, set, frozenset)


@dataclass(frozen=True)
class _Library:
    """A library whose handles belong to the process that opened them."""

    module: str
    names: tuple[str, ...]
    """Its classes of handles, by the names that the module has for them; their own `__name__` may be another."""
    called: str
    """How a handle is called; {} stands for the class."""
    is_open: Callable[[Any], bool]
    """False, or an exception, for one that is closed."""
    trouble: str
    advice: str


_Kinds = dict[type, tuple[_Library, str]]


def _connection_is_open(handle: Any) -> bool:
    connection = getattr(handle, "connection", handle)  # a cursor is as open as what it belongs to
    return isinstance(connection.in_transaction, bool)  # an error if it is closed


def _environment_is_open(handle: Any) -> bool:
    return handle.path() is not None  # an error if it is closed


_LAZILY = (
    "Keep the path instead, and open it in __getitem__ when it is first used, so that each worker has its own; or "
    "close it before the loader is iterated."
)
_DATABASES = (
    _Library(
        "h5py",
        ("File", "Group", "Dataset"),
        "an open {}",
        bool,
        "All processes would share one file position, and each a copy of the HDF5 library's cache, which gives wrong "
        "data or errors.",
        _LAZILY,
    ),
    _Library(
        "lmdb",
        ("Environment",),
        "an open {}",
        _environment_is_open,
        "LMDB must not be used after a fork by other processes than the one that opened it: its locks and its table of "
        "readers go wrong, and it may crash.",
        _LAZILY,
    ),
    _Library(
        "sqlite3",
        ("Connection", "Cursor"),
        "an open {}",
        _connection_is_open,
        "SQLite must not be carried over a fork: its locks do not hold any more, which gives wrong data and may damage "
        "the database.",
        _LAZILY,
    ),
)
_CUDA = _Library(
    "torch",
    ("Tensor",),
    "a {} on a CUDA device",
    lambda tensor: bool(tensor.is_cuda),
    "CUDA cannot be initialised again in a forked process, so that the worker fails when it uses it.",
    "Keep it on the CPU, and move the batches to the device in the training loop; or start the workers with "
    'multiprocessing_context="spawn".',
)


def warn_about(dataset: Any) -> None:
    """Warn of open handles in the dataset that do not survive a fork, once for each place of a dataset.

    Call this just before workers are forked. It looks at a bounded number of objects, and at none if the program uses
    none of the libraries that are known for this.
    """
    kinds = _kinds(_DATABASES)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():  # else no tensor can be on a device
        kinds |= _kinds((_CUDA,))
    if not kinds:
        return
    found: dict[str, tuple[_Library, list[tuple[str, str]]]] = {}
    for path, (library, name) in _open_handles(dataset, kinds):
        found.setdefault(library.module, (library, []))[1].append((path, f"{library.module}.{name}"))
    if not found:
        return
    told = _told_about(dataset)
    for library, places in found.values():
        new = [(path, name) for path, name in places if path not in told]
        if new:
            tell(_message(library, new), SharedHandle)
            told.update(path for path, _ in new)  # not before: a warning that was made an error comes again


def database_handle(kind: type) -> str | None:
    """Return what handles of this type are called, such as "h5py.File"; None if it is no database's handle."""
    known = _lookup(kind, _kinds(_DATABASES))
    return None if known is None else f"{known[0].module}.{known[1]}"


def attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of what an object holds in its dictionary and its slots, without running its code."""
    for base in type(value).__mro__:
        for name, descriptor in list(vars(base).items()):
            if isinstance(descriptor, MemberDescriptorType):
                try:
                    yield name, descriptor.__get__(value)
                except AttributeError:
                    continue  # a slot that was not filled
            elif name == "__dict__" and isinstance(descriptor, GetSetDescriptorType):
                held = descriptor.__get__(value)
                yield from list(itertools.islice(dict.items(held), _OBJECTS)) if held is not None else ()


def item_of(path: str, key: Any, place: int) -> str:
    """Return the path of a value in the dictionary at `path`: by its key, or by its place if the key is no plain value.

    >>> item_of("dataset.files", "train", 0)
    "dataset.files['train']"
    >>> item_of("dataset.files", object(), 2)
    'list(dataset.files.values())[2]'
    """
    return f"{path}[{key!r}]" if type(key) in _ATOMS else f"list({path}.values())[{place}]"


def _kinds(libraries: Iterable[_Library]) -> _Kinds:
    """Return the classes of handles, of those libraries that the program has imported."""
    kinds: _Kinds = {}
    for library in libraries:
        module = sys.modules.get(library.module)
        for name in library.names if module is not None else ():
            kind = vars(module).get(name)
            if isinstance(kind, type):
                kinds[kind] = library, name
    return kinds


def _lookup(kind: type, kinds: _Kinds) -> tuple[_Library, str] | None:
    return next((kinds[base] for base in kind.__mro__ if base in kinds), None)


def _open_handles(dataset: Any, kinds: _Kinds) -> Iterator[tuple[str, tuple[_Library, str]]]:
    for path, value in objects_in(dataset, "dataset", tuple(kinds)):
        known = _lookup(type(value), kinds)
        if known is not None and _is_open(known[0], value):
            yield path, known


# Any: whatever the user has made.
def objects_in(root: Any, path: str, whole: tuple[type, ...]) -> Iterator[tuple[str, Any]]:
    """Yield an object and what it holds, directly and indirectly, with their paths; a bounded number, nearest first.

    Args:
        root: the object.
        path: what it is called.
        whole: classes of objects that are not looked into.
    """
    # By id: comparing would be the user's code. The values are kept, so that no id is given to another object.
    seen = {id(root): root}
    waiting = deque([(path, root, 0)])
    while waiting:
        path, value, depth = waiting.popleft()
        yield path, value
        if depth == _DEPTH or issubclass(type(value), (*whole, *_LEAVES)):
            continue
        for place, part in _parts(path, value):
            if len(seen) >= _OBJECTS:
                break
            if id(part) in seen:
                continue
            seen[id(part)] = part
            if type(part) not in _ATOMS and not issubclass(type(part), _LEAVES):
                waiting.append((place, part, depth + 1))


def _is_open(library: _Library, handle: Any) -> bool:
    try:
        return library.is_open(handle)
    except Exception:  # each library has an error of its own for what is closed
        return False


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if issubclass(kind, dict):
        for place, (key, item) in enumerate(list(itertools.islice(dict.items(value), _ITEMS))):
            yield item_of(path, key, place), item
    for base in _CONTAINERS:
        if issubclass(kind, base):
            source = f"list({path})" if base in (set, frozenset) else path
            # By the base's own method: a subclass may have another.
            for place, item in enumerate(list(itertools.islice(base.__iter__(value), _ITEMS))):
                yield f"{source}[{place}]", item
    for name, item in attributes(value):
        yield f"{path}.{name}", item


_told: dict[int, tuple[weakref.ref[Any], set[str]]] = {}
"""Paths that were warned of, by the id of the dataset, while it lives."""


def _told_about(dataset: Any) -> set[str]:
    """Return the paths that were warned of for this very dataset; the caller adds to it."""
    key = id(dataset)
    paths: set[str] = set()
    try:
        reference = weakref.ref(dataset, lambda _: _told.pop(key, None))
    except TypeError:
        return paths  # a list, for one. Python shows a warning of the same text from the same line once, too
    return _told.setdefault(key, (reference, paths))[1]


def _message(library: _Library, places: list[tuple[str, str]]) -> str:
    path, name = places[0]
    others = [other for other, _ in places[1:_NAMED]]
    if len(places) > _NAMED:
        others.append(f"{len(places) - _NAMED} more")
    also = f" (others: {', '.join(others)})" if others else ""
    return (
        f"{path} is {library.called.format(name)}{also}, and workers that are forked inherit it. {library.trouble} "
        f"{library.advice}"
    )
