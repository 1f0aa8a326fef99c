"""Which part of a dataset, or of a function, cannot be sent to a worker process, and what to do about it.

Pickle says what it cannot take ("cannot pickle '_thread.lock' object"), not where that is. So the object is pickled
once more, into nothing, by a pickler that knows at every moment which objects it is inside of: when it fails, these are
the way to what cannot be pickled.
"""

from __future__ import annotations

import collections
import copyreg
import inspect
import io
import multiprocessing
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import context, reduction
from types import FunctionType, GeneratorType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from feedline.abc.worker_spec import WorkerSpec
from feedline.errors import NotPicklable
from feedline.system.attributes import attributes_of
from feedline.system.optional import is_tensor
from feedline.workers.handles import database_handle, item_of

_ATOMS = frozenset((str, bytes, bytearray, int, float, complex, bool, type(None), pickle.PickleBuffer))
_TEXT = 300
"""Characters of an error's text that are repeated. Some hold the representation of an object."""
_MANY = 10
"""Objects of one type inside each other that make a deep structure; a few may just wrap each other."""

_LAZILY = "when it is first used, so that each worker has its own"
_PATH = f"Keep the path instead, and open it in __getitem__ {_LAZILY}."
_FILE = "an open file ({})", _PATH
_HANDLE = "an object of type {}, which belongs to the process that opened it", _PATH
_LOCAL = (
    "an object of type {}, which is of use in one process only",
    f"Make it {_LAZILY}; or leave it out in __getstate__ and make it again in __setstate__.",
)
_BY_PACKAGE = {
    **dict.fromkeys(("_io", "bz2", "gzip", "io", "lzma", "mmap", "tarfile", "tempfile", "zipfile"), _FILE),
    **dict.fromkeys(("_asyncio", "_queue", "_socket", "_thread", "asyncio", "concurrent", "contextlib"), _LOCAL),
    **dict.fromkeys(("logging", "queue", "select", "selectors", "socket", "ssl", "subprocess", "threading"), _LOCAL),
    "multiprocessing": (
        "an object of type {}, which cannot be shared with workers of this start method",
        "Make locks, queues and values with the context that starts the workers, such as "
        'multiprocessing.get_context("spawn").Lock(). Make pools and processes in each worker, if at all.',
    ),
    "weakref": (
        "a weak reference ({})",
        "Keep the object itself, or leave it out in __getstate__ and make it again in __setstate__.",
    ),
}
"""What to say of objects of the standard library: that the lock of the condition of an event is what cannot be pickled
would help nobody."""


class Unpicklable(NamedTuple):
    """A part of an object that cannot be pickled."""

    path: str
    what: str
    advice: str
    # Any: whatever the user has made.
    value: Any


def what_fails(root: Any, name: str) -> Unpicklable | None:
    """Pickle an object, called `name`, into nothing; returns the part of it that cannot be, None if all of it can."""
    way, failure = _way_to_failure(root)
    if failure is None:
        return None
    path, owner = _path(name, way)
    return Unpicklable(path, *_diagnosis(way[-1], owner, failure), way[-1])


def explain(spec: WorkerSpec, error: BaseException) -> NotPicklable:
    """Return what to raise about a specification that could not be pickled.

    Pickles it once more, which runs the user's `__getstate__` and `__reduce__` again.

    Args:
        spec: what was to be sent to workers.
        error: what pickle raised.
    """
    roots = {
        "dataset": spec.dataset,
        "collate_fn": spec.collate,
        "worker_init_fn": spec.init,
        "on_error": spec.on_error,
    }
    fork = 'multiprocessing_context="fork" or ' if "fork" in multiprocessing.get_all_start_methods() else ""
    other = f'Or choose what needs no pickle: {fork}engine="thread".'
    for name, root in roots.items():
        found = what_fails(root, name)
        if found is None:
            continue
        if database_handle(type(found.value)) is not None:
            other = 'engine="thread" needs no pickle. Nor does a fork, but such a handle does not survive a fork.'
        return NotPicklable(
            f"{found.path} cannot be sent to a worker process: it is {found.what}. Workers that are started by spawn "
            f"or forkserver get the dataset and the functions by pickle, which says: {_text(error)}. {found.advice} "
            f"{other}"
        )
    return NotPicklable(
        f"The dataset, or a function given to the loader, cannot be sent to a worker process: {_text(error)}. Workers "
        "that are started by spawn or forkserver get these by pickle. Tried once more, they could be pickled: look for "
        f"a __getstate__ or __reduce__ whose result changes. {other}"
    )


def _text(error: BaseException) -> str:
    text = str(error)
    shortened = text if len(text) <= _TEXT else f"{text[:_TEXT]}..."
    return f"{type(error).__name__}: {shortened.rstrip('.')}"


# Any, below: whatever the user has made.
def _way_to_failure(root: Any) -> tuple[list[Any], Exception | None]:
    """Pickle an object; returns the objects that lead to what failed, and the error, None if there is none."""
    pickler = _Pickler()
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10 * limit)  # pickle in Python goes deeper than that in C
    try:
        with _somebody_starting():
            pickler.dump(root)
    except Exception as exc:  # also what the user's __getstate__ raises
        failure = exc.with_traceback(None)
    else:
        return [root], None
    finally:
        sys.setrecursionlimit(limit)
    way = pickler.way
    if isinstance(failure, RecursionError):
        # It is where the deep structure begins that counts: the first object of a type that comes again and again.
        kinds = collections.Counter(type(one) for one in way if type(one) not in (dict, tuple))
        deep = next((place for place, one in enumerate(way) if kinds[type(one)] >= _MANY), 0)
        return way[: deep + 1], failure
    whole = next((place for place, one in enumerate(way) if _known(type(one)) is not None), len(way) - 1)
    return way[: whole + 1], failure


# That of Python, which can be asked where it is. Any: its stubs name none of its methods.
_PythonPickler: Any = pickle._Pickler


class _Pickler(_PythonPickler):  # type: ignore[misc]
    """Pickles into nothing; arrays, tensors and plain values, which can be sent, are not even looked at."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(write=len), protocol=5)
        extra: Any = reduction.ForkingPickler
        self.dispatch_table = {**copyreg.dispatch_table, **extra._extra_reducers}
        self.way: list[Any] = []
        """The objects that are being pickled, each inside of the one before; after a failure, those that were."""

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if type(obj) in _ATOMS or _is_array(obj):
            return
        self.way.append(obj)
        super().save(obj, save_persistent_id)
        self.way.pop()  # not after a failure


def _is_array(value: Any) -> bool:
    """True for memory of arrays and tensors that can be sent as it is."""
    if is_tensor(value):
        return value.grad_fn is None
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject and type(value).__reduce__ is np.ndarray.__reduce__
    return type(value).__module__ == "torch.storage"


@contextmanager
def _somebody_starting() -> Iterator[None]:
    """Play the part of a process that is being started: locks and queues of multiprocessing are sent only to such."""
    previous = context.get_spawning_popen()
    starting: Any = SimpleNamespace(duplicate_for_child=lambda handle: handle, DupFd=lambda fd: fd)
    context.set_spawning_popen(starting)
    try:
        yield
    finally:
        context.set_spawning_popen(previous)


def _path(path: str, way: list[Any]) -> tuple[str, Any]:
    """Return how the user gets at the last object on the way, and the last one before it that has a path."""
    place = 0
    while place < len(way) - 1:
        owner = way[place]
        if len(way) == place + 2 and way[-1] is type(owner):
            break
        # In between may be what pickle makes of an object: a dictionary of its attributes, a tuple of arguments.
        steps = (
            (later, _step(path, owner, way[place + 1 : later], way[later])) for later in range(place + 1, len(way))
        )
        unnamed = place + 1, path + _pickled_as(owner)
        place, path = next(((later, step) for later, step in steps if step is not None), unnamed)
    return path, way[place - 1 if place == len(way) - 1 else place]


def _step(path: str, owner: Any, between: list[Any], part: Any) -> str | None:
    """Return the path of something that an object holds; None if it does not hold it."""
    names = [name for name, held in attributes_of(owner) if held is part]
    for state in between:  # which says by which of several names it is pickled
        names = [name for name in names if type(state) is dict and state.get(name) is part] or names
    if names:
        return f"{path}.{names[0]}"
    return next((step for step, held in _items(path, owner) if held is part), None)


def _pickled_as(owner: Any) -> str:
    custom = getattr(type(owner), "__getstate__", None)
    return ".__getstate__()" if custom is not getattr(object, "__getstate__", None) else ".__reduce__()"


def _items(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a container holds, with the path of each."""
    if isinstance(value, dict):
        for place, (key, held) in enumerate(dict.items(value)):
            yield item_of(path, key, place), held
            yield f"list({path})[{place}]", key
    elif isinstance(value, (set, frozenset)):
        yield from ((f"list({path})[{place}]", held) for place, held in enumerate(value))
    elif isinstance(value, np.ndarray):
        yield from ((f"{path}.flat[{place}]", held) for place, held in enumerate(value.flat))
    elif isinstance(value, (list, tuple, collections.deque)):
        fields = getattr(value, "_fields", ())
        for place, held in enumerate(value):
            yield f"{path}.{fields[place]}" if place < len(fields) else f"{path}[{place}]", held


def _known(kind: type) -> tuple[str, str] | None:
    """Return what to say of an object that is named as a whole, however it is made up inside; None if it is none."""
    if database_handle(kind) is not None:
        return _HANDLE
    return _FILE if issubclass(kind, io.IOBase) else _BY_PACKAGE.get(str(kind.__module__).partition(".")[0])


def _diagnosis(value: Any, owner: Any, failure: Exception) -> tuple[str, str]:
    """Say what cannot be pickled, to follow "it is", and what to do."""
    kind = type(value)
    name = (
        f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        .replace("_thread.", "threading.")
        .replace(".lock", ".Lock")
    )
    known = _known(kind)
    if isinstance(failure, RecursionError):
        return (
            f"an object of type {name} whose parts are nested too deeply for pickle",
            "Keep it in a flat form, such as a list whose items refer to each other by number.",
        )
    if known is not None:
        file = f" {value.name!r}" if isinstance(getattr(value, "name", None), str) else ""
        return known[0].format((database_handle(kind) or name) + file), known[1]
    value = getattr(value, "__wrapped__", value) if kind.__module__ == "functools" else value
    if isinstance(value, (FunctionType, type)):
        return _global(value, is_class_of=value is type(owner))
    if isinstance(value, ModuleType):
        return f"the module {value.__name__}", "Import it where it is used, instead of keeping it in an attribute."
    if isinstance(value, GeneratorType):
        return f"a generator, made by {value.__qualname__}", "Make it in __iter__ or __getitem__, in each worker."
    if is_tensor(value):
        return f"an object of type {name} that is part of a computation", "Keep tensor.detach()."
    return (
        f"an object of type {name}, which pickle cannot take apart",
        "If the class is yours, give it a __getstate__ that leaves out what cannot be pickled and a __setstate__ that "
        f"makes it again, or correct those it has. If not, keep what it is made from, and make it {_LAZILY}.",
    )


def _global(value: FunctionType | type, *, is_class_of: bool) -> tuple[str, str]:
    """Describe what pickle sends by its name, which does not lead to it."""
    what, where = "class" if isinstance(value, type) else "function", ""
    with suppress(OSError, TypeError):  # it has no file, as in an interactive session
        where = f", defined at {inspect.getsourcefile(value)}:{inspect.getsourcelines(value)[1]}"
    if value.__name__ == "<lambda>":
        described = f"a lambda{where}"
    else:
        described = f"{'an object of ' if is_class_of else ''}the {what} {value.__module__}.{value.__qualname__}{where}"
    if "<" in value.__qualname__:
        inside = "" if value.__name__ == "<lambda>" else ", inside a function"
        return described + inside, (
            f"Define the {what} at the top level of a module; give a function the values it needs with "
            "functools.partial."
        )
    return f"{described}, and that name does not lead to it", (
        f"A decorator that returns something else, or a notebook's cell that was run again, is the usual reason. Give "
        f"the {what} a name of its own in a module, a file that the notebook imports, and build the dataset again."
    )
