"""The engine of a simulated world: tasks in, answers out, and a clock that jumps to the next event."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable

from feedline.abc.engine import Engine
from feedline.abc.worker_spec import WorkerSpec
from feedline.simulation.scenario import LawBroken, Scenario, draw_s
from feedline.types import NO_TIMES, Result, ResultKind, Task

TICK_S = 1e-9
"""The smallest step of the clock."""
_LATE = 20.0


class Worker:
    """A simulated worker: makes its batches one after the other."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.queue: deque[Task] = deque()
        """Tasks without an answer so far."""
        self.is_ready = False
        self.has_begun = False
        """True if it has started the first task in the queue."""
        self.read = 0
        """Tasks at the head of the queue that it has read: with the one it has started, those that came with it."""
        self.joined: dict[int, int] = {}
        """Tasks that were sent together with others, each with the first of them, by their ids."""

    def begin(self) -> Task:
        """Start the first task in the queue, and return it."""
        self.has_begun = True
        task = self.queue[0]
        if not self.read:
            first = self.joined.get(task.id)
            self.read = 1 if first is None else sum(self.joined.get(other.id) == first for other in self.queue)
        return task

    def end(self) -> Task:
        """Remove the task that it had started, and return it."""
        self.has_begun = False
        self.read -= 1
        task = self.queue.popleft()
        self.joined.pop(task.id, None)
        return task

    def revoke(self) -> int | None:
        """Take back the oldest task that it has not started, and return its id; None if there is none."""
        if len(self.queue) <= self.read:
            return None
        task = self.queue[self.read]
        del self.queue[self.read]
        first = self.joined.get(task.id)
        self.joined = {one: other for one, other in self.joined.items() if other != first}  # resent one by one
        return task.id


class SimulatedEngine(Engine):
    """An engine whose workers run in virtual time, with drawn or recorded durations. A sample is its own index."""

    def __init__(self, scenario: Scenario) -> None:
        self.worker_count = scenario.workers
        self.ordinal_of: Callable[[int, int], int] = lambda worker, task_id: task_id
        """Returns the number of the batch of a task, from its worker and its id."""
        self.now_s = 0.0
        self._scenario = scenario
        self._dice = random.Random(scenario.seed)
        self._events: list[tuple[float, int, Worker, Result | None]] = []
        """When, a number that keeps their order, whose, and what: an answer, or None for a worker that is ready."""
        self._count = 0
        self._results: list[Result] = []
        self._workers = [Worker(number) for number in range(scenario.workers)]
        for worker in self._workers:
            self._at(draw_s(self._dice, scenario.start_s), worker, None)

    def clock(self) -> float:
        """Return the virtual time."""
        return self.now_s

    def open(self, spec: WorkerSpec) -> None:
        """Do nothing: the workers exist already."""

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        """Advance to the next event or to the end of the timeout, and return results."""
        until_s = None if timeout_s is None else self.now_s + max(0.0, timeout_s)
        while True:
            self._let_happen()
            if self._results:
                results, self._results = self._results, []
                return results
            next_s = self._events[0][0] if self._events else None
            if next_s is None and timeout_s != 0.0:
                raise LawBroken("the loader waits, but nothing will ever happen")
            if until_s is not None and (next_s is None or next_s > until_s):
                # The clock advances even if the rest of the timeout is too small to change a float.
                self.now_s = max(until_s, self.now_s + TICK_S)
                return []
            assert next_s is not None
            self.now_s = max(self.now_s, next_s)

    def _at(self, seconds: float, worker: Worker, result: Result | None) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_s + seconds, self._count, worker, result))

    def _let_happen(self) -> None:
        """Handle all events that are due."""
        now_s, events = self.now_s, self._events
        while events and events[0][0] <= now_s:
            self.now_s, _, worker, result = heapq.heappop(events)
            if result is None:
                worker.is_ready = True
            else:
                worker.end()
                self._results.append(result)
            self._go_on(worker)
        self.now_s = now_s

    def _go_on(self, worker: Worker) -> None:
        """Start the next task of a worker, if it has one and can start it."""
        if not worker.queue or worker.has_begun or not worker.is_ready:
            return
        task, scenario = worker.begin(), self._scenario
        seconds = draw_s(self._dice, scenario.batch_s, self.ordinal_of(worker.number, task.id))
        seconds *= scenario.contention(sum(one.has_begun for one in self._workers))
        if scenario.late and self._dice.random() < scenario.late:
            seconds *= _LATE
        batch = task.indices if scenario.batch_size is None else list(task.indices)
        result = Result(ResultKind.DONE, worker.number, task.id, batch)
        result.busy_ns = max(1, int(seconds * 1e9))
        result.times = (round(self.now_s * 1e9), *NO_TIMES[1:])
        self._at(seconds, worker, result)

    def submit(self, worker: int, task: Task) -> None:
        self._let_happen()
        self._workers[worker].queue.append(task)
        self._go_on(self._workers[worker])

    def submit_together(self, worker: int, tasks: list[Task]) -> None:
        self._workers[worker].joined.update((task.id, tasks[0].id) for task in tasks)
        for task in tasks:
            self.submit(worker, task)

    def revoke(self, worker: int) -> int | None:
        self._let_happen()
        return self._workers[worker].revoke()

    def close(self) -> None:
        """Cancel all events."""
        self._events.clear()
