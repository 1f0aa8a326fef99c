"""Which part of a dataset, or of a function, cannot be sent to a worker process, and what to do about it.

Pickle says what it cannot take ("cannot pickle '_thread.lock' object"), not where that is. To find it, an object that
fails is replaced by the first of its parts that fails by itself, again and again. Its parts are what pickle would
visit: the result of `__reduce_ex__`, with the attributes, items and arguments in it. Long containers are halved until
the item is found, so that each step costs about as much as pickling once.

Three things keep the answer right and the search cheap:

- Objects are pickled as they are when workers are started: with the reducers of multiprocessing and of the framework,
  and with somebody who plays the part of the process that is being started. Locks and queues of multiprocessing, and
  tensors in shared memory, can be sent then and only then.
- What is pickled goes nowhere, and the data of arrays and tensors is not even looked at.
- Objects on the way from the root count as picklable, so that a part which refers back to its owner is not blamed for
  what is wrong elsewhere in the owner.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
import io
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import context, reduction
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType, ModuleType
from typing import Any

from feedline.abc.framework import Framework, Reducer
from feedline.engines.handles import attributes, database_handle, item_of
from feedline.errors import NotPicklable
from feedline.types import WorkerSpec

_FEW = 8
"""Items that are tried one by one; more are halved first. A guess, not measured."""

_MANY = 10
"""Objects of one type inside each other that make a deep structure; a few may just wrap each other."""

_TEXT = 300
"""Characters of an error's text that are repeated. Some hold the representation of an object."""

_LAZILY = "when it is first used, so that each worker has its own"
_TOP_LEVEL = "at the top level of a module"
_PATH = f"Keep the path instead, and open it in __getitem__ {_LAZILY}."
_FILE = "an open file ({})", _PATH
_HANDLE = "an object of type {}, which belongs to the process that opened it", _PATH
_LOCAL = (
    "an object of type {}, which is of use in one process only",
    f"Make it {_LAZILY}; or leave it out in __getstate__ and make it again in __setstate__.",
)
_BY_MODULE = {
    **dict.fromkeys(("_io", "bz2", "gzip", "io", "lzma", "mmap", "tarfile", "tempfile", "zipfile"), _FILE),
    **dict.fromkeys(("_asyncio", "_queue", "_socket", "_thread", "asyncio", "concurrent", "contextlib"), _LOCAL),
    **dict.fromkeys(("logging", "queue", "select", "selectors", "socket", "ssl", "subprocess", "threading"), _LOCAL),
    "multiprocessing": (
        "an object of type {}, which cannot be shared with workers of this start method",
        "Make locks, queues and values with the context that starts the workers, such as "
        'multiprocessing.get_context("spawn").Lock(). Make pools and processes in each worker, if at all.',
    ),
    "weakref": (
        "a weak reference ({}), which is of use in one process only",
        "Keep the object itself, or leave it out in __getstate__ and make it again in __setstate__.",
    ),
}
"""What to say of objects of the standard library: that the lock of the condition of an event is what cannot be pickled
would help nobody."""

_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_OWN_PICKLING = ("__reduce_ex__", "__reduce__", "__getstate__")


def explain(spec: WorkerSpec, error: BaseException) -> NotPicklable:
    """Return what to raise about a specification that could not be pickled.

    Pickles parts of it, which runs the user's `__getstate__` and `__reduce__` again.

    Args:
        spec: what was to be sent to workers.
        error: what pickle raised.
    """
    with _somebody_starting():
        culprit = _Search(spec.framework).among(
            {
                "dataset": spec.dataset,
                "collate_fn": spec.collate,
                "worker_init_fn": spec.init,
                "on_error": spec.on_error,
            }
        )
    if culprit is None:
        return NotPicklable(
            f"The dataset, or a function given to the loader, cannot be sent to a worker process: {_text(error)}. "
            "Workers that are started by spawn or forkserver get these by pickle. Tried once more, one by one, the "
            "dataset and the functions could be pickled: look for a __getstate__ or __reduce__ whose result changes. "
            + _without_pickle(handle=False)
        )
    what, advice = _diagnosis(culprit)
    return NotPicklable(
        f"{culprit.path} cannot be sent to a worker process: it is {what}. Workers that are started by spawn or "
        f"forkserver get the dataset and the functions by pickle, which says: {_text(culprit.failure)}. {advice} "
        + _without_pickle(handle=database_handle(type(culprit.value)) is not None)
    )


# -- where it is ---


@dataclass(frozen=True)
class _Culprit:
    """An object that fails although all its parts, if it has any, can be pickled."""

    path: str
    value: Any
    failure: Exception
    is_class_of: bool = False
    """True if `value` is the class of the object at `path`."""


@dataclass(frozen=True)
class _Parts:
    """Some of an object's parts, in the order in which pickle visits them."""

    items: list[Any]
    path_of: Callable[[int], str]
    are_classes: bool = False
    """True if the only item is the class of the object, whose path it has."""


class _Search:
    """Goes down from an object that cannot be pickled to the smallest one inside."""

    def __init__(self, framework: Framework) -> None:
        self._reducers = _Reducers(framework)
        self._way: dict[int, Any] = {}

    def among(self, roots: dict[str, Any]) -> _Culprit | None:
        """Return what fails in the first root that does."""
        for name, root in roots.items():
            failure = self._failure(root)
            if failure is not None:
                return self._below(_Culprit(name, root, failure))
        return None

    def _below(self, culprit: _Culprit) -> _Culprit:
        too_deep: dict[type, list[_Culprit]] = {}
        while True:
            kind = type(culprit.value)
            if isinstance(culprit.failure, RecursionError):
                # Further down it is not too deep any more, so the end of this way says nothing: it is where the
                # structure begins that counts, with the first object of a type that comes again and again.
                alike = too_deep.setdefault(kind, [])
                alike.append(culprit)
                if len(alike) == _MANY:
                    return alike[0]
            if _known(kind) is not None:
                return culprit
            self._way[id(culprit.value)] = culprit.value
            part = self._failing_part(culprit.path, culprit.value)
            if part is None:
                return culprit
            culprit = part

    def _failing_part(self, path: str, value: Any) -> _Culprit | None:
        for parts in _parts_of(path, value, self._reducers):
            found = self._first_failing(parts.items)
            if found is not None:
                place, failure = found
                return _Culprit(parts.path_of(place), parts.items[place], failure, parts.are_classes)
        return None

    def _first_failing(self, items: list[Any]) -> tuple[int, Exception] | None:
        first, end = 0, len(items)
        if end > _FEW and self._failure(items) is None:
            return None
        while end - first > _FEW:
            middle = (first + end) // 2
            if self._failure(items[first:middle]) is None:
                first = middle
            else:
                end = middle
        for place in range(first, end):
            failure = self._failure(items[place])
            if failure is not None:
                return place, failure
        return None

    def _failure(self, value: Any) -> Exception | None:
        try:
            _Trial(self._reducers, self._way).dump(value)
        except Exception as exc:  # whatever the user's __getstate__ raises
            return exc.with_traceback(None)
        return None


class _Trial(pickle.Pickler):
    """Pickles into nothing."""

    def __init__(self, reducers: _Reducers, known: dict[int, Any]) -> None:
        super().__init__(_Nowhere(), protocol=5, buffer_callback=lambda buffer: None)
        self.dispatch_table = reducers
        self._known = known

    def persistent_id(self, value: Any) -> Any:
        return True if id(value) in self._known else None


class _Nowhere:
    """A file that keeps nothing, and a slot in which every array lies already."""

    crosses = True
    view = b""

    def write(self, data: Any) -> int:
        return len(data)

    def allocate(self, size: int) -> None:
        return None

    def place(self, size: int) -> int:
        return 0

    def offset_of(self, address: int, size: int) -> int:
        return 0

    def remember(self, address: int, size: int, offset: int) -> None:
        return None


class _Reducers(dict[type, Any]):
    """How objects are reduced when workers are started, except that the data of arrays is left out.

    torch's reducers for multiprocessing would move tensors to shared memory.
    """

    def __init__(self, framework: Framework) -> None:
        pickler: Any = reduction.ForkingPickler
        super().__init__({**copyreg.dispatch_table, **pickler._extra_reducers})
        for kind, reduce_into in framework.reducers().items():
            self[kind] = functools.partial(_reduce_into_nothing, reduce_into)
        for kind, reduce in list(self.items()):
            if _is_storage(kind):
                self[kind] = _reduce_storage
            elif _is_tensor(kind):
                self[kind] = functools.partial(_reduce_tensor, reduce)
        self._others: set[type] = set()

    def __missing__(self, kind: type) -> Any:
        if kind not in self._others:
            if _is_storage(kind):
                return _reduce_storage
            if _ndarray(kind) is not None:
                return _reduce_ndarray
            self._others.add(kind)
        raise KeyError(kind)  # pickle goes on with __reduce_ex__ then


def _reduce_into_nothing(reduce_into: Reducer, array: Any) -> Any:
    return reduce_into(array, _Nowhere())


def _reduce_tensor(reduce: Callable[[Any], Any], tensor: Any) -> Any:
    if tensor.is_cuda:
        return int, ()  # it can be sent, and the device would keep the memory until a receiver has let go of it
    return reduce(tensor)


def _reduce_ndarray(array: Any) -> Any:
    kind = type(array)
    base: Any = _ndarray(kind)
    plain = kind.__reduce__ is base.__reduce__ and kind.__reduce_ex__ is base.__reduce_ex__
    return (kind, ()) if plain and not array.dtype.hasobject else array.__reduce_ex__(5)


def _reduce_storage(storage: Any) -> Any:
    return int, ()


def _is_storage(kind: type) -> bool:
    return _base_named(kind, "torch.storage", "UntypedStorage", "TypedStorage") is not None


def _is_tensor(kind: type) -> bool:
    return _base_named(kind, "torch", "Tensor") is not None


def _ndarray(kind: type) -> type | None:
    return _base_named(kind, "numpy", "ndarray")


def _base_named(kind: type, module: str, *names: str) -> type | None:
    return next((base for base in kind.__mro__ if base.__module__ == module and base.__name__ in names), None)


def _root_module(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


@contextmanager
def _somebody_starting() -> Iterator[None]:
    """Play the part of a process that is being started: what can only be sent to such a one can be pickled."""
    previous = context.get_spawning_popen()
    context.set_spawning_popen(_Starting())  # type: ignore[arg-type]  # plays the part of a process
    try:
        yield
    finally:
        context.set_spawning_popen(previous)


class _Starting:
    """Takes what multiprocessing hands to a process that is being started, and does nothing with it."""

    def duplicate_for_child(self, handle: int) -> int:
        return handle

    def DupFd(self, fd: int) -> int:  # noqa: N802  the name multiprocessing looks up
        return fd


# -- what an object consists of ---


def _parts_of(path: str, value: Any, reducers: _Reducers) -> Iterator[_Parts]:
    """Yield what pickle would visit in an object; nothing if it has no parts, or refuses to name them."""
    kind = type(value)
    if kind is list or kind is tuple:
        yield _Parts(list(value), lambda place: f"{path}[{place}]")
    elif kind is set or kind is frozenset:
        yield _Parts(list(value), lambda place: f"list({path})[{place}]")
    elif kind is dict:
        yield from _entries(path, list(value.items()))
    elif kind is FunctionType or issubclass(kind, type):
        return  # these go by name
    elif _ndarray(kind) is not None and value.dtype.hasobject:
        where = path if value.ndim == 1 else f"{path}.flat"
        yield _Parts(list(value.flat), lambda place: f"{where}[{place}]")
    else:
        yield from _reduced_parts(path, value, reducers)


def _entries(path: str, entries: list[tuple[Any, Any]]) -> Iterator[_Parts]:
    yield _Parts([key for key, _ in entries], lambda place: f"list({path})[{place}]")
    yield _Parts([item for _, item in entries], lambda place: item_of(path, entries[place][0], place))


def _reduced_parts(path: str, value: Any, reducers: _Reducers) -> Iterator[_Parts]:
    try:
        make, arguments, state, items, entries, setter = _reduced(value, reducers)
    except Exception:  # of the user's code, or a result that pickle does not take: this object is the culprit then
        return
    names = _Names(path, value)
    if make is type(value) or make is copyreg.__newobj__ or make is copyreg.__newobj_ex__:  # type: ignore[attr-defined]
        yield _Parts([type(value)], lambda place: path, are_classes=True)
    else:
        yield _Parts([make], lambda place: f"{path}.__reduce__()[0]")
    yield _Parts(arguments, lambda place: names.of(arguments[place], f"{path}.__reduce__()[1][{place}]"))
    yield _Parts(items, lambda place: f"{path}[{place}]")
    yield from _entries(path, entries)
    yield from _state_parts(names, state)
    yield _Parts([setter], lambda place: f"{path}.__reduce__()[5]")


def _reduced(value: Any, reducers: _Reducers) -> tuple[Any, list[Any], Any, list[Any], list[tuple[Any, Any]], Any]:
    """Return how pickle would describe an object: a function, its arguments, a state, items, entries, a setter."""
    try:
        reduce = reducers[type(value)]
    except KeyError:
        reduced = value.__reduce_ex__(5)
    else:
        reduced = reduce(value)
    if isinstance(reduced, str):  # the name of a global
        return reduced, [], None, [], [], None
    given: list[Any] = [*reduced, *[None] * (6 - len(reduced))]
    make, arguments, state, items, entries, setter = given
    return make, list(arguments), state, list(items or ()), list(entries or ()), setter


def _state_parts(names: _Names, state: Any) -> Iterator[_Parts]:
    has_slots = type(state) is tuple and len(state) == 2 and all(part is None or type(part) is dict for part in state)
    for part in state if has_slots else (state,):
        if type(part) is dict and all(type(key) is str for key in part):
            held = list(part.items())
            yield _Parts([item for _, item in held], _attribute_paths(names, held))
        else:
            yield _Parts([part], lambda place, part=part: names.of(part, names.state))  # type: ignore[misc]


def _attribute_paths(names: _Names, held: list[tuple[str, Any]]) -> Callable[[int], str]:
    return lambda place: names.of(held[place][1], f"{names.state}[{held[place][0]!r}]", held[place][0])


class _Names:
    """How the user gets at what pickle found in an object."""

    def __init__(self, path: str, owner: Any) -> None:
        self._path = path
        self._owner = owner
        custom = getattr(type(owner), "__getstate__", None)
        has_own_state = custom is not None and custom is not getattr(object, "__getstate__", None)
        self.state = f"{path}.__getstate__()" if has_own_state else f"{path}.__reduce__()[2]"

    def of(self, part: Any, otherwise: str, likely: str | None = None) -> str:
        """Return the path of a part: an attribute or item of its owner if it is one, by `likely` if that fits."""
        kind = type(self._owner)
        names = [name for name, held in attributes(self._owner) if held is part]
        if names:
            return f"{self._path}.{likely if likely in names else names[0]}"
        if issubclass(kind, tuple):
            if type(part) is tuple and all(map(_is, part, tuple.__iter__(self._owner))):
                return self._path  # a copy of all its items, which go on to have their own paths
            fields = getattr(kind, "_fields", ())
            for place, item in enumerate(tuple.__iter__(self._owner)):
                if item is part:
                    return f"{self._path}.{fields[place]}" if place < len(fields) else f"{self._path}[{place}]"
        if issubclass(kind, (set, frozenset)) and type(part) is list:
            return f"list({self._path})"
        return otherwise


def _is(one: Any, other: Any) -> bool:
    return one is other


# -- what it is, and what to do ---


def _diagnosis(culprit: _Culprit) -> tuple[str, str]:
    """Say what the culprit is, to follow "it is", and what to do."""
    value, kind = culprit.value, type(culprit.value)
    if isinstance(culprit.failure, RecursionError):
        return (
            f"an object of type {_name(kind)} whose parts are nested too deeply for pickle",
            "Keep it in a flat form, such as a list whose items refer to each other by number, or let its class give "
            "such a form in __getstate__ and rebuild the rest in __setstate__.",
        )
    if kind is FunctionType:
        return _function(value)
    if kind.__module__ == "functools" and type(getattr(value, "__wrapped__", None)) is FunctionType:
        return _function(value.__wrapped__)  # functools.cache and its like go by the name of what they wrap
    if issubclass(kind, type):
        return _class(value, culprit.is_class_of)
    if issubclass(kind, ModuleType):
        return f"the module {value.__name__}", "Import it where it is used, instead of keeping it in an attribute."
    if issubclass(kind, (GeneratorType, CoroutineType, AsyncGeneratorType)):
        return (
            f"a {kind.__name__.replace('_', ' ')}, made by {value.__qualname__}",
            "Keep what it is made from, and make it in __iter__ or __getitem__, in each worker.",
        )
    known = _known(kind)
    if known is not None:
        return known[0].format((database_handle(kind) or _name(kind)) + _file_name(value)), known[1]
    if kind in _VIEWS:
        return f"a view of a dictionary ({_name(kind)})", "Keep list(...) of it."
    if _is_tensor(kind) and value.grad_fn is not None:
        return f"an object of type {_name(kind)} that is part of a computation", "Keep tensor.detach()."
    return _object(kind)


def _known(kind: type) -> tuple[str, str] | None:
    """Return what to say of objects that are named as a whole, however they are made up inside."""
    if database_handle(kind) is not None:
        return _HANDLE
    return _FILE if issubclass(kind, io.IOBase) else _BY_MODULE.get(_root_module(kind))


def _file_name(value: Any) -> str:
    name = getattr(value, "name", None) if _root_module(type(value)) == "_io" else None
    return f" {name!r}" if isinstance(name, str) else ""


def _object(kind: type) -> tuple[str, str]:
    own = next((method for method in _OWN_PICKLING if hasattr(getattr(kind, method, None), "__code__")), None)
    if own is not None:
        return (
            f"an object of type {_name(kind)} with a {own} of its own, which fails or gives what cannot be pickled",
            f"If the class is yours, correct {own}: the object has to be made again from what it returns. If not, keep "
            f"what it is made from, and make it {_LAZILY}.",
        )
    return (
        f"an object of type {_name(kind)}, which pickle does not know how to take apart",
        "If the class is yours, give it a __getstate__ that leaves out what cannot be pickled and a __setstate__ that "
        "makes it again, or a __reduce__ that says how to make the whole. If not, keep what it is made from, and make "
        f"it {_LAZILY}.",
    )


def _name(kind: type) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    return name.replace("_thread.lock", "threading.Lock").replace("_thread.", "threading.")


def _function(function: FunctionType) -> tuple[str, str]:
    where = f"defined at {function.__code__.co_filename}:{function.__code__.co_firstlineno}"
    if function.__name__ == "<lambda>":
        return (
            f"a lambda, {where}",
            f"Define it with `def` {_TOP_LEVEL}, and give it the values it needs with functools.partial.",
        )
    if "<locals>" in function.__qualname__:
        return (
            f"the function {function.__qualname__}, {where}, inside another function",
            f"Define it {_TOP_LEVEL}, and give it the values it needs with functools.partial.",
        )
    return (
        f"the function {function.__module__}.{function.__qualname__}, {where}, and that name does not lead to it",
        "A decorator that returns something else under the same name is the usual reason, or a notebook's cell that "
        f"was run again. Give the function a name of its own {_TOP_LEVEL}, or build the dataset and the loader again.",
    )


def _class(kind: type, is_class_of: bool) -> tuple[str, str]:
    name = f"{kind.__module__}.{kind.__qualname__}"
    subject = f"an object of the class {name}" if is_class_of else f"the class {name}"
    if "<locals>" in kind.__qualname__:
        return f"{subject}, which is defined inside a function{_source(kind)}", f"Define the class {_TOP_LEVEL}."
    return (
        f"{subject}{_source(kind)}, and that name does not lead to the class",
        "A notebook's cell that was run again is the usual reason: objects made before are of the old class. Build the "
        "dataset and the loader again, and better put the class into a module, a file that the notebook imports.",
    )


def _source(kind: type) -> str:
    try:
        return f" at {inspect.getsourcefile(kind)}:{inspect.getsourcelines(kind)[1]}"
    except (OSError, TypeError):  # it has none, as in an interactive session
        return ""


def _text(error: BaseException) -> str:
    text = str(error)
    shortened = text if len(text) <= _TEXT else f"{text[:_TEXT]}..."
    return f"{type(error).__name__}: {shortened.rstrip('.')}"


def _without_pickle(handle: bool) -> str:
    can_fork = "fork" in multiprocessing.get_all_start_methods()
    if handle:
        fork = 'multiprocessing_context="fork" needs no pickle, but such a handle does not survive a fork; '
        return (fork if can_fork else "") + 'engine="thread" needs none, if the handle may be used by several threads.'
    ways = ['multiprocessing_context="fork"'] if can_fork else []
    ways.append('engine="thread"')
    return f"Or choose what needs no pickle: {' or '.join(ways)}."
