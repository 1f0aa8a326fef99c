"""Calls of dataset methods in every worker, which each have a copy of the dataset."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from feedline.abc.framework import Calls
from feedline.errors import BadOption
from feedline.system.references import References
from feedline.types import Call

if TYPE_CHECKING:
    from feedline.delivery.driver.driver import Driver


class Broadcast:
    """The workers of one loader, as receivers of dataset calls.

    Args:
        dataset: the copy in this process.
    """

    def __init__(self, dataset: object) -> None:
        self._dataset = dataset
        self._drivers: References[Driver] = References()
        self.last_set_epoch: int | None = None
        """The last epoch passed to the dataset's `set_epoch` through this loader."""
        self.set_epoch_count = 0
        """How many times the dataset's `set_epoch` was called through this loader."""

    def __reduce__(self) -> tuple[object, ...]:
        return Broadcast, (self._dataset,)  # the workers stay with their loader

    def join(self, driver: Driver) -> None:
        """Add workers. They have just received a copy of the dataset in its current state."""
        self._drivers.add(driver)

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
        try:
            method(*arguments)
        finally:
            Calls.last = object()
        self.set_epoch_count += name == "set_epoch"
        if name == "set_epoch" and len(arguments) == 1 and isinstance(arguments[0], int):
            self.last_set_epoch = arguments[0]
        self._send(Call(name, arguments))

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
