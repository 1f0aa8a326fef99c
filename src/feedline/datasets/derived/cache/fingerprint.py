"""Fingerprints of datasets: whether a dataset would still make the same samples.

A fingerprint is a hash of the pickled dataset, with these differences from what pickle writes:

- A function, or lambda, is identified by its qualified name, its own code, its defaults and its closure; a class by its
  name, bases, methods and attributes. Globals that code refers to are not examined: functions that it calls, constants
  of a module. feedline's own classes are identified by name alone. For classes of Python and of installed packages only
  the methods count: other attributes may hold the process id, or the file opened last.
- For files that a string or a path names, and for those that a feedline source reads, the size and modification time
  are included.
- Arrays above a size are identified by pieces of them, so that a mapped file is not read as a whole. For an array that
  NumPy mapped, and a view of one, the size and modification time of the file and the place in it are included.
- Objects that cannot be pickled (a lock, an open file) are identified by their type.

An object with a method `fingerprint()` is identified by the string that this returns.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import pickle
import random
import stat
import sys
from collections.abc import Iterable, Sized
from pathlib import PurePath
from types import CellType, CodeType, FunctionType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.framework.source import Source
from feedline.errors import BadOption
from feedline.memory.sharing.packed import Packed
from feedline.system.optional import is_tensor

_WHOLE_BYTES = 1 << 20
"""Arrays up to this size are hashed as a whole; larger ones by pieces of this total size."""
_PIECES = 64

_MANY = 1000
"""If a container is longer than this, only this many of its file names are checked."""

_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep

_ATOMS = (str, bytes, int, float, complex, bool, type(None))
_CONTAINERS = (list, tuple, dict)


# Any, throughout: a dataset is any object.
def fingerprint(dataset: object, *more: object) -> bytes:
    """Return 32 bytes that differ if the dataset, or another argument, differs."""
    found = hashlib.sha256()
    try:
        _HashPickler(SimpleNamespace(write=found.update)).dump((dataset, *more))
    except RecursionError:
        raise BadOption(
            f"A {type(dataset).__name__} is nested too deeply to tell whether it has changed. Give it a "
            "method fingerprint() that returns a string of what its samples depend on."
        ) from None
    return found.digest()


# Python's pickler: the one in C has no hook for strings and sets. Any: its stubs name none of its methods.
_PythonPickler: Any = pickle._Pickler


class _HashPickler(_PythonPickler):  # type: ignore[misc]
    def __init__(self, file: object) -> None:
        super().__init__(file, protocol=4)
        self._seen: dict[int, tuple[int, object]] = {}
        """The number of each replaced object; holds the object, so that its id is not reused."""
        self._names: list[str] | None = None
        """The file names in the long container being pickled, if any."""

    def memoize(self, obj: object) -> None:
        if type(obj) not in (str, bytes):  # whether equal strings are one object is arbitrary
            super().memoize(obj)

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if self._names is None and type(obj) in _CONTAINERS and len(obj) > _MANY:
            names: list[str] = []
            self._names = names
            self.save(obj, save_persistent_id)
            self._names = None
            # Random, but always the same: where captions and paths alternate, every n-th could always be a caption.
            return self.save(_changed(random.Random(0).sample(names, min(len(names), _MANY))))
        stand_in = self._stand_in(obj)
        try:
            super().save(stand_in, save_persistent_id)
        except (BadOption, MemoryError, RecursionError):
            raise
        except Exception:  # from pickle, or from the object's own __getstate__
            super().save(("not picklable", _name(type(obj))))

    def save_global(self, obj: object, name: str | None = None) -> None:
        name = f"{_module(obj)}.{name or getattr(obj, '__qualname__', '')}"
        self.save((_bytes(name), getattr(obj, "__wrapped__", None)))  # by lru_cache

    def _stand_in(self, value: Any) -> object:
        """Return what to pickle in place of a value; usually the value itself."""
        kind = type(value)
        if kind is str and _is_path(value):
            if self._names is None:
                return "path", _bytes(value), _changed([value])
            self._names.append(value)
        if kind in _ATOMS or id(value) in self.memo:
            return value
        if id(value) in self._seen:
            return "again", self._seen[id(value)][0]
        found = self._container(value) if kind in _CONTAINERS else _stand_in(value)
        if found is not value:
            self._seen[id(value)] = len(self._seen), value
        return found

    def _container(self, values: Sized) -> object:
        texts = _texts(values) if len(values) > _MANY else None
        if texts is None or self._names is None:
            return values
        self._names += filter(_is_path, texts)
        return type(values).__name__, _bytes(repr(values))  # fast path for paths, labels or records of them


def _stand_in(value: Any) -> object:
    kind = type(value)
    if kind in (set, frozenset):
        return "set", sorted(repr(one) if type(one) in _ATOMS else fingerprint(one).hex() for one in value)
    if isinstance(value, type):
        return _class(value)
    if callable(getattr(value, "fingerprint", None)):
        return "own", _name(kind), str(value.fingerprint())
    if isinstance(getattr(value, "_fingerprint", None), str):  # of Hugging Face's datasets
        return "own", _name(kind), value._fingerprint
    if isinstance(value, property):
        return "property", value.fget, value.fset, value.fdel
    if isinstance(value, (staticmethod, classmethod)):
        return _name(kind), value.__func__
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        return _name(value), _code(value.__code__), value.__defaults__, value.__kwdefaults__, cells
    if isinstance(value, PurePath):
        return "path", str(value)
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return _array(np.asarray(value))
    if is_tensor(value) and value.layout is sys.modules["torch"].strided:
        plain = value.detach().cpu().contiguous().reshape(-1).view(sys.modules["torch"].uint8)
        return "tensor", str(value.dtype), tuple(value.shape), _array(plain.numpy())
    if isinstance(value, Packed):  # usually file names: all of them count
        return "packed", [array.tobytes() if hasattr(array, "tobytes") else array for array in value.arrays().values()]
    if isinstance(value, Source):  # without the attributes that it derives when first read
        lazy = {name for base in kind.__mro__ for name in vars(base).get("_lazy", ())}
        state = getattr(value, "__getstate__", lambda: vars(value))()
        return kind, {name: one for name, one in state.items() if name not in lazy}, _changed(value._stored_in())
    return value


def _class(kind: type) -> object:
    members: list[object] = []
    if kind.__module__.partition(".")[0] not in ("builtins", "feedline"):
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
        is_installed = not {"site-packages", "dist-packages"}.isdisjoint(file.split(os.sep))
        only_methods = is_installed or file.startswith(_STANDARD_LIBRARY)
        for name, member in sorted(vars(kind).items()):
            is_method = callable(member) or hasattr(type(member), "__get__")
            if is_method or not (only_methods or name.startswith("__")):
                members.append((name, member))
    return "class", _name(kind), kind.__bases__, members


def _code(code: CodeType) -> object:
    ordered = [sorted(map(repr, one)) if isinstance(one, frozenset) else one for one in code.co_consts]
    constants = [_code(one) if isinstance(one, CodeType) else _bytes(repr(one)) for one in ordered]
    return code.co_code, code.co_names, constants


def _array(array: NDArray[np.generic]) -> object:
    rows = [array]
    if array.nbytes > _WHOLE_BYTES:
        table = array if array.ndim > 1 else array.reshape(-1, 1)
        count = max(1, _WHOLE_BYTES * len(table) // array.nbytes // _PIECES)
        rows = [table[start : start + count] for start in np.linspace(0, len(table) - count, _PIECES).astype(int)]
    return "array", array.dtype.str, array.shape, [row.tobytes()[:_WHOLE_BYTES] for row in rows], _mapped(array)


def _mapped(array: NDArray[np.generic]) -> object:
    """Return size and time of the file that an array is mapped from, and its place there; None if it is not mapped."""
    owner: Any = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if not isinstance(owner, np.memmap) or owner.filename is None:
        return None
    start, first = (one.__array_interface__["data"][0] for one in (owner, array))
    return _changed([os.fspath(owner.filename)]), owner.offset + first - start, array.strides


def _texts(values: Any, depth: int = 3) -> list[str] | None:
    """Return the strings and paths in a container; None if repr() does not show its whole content."""
    found: list[str] = []
    for one in itertools.chain(values, values.values()) if type(values) is dict else values:
        if type(one) is str:
            found.append(one)
        elif type(one) in _CONTAINERS:
            inner = _texts(one, depth - 1) if depth else None
            if inner is None:
                return None
            found += inner
        elif isinstance(one, PurePath):
            found.append(str(one))
        elif type(one) not in _ATOMS:
            return None
    return found


def _is_path(name: str) -> bool:
    return "." in name or os.sep in name


def _changed(paths: Iterable[str]) -> list[tuple[int, int]]:
    """Return size and time of those paths that are files, or LMDB databases, which are folders."""
    found = []
    for path in paths:
        try:
            status = os.stat(path)
            if stat.S_ISDIR(status.st_mode):
                status = os.stat(os.path.join(path, "data.mdb"))
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(status.st_mode):
            found.append((status.st_size, status.st_mtime_ns))
    return found


def _module(value: object) -> str:
    # Workers that are not forked have another name for the program's main module.
    return str(getattr(value, "__module__", "")).replace("__mp_main__", "__main__")


def _name(value: type | FunctionType) -> bytes:
    return _bytes(f"{_module(value)}.{value.__qualname__}")


def _bytes(text: str) -> bytes:
    """Return a text as bytes, which are not searched for file names."""
    return text.encode("utf-8", "surrogatepass")
