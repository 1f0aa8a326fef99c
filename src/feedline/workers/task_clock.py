"""How long the tasks of one worker take: fetching, collating, stages that a dataset names, slow samples, CPU time."""

from __future__ import annotations

import heapq
import operator

from feedline.abc.faults import plain_index
from feedline.abc.worker_spec import WorkerSpec
from feedline.randomness.scope import Scope
from feedline.system.timing import TaskCpu
from feedline.types import Span, TaskNotes

_SLOW_NS = 100_000
"""Samples that take longer than this, on average, are timed one by one."""
_SLOWEST = 10


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
            task_notes.slow.append((spent, plain_index(index)))
        scope.slow = [] if are_slow else None
        return task_notes if task_notes.stages or task_notes.slow or task_notes.packed[1] else None

    def _count_of(self, indices: object) -> int:
        if not self._spec.batched:
            return 1
        if type(indices) is Span and self._spec.sharding is not None:
            return self._spec.sharding.batch_size
        return indices if type(indices) is int else operator.length_hint(indices, 1)
