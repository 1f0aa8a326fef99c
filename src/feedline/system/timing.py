"""Measure how long something takes, on one or several threads, on a machine that may be busy."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO

_PATH = "/proc/thread-self/schedstat"
_EMPTY = 20
_MOST_FAILURES = 16


class Clock:
    """The time of one thread, in seconds: without the time in which it was ready to run and had no core.

    If the system does not report that time, this is wall-clock time.
    """

    def __init__(self) -> None:
        self._cost_s = 0.0
        self._cost_s = min(self.since(self.now())[0] for _ in range(_EMPTY))
        """Time that a reading takes."""

    def now(self) -> tuple[float, float]:
        """Return the thread's time, and its CPU time."""
        return (time.perf_counter_ns() - queued_ns()) / 1e9, time.thread_time_ns() / 1e9

    def since(self, before: tuple[float, float]) -> tuple[float, float]:
        """Return the elapsed time, and how much of it was CPU time."""
        now, computed = self.now()
        return max(now - before[0] - self._cost_s, 1e-7), max(computed - before[1], 0.0)


def queued_ns() -> int:
    """Return how long this thread has been ready to run without a core, in all; 0 if the system does not report it."""
    try:
        # An object, not a number from `os.open`: a signal handler may raise before a number is assigned, which would
        # then never be closed. Test: tests/faults/test_storm.py. `FileIO` takes half as long as `open`.
        with FileIO(_PATH) as file:
            return int(file.read(64).split()[1])
    except OSError:
        return 0


@dataclass(frozen=True)
class OnThreads:
    """Measurements of several threads that ran at the same time."""

    rate: float
    """Calls per second of all threads together; 0 if a thread had no success."""
    computed_s: float
    """CPU time of all threads together."""
    awake: float = 0.0
    """The share of their time in which they computed or waited for a core. The rest they slept, or waited for the
    interpreter's lock. It does not depend on the speed of the cores or on what else uses them.
    """
    failure: Exception | None = None
    """An exception that a call raised, if one did."""


# object: the results of the functions are dropped.
def on_threads(calls: Sequence[Callable[[], object]], until_s: float, *, give_up_s: float = math.inf) -> OnThreads:
    """Call each function on a thread of its own, repeatedly, until a time on `time.monotonic`'s clock.

    A thread that is still inside a call at `give_up_s` is abandoned and counts as without success.

    Comparing one thread with two shows how much of the time the interpreter's lock (GIL) is held: a thread that waits
    for the lock makes fewer calls, one that waits for a core does not.
    """
    found: list[tuple[float, float, float]] = []
    failures: list[Exception] = []
    begun: list[float] = []
    barrier = threading.Barrier(len(calls), action=lambda: begun.append(time.perf_counter()))

    def work(call: Callable[[], object]) -> None:
        clock, count = Clock(), 0
        # Before the barrier: after it, the first wait for the lock would not count. The clock is read only twice,
        # because reading it releases the lock.
        arrived_s, before = time.perf_counter(), clock.now()
        barrier.wait()
        while True:
            try:
                call()
                count += 1
            except Exception as exc:  # anything the user's code raises, perhaps only on threads
                failures.append(exc)
            if time.monotonic() > until_s or len(failures) > _MOST_FAILURES:
                break
        spent_s, computed_s = clock.since(before)
        spent_s = max(spent_s - (begun[0] - arrived_s), 1e-7)
        slept_s, whole_s = max(0.0, spent_s - computed_s), time.perf_counter() - begun[0]
        found.append((count / spent_s, computed_s, 1 - min(1.0, slept_s / whole_s)))

    threads = [threading.Thread(target=work, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(min(max(0.0, give_up_s - time.monotonic()), threading.TIMEOUT_MAX))
    ended = list(found)
    rates = [rate for rate, _, _ in ended]
    rate = sum(rates) if all(rates) and len(rates) == len(calls) else 0.0
    awake = sum(share for _, _, share in ended) / max(len(ended), 1)
    return OnThreads(rate, sum(computed for _, computed, _ in ended), awake, failures[0] if failures else None)
