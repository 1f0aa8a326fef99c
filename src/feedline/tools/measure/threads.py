"""Whether several threads make more samples than one, or wait for a lock of the dataset or of the interpreter."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator

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

_SLEEPING = 0.5
"""A thread that is awake for a smaller share of its time mostly sleeps: rates do not depend on other programs then."""

_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Semaphore, threading.Condition)


def lock_in(dataset: object) -> str:
    """Return the name of a lock in a dataset, in its class or in the module of its class; empty if there is none."""
    kind = type(dataset)
    found = objects_in(dataset, _LOCKS)
    for owner, names in ((kind.__qualname__, kind), (kind.__module__, sys.modules.get(kind.__module__))):
        found += [(f"{owner}.{name}", value) for name, value in getattr(names, "__dict__", {}).items()]
    return next((path for path, value in found if isinstance(value, _LOCKS)), "")


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
    speedup = None
    if 2 in rates and awake[1] < _SLEEPING:
        speedup = rates[2] / rates[1]
    elif 2 in rates and np.median(helped) <= _HELPED:
        speedup = 2 * awake[2] / awake[1]  # unlike rates, this does not depend on what else uses the cores
    return Threads(rates, speedup, failure)


def _maker(ask: Ask, indices: Iterator[object]) -> Callable[[], object]:
    return lambda: ask(next(indices))
