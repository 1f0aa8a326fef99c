"""Fingerprints of datasets: whether a dataset would still make the same samples.

A fingerprint is a hash of the pickled dataset, with these differences from what pickle writes:

- A function counts with its name, its source text, its defaults and its closure; a class with its name, bases, methods
  and attributes. Globals that code refers to are not examined: functions that it calls, constants of a module.
  feedline's own classes count by name alone. For classes of Python and of installed packages only the methods count:
  other attributes may hold the process id, or the file opened last.
- For files that a string or a path names, and for those that a feedline source reads, size and times are included.
- Arrays above a size are identified by pieces of them, so that a mapped file is not read as a whole. For an array that
  NumPy mapped, and a view of one, size and times of the file and the place in it are included.
- Objects that cannot be pickled (a lock, an open file) are identified by their type.

An object with a method `fingerprint()` is identified by the string that this returns.
"""

from __future__ import annotations

import ast
import copyreg
import functools
import hashlib
import inspect
import itertools
import marshal
import os
import pickle
import random
import stat
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from types import CellType, CodeType, FunctionType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.framework.paths import change_of
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
_ATOMS = (int, float, complex, bool, type(None))
_CONTAINERS = (list, tuple, dict)
_END = object()
"""Follows a long container."""


# Any, throughout: a dataset is any object.
def fingerprint(dataset: object, *more: object) -> bytes:
    """Return 32 bytes that differ if the dataset, or another argument, differs."""
    found = hashlib.sha256()
    try:
        _Hasher(SimpleNamespace(write=found.update)).dump((dataset, *more))
    except RecursionError:
        raise BadOption(
            f"A {type(dataset).__name__} is nested too deeply to tell whether it has changed. Give it a "
            "method fingerprint() that returns a string of what its samples depend on."
        ) from None
    return found.digest()


class _Hasher(pickle.Pickler):
    """Pickles to a hash: what `persistent_id` returns is pickled in place of a value."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=5)
        self._seen: dict[int, tuple[int, object]] = {}
        """The number of each replaced object; holds the object, so that its id is not reused."""
        self._names: list[str] | None = None
        """The file names in the long container being pickled, if any."""

    def persistent_id(self, value: Any) -> object:
        kind = type(value)
        if kind is str:
            # New bytes each time: whether equal strings are one object is arbitrary, and pickle would note it.
            text = value.encode("utf-8", "surrogatepass")
            if not ("." in value or os.sep in value):
                return text
            if self._names is None:
                return text, _stamps([value])
            self._names.append(value)
            return text
        if kind in _ATOMS:
            return None
        if kind is bytes:
            return "bytes", bytearray(value)
        if kind in _CONTAINERS:
            if len(value) <= _MANY or self._names is not None:
                return None
            self._names = []
            if not _is_plain([value]):
                return value, _END
            # In one step, and without references: whether equal values are one object is arbitrary.
            items = list(value.items()) if kind is dict else value
            return bytearray(marshal.dumps(value, 2)), random.Random(0).sample(items, _MANY), _END
        if value is _END:
            names, self._names = self._names or [], None
            # Random, but always the same: where captions and paths alternate, every n-th could always be a caption.
            return _stamps(random.Random(0).sample(names, min(len(names), _MANY)))
        if id(value) in self._seen:
            return "again", self._seen[id(value)][0]
        found = _stand_in(value)
        if found is not None:
            self._seen[id(value)] = len(self._seen), value
        return found

    def reducer_override(self, value: Any) -> Any:
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            found = value.__reduce_ex__(5) if reduce is None else reduce(value)
        except (MemoryError, RecursionError):
            raise
        except Exception:  # from pickle, or from the object's own __getstate__
            return _reference, ("not picklable", _name(type(value)))
        if isinstance(found, str):  # a global; behind lru_cache
            return _reference, (f"{_module(value)}.{found}", getattr(value, "__wrapped__", None))
        return found


def _is_plain(values: Iterable[Any], depth: int = 4) -> bool:
    """True if there are only texts, numbers and containers of them."""
    listed = list(values)
    others = set(map(type, listed)).difference(_ATOMS, (str, bytes))
    if not others:
        return True
    if not others.issubset(_CONTAINERS) or not depth:
        return False
    inner = ((one, one.values()) if type(one) is dict else (one,) for one in listed if type(one) in _CONTAINERS)
    return _is_plain(itertools.chain.from_iterable(itertools.chain.from_iterable(inner)), depth - 1)


def _reference(*about: object) -> None:
    """Stands for an object that pickle would name instead of describing it."""


def _stand_in(value: Any) -> object:
    """Return what to pickle in place of a value; None for the value itself."""
    kind = type(value)
    if kind in (set, frozenset):
        return "set", sorted(fingerprint(one).hex() for one in value)
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
        if _module(value).startswith("feedline."):
            return _name(value)
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        return _name(value), _text(value.__code__), value.__defaults__, value.__kwdefaults__, cells
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
        return kind, {name: one for name, one in state.items() if name not in lazy}, _stamps(value._stored_in())
    return None


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


def _text(code: CodeType) -> object:
    """Return the source text of a function; its bytecode if there is none, or the file has changed since it was read.

    For a lambda it is the bytecode: several may stand in one line.
    """
    return _bytecode(code) if code.co_name == "<lambda>" else _source(code.co_filename, code) or _bytecode(code)


@functools.lru_cache(maxsize=10_000)
def _source(file: str, code: CodeType) -> str | None:
    """Return the source text of a function without comments; None if it is not what the function was compiled from."""
    try:
        lines, _ = inspect.findsource(code)
        if code not in _codes(file, "".join(lines)):
            return None
        return ast.unparse(ast.parse(textwrap.dedent("".join(inspect.getblock(lines[code.co_firstlineno - 1 :])))))
    except (OSError, SyntaxError, ValueError):
        return None


@functools.lru_cache(maxsize=16)
def _codes(file: str, text: str) -> frozenset[CodeType]:
    def within(code: CodeType) -> Iterator[CodeType]:
        yield code
        for one in code.co_consts:
            if isinstance(one, CodeType):
                yield from within(one)

    return frozenset(within(compile(text, file, "exec", dont_inherit=True)))


def _bytecode(code: CodeType) -> object:
    ordered = [sorted(map(repr, one)) if isinstance(one, frozenset) else one for one in code.co_consts]
    constants = [_bytecode(one) if isinstance(one, CodeType) else repr(one).encode() for one in ordered]
    return bytearray(code.co_code), [name.encode() for name in code.co_names], constants


def _array(array: NDArray[np.generic]) -> object:
    rows = [array]
    if array.nbytes > _WHOLE_BYTES:
        table = array if array.ndim > 1 else array.reshape(-1, 1)
        count = max(1, _WHOLE_BYTES * len(table) // array.nbytes // _PIECES)
        rows = [table[start : start + count] for start in np.linspace(0, len(table) - count, _PIECES).astype(int)]
    return "array", array.dtype.str, array.shape, [row.tobytes()[:_WHOLE_BYTES] for row in rows], _mapped(array)


def _mapped(array: NDArray[np.generic]) -> object:
    """Return the stamp of the file that an array is mapped from, and its place there; None if it is not mapped."""
    owner: Any = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if not isinstance(owner, np.memmap) or owner.filename is None:
        return None
    start, first = (one.__array_interface__["data"][0] for one in (owner, array))
    return _stamps([os.fspath(owner.filename)]), owner.offset + first - start, array.strides


def _stamps(paths: Iterable[str]) -> list[bytes]:
    """Return size and times of those paths that are files, or LMDB databases, which are folders."""
    found = []
    for path in paths:
        try:
            status = os.stat(path)
            if stat.S_ISDIR(status.st_mode):
                status = os.stat(os.path.join(path, "data.mdb"))
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(status.st_mode):
            found.append(f"{status.st_size}-{status.st_mtime_ns}-{change_of(status)}".encode())
    return found


def _module(value: object) -> str:
    # Workers that are not forked have another name for the program's main module.
    return str(getattr(value, "__module__", "")).replace("__mp_main__", "__main__")


def _name(value: type | FunctionType) -> bytes:
    """Return the name as bytes, which are not searched for file names."""
    return f"{_module(value)}.{value.__qualname__}".encode("utf-8", "surrogatepass")
