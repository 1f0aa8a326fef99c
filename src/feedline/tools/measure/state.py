"""The parts of a dataset that workers receive: handles, large containers, generators; what cannot be pickled."""

from __future__ import annotations

import io
import os
import pickle
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.memory.sharing import share
from feedline.system.failures import words
from feedline.tools.measure.measured import Held, OpenHandle
from feedline.workers.handles import Shared, inherited, objects_in, used_by_threads
from feedline.workers.unpicklable import ADVICE, what_fails

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MANY = 1000
"""Containers with fewer items are ignored."""
_SAMPLED_ITEMS = 500
"""Roughly how many items of a container are measured to estimate the others."""
_DEPTH = 6

_CONTAINERS = (list, tuple, dict, set, frozenset, deque)


# Any: handles of any library.
_OPENINGS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "h5py": ("h5py.File({}, 'r')", lambda file: file.filename),
    "h5py, swmr": ("h5py.File({}, 'r', swmr=True)", lambda file: file.filename),
    "sqlite3": ("sqlite3.connect({})", lambda base: base.execute("PRAGMA database_list").fetchone()[2]),
    "lmdb": ("lmdb.open({}, readonly=True, lock=False)", lambda environment: environment.path()),
    "lmdb, file": ("lmdb.open({}, readonly=True, lock=False, subdir=False)", lambda environment: environment.path()),
    "socket": ("socket.create_connection({})", lambda connection: None),
    "gzip": ("gzip.open({}, 'rb')", lambda file: os.path.abspath(file.name)),
    "_io": ("open({}, 'rb')", lambda file: os.path.abspath(file.name)),
}
"""The call that opens a handle, and its path or None, by the module of its class and how the file was opened."""


def handles_in(dataset: object, *, on_threads: bool = False) -> tuple[OpenHandle, ...]:
    """Return the open handles in a dataset that forked workers, or threads, must not share."""
    return tuple(map(_open_handle, used_by_threads(dataset) if on_threads else inherited(dataset)))


def _open_handle(one: Shared) -> OpenHandle:
    handle: Any = one.value  # Any: of any library
    kind = type(handle)
    form = "lmdb" if kind.__name__ == "Environment" else kind.__module__.partition(".")[0]  # LMDB's is in builtins
    try:
        path = _OPENINGS.get(form, _OPENINGS["_io"])[1](handle)
        if form == "lmdb" and os.path.isfile(path):
            form = "lmdb, file"
        elif form == "h5py" and handle.swmr_mode:
            form = "h5py, swmr"
    except Exception:  # each library has its own error for a handle that was closed, or is used on another thread
        path = None
    opening = _OPENINGS.get(form, _OPENINGS["_io"])[0]
    if isinstance(one.value, io.TextIOWrapper):
        opening = opening.replace("'rb'", f"{one.value.mode!r}, encoding={one.value.encoding!r}")
    place = repr(path) if isinstance(path, str) and os.path.exists(path) else "self.path"
    if form == "socket":
        place = "self.address"
    return OpenHandle(one.path, one.called, one.trouble, one.advice, opening.format(place))


def held_in(dataset: object) -> tuple[Held, ...]:
    """Return the large containers of Python objects in a dataset, without those inside another one."""
    found: list[Held] = []
    for path, value in objects_in(dataset):
        is_inside = any(path.removeprefix("list(").startswith(other.path) for other in found)
        if isinstance(value, np.ndarray) and value.dtype.hasobject and value.dtype.names is None:
            value = value.reshape(-1)
        elif not isinstance(value, _CONTAINERS):
            continue
        if len(value) >= _MANY and not is_inside:
            step = max(1, len(value) // _SAMPLED_ITEMS)
            items = islice(dict.items(value) if isinstance(value, dict) else iter(value), 0, None, step)
            some = dict(items) if isinstance(value, dict) else list(items)
            times = len(value) / len(some)
            size = sys.getsizeof(value) + _size(some, {}, 0) * times
            try:
                shared = None if isinstance(value, (set, frozenset)) else int(share(some).nbytes * times)
            except (TypeError, ValueError):  # objects that `share` cannot hold
                shared = None
            found.append(Held(path, len(value), int(size), shared))
    return tuple(found)


def _size(value: object, seen: dict[int, object], depth: int) -> int:
    """Return the memory of an object and its contents; one that is referenced several times counts once."""
    if id(value) in seen or isinstance(value, (type, bool, type(None))):
        return 0
    seen[id(value)] = value
    size = object.__sizeof__(value) if isinstance(value, np.ndarray) else sys.getsizeof(value)
    if depth == _DEPTH:
        return size
    parts: list[object] = []
    if isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, _CONTAINERS):
        parts = list(value)
    elif hasattr(value, "__dict__"):
        parts = [vars(value)]
    return size + sum(_size(part, seen, depth + 1) for part in parts)


class OwnGenerators:
    """The random generators in a dataset, and whether samples have drawn from them."""

    def __init__(self, dataset: object) -> None:
        kinds = tuple(_generator_kinds())
        found = objects_in(dataset, kinds)
        shared = list(map(id, _of_the_process()))
        self._found = [(path, value) for path, value in found if isinstance(value, kinds) and id(value) not in shared]
        self._before = [_state_of(value) for _, value in self._found]

    def drawn_from(self) -> tuple[str, ...]:
        """Return the paths of the generators whose state has changed."""
        pairs = zip(self._found, self._before, strict=True)
        return tuple(path for (path, value), before in pairs if _state_of(value) != before)


def _generator_kinds() -> Iterator[type]:
    yield from (np.random.Generator, np.random.RandomState, random.Random)
    if (torch := sys.modules.get("torch")) is not None:
        yield torch.Generator


def _of_the_process() -> Iterator[object]:
    """Yield the generators behind functions such as `random.random`: a dataset may refer to them."""
    yield from (np.random.get_state.__self__, random.random.__self__)  # type: ignore[attr-defined]
    if (torch := sys.modules.get("torch")) is not None:
        yield torch.default_generator


# Any: torch's generators are recognised without importing torch.
def _state_of(generator: Any) -> bytes:
    if isinstance(generator, (random.Random, np.random.Generator, np.random.RandomState)):
        return pickle.dumps(generator)
    state: bytes = generator.get_state().numpy().tobytes()
    return state


class _Bounded(io.BytesIO):
    """Receives a pickle until a deadline."""

    def __init__(self, until_s: float) -> None:
        super().__init__()
        self._until_s = until_s

    def write(self, data: Buffer) -> int:
        if time.monotonic() > self._until_s:
            raise TimeoutError
        return super().write(data)


def not_picklable(dataset: object, until_s: float) -> tuple[str | None, str]:
    """Return what in a dataset cannot be pickled, and what to do about it; None if everything can.

    Stops at `until_s` on the clock of `time.monotonic`: what was pickled until then can be.
    """
    file = _Bounded(until_s)
    buffers: list[pickle.PickleBuffer] = []
    try:
        pickle.Pickler(file, 5, buffer_callback=buffers.append).dump(dataset)
    except TimeoutError:
        return None, ""
    except Exception as exc:  # including exceptions of the user's own __getstate__
        failure = what_fails(dataset, "dataset")
        if failure is None:  # an object of multiprocessing, which can be sent only to a process that is starting
            return None, ""
        return f"{failure.path} is of type {failure.type_name}; pickle says: {words(exc):.200}", ADVICE
    try:
        pickle.loads(file.getvalue(), buffers=buffers)
    except Exception as exc:
        message = f"The dataset can be pickled but not unpickled: {type(exc).__name__}: {words(exc):.200}"
        return message, "Fix its __setstate__ or __reduce__."
    return None, ""
