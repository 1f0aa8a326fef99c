"""Drivers for tests: an engine, its machine, and an iterator over the delivered batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from feedline.abc import Engine
from feedline.delivery.driver.driver import Driver, Prepare
from feedline.delivery.driver.slots import Slots
from feedline.delivery.machine.counters import Counters
from feedline.delivery.machine.machine import Machine
from feedline.delivery.machine.recovery import Recovery
from feedline.frameworks.numpy import NumpyFramework
from feedline.memory.arena import Arena


def driver_of(
    engine: Engine,
    arena: Arena | None = None,
    *,
    counters: Counters | None = None,
    recovery: Recovery | None = None,
    prepare: Prepare | None = None,
    now_s: float = 0.0,
) -> Driver:
    """Return a driver for an engine that is open, or needs no opening."""
    slots = Slots(arena, NumpyFramework(), counters or Counters())
    machine = Machine(engine.worker_count, slots, recovery or Recovery(), slots.counters, now_s=now_s)
    return Driver(engine, machine, slots, prepare=prepare)


class Delivered(Iterator[Any]):
    """Iterates over the batches that a driver delivers in its current epoch."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __next__(self) -> Any:
        if self._driver.closed:
            raise StopIteration
        return self._driver.next()
