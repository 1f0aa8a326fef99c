"""Measure tasks: fetching, collating, named stages, slow samples, CPU time."""

from __future__ import annotations

import heapq
import operator
import time

from feedline.abc.faults import plain_index
from feedline.abc.worker_spec import WorkerSpec
from feedline.randomness.scope import Scope
from feedline.system.timing import queued_ns
from feedline.types import IndexBlock, Span, TaskNotes

_SLOW_NS = 100_000
"""Samples that take longer than this, on average, are timed one by one."""
_SLOWEST = 10

_APART_NS = 300_000
"""The run queue is read after tasks that spent more than this not computing: reading it takes about 8 us."""


class TaskClock:
    """Measures the tasks of one worker.

    Args:
        spec: what all workers share.
        scope: where the worker notes stages and samples.
        cpu: measures the CPU time of the current task.
    """

    def __init__(self, spec: WorkerSpec, scope: Scope, cpu: TaskCpu) -> None:
        self._spec = spec
        self._scope = scope
        self.cpu = cpu
        """CPU time of the current task."""
        self._slowest: list[int] = []
        """How long the slowest samples took, as a heap."""

    def begin(self) -> None:
        """Measure the next task, in a worker that does not measure all of them."""
        self._scope.is_timed = True
        self._scope.stages.clear()  # they may be from several tasks that were not timed
        self._scope.packed = (0, 0)

    def end(self) -> None:
        """Measure no more tasks."""
        self._scope.is_timed = False

    def of(self, began: int, ended: int, indices: object) -> tuple[int, int, TaskNotes | None]:
        """Return how long fetching and collating a task took, and extra timings if there are any."""
        scope = self._scope
        collating = scope.collating
        if collating < began:  # it is from another task
            collating = ended
        fetch = collating - began
        task_notes = None
        are_slow = fetch > _SLOW_NS and fetch > _SLOW_NS * self._count_of(indices)
        if are_slow or scope.stages or scope.slow is not None or scope.packed[1]:
            task_notes = self._notes(are_slow)
        return fetch, ended - collating, task_notes

    def _notes(self, are_slow: bool) -> TaskNotes | None:
        """Return the times of named stages, and of samples that are among this worker's slowest."""
        scope = self._scope
        task_notes = TaskNotes({name: spent for name, spent in scope.stages.items() if spent > 0}, packed=scope.packed)
        scope.stages.clear()
        scope.packed = (0, 0)
        for spent, index in scope.slow or ():
            if len(self._slowest) < _SLOWEST:
                heapq.heappush(self._slowest, spent)
            elif spent <= self._slowest[0]:
                continue
            else:
                heapq.heapreplace(self._slowest, spent)
            task_notes.slow.append((spent, index if type(index) is int else plain_index(index)))
        scope.slow = [] if are_slow else None
        return task_notes if task_notes.stages or task_notes.slow or task_notes.packed[1] else None

    def _count_of(self, indices: object) -> int:
        if not self._spec.batched:
            return 1
        if type(indices) is Span and self._spec.sharding is not None:
            return self._spec.sharding.batch_size
        if type(indices) is IndexBlock:
            return len(indices.array)
        return indices if type(indices) is int else operator.length_hint(indices, 1)


class TaskCpu:
    """CPU time of one task after the other, and how long each was ready to run and had no core.

    The second is 0 for tasks that compute nearly all the time, and where the system does not report it (not Linux).
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

    __slots__ = ("_began_ns", "_cpu_ns", "_queued_ns", "_reads_queue")

    def __init__(self, *, of_process: bool = False) -> None:
        self._cpu_ns = time.process_time_ns if of_process else time.thread_time_ns
        self._began_ns = self._queued_ns = 0
        self._reads_queue = True
        """True if the last task did something other than compute."""

    def begin(self) -> None:
        """Begin a task."""
        if self._reads_queue:
            self._queued_ns = queued_ns()
        self._began_ns = self._cpu_ns()

    def spent(self, busy_ns: int) -> tuple[int, int]:
        """Return the CPU time since the task began, and how long it had no core; it has taken `busy_ns` so far."""
        computed = self._cpu_ns() - self._began_ns
        apart = busy_ns - computed
        self._reads_queue = apart > _APART_NS
        if not self._reads_queue:
            return computed, 0
        # If `begin` did not read it, this counts from an earlier reading. It cannot exceed the rest of the task.
        before, self._queued_ns = self._queued_ns, queued_ns()
        return computed, min(max(self._queued_ns - before, 0), apart)
