"""What threads have in common that make samples at the same time: locks of the dataset, and the interpreter's."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from feedline.datasets.derived.objects import users_traceback
from feedline.system.timing import OnThreads, on_threads
from feedline.tools.measure.measured import Threads
from feedline.tools.measure.samples import Ask
from feedline.workers.handles import objects_in

_THREADED_SAMPLES = 256
_ROUNDS = 3
_ROUND_S = 0.15
_ROUND_SAMPLES = 4
"""Rounds over all numbers of threads, and the time of each: longer if a thread would make fewer samples than this."""
_SWITCH_S = 1.0
"""The interpreter's switch interval while threads are timed: a thread keeps the lock until it releases the lock itself.
With the default interval, waiting threads keep waking up to request the lock. On a busy machine they then wait for a
core, which does not count as waiting for the lock."""
_HELPED = 1.3
"""If the process computes this many times as long as the thread that makes samples, a library has its own threads."""

_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Semaphore, threading.Condition)
_LOOK_S = 1e-3
"""How often a lock is tried while samples are made."""
_HELD_S = 0.2
"""How long samples are made again to see how long they hold a lock."""
_MOST_LOCKS = 4


def held_locks(dataset: object, ask: Ask, indices: list[object]) -> tuple[tuple[str, float], ...]:
    """Make samples again, and return the locks, and the share of a sample's time in which each is held."""
    again = itertools.cycle(indices)
    try:
        return tuple(
            (path, _held_share(lock, lambda: ask(next(again)))) for path, lock in _locks_of(dataset)[:_MOST_LOCKS]
        )
    except Exception:  # a sample that could be made before
        return ()


# Any: the locks of threading have no common class.
def _locks_of(dataset: object) -> list[tuple[str, Any]]:
    """Return the locks in a dataset, in its class, and in the module of its class, with their names."""
    kind = type(dataset)
    found = objects_in(dataset, _LOCKS)
    for owner, names in (
        (kind.__qualname__, vars(kind)),
        (kind.__module__, vars(sys.modules.get(kind.__module__, sys))),
    ):
        found += [(f"{owner}.{name}", value) for name, value in names.items()]
    return [(path, value) for path, value in found if isinstance(value, _LOCKS)]


def _held_share(lock: Any, make: Callable[[], object]) -> float:
    """Make samples for a moment, and return the share of the time in which another thread could not get a lock."""
    ended, seen = threading.Event(), [0, 0]

    def look() -> None:
        while not ended.wait(_LOOK_S):
            is_free = lock.acquire(blocking=False)
            seen[0 if is_free else 1] += 1
            if is_free:
                lock.release()

    thread = threading.Thread(target=look, daemon=True)
    until_s = time.monotonic() + _HELD_S
    thread.start()
    try:
        while time.monotonic() < until_s:
            make()
    finally:
        ended.set()
        thread.join()
    return seen[1] / max(sum(seen), 1)


def try_threads(ask: Ask, indices: list[object], counts: tuple[int, ...], sample_s: float, until_s: float) -> Threads:
    """Make the same samples on each number of threads in turn, in several rounds; return the medians.

    `sample_s` is the usual time of a sample. Stops after the rounds, or at `until_s` on `time.monotonic`'s clock.
    """
    found: dict[int, list[OnThreads]] = {}
    helped: list[float] = []
    failure = ""
    some = indices[:_THREADED_SAMPLES]
    round_s = max(_ROUND_S, _ROUND_SAMPLES * sample_s)
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        for place, count in enumerate(counts * _ROUNDS):
            if failure or (place >= len(counts) and time.monotonic() + round_s > until_s):
                break
            firsts = [number * len(some) // count for number in range(count)]
            calls = [_maker(ask, itertools.cycle(some[first:] + some[:first])) for first in firsts]
            computed_s = time.process_time()
            made = on_threads(calls, time.monotonic() + round_s)
            failure = "" if made.failure is None else users_traceback(made.failure)
            if made.rate:
                found.setdefault(count, []).append(made)
            if count == 1:
                helped.append((time.process_time() - computed_s) / max(made.computed_s, 1e-6))
    finally:
        sys.setswitchinterval(switch_s)
    if 1 not in found:
        return Threads(failure=failure)
    rates, awake = (
        {count: float(np.median([getattr(made, name) for made in several])) for count, several in found.items()}
        for name in ("rate", "awake")
    )
    # Rates depend on what else uses the cores; the time in which threads wait for each other does not.
    is_known = 2 in awake and awake[1] > 0 and np.median(helped) <= _HELPED
    return Threads(rates, 2 * awake[2] / awake[1] if is_known else None, failure)


def _maker(ask: Ask, indices: Iterator[object]) -> Callable[[], object]:
    return lambda: ask(next(indices))
