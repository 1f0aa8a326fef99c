"""The engine of a simulated world: tasks in, answers and deaths out, and a clock that jumps to the next event."""

from __future__ import annotations

import heapq
import random
import zlib
from collections import deque
from collections.abc import Callable

from feedline.abc.engine import Engine
from feedline.abc.worker_spec import WorkerSpec
from feedline.errors import WorkerDied, WorkerStartError
from feedline.simulation.engine import TICK_S
from feedline.simulation.scenario import LawBroken, draw_s
from feedline.types import NO_TIMES, Call, Result, ResultKind, SlotBatch, Task
from tests.simulation.dataset import NotReady
from tests.simulation.scenario import Scenario
from tests.simulation.slots import CountedSlots
from tests.simulation.worker import Worker


class Trace:
    """The log of events: the last ones as text, and a checksum of all."""

    def __init__(self, length: int = 400) -> None:
        self.lines: deque[str] = deque(maxlen=length)
        self.checksum = 0
        self.events = 0

    def add(self, now_s: float, what: str, *facts: object) -> None:
        """Record an event."""
        self.events += 1
        line = f"{now_s:.6f} {what} {' '.join(map(str, facts))}"
        self.lines.append(line)
        self.checksum = zlib.crc32(line.encode(), self.checksum)


class SimulatedEngine(Engine):
    """An engine whose workers run in virtual time, with drawn durations and accidents.

    Args:
        scenario: what is simulated.
        spec: the settings of all workers; its `worker_count` is the maximum.
        slots: where workers write batches.
        dice: the source of all randomness.
        count: number of workers at the start.
        trace: where events are recorded.
    """

    def __init__(
        self,
        scenario: Scenario,
        spec: WorkerSpec,
        slots: CountedSlots,
        dice: random.Random,
        count: int,
        trace: Trace,
    ) -> None:
        self.worker_count = count
        self.on_given: Callable[[int, Task], int] = lambda worker, task: 0
        """Called with every task that a worker gets; returns the number of its batch."""
        self.now_s = 0.0
        self._trace = trace
        self._scenario = scenario
        self._spec = spec
        self._slots = slots
        self._dice = dice
        self._calls: list[int] = spec.dataset.calls
        """The calls that the loader's own dataset has received."""
        self._events: list[tuple[float, int, Worker, Result | Exception | None]] = []
        """When, a number that keeps their order, whose, and what: an answer, an error that ends the worker, or None
        for a worker that is ready.
        """
        self._count = 0
        self._results: deque[tuple[Worker | None, Result]] = deque()
        """Results that have not been collected, with their workers; None for a worker that has been replaced."""
        self._known: dict[int, tuple[int, int]] = {}
        """For each task: the number of calls that its worker must have received before starting it, and the number of
        its batch.
        """
        self.workers = [Worker(number, 0, spec, scenario, dice) for number in range(spec.worker_count)]
        for worker in self.workers:
            worker.is_absent = worker.number >= count
            if not worker.is_absent:
                self._get_ready(worker)

    def clock(self) -> float:
        """Return the virtual time."""
        return self.now_s

    def open(self, spec: WorkerSpec) -> None:
        """Do nothing: the workers exist already."""

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        return [result for _, result in self.collect_with_workers(timeout_s, worker)]

    def collect_with_workers(self, pause_s: float | None, worker: int | None) -> list[tuple[Worker | None, Result]]:
        """Advance to the next event or to the end of the pause; return results with their workers."""
        until_s = None if pause_s is None else self.now_s + max(0.0, pause_s)
        while True:
            self._let_happen()
            # If the machine waits for one worker, sometimes return only its results: engines may hold back the others.
            alone = worker is not None and self._dice.random() < 0.5
            results = [one for one in self._results if not alone or one[1].worker == worker]
            if results:
                self._results = deque([one for one in self._results if alone and one[1].worker != worker])
                return results
            next_s = self._events[0][0] if self._events else None
            if next_s is None and pause_s != 0.0 and (until_s is None or not self._scenario.timeout_s):
                if self._results:
                    continue
                raise LawBroken("the machine waits, but nothing will ever happen")
            if until_s is not None and (next_s is None or next_s > until_s):
                # The clock advances even if the rest of the pause is too small to change a float.
                self.now_s = max(until_s, self.now_s + TICK_S)
                return []
            assert next_s is not None
            self.now_s = max(self.now_s, next_s)

    def _at(self, seconds: float, worker: Worker, fact: Result | Exception | None = None) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_s + seconds, self._count, worker, fact))

    def _let_happen(self) -> None:
        """Handle all events that are due."""
        now_s, events = self.now_s, self._events
        while events and events[0][0] <= now_s:
            self.now_s, _, worker, fact = heapq.heappop(events)
            if self.workers[worker.number] is not worker or worker.is_dead or worker.is_absent:
                continue
            if fact is None:
                worker.is_ready = True
                self._go_on(worker)
            elif isinstance(fact, Result):
                self._answer(worker, fact)
            else:
                self._die(worker, fact)
        self.now_s = now_s

    def _get_ready(self, worker: Worker) -> None:
        accidents, dice = self._scenario.accidents, self._dice
        seconds = draw_s(dice, self._scenario.start_s)
        if accidents.killed_at_start and dice.random() < accidents.killed_at_start:
            killed = WorkerDied(f"worker {worker.number} was killed before it was ready.")
            killed.was_ready, killed.was_killed = False, True
            self._at(seconds, worker, killed)
        elif accidents.death_at_start and dice.random() < accidents.death_at_start:
            death: Exception = WorkerDied(f"worker {worker.number} died before it was ready.")
            death.was_ready, death.was_killed = False, dice.random() < 0.7  # type: ignore[attr-defined]  # WorkerDied
            if dice.random() < 0.3:
                death = NotReady("in worker_init_fn")
            self._at(seconds, worker, death)
        else:
            self._at(seconds, worker)

    def _go_on(self, worker: Worker) -> None:
        """Start the next task of a worker, if it has one and can start it."""
        if not worker.queue or worker.has_begun or not worker.is_ready or worker.is_dead or worker.is_stopped:
            return
        task = worker.queue[0]
        needs, ordinal = self._known.get(task.id, (0, 0))
        if not (worker.is_at_call or worker.has_received(needs)):
            raise LawBroken(f"worker {worker.number} starts task {task.id} before a call that was made earlier")
        shares = self._scenario.cores is not None
        at_work = 1 + sum(other.has_begun and not other.is_dead for other in self.workers) if shares else 1
        outcome = worker.run(self._calls, ordinal, at_work)
        worker.reads_until_s = self.now_s + outcome.reading_s if outcome.reading_s else 0.0
        if outcome.result is not None:
            outcome.result.times = (round(self.now_s * 1e9), *NO_TIMES[1:])
            self._at(outcome.seconds, worker, outcome.result)
        elif outcome.dies:
            self._at(outcome.seconds, worker, WorkerDied(f"worker {worker.number} was killed."))

    def _answer(self, worker: Worker, result: Result) -> None:
        task = worker.end()
        worker.unreported += 1
        self._known.pop(task.id, None)
        if result.kind is ResultKind.DONE and type(task.indices) is not Call:
            if task.slot >= 0:
                self._slots.memory[task.slot] = result.payload
            result.payload = SlotBatch(result.payload, task.slot, 1)
        self._results.append((worker, result))
        stop = self._scenario.accidents.stop
        if stop and self._dice.random() < stop:
            self._trace.add(self.now_s, "stopped", worker.number)
            worker.is_stopped = True
        self._go_on(worker)

    def _die(self, worker: Worker, death: Exception) -> None:
        worker.is_dead = True
        if worker.has_begun and worker.queue[0].slot >= 0:
            self._slots.memory[worker.queue[0].slot] = "half of a batch"
        self._results.append((worker, Result(ResultKind.DIED, worker.number, -1, death)))

    # -- requests to workers -----------------------------------------------------------------------------------------

    def submit(self, worker: int, task: Task) -> None:
        ordinal = self.on_given(worker, task)
        given = self.workers[worker]
        if given.is_leaving and type(task.indices) is not Call:
            raise LawBroken(f"worker {worker} is about to be replaced, but gets task {task.id}")
        if given.is_absent:
            raise LawBroken(f"worker {worker} is not running, but gets task {task.id}")
        self._let_happen()
        self._known[task.id] = (len(self._calls), ordinal)
        given.queue.append(task)
        self._go_on(given)

    def submit_together(self, worker: int, tasks: list[Task]) -> None:
        if any(task.slot >= 0 or type(task.indices) is Call for task in tasks):
            raise NotImplementedError  # as with worker processes
        self.workers[worker].joined.update((task.id, tasks[0].id) for task in tasks)
        for task in tasks:
            self.submit(worker, task)

    def revoke(self, worker: int) -> int | None:
        self._let_happen()
        task_id = self.workers[worker].revoke()
        if task_id is not None:
            self._known.pop(task_id, None)
        return task_id

    def replace(self, worker: int) -> None:
        self._trace.add(self.now_s, "start", worker)
        old, dice, accidents = self.workers[worker], self._dice, self._scenario.accidents
        if accidents.no_start and dice.random() < accidents.no_start:
            raise WorkerStartError("There are too many processes.")
        if old.queue and accidents.late_answer and dice.random() < accidents.late_answer:
            task = dice.choice(old.queue)
            late = Result(ResultKind.DONE, worker, task.id, SlotBatch(["too late"], task.slot, 1))
            self._results.append((None, late))
        self.workers[worker] = Worker(worker, old.life + 1, self._spec, self._scenario, dice)
        self._get_ready(self.workers[worker])

    def retire(self, worker: int) -> None:
        """End a worker for good. Its uncollected results, such as its death, are dropped."""
        self._trace.add(self.now_s, "retire", worker)
        old = self.workers[worker]
        if old.outstanding:
            raise LawBroken(f"worker {worker} is retired while it has {old.outstanding} tasks")
        old.is_absent = True
        self._results = deque(one for one in self._results if one[0] is not old)

    def kill(self, worker: int) -> bool:
        self._trace.add(self.now_s, "kill", worker)
        self._let_happen()
        if not self.workers[worker].is_dead:
            self._die(self.workers[worker], WorkerDied(f"worker {worker} was ended."))
        return True

    def alive_s(self, worker: int) -> float:
        """Return when a worker last read a sample that precedes its task."""
        return min(self.now_s, self.workers[worker].reads_until_s)

    def close(self) -> None:
        """Cancel all events."""
        self._events.clear()
