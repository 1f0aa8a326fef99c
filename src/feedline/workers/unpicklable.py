"""Finds the part of a dataset, or of a function, that cannot be sent to a worker process, and suggests what to do.

Pickle names the type that it cannot pickle ("cannot pickle '_thread.lock' object"), not its place. So the object is
pickled once more, without output, by a pickler that tracks which objects it is inside of: when it fails, these are the
path to the object that cannot be pickled.
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
"""Characters of an error's text that are quoted. Some texts hold the representation of an object."""
_MANY = 10
"""Nested objects of one type that make a deep structure; a few may just wrap each other."""

_LAZILY = "when it is first used, so that each worker has its own"
_PATH = f"Keep the path instead, and open it in __getitem__ {_LAZILY}."
_FILE = "an open file ({})", _PATH
_HANDLE = "an object of type {}, which belongs to the process that opened it", _PATH
_LOCAL = (
    "an object of type {}, which works in one process only",
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
"""Description and advice for objects of the standard library, by package. The lock inside an event's condition cannot
be pickled, but naming the lock would not help the user.
"""


class Unpicklable(NamedTuple):
    """A part of an object that cannot be pickled."""

    path: str
    what: str
    advice: str
    value: object


def what_fails(root: object, name: str) -> Unpicklable | None:
    """Pickle an object, called `name`, without output; return the part that cannot be pickled, or None."""
    way, failure = _way_to_failure(root)
    if failure is None:
        return None
    path, owner = _path(name, way)
    return Unpicklable(path, *_diagnosis(way[-1], owner, failure), way[-1])


def explain(spec: WorkerSpec, error: BaseException) -> NotPicklable:
    """Return the error to raise for a specification that could not be pickled.

    Pickles it once more, which runs the user's `__getstate__` and `__reduce__` again.

    Args:
        spec: the specification for the workers.
        error: the exception that pickle raised.
    """
    roots = {
        "dataset": spec.dataset,
        "collate_fn": spec.collate,
        "worker_init_fn": spec.init,
        "on_error": spec.on_error,
    }
    fork = 'multiprocessing_context="fork" or ' if "fork" in multiprocessing.get_all_start_methods() else ""
    other = f'Or avoid pickle with {fork}engine="thread".'
    for name, root in roots.items():
        found = what_fails(root, name)
        if found is None:
            continue
        if database_handle(type(found.value)) is not None:
            other = 'engine="thread" needs no pickle. Nor does a fork, but such a handle does not survive a fork.'
        return NotPicklable(
            f"{found.path} cannot be sent to a worker process: it is {found.what}. Workers that are started by spawn "
            f"or forkserver receive the dataset and the functions by pickle, which says: {_text(error)}. "
            f"{found.advice} {other}"
        )
    return NotPicklable(
        f"The dataset, or a function given to the loader, cannot be sent to a worker process: {_text(error)}. Workers "
        "that are started by spawn or forkserver receive these by pickle. In a second attempt they could be pickled: "
        f"look for a __getstate__ or __reduce__ whose result changes. {other}"
    )


def _text(error: BaseException) -> str:
    text = str(error)
    shortened = text if len(text) <= _TEXT else f"{text[:_TEXT]}..."
    return f"{type(error).__name__}: {shortened.rstrip('.')}"


def _way_to_failure(root: object) -> tuple[list[object], Exception | None]:
    """Pickle an object; return the objects that lead to the failure, and the exception, None if there is none."""
    pickler = _Pickler()
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10 * limit)  # the pickler in Python recurses more than the one in C
    try:
        with _stand_in_process():
            pickler.dump(root)
    except Exception as exc:  # also what the user's __getstate__ raises
        failure = exc.with_traceback(None)
    else:
        return [root], None
    finally:
        sys.setrecursionlimit(limit)
    way = pickler.way
    if isinstance(failure, RecursionError):
        # Report where the deep structure begins: the first object of a type that recurs.
        kinds = collections.Counter(type(one) for one in way if type(one) not in (dict, tuple))
        deep = next((place for place, one in enumerate(way) if kinds[type(one)] >= _MANY), 0)
        return way[: deep + 1], failure
    whole = next((place for place, one in enumerate(way) if _known(type(one)) is not None), len(way) - 1)
    return way[: whole + 1], failure


# The pickler written in Python, whose position can be inspected. Any: its stubs declare none of its methods.
_PythonPickler: Any = pickle._Pickler


class _Pickler(_PythonPickler):  # type: ignore[misc]
    """Pickles without output; skips arrays, tensors and plain values, which can be sent."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(write=len), protocol=5)
        self.dispatch_table = {**copyreg.dispatch_table, **vars(reduction.ForkingPickler)["_extra_reducers"]}
        self.way: list[object] = []
        """The objects that are being pickled, each inside of the one before; after a failure, those that lead to it."""

    def save(self, obj: object, save_persistent_id: bool = True) -> None:
        if type(obj) in _ATOMS or _is_array(obj):
            return
        self.way.append(obj)
        super().save(obj, save_persistent_id)
        self.way.pop()  # not after a failure


def _is_array(value: object) -> bool:
    """True for arrays and tensors whose memory can be sent as it is."""
    if is_tensor(value):
        return value.grad_fn is None
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject and type(value).__reduce__ is np.ndarray.__reduce__
    return type(value).__module__ == "torch.storage"


@contextmanager
def _stand_in_process() -> Iterator[None]:
    """Stand in for a process that is being started: multiprocessing sends locks and queues only to such processes."""
    previous = context.get_spawning_popen()
    starting: Any = SimpleNamespace(duplicate_for_child=lambda handle: handle, DupFd=lambda fd: fd)
    context.set_spawning_popen(starting)
    try:
        yield
    finally:
        context.set_spawning_popen(previous)


def _path(path: str, way: list[object]) -> tuple[str, object]:
    """Return the path to the last object on the way, and the last object before it that has a path."""
    place = 0
    while place < len(way) - 1:
        owner = way[place]
        if len(way) == place + 2 and way[-1] is type(owner):
            break
        # In between may be objects that pickle made: a dictionary of attributes, a tuple of arguments.
        steps = (
            (later, _step(path, owner, way[place + 1 : later], way[later])) for later in range(place + 1, len(way))
        )
        unnamed = place + 1, path + _pickled_as(owner)
        place, path = next(((later, step) for later, step in steps if step is not None), unnamed)
    return path, way[place - 1 if place == len(way) - 1 else place]


def _step(path: str, owner: object, between: list[object], part: object) -> str | None:
    """Return the path of an object that `owner` holds; None if it does not hold it."""
    names = [name for name, held in attributes_of(owner) if held is part]
    for state in between:  # shows under which of several names it is pickled
        names = [name for name in names if type(state) is dict and state.get(name) is part] or names
    if names:
        return f"{path}.{names[0]}"
    return next((step for step, held in _items(path, owner) if held is part), None)


def _pickled_as(owner: object) -> str:
    custom = getattr(type(owner), "__getstate__", None)
    return ".__getstate__()" if custom is not getattr(object, "__getstate__", None) else ".__reduce__()"


def _items(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the contents of a container, with their paths."""
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
    """Return description and advice for a type whose objects are reported as a whole; None for any other type."""
    if database_handle(kind) is not None:
        return _HANDLE
    return _FILE if issubclass(kind, io.IOBase) else _BY_PACKAGE.get(str(kind.__module__).partition(".")[0])


def _diagnosis(value: object, owner: object, failure: Exception) -> tuple[str, str]:
    """Return a description of what cannot be pickled, to follow "it is", and advice."""
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
        own = getattr(value, "name", None)
        file = f" {own!r}" if isinstance(own, str) else ""
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
        f"makes it again, or correct the ones it has. If not, keep what it is made from, and make it {_LAZILY}.",
    )


def _global(value: FunctionType | type, *, is_class_of: bool) -> tuple[str, str]:
    """Describe a class or function that pickle sends by name, but whose name does not lead to it."""
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
    return f"{described}, and that name refers to something else", (
        f"The usual reason is a decorator that returns something else, or a notebook cell that was run again. Give "
        f"the {what} a name of its own in a module, a file that the notebook imports, and build the dataset again."
    )
