"""Objects that cannot be pickled, for various reasons, and helpers that return the error message."""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from feedline.abc.worker_spec import WorkerSpec
from feedline.collate import default
from feedline.frameworks.torch import TorchFramework
from feedline.types import DatasetKind
from feedline.workers.failure import UNPICKLABLE
from feedline.workers.processes.payload import Payload
from feedline.workers.unpicklable import explain


class Holding:
    """A dataset with whatever attributes it is given."""

    items: list[Any]
    lock: Any

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def method(self, value: Any) -> Any:
        return value


class InSlots:
    __slots__ = ("kept", "never_filled")

    def __init__(self, kept: Any) -> None:
        self.kept = kept


@dataclass(frozen=True)
class Record:
    kept: Any


class Pair(NamedTuple):
    left: Any
    right: Any


class ATuple(tuple[Any, ...]):
    """A subclass of tuple."""


class ASet(set[Any]):
    """A subclass of set."""


class AList(list[Any]):
    """A subclass of list."""


class ADict(dict[Any, Any]):
    """A subclass of dict."""


class AnArray(np.ndarray[Any, Any]):
    """A subclass of numpy.ndarray."""


class OwnState:
    def __init__(self, kept: Any) -> None:
        self.kept = kept
        self.left_out = threading.Lock()

    def __getstate__(self) -> Any:
        return {"renamed": [self.kept], "kept": self.kept}


class FreshState:
    def __getstate__(self) -> Any:
        return {"made": [lambda: 1]}


class SecondOnly:
    def __init__(self, kept: Any) -> None:
        self.first = self.second = kept

    def __getstate__(self) -> Any:
        return {"second": self.second}


class StateOfAnotherForm(OwnState):
    def __getstate__(self) -> Any:
        return [1, self.kept]


class OutOfBand:
    """Hands its memory over, as pickle's protocol 5 allows."""

    def __init__(self, size: int) -> None:
        self.memory = bytearray(size)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return bytes, (pickle.PickleBuffer(self.memory),)


class Raising:
    def __getstate__(self) -> Any:
        raise ValueError("not today")


class Rebuilt:
    def __init__(self, kept: Any) -> None:
        self.kept = kept

    def __reduce__(self) -> Any:
        return Rebuilt, (self.kept,)


class RebuiltByLambda:
    def __reduce__(self) -> Any:
        return (lambda: 1), ()


class Opaque:
    """What an extension module's object looks like."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("cannot pickle 'Opaque' object")


class Node:
    def __init__(self, following: Any) -> None:
        self.following = following


def local_function() -> Callable[[], None]:
    def inside() -> None: ...

    return inside


def local_class() -> type:
    class Inside: ...

    return Inside


def numbers() -> Any:
    yield 1


def doubled(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(function)
    def twice(value: Any) -> Any:
        return function(function(value))

    return twice


@doubled
def decorated(value: Any) -> Any:
    return value


def spec_of(dataset: Any = None, collate: Any = default, init: Any = None, framework: Any = None) -> WorkerSpec:
    return WorkerSpec(dataset, DatasetKind.MAP, collate, framework or TorchFramework(), 1, 5, init=init)


def explained(spec: WorkerSpec) -> str:
    """Return the error message for a specification that cannot be sent."""
    with pytest.raises((*UNPICKLABLE, RuntimeError, ValueError)) as refused:
        Payload(spec)
    return str(explain(spec, refused.value))


def path_in(message: str) -> str:
    path, _, rest = message.partition(" (of type ")
    assert rest, message
    return path


bad = local_function()
"""Any object that cannot be pickled."""
