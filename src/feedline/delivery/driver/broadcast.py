"""Calls of dataset methods in every worker, which each have a copy of the dataset."""

from __future__ import annotations

import functools
import os
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

from feedline.delivery.driver.driver import Driver
from feedline.errors import BadOption
from feedline.system.references import References
from feedline.types import Call


class Broadcast:
    """The workers of one loader, as receivers of dataset calls.

    Args:
        dataset: the copy in this process.
        watches: True to detect calls of its `set_epoch`, for workers that persist from epoch to epoch.
    """

    def __init__(self, dataset: object, *, watches: bool = False) -> None:
        self._dataset = dataset
        self._watches = watches
        self._drivers: References[Driver] = References()
        self._noted = _watch(dataset) if watches else _Noted()
        self._seen_count = self._noted.count
        self.last_set_epoch: int | None = None
        """The last epoch passed to the dataset's `set_epoch`, through this loader or detected by it."""
        self._called = 0
        """How many times `set_epoch` was called through this loader."""

    def __reduce__(self) -> tuple[object, ...]:
        return _broadcast, (self._dataset, self._watches)  # the workers stay with their loader

    def join(self, driver: Driver) -> None:
        """Add workers. They have just received a copy of the dataset in its current state."""
        self._drivers.add(driver)
        self._update_epoch()

    @property
    def set_epoch_count(self) -> int:
        """How many times the dataset's `set_epoch` was called, as far as this loader knows."""
        return self._called + self._noted.count

    def forget_epoch(self) -> None:
        """Forget the dataset's epoch: a loaded state determines it, unless `set_epoch` is called again."""
        self.last_set_epoch = None

    def call(self, name: str, *arguments: object) -> None:
        """Call a method of the dataset here and in every live worker."""
        method = getattr(self._dataset, name, None)
        if not callable(method):
            raise BadOption(
                f"The dataset, a {type(self._dataset).__name__}, has no method {name!r} that workers could call."
            )
        method(*arguments)
        self._update_epoch()
        self._called += name == "set_epoch"
        if name == "set_epoch" and len(arguments) == 1 and isinstance(arguments[0], int):
            self.last_set_epoch = arguments[0]
        self._send(Call(name, arguments))

    def catch_up(self) -> None:
        """Repeat in the workers a `dataset.set_epoch(...)` that this process has called since their last one."""
        if self._noted.count != self._seen_count:
            self._update_epoch()
            self._send(Call("set_epoch", self._noted.arguments, self._noted.options))

    def _update_epoch(self) -> None:
        if self._seen_count != self._noted.count and len(self._noted.arguments) == 1:
            epoch = self._noted.arguments[0]
            self.last_set_epoch = epoch if isinstance(epoch, int) else None
        self._seen_count = self._noted.count

    def _send(self, call: Call) -> None:
        for driver in self._drivers:
            if driver.pid != os.getpid():  # its workers belong to the process that this one was forked from
                continue
            self._send_to(driver, call)

    def _send_to(self, driver: Driver, call: Call) -> None:
        def broadcast() -> None:
            if not driver.closed:
                driver.broadcast(call)

        if driver.caller_lock.is_mine():  # a new epoch is starting
            broadcast()
        else:
            driver.caller_lock.run("broadcast()", broadcast)


def _broadcast(dataset: object, watches: bool) -> Broadcast:
    return Broadcast(dataset, watches=watches)


@dataclass
class _Noted:
    """Calls of one dataset's `set_epoch`: how many, and the last arguments."""

    count: int = 0
    arguments: tuple[object, ...] = ()
    options: dict[str, object] = field(default_factory=dict)


_notes: dict[int, _Noted] = {}
"""By the id of the dataset. Kept outside the dataset, to leave copying and pickling it unchanged."""


def _watch(dataset: object) -> _Noted:
    """Detect calls of the dataset's `set_epoch`, if it has one.

    The method is wrapped in the class that defines it. An attribute of the instance would travel to the workers, and
    calls on a copy of the dataset would be taken for calls on the original.
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
        return noted  # a class that cannot be changed, or an object without weak references
    _notes[id(dataset)] = noted
    return noted


def _noting(method: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(method)
    def set_epoch(self: object, *arguments: object, **options: object) -> object:
        result = method(self, *arguments, **options)
        noted = _notes.get(id(self))
        if noted is not None:
            noted.count += 1
            noted.arguments, noted.options = arguments, options
        return result

    set_epoch.feedline_notes = True  # type: ignore[attr-defined]
    return set_epoch
