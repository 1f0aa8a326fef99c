"""Fingerprints of datasets: whether what made a sample then would make the same sample now.

A fingerprint is a hash over the dataset as a graph of objects: values, containers, arrays, the attributes of instances,
and the compiled code of functions and of the methods of classes, with what they refer to in the user's own modules. Of
files that an attribute names, and of those that a source of feedline's reads, it holds the size and the time of the
last change. It knows nothing else of what lies outside of the process: files in a folder that is named, tables that a
query reads. It does not look into the code of Python itself and of installed packages either: that these were upgraded
goes unnoticed.

An object with a method `fingerprint()` says itself what it is, and is not looked into. It has to return a string.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import os
import random
import stat
import sys
import sysconfig
import types
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import numpy as np

from feedline._optional import is_tensor
from feedline.datasets.source import Source
from feedline.sharing.packed import Packed

_WHOLE_BYTES = 1 << 20
"""Arrays up to this size are hashed as a whole; of larger ones pieces that are as large together."""
_PIECES = 64

_MANY = 1000
"""Names in a list that are all looked at as if they were files; of longer lists about so many."""
_LONGEST_NAME = 1024

_ATOMS: tuple[type, ...] = (str, bytes, int, float, complex, bool, type(None), type(...), type(NotImplemented))


# Any, throughout: a dataset is any object.
def fingerprint(dataset: Any, *more: Any) -> bytes:
    """Return 32 bytes that differ if the dataset, or something else that is given, does.

    Example:
        >>> fingerprint([1, 2, 3]) == fingerprint([1, 2, 3]), fingerprint([1, 2, 3]) == fingerprint([1, 2, 4])
        (True, False)
    """
    walk = _Walk()
    walk.enter((dataset, *more))
    walk.finish()
    return walk.digest()


class _Walk:
    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._is_in_code = False
        self._seen: dict[int, tuple[int, Any]] = {}
        """The number of each object, by its id; the object is kept, so that no other gets the id."""
        self._later: list[Any] = []
        """What functions refer to. Not at once: from function to function it may be deeper than Python's stack."""

    def finish(self) -> None:
        """Look into what functions refer to, and these again."""
        for value in self._later:  # which grows
            self.enter(value)

    def digest(self) -> bytes:
        return self._hash.digest()

    def _note(self, *parts: str) -> None:
        for part in parts:
            data = part.encode("utf-8", "surrogatepass")
            self._hash.update(b"%d:" % len(data))
            self._hash.update(data)

    def enter(self, value: Any) -> None:
        kind = type(value)
        if kind in _ATOMS:
            self._note("atom", kind.__name__, repr(value))
            return self._file(value) if kind is str else None
        known = self._seen.get(id(value))
        if known is not None:
            return self._note("again", str(known[0]))
        self._seen[id(value)] = len(self._seen), value
        if kind in (list, tuple):
            self._sequence(value)
        elif kind is dict:
            self._note("dict", str(len(value)))
            for key, one in value.items():
                self.enter(key)
                self.enter(one)
        elif kind in (set, frozenset):
            self._note(kind.__name__, *sorted(fingerprint(one).hex() for one in value))
        elif isinstance(value, (np.ndarray, np.generic)):
            self._array(np.asarray(value))
        elif is_tensor(value):
            self._tensor(value)
        else:
            self._object(value)

    def _sequence(self, value: Any) -> None:
        self._note(type(value).__name__, str(len(value)))
        if len(value) > _MANY and all(type(one) in _ATOMS for one in value):
            self._note(repr(value))  # a list of paths or labels, quickly
            for one in value[:: len(value) // _MANY]:
                if type(one) is str:
                    self._file(one)
            return
        for one in value:
            self.enter(one)

    def _file(self, name: str) -> None:
        """Note what can be told of a file at a glance, if this is the name of one."""
        if self._is_in_code or len(name) > _LONGEST_NAME or not ("." in name or os.sep in name) or "\0" in name:
            return
        self._stat(name)

    def _stat(self, name: str) -> None:
        try:
            found = os.stat(name)
            if stat.S_ISDIR(found.st_mode):
                found = os.stat(os.path.join(name, "data.mdb"))  # an LMDB database is a folder
        except (OSError, ValueError):
            return
        if stat.S_ISREG(found.st_mode):
            self._note("file", str(found.st_size), str(found.st_mtime_ns))

    def _array(self, array: Any) -> None:
        self._note("array", array.dtype.str, str(array.shape))
        if array.dtype.hasobject:
            return self.enter(array.tolist())
        if array.nbytes <= _WHOLE_BYTES:
            return self._hash.update(array.tobytes())
        # Rows from all over it, so that a file that is mapped is not read as a whole.
        rows = array if array.ndim > 1 else array.reshape(-1, 1)
        per_row = max(1, rows.nbytes // max(1, len(rows)))
        count = max(1, _WHOLE_BYTES // per_row // _PIECES)
        for start in np.linspace(0, max(0, len(rows) - count), _PIECES).astype(np.int64).tolist():
            self._hash.update(np.ascontiguousarray(rows[start : start + count]).tobytes()[:_WHOLE_BYTES])

    def _packed(self, strings: Packed) -> None:
        """Look at all of the strings, however many: they are the names of files, most often."""
        for name, array in strings.arrays().items():
            if isinstance(array, np.ndarray):
                self._note(name, array.dtype.str, str(array.shape))
                self._hash.update(np.ascontiguousarray(array).data)
            else:
                self._note(name, repr(array))

    def _tensor(self, tensor: Any) -> None:
        self._note("tensor", str(tensor.dtype), str(tuple(tensor.shape)))
        plain = tensor.detach().cpu()
        if not plain.numel() or plain.layout is not sys.modules["torch"].strided:
            return
        flat = plain.contiguous().reshape(-1).view(sys.modules["torch"].uint8)
        self._array(flat.numpy())

    def _object(self, value: Any) -> None:
        own = getattr(value, "fingerprint", None)
        if callable(own) and not isinstance(value, type):
            return self._note("own", _name(type(value)), str(own()))
        if isinstance(getattr(value, "_fingerprint", None), str):  # of Hugging Face's datasets
            return self._note("own", _name(type(value)), value._fingerprint)
        if isinstance(value, types.ModuleType):
            return self._note("module", value.__name__)
        if isinstance(value, enum.Enum):
            return self._note("enum", _name(type(value)), value.name)
        if isinstance(value, PurePath):
            self._note("path", str(value))
            return self._file(str(value))
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, functools.partial):
            return self.enter(("partial", value.func, value.args, value.keywords))
        if isinstance(value, types.MethodType):
            return self.enter(("method", value.__func__, value.__self__))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if callable(value) and hasattr(value, "__wrapped__"):  # a decorator that is no function, as lru_cache is
            self.enter(value.__wrapped__)
        if isinstance(value, (types.BuiltinFunctionType, np.ufunc)):
            return self._note("builtin", str(getattr(value, "__module__", "")), value.__name__)
        if isinstance(value, types.CodeType):
            return self._code(value)
        self._instance(value)

    def _instance(self, value: Any) -> None:
        self._note("object")
        self.enter(type(value))
        if isinstance(value, Source):
            for path in value._stored_in():
                self._stat(path)
        if isinstance(value, Packed):
            return self._packed(value)
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:  # a lock, an open file: what it is can be told, what is in it cannot
            return self._note("opaque")
        if isinstance(reduced, str):
            return self._note("global", reduced)
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        if type(state) is dict:
            lazy = _lazy(type(value))
            state = {name: one for name, one in state.items() if name not in lazy}
        self.enter((_name(make), list(arguments), state))
        self.enter(None if items is None else list(items))
        self.enter(None if pairs is None else list(pairs))

    def _class(self, kind: type) -> None:
        self._note("class", _name(kind))
        if _is_foreign(kind):
            return
        for base in kind.__mro__:
            if _is_foreign(base):
                self._note("base", _name(base))
                continue
            for name, member in sorted(vars(base).items()):
                if name not in _NO_MEANING:
                    self._note(name)
                    self._member(name, member)

    def _member(self, name: str, member: Any) -> None:
        if isinstance(member, property):
            return self.enter((member.fget, member.fset))
        if isinstance(member, (staticmethod, classmethod)):
            return self.enter(member.__func__)
        if isinstance(member, functools.cached_property):
            return self.enter(member.func)
        if isinstance(member, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            return
        if isinstance(member, _VALUES) or not name.startswith("__"):
            self.enter(member)

    def _function(self, function: types.FunctionType) -> None:
        self._note("function", _name(function))
        self._code(function.__code__)
        self.enter((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                self.enter(cell.cell_contents)
            except ValueError:
                self._note("empty cell")
        if _is_foreign(function):
            return
        attributes = _attributes_of(function.__code__)
        for name in sorted(_globals_of(function.__code__)):
            if name in function.__globals__:
                self._global(name, function.__globals__[name], attributes, ())

    def _global(self, name: str, value: Any, attributes: set[str], inside: tuple[Any, ...]) -> None:
        """Look into what a function refers to, if it is the user's: what others wrote is known by its name."""
        self._note("global", name)
        if isinstance(value, types.ModuleType):
            if not _is_foreign(value) and value not in inside:
                for attribute in sorted(attributes & vars(value).keys()):
                    self._global(attribute, vars(value)[attribute], attributes, (*inside, value))
        elif isinstance(value, (types.FunctionType, type)) and _is_foreign(value):
            self._note(_name(value))
        elif isinstance(value, _GENERATORS):
            self._note(_name(type(value)))  # which changes whenever somebody draws from it
        else:
            self._later.append(value)

    def _code(self, code: types.CodeType) -> None:
        self._note("code", code.co_code.hex(), str(code.co_argcount), str(code.co_flags), *code.co_names)
        outside, self._is_in_code = self._is_in_code, True
        for constant in code.co_consts:
            self.enter(constant)
        self._is_in_code = outside


_NO_MEANING = frozenset(
    (
        "__annotations__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__module__",
        "__slotnames__",  # which pickle leaves behind
        "__static_attributes__",
        "__weakref__",
        "_abc_impl",
    )
)

_FOREIGN = frozenset(("numpy", "torch", "feedline", *sys.stdlib_module_names)) - {"__main__"}
"""Packages that are foreign wherever their files are."""


_VALUES = (types.FunctionType, *_ATOMS, list, tuple, dict, set, frozenset, np.ndarray)
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
_INSTALLED = ("site-packages", "dist-packages")
_PYTHON = os.path.realpath(sysconfig.get_path("stdlib"))


def _is_foreign(value: types.ModuleType | type | Callable[..., Any]) -> bool:
    """True for what comes with Python or an installed package: known by its name, its code is not looked into."""
    if isinstance(value, types.ModuleType):
        name = value.__name__
    elif isinstance(value, types.FunctionType):  # a decorator gives its own functions the name of another module
        name = str(value.__globals__.get("__name__"))
    else:
        name = _module(value)
    return name.partition(".")[0] in _FOREIGN or _is_installed(getattr(sys.modules.get(name), "__file__", None))


@functools.lru_cache(maxsize=4096)
def _is_installed(file: str | None) -> bool:
    if file is None:
        return False
    parts = os.path.realpath(file).split(os.sep)
    return any(name in parts for name in _INSTALLED) or os.path.realpath(file).startswith(_PYTHON + os.sep)


def _lazy(kind: type) -> set[str]:
    """Return the attributes of feedline's own sources that are filled when they are used, and say nothing new."""
    own = (vars(base).get("_lazy", ()) for base in kind.__mro__ if _package(base) == "feedline")
    return {name for names in own for name in names}


def _attributes_of(code: types.CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_attributes_of, inner))


def _globals_of(code: types.CodeType) -> set[str]:
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _globals_of(constant)
    return names


def _module(value: Any) -> str:
    module = getattr(value, "__module__", None)
    # Workers that are not forked know the program's own file by another name.
    return "__main__" if module == "__mp_main__" else str(module)


def _package(value: type | Callable[..., Any]) -> str:
    return _module(value).partition(".")[0]


def _name(value: Any) -> str:
    return f"{_module(value)}.{getattr(value, '__qualname__', type(value).__qualname__)}"
