"""Pickles an object into nothing, as it would be for a worker that is being started.

Two things keep the answer right and the trial cheap:

- Objects are pickled as they are when workers are started: with the reducers of multiprocessing and of the framework,
  and with somebody who plays the part of the process that is being started. Locks and queues of multiprocessing, and
  tensors in shared memory, can be sent then and only then.
- What is pickled goes nowhere, and the data of arrays and tensors is not even looked at.
"""

from __future__ import annotations

import copyreg
import functools
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import context, reduction
from typing import Any

from feedline.abc.framework import Framework, Reducer
from feedline.engines.unpicklable.kinds import is_storage, is_tensor, ndarray_of


class Trial(pickle.Pickler):
    """Pickles into nothing.

    Args:
        reducers: how objects are reduced.
        known: objects that count as picklable, by their ids.
    """

    def __init__(self, reducers: Reducers, known: dict[int, Any]) -> None:
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


class Reducers(dict[type, Any]):
    """How objects are reduced when workers are started, except that the data of arrays is left out.

    torch's reducers for multiprocessing would move tensors to shared memory.
    """

    def __init__(self, framework: Framework) -> None:
        pickler: Any = reduction.ForkingPickler
        super().__init__({**copyreg.dispatch_table, **pickler._extra_reducers})
        for kind, reduce_into in framework.reducers().items():
            self[kind] = functools.partial(_reduce_into_nothing, reduce_into)
        for kind, reduce in list(self.items()):
            if is_storage(kind):
                self[kind] = _reduce_storage
            elif is_tensor(kind):
                self[kind] = functools.partial(_reduce_tensor, reduce)
        self._others: set[type] = set()

    def __missing__(self, kind: type) -> Any:
        if kind not in self._others:
            if is_storage(kind):
                return _reduce_storage
            if ndarray_of(kind) is not None:
                return _reducendarray_of
            self._others.add(kind)
        raise KeyError(kind)  # pickle goes on with __reduce_ex__ then


def _reduce_into_nothing(reduce_into: Reducer, array: Any) -> Any:
    return reduce_into(array, _Nowhere())


def _reduce_tensor(reduce: Callable[[Any], Any], tensor: Any) -> Any:
    if tensor.is_cuda:
        return int, ()  # it can be sent, and the device would keep the memory until a receiver has let go of it
    return reduce(tensor)


def _reducendarray_of(array: Any) -> Any:
    kind = type(array)
    base: Any = ndarray_of(kind)
    plain = kind.__reduce__ is base.__reduce__ and kind.__reduce_ex__ is base.__reduce_ex__
    return (kind, ()) if plain and not array.dtype.hasobject else array.__reduce_ex__(5)


def _reduce_storage(storage: Any) -> Any:
    return int, ()


@contextmanager
def somebody_starting() -> Iterator[None]:
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
