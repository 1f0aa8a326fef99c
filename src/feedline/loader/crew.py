"""Workers at work: an engine, the slots their batches lie in, and who is doing what.

A crew outlives an epoch when workers are persistent. Every task has a number that is never used again, so that answers
to tasks of an epoch the training loop has left are recognised and their slots taken back.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from feedline.abc.engine import Engine
from feedline.abc.framework import Framework
from feedline.abc.scheduler import WorkerView
from feedline.loader.splitting import Group, Splitter
from feedline.transport.arena import Arena
from feedline.transport.codec import Codec
from feedline.types import Call, Draw, Parcel, Result, ResultKind, Resume, Task

_START_UP_S = 2.0
"""Time a worker has for getting ready before it can count as late; importing torch takes about one second."""


_UNKNOWN_S = 0.1
"""Taken for the time of a task before any has been answered. A guess, not measured."""


@dataclass(slots=True)
class Counters:
    """What happened so far; shown by `stats()`."""

    batches: int = 0
    copied_out: int = 0
    """Batches copied into ordinary memory because slots were short."""
    overflowed: int = 0
    """Batches that came in memory of their own because they had no slot or did not fit."""
    relieved: int = 0
    """Waiting tasks that went from a late worker to an idle one."""
    run_ahead: int = 0
    """Tasks begun beyond the window while an early batch was late."""
    failures: int = 0
    wait_ns: int = 0
    """Time the training loop spent waiting."""


@dataclass(slots=True)
class Pending:
    """A task that is under way."""

    owner: Any
    """The epoch that asked for it."""
    ordinal: int
    worker: int
    task: Task
    group: Group | None = None
    """Of which batch it is a part, if it is one."""


class Crew:
    """Workers, their slots and their tasks. Used by one epoch at a time, from one thread."""

    def __init__(
        self,
        engine: Engine,
        arena: Arena | None,
        framework: Framework,
        counters: Counters,
        *,
        prepare: Prepare | None = None,
        splitter: Splitter | None = None,
    ) -> None:
        self.engine = engine
        started_s = time.monotonic() + _START_UP_S
        self.workers = [WorkerView(number, since_s=started_s) for number in range(engine.worker_count)]
        self.counters = counters
        self.pid = os.getpid()
        self.epoch = 0
        self._arena = arena
        self._codec = Codec(framework)
        self._prepare = prepare
        self._splitter = splitter
        self._pending: dict[int, Pending] = {}
        self._unread: set[int] = set()
        """Slots of batches that an epoch has and the training loop does not have yet."""
        self._next_id = 0
        self._recent: deque[int] = deque(maxlen=32)
        self._answers = 0
        self._typical_s: float | None = None
        self._failed_call: BaseException | None = None
        """What a call in a worker raised; the training loop gets it with the next batch."""
        self._told_of: Call | None = None
        self.unresumed: dict[int, Resume] = {}
        """Where datasets of workers go on that have not heard of it, for want of a task."""
        self.closed = False

    def room_for_more(self) -> bool:
        """True while another task can be given a slot, or nothing is under way."""
        return self._arena is None or self._arena.available() or not self._pending

    def submit(self, owner: Any, ordinal: int, task: Task, worker: int) -> Pending:
        """Give a task to a worker, or its parts to this one and those after it. Its number and slot are filled in."""
        slot = self._arena.acquire(worker) if self._arena is not None else -1
        cut = self._splitter.cut(task.indices, slot) if self._splitter is not None else None
        if cut is None:
            try:
                return self._begin(Pending(owner, ordinal, worker, self._numbered(task, slot)))
            except Exception:  # indices that cannot be sent
                self._release(slot)
                raise
        group, parts = cut
        for number, (start, rows, part) in enumerate(parts):
            draw = Draw(task.draw.key, task.draw.first + task.draw.stride * start, task.draw.stride)
            piece = self._numbered(Task(0, rows, shared_seed=task.shared_seed, part=part, draw=draw), slot)
            try:
                pending = self._begin(Pending(owner, ordinal, (worker + number) % len(self.workers), piece, group))
            except Exception:  # the parts before it are under way, and the slot comes back with the last of them
                group.remaining -= len(parts) - number
                if group.remaining == 0:
                    self._release(slot)
                raise
        group.draw = task.draw
        return pending

    def _numbered(self, task: Task, slot: int) -> Task:
        self._next_id += 1
        task.id = self._next_id
        task.slot = slot
        task.epoch = self.epoch
        return task

    def call(self, call: Call) -> None:
        """Have a method of the dataset called in every worker, after the tasks it was given already."""
        for view in self.workers:
            self._begin(Pending(_CALLS, -1, view.id, self._numbered(Task(0, call), -1)))

    def _begin(self, pending: Pending) -> Pending:
        self._hand_over(pending.worker, pending.task)
        self._pending[pending.task.id] = pending
        return pending

    def _hand_over(self, worker: int, task: Task) -> None:
        self.engine.submit(worker, task)
        view = self.workers[worker]
        if view.outstanding == 0:
            view.since_s = max(view.since_s, time.monotonic())
        view.outstanding += 1

    def check_calls(self) -> None:
        """Raise what a call has raised in a worker."""
        if self._failed_call is not None:
            failed, self._failed_call = self._failed_call, None
            raise failed

    def move(self, source: int, target: int) -> bool:
        """Give what one worker has waiting to another; False if it has begun everything it was given."""
        task_id = self.engine.revoke(source)
        if task_id is None:
            return False
        pending = self._pending[task_id]
        self.workers[source].outstanding -= 1
        if pending.owner is _CALLS or pending.task.resume is not None:  # meant for this worker and no other
            self._hand_over(source, pending.task)
            return False
        pending.worker = target
        self.counters.relieved += 1
        self._hand_over(target, pending.task)
        return True

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[tuple[Pending | None, Result]]:
        """Wait for answers, of `worker` if one is named; those that nobody wants any more are dealt with here.

        Returns:
            Answers with the tasks they belong to; a death belongs to none.
        """
        begun = time.perf_counter_ns()
        results = self.engine.collect(timeout_s, worker)
        self.counters.wait_ns += time.perf_counter_ns() - begun
        if not results:
            return []
        now_s = time.monotonic()
        answers: list[tuple[Pending | None, Result]] = []
        for result in results:
            if result.kind is ResultKind.DIED:
                answers.append((None, result))
                continue
            view = self.workers[result.worker]
            view.outstanding -= 1
            view.since_s = now_s
            if result.busy_ns:
                self._recent.append(result.busy_ns)
                self._answers += 1
            pending = self._pending.pop(result.task_id)
            if pending.owner is _CALLS:
                if result.kind is ResultKind.FAILED and pending.task.indices is not self._told_of:
                    self._told_of = pending.task.indices  # the other workers will say the same
                    self._failed_call = result.payload
                continue
            if pending.group is not None:
                answer = self._join(pending, pending.group, result)
            else:
                answer = self._settle(pending, result)
            if answer is not None:
                answers.append((pending, answer))
        return answers

    def _settle(self, pending: Pending, result: Result) -> Result | None:
        """Take an answer; its slot comes back unless a batch lies in it that somebody wants."""
        wanted = pending.owner is not None
        if not wanted or result.kind is not ResultKind.DONE:
            self._release(pending.task.slot)
        elif type(result.payload) is Parcel:
            self._unread.add(result.payload.slot)
            if self._splitter is not None:
                self._splitter.learn(pending.task.indices, result.payload)
        return result if wanted else None

    def _join(self, pending: Pending, group: Group, result: Result) -> Result | None:
        """Take the answer of one part; returns what became of the batch when it was the last."""
        group.remaining -= 1
        if result.kind is ResultKind.FAILED and group.trouble is None:
            group.trouble = result
        group.misfit = group.misfit or result.kind is ResultKind.MISFIT
        if group.remaining:
            return None
        if group.misfit and group.trouble is None and pending.owner is not None:
            assert self._splitter is not None
            self._splitter.forget(group.indices)
            pending.group = None
            pending.task = self._numbered(
                Task(0, group.indices, shared_seed=pending.task.shared_seed, draw=group.draw), group.slot
            )
            self._begin(pending)
            return None
        return self._settle(pending, group.result(pending.worker, pending.task.id))

    def _release(self, slot: int) -> None:
        if self._arena is not None:
            self._arena.release(slot)

    def typical_s(self) -> float:
        """The median time of recent tasks."""
        if self._answers & 15 == 1 or self._typical_s is None:  # sorting for every batch would be felt by small ones
            recent = sorted(self._recent)
            self._typical_s = recent[len(recent) // 2] / 1e9 if recent else None
        return _UNKNOWN_S if self._typical_s is None else self._typical_s

    def deliver(self, result: Result) -> Any:
        """Turn an answer into the batch, or raise what went wrong."""
        if result.kind is ResultKind.FAILED:
            self.counters.failures += 1
            try:
                raise result.payload
            finally:
                del result  # the traceback refers to this frame: no cycle for the garbage collector
        self.counters.batches += 1
        batch = result.payload
        if type(batch) is Parcel:
            batch = self._unpack(batch)
        return batch if self._prepare is None else self._prepare(batch)

    def _unpack(self, parcel: Parcel) -> Any:
        arena = self._arena
        if parcel.overflow is not None:
            if arena is not None:
                self.counters.overflowed += 1
                arena.release(parcel.slot)
            self._unread.discard(parcel.slot)
            return self._codec.decode(parcel.header, parcel.overflow)
        assert arena is not None
        if arena.available():
            lease = arena.lease(parcel.slot, parcel.used)
            self._unread.discard(parcel.slot)
            return self._codec.decode(parcel.header, lease)
        # The training loop keeps so many batches that this slot is needed for the next task.
        self.counters.copied_out += 1
        arena.note_use(parcel.slot, parcel.used)
        memory = arena.view(parcel.slot, max(parcel.used, 1)).copy()
        self._unread.discard(parcel.slot)
        arena.release(parcel.slot)
        return self._codec.decode(parcel.header, memory)

    def discard(self, result: Result) -> None:
        """Take back the slot of a batch nobody wants."""
        if type(result.payload) is Parcel and result.payload.slot in self._unread:
            self._unread.remove(result.payload.slot)
            self._release(result.payload.slot)

    def abandon(self, owner: Any) -> None:
        """Forget an epoch: take back what has not begun; what has is dropped when it arrives."""
        for view in self.workers:
            calls = []
            while (task_id := self.engine.revoke(view.id)) is not None:
                view.outstanding -= 1
                pending = self._pending.pop(task_id)
                if pending.owner is _CALLS:
                    calls.append(pending)
                else:
                    self._drop(pending)
            for pending in calls:  # they are about what comes after this epoch, too
                self._begin(pending)
        for pending in self._pending.values():
            if pending.owner is owner:
                pending.owner = None

    def _drop(self, pending: Pending) -> None:
        """Take back the slot of a task that will not be answered, with the last of its parts."""
        pending.owner = None  # which refers to it in turn: memory is not to wait for the garbage collector
        if pending.group is not None:
            pending.group.remaining -= 1
            if pending.group.remaining:
                return
        self._release(pending.task.slot)

    def close(self) -> None:
        """End the workers and take back every slot they had. May be called twice."""
        if self.closed:
            return
        self.closed = True
        self.engine.close()
        for pending in self._pending.values():
            self._drop(pending)
        self._pending.clear()
        for slot in self._unread:  # the iterator was dropped, or a worker died: no epoch will ask for them
            self._release(slot)
        self._unread.clear()


_CALLS = object()
"""Owns tasks that are calls, whatever epoch it is."""

Prepare = Callable[[Any], Any]
"""Last touch to a batch in the training process, such as pinning what is not pinned."""
