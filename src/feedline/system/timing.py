"""Measure how long something takes, on one or several threads, on a machine that may be busy."""

from __future__ import annotations

import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO
from typing import Any

_PATH = "/proc/thread-self/schedstat"
_EMPTY = 20
_REPEATS = 5
_MOST_FAILURES = 16


class Clock:
    """The time of one thread, in seconds: without that in which it was ready to run and had no core.

    Where the system does not tell how long that was, it is the time on the wall.
    """

    def __init__(self) -> None:
        try:
            self._fd = os.open(_PATH, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1
        self._cost_s = 0.0
        self._cost_s = min(self.since(self.now())[0] for _ in range(_EMPTY))
        """What looking at it takes."""

    def now(self) -> tuple[float, float]:
        """Return the time, and how much of it the thread has been computing."""
        waited_ns = int(os.pread(self._fd, 64, 0).split()[1]) if self._fd >= 0 else 0
        return (time.perf_counter_ns() - waited_ns) / 1e9, time.thread_time_ns() / 1e9

    def since(self, before: tuple[float, float]) -> tuple[float, float]:
        """Return how much time has gone by, and how much of it was computing."""
        now, computed = self.now()
        return max(now - before[0] - self._cost_s, 1e-7), max(computed - before[1], 0.0)

    def close(self) -> None:
        """Give back the descriptor. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_APART_NS = 300_000
"""Time of a task besides its CPU time from which on the run queue is looked at: a look takes about 8 us."""


class TaskCpu:
    """CPU time of one task after the other, and how long each was ready to run and had no core.

    The second is 0 of tasks that compute nearly all the time, and where the system does not report it (not Linux).
    The thread that runs the task calls `begin` and `spent`. Each takes less than a microsecond, or about 10 us where
    tasks wait.

    Args:
        of_process: count the time of all threads of this process, not of the calling thread alone.

    Example:
        >>> cpu = TaskCpu()
        >>> cpu.begin()
        >>> computed_ns, queued_ns = cpu.spent(busy_ns=1000)
        >>> computed_ns >= 0, queued_ns
        (True, 0)
    """

    __slots__ = ("_began_ns", "_cpu_ns", "_looks", "_queued_ns")

    def __init__(self, *, of_process: bool = False) -> None:
        self._cpu_ns = time.process_time_ns if of_process else time.thread_time_ns
        self._began_ns = self._queued_ns = 0
        self._looks = True
        """True if the last task was at something else than computing."""

    def begin(self) -> None:
        """Begin a task."""
        if self._looks:
            self._queued_ns = queued_ns()
        self._began_ns = self._cpu_ns()

    def spent(self, busy_ns: int) -> tuple[int, int]:
        """Return the CPU time since the task began, and how long it had no core; it has taken `busy_ns` until now."""
        computed = self._cpu_ns() - self._began_ns
        apart = busy_ns - computed
        self._looks = apart > _APART_NS
        if not self._looks:
            return computed, 0
        # If `begin` did not look, this counts from an earlier look on: more than the rest of the task it cannot be.
        before, self._queued_ns = self._queued_ns, queued_ns()
        return computed, min(max(self._queued_ns - before, 0), apart)


def queued_ns() -> int:
    """Return how long this thread has been ready to run and had no core, in all; 0 where the system does not say."""
    try:
        # An object, not a number from `os.open`: a signal handler may raise before a number is assigned, and nothing
        # would ever close it. Test: tests/faults/test_storm.py. `FileIO` takes half as long as `open`.
        with FileIO(_PATH) as file:
            return int(file.read(64).split()[1])
    except OSError:
        return 0


# Any: whatever the function returns is dropped.
def usual_s(function: Callable[[], Any], clock: Clock, *, most_s: float = 0.2) -> float:
    """Return the median of some calls, of which the first may have been the only one."""
    times: list[float] = []
    while len(times) < _REPEATS and sum(times) < most_s:
        before = clock.now()
        function()
        times.append(clock.since(before)[0])
    return statistics.median(times)


@dataclass(frozen=True)
class OnThreads:
    """What several threads did at the same time."""

    rate: float
    """Calls a second of all of them; 0 if one of them had no success."""
    computed_s: float
    """How long they computed, all together."""
    awake: float = 0.0
    """The share of their time in which they computed or waited for a core. The rest they slept, or waited for the
    interpreter's lock. It is the same whatever the speed of the cores and whoever else uses them."""
    failure: Exception | None = None
    """What a call raised, if one did."""


# Any: as above.
def on_threads(calls: Sequence[Callable[[], Any]], until_s: float, *, give_up_s: float = math.inf) -> OnThreads:
    """Have each of these called by a thread of its own, again and again, until a time on `time.monotonic`'s clock.

    A thread that is still inside of a call at `give_up_s` is left alone, and has had no success.

    With one call and then with two, it shows how much of the time the interpreter's lock (GIL) is held: a thread that
    waits for the lock makes less, one that waits for a core does not.
    """
    found: list[tuple[float, float, float]] = []
    failures: list[Exception] = []
    begun: list[float] = []
    barrier = threading.Barrier(len(calls), action=lambda: begun.append(time.perf_counter()))

    def work(call: Callable[[], Any]) -> None:
        clock, count = Clock(), 0
        # Before the barrier: behind it, the first wait for the lock would not count. It is looked at twice only, as a
        # look gives up the lock.
        arrived_s, before = time.perf_counter(), clock.now()
        barrier.wait()
        while True:
            try:
                call()
                count += 1
            except Exception as exc:  # whatever the user's code raises, perhaps only on threads
                failures.append(exc)
            if time.monotonic() > until_s or len(failures) > _MOST_FAILURES:
                break
        spent_s, computed_s = clock.since(before)
        spent_s = max(spent_s - (begun[0] - arrived_s), 1e-7)
        clock.close()
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
