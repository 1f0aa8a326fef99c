"""Memory use of workers: reports those that grow, and finds those that use too much.

The training process reads it from the system about once a second; workers do nothing for it. Only a worker's private
memory counts, not the arena or files that it maps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedline.abc.engine import Engine
from feedline.system.process import own_bytes, rolled_up, seen_bytes

if TYPE_CHECKING:
    from feedline.insight.stats import WorkerMemory

_EVERY_S = 1.0
_MOST_SHARE = 0.01
"""Maximum share of the time spent on measuring: large workers are measured less often."""
_BASE_AFTER = 5
"""Measurements after which growth counts: memory used by then belongs to the dataset and is no leak. A guess."""
_NOTABLE_BYTES = 512 << 20
"""Growth since then that is worth a warning, once per doubling. A guess: large enough for caches of small files."""


@dataclass
class _Record:
    looks: int = 0
    base_bytes: int = 0
    """What the worker used when growth began to count."""
    reported_bytes: int = 0
    is_kept: bool = False
    """True if it used too much from the beginning: its replacement would, too."""


class MemoryWatch:
    """Measures the memory of an engine's workers.

    Args:
        engine: the workers.
        most_bytes: maximum memory of each worker; None for no limit.
    """

    def __init__(self, engine: Engine, most_bytes: int | None = None) -> None:
        self._engine = engine
        self._most = most_bytes
        self.records: dict[int, _Record] = {}
        """The measurements of each watched worker."""
        self.next_s = 0.0
        """When to measure again, on the clock of `time.monotonic`."""

    def begin(self, worker: int) -> str | None:
        """Watch a worker from its first answer on; returns a warning if it already uses too much."""
        record = self.records[worker] = _Record()
        pid, used = self._engine.pid(worker), self._excess(worker)
        if pid is None or used is None or self._most is None:
            return None
        record.looks, record.is_kept = _BASE_AFTER, True
        record.base_bytes = record.reported_bytes = seen_bytes(pid) or used
        return (
            f"Worker {worker} (pid {pid}) has {used >> 20} MiB of private memory after its first batch, but "
            f"max_memory_per_worker allows {self._most >> 20}. Raise max_memory_per_worker. The worker is kept, "
            "because its replacement would use as much."
        )

    def forget(self, worker: int) -> None:
        """Stop watching a worker: another one replaces it."""
        self.records.pop(worker, None)

    def look(self, now_s: float) -> Iterator[str | int]:
        """Measure every worker; yield a warning for each that has grown a lot, or its number if it uses too much."""
        began_s = time.perf_counter()
        found = [one for worker, record in self.records.items() if (one := self._found(worker, record)) is not None]
        self.next_s = now_s + max(_EVERY_S, (time.perf_counter() - began_s) / _MOST_SHARE)
        yield from found

    def _found(self, worker: int, record: _Record) -> str | int | None:
        pid = self._engine.pid(worker)
        seen = None if pid is None else seen_bytes(pid)
        if pid is None or seen is None:
            return None
        if not record.is_kept and self._excess(worker) is not None:
            return worker
        if record.looks < _BASE_AFTER:
            record.looks += 1
            record.base_bytes = record.reported_bytes = seen
        elif seen - record.base_bytes > max(_NOTABLE_BYTES, 2 * (record.reported_bytes - record.base_bytes)):
            record.reported_bytes = seen
            grown, now = seen - record.base_bytes, own_bytes(pid) or seen
            return (
                f"Worker {worker} (pid {pid}) has grown by {grown >> 20} MiB since its first batches, to "
                f"{now >> 20} MiB of private memory. Either it has a cache without a limit, or the dataset or a "
                "library that it uses leaks memory. Set max_memory_per_worker= to replace workers that have grown too "
                "large, between two batches."
            )
        return None

    def pids(self) -> list[int]:
        """Return the process ids of workers that have answered and are alive."""
        found = (self._pid_if_there(worker) for worker in list(self.records))
        return [pid for pid in found if pid is not None]

    def _pid_if_there(self, worker: int) -> int | None:
        try:
            return self._engine.pid(worker)
        except (IndexError, ValueError):  # another thread has closed the engine, or is about to
            return None

    def memory(self) -> Iterator[WorkerMemory]:
        """Yield the memory of each worker, where the system reports it; takes a millisecond per gigabyte."""
        from feedline.insight.stats import WorkerMemory

        for worker, record in list(self.records.items()):
            pid = self._pid_if_there(worker)
            shared, seen = (None, None) if pid is None else (rolled_up(pid, ("Pss",)), seen_bytes(pid))
            if shared is not None and seen is not None:
                growth = seen - record.base_bytes if record.looks >= _BASE_AFTER else 0
                yield WorkerMemory(worker, shared, growth)

    def _excess(self, worker: int) -> int | None:
        """Return the memory of a worker if it is too much, else None."""
        pid = self._engine.pid(worker)
        if pid is None or self._most is None or (seen_bytes(pid) or 0) <= self._most:
            return None
        used = own_bytes(pid)
        return used if used is not None and used > self._most else None
