"""Those who have a copy of the dataset, and how they hear of a change to it."""

from __future__ import annotations

import functools
import os
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from feedline.delivery.driver.driver import Driver
from feedline.errors import BadOption
from feedline.system.references import References
from feedline.types import Call


class Broadcast:
    """The workers of one loader, as far as its dataset is concerned.

    Args:
        dataset: the copy in this process.
        watches: True to take note of calls of its `set_epoch`, for workers that are kept from epoch to epoch.
    """

    def __init__(self, dataset: Any, *, watches: bool = False) -> None:
        self._dataset = dataset
        self._watches = watches
        self._drivers: References[Driver] = References()
        self._noted = _watch(dataset) if watches else _Noted()
        self._heard = self._noted.count
        self.told_epoch: int | None = None
        """What `set_epoch` of the dataset was last told through this loader, or noticed by it."""
        self._called = 0
        """How often it was told through this loader."""

    def __reduce__(self) -> Any:
        return _broadcast, (self._dataset, self._watches)  # the workers stay with the loader they belong to

    def join(self, driver: Driver) -> None:
        """Add workers. Their copy of the dataset is the one of this moment."""
        self._drivers.add(driver)
        self._hear()

    @property
    def told_count(self) -> int:
        """How often `set_epoch` of the dataset was called, as far as this loader knows."""
        return self._called + self._noted.count

    def forget_epoch(self) -> None:
        """Forget what the dataset was told: a state that was loaded says it, unless it is told again."""
        self.told_epoch = None

    def call(self, name: str, *arguments: Any) -> None:
        """Call a method of the dataset here and in every worker that lives."""
        method = getattr(self._dataset, name, None)
        if not callable(method):
            raise BadOption(
                f"The dataset, a {type(self._dataset).__name__}, has no method {name!r} that workers could call."
            )
        method(*arguments)
        self._hear()
        self._called += name == "set_epoch"
        if name == "set_epoch" and len(arguments) == 1 and isinstance(arguments[0], int):
            self.told_epoch = arguments[0]
        self._tell(Call(name, arguments))

    def catch_up(self) -> None:
        """Tell the workers of a `dataset.set_epoch(...)` that was called in this process since they last heard."""
        if self._noted.count != self._heard:
            self._hear()
            self._tell(Call("set_epoch", self._noted.arguments, self._noted.options))

    def _hear(self) -> None:
        if self._heard != self._noted.count and len(self._noted.arguments) == 1:
            epoch = self._noted.arguments[0]
            self.told_epoch = epoch if isinstance(epoch, int) else None
        self._heard = self._noted.count

    def _tell(self, call: Call) -> None:
        for driver in self._drivers:
            if driver.pid != os.getpid():  # of the process that this one was forked from
                continue
            self._tell_driver(driver, call)

    def _tell_driver(self, driver: Driver, call: Call) -> None:
        def broadcast() -> None:
            if not driver.closed:
                driver.broadcast(call)

        if driver.caller_lock.is_mine():  # a new epoch is being begun
            broadcast()
        else:
            driver.caller_lock.run("broadcast()", broadcast)


def _broadcast(dataset: Any, watches: bool) -> Broadcast:
    return Broadcast(dataset, watches=watches)


@dataclass
class _Noted:
    """How often `set_epoch` was called on one dataset, and with what."""

    count: int = 0
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


_notes: dict[int, _Noted] = {}
"""By the id of the dataset. Kept outside of it, so that it is copied and pickled as ever."""


def _watch(dataset: Any) -> _Noted:
    """Take note of calls of the dataset's `set_epoch`, if it has one.

    The method is wrapped in the class that defines it: an attribute of the instance would travel to the workers, and
    a copy of the dataset would change the original.
    """
    noted = _notes.get(id(dataset))
    if noted is not None:
        return noted
    noted = _Noted()
    owner = next((kind for kind in type(dataset).__mro__ if "set_epoch" in kind.__dict__), None)
    if owner is None:
        return noted
    try:
        weakref.finalize(dataset, _notes.pop, id(dataset), None)
        method = owner.__dict__["set_epoch"]
        if isinstance(method, types.FunctionType) and not hasattr(method, "feedline_notes"):
            owner.set_epoch = _noting(method)  # type: ignore[attr-defined]  # it has one
    except (TypeError, AttributeError):
        return noted  # a class that cannot be changed, or an object nobody can refer to weakly
    _notes[id(dataset)] = noted
    return noted


def _noting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def set_epoch(self: Any, *arguments: Any, **options: Any) -> Any:
        result = method(self, *arguments, **options)
        noted = _notes.get(id(self))
        if noted is not None:
            noted.count += 1
            noted.arguments, noted.options = arguments, options
        return result

    set_epoch.feedline_notes = True  # type: ignore[attr-defined]
    return set_epoch
