"""Workers at work: an engine, the slots their batches lie in, and who is doing what.

A crew outlives an epoch when workers are persistent. Every task has a number that is never used again, so that answers
to tasks of an epoch the training loop has left are recognised and their slots taken back.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from feedline.abc.engine import Engine
from feedline.abc.framework import Framework
from feedline.abc.scheduler import WorkerView
from feedline.errors import FeedlineWarning, GrowingWorker, WorkerTimeout, tell
from feedline.failures import told_indices
from feedline.loader.memory_watch import MemoryWatch
from feedline.loader.pending import Pending
from feedline.loader.progress import has_state
from feedline.loader.rescue import Answers, Care, Rescue
from feedline.loader.splitting import Group, Splitter
from feedline.transport.arena import Arena
from feedline.transport.codec import Codec
from feedline.types import Call, Draw, Notes, Parcel, Result, ResultKind, Resume, Task

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
    restarts: int = 0
    """Workers that were replaced because they died or were stuck."""
    recycled: int = 0
    """Workers that were replaced because they had taken too much memory."""
    wait_ns: int = 0
    """Time the training loop spent waiting."""


class Owner(Protocol):
    """An epoch, as far as its workers' deaths are concerned."""

    def resume_for(self, worker: int) -> Resume | None:
        """Return where the worker that replaces another goes on, if it has to be told."""

    def owe(self, worker: int, resume: Resume) -> None:
        """Remember to tell that with the next task for this worker, which has none now."""


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
        care: Care | None = None,
    ) -> None:
        self.engine = engine
        # Whatever becomes of the crew before somebody iterates with it: nobody is left behind.
        weakref.finalize(self, engine.close)
        care = care or Care()
        self.rescue = Rescue(self, care)
        self.last_notes: dict[int, Notes] = {}
        """The last states of its dataset that each worker told."""
        self._current: Owner | None = None
        self._dead: list[Result] = []
        """Deaths that nobody has seen to."""
        self._parked: dict[int, list[Pending]] = {}
        """Tasks for workers that are to be replaced as soon as they have nothing to do."""
        self.unsaid: list[tuple[str, type[FeedlineWarning]]] = []
        self._turns = 0
        self._begun_s = time.monotonic()
        self._watch = MemoryWatch(engine, care.most_bytes)
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
        self._owed: dict[int, Resume] = {}
        """Where workers that are new go on, until they are told."""
        self._late: Answers = []
        """Answers that came to be while workers were replaced."""
        self._recent: deque[int] = deque(maxlen=32)
        self._answers = 0
        self._typical_s: float | None = None
        self._failed_call: BaseException | None = None
        """What a call in a worker raised; the training loop gets it with the next batch."""
        self._told_of: Call | None = None
        self.unresumed: dict[int, Resume] = {}
        """Where datasets of workers go on that have not heard of it, for want of a task."""
        self.closed = False

    @property
    def is_busy(self) -> bool:
        """True while tasks are under way."""
        return bool(self._pending)

    def room_for_more(self) -> bool:
        """True while another task can be given a slot, or nothing is under way."""
        return self._arena is None or self._arena.available() or not self._pending

    def begin_epoch(self, owner: Owner) -> None:
        """Note whose the workers are from now on."""
        self._current = owner
        self._begun_s = time.monotonic()
        self.rescue.begin_epoch()

    def submit(self, owner: Any, ordinal: int, task: Task, worker: int, *, stays: bool = False) -> Pending:
        """Give a task to a worker, or its parts to this one and those after it. Its number and slot are filled in.

        Args:
            owner: the epoch that asks for it.
            ordinal: its number there.
            task: the task.
            worker: who is to do it.
            stays: True if no other worker can.
        """
        slot = self._arena.acquire(worker) if self._arena is not None else -1
        cut = self._splitter.cut(task.indices, slot) if self._splitter is not None else None
        if cut is None:
            try:
                return self._begin(Pending(owner, ordinal, worker, self._numbered(task, slot), stays=stays))
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

    def resubmit(self, pending: Pending, task: Task) -> None:
        """Have a batch made again, of other samples, by the worker that has those that did not fail."""
        task.redo = pending.task.id
        slot = self._arena.acquire(pending.worker) if self._arena is not None else -1
        pending.task = self._numbered(task, slot)
        # It is waited for: what else the worker has waiting can wait.
        waiting = []
        while (task_id := self.engine.revoke(pending.worker)) is not None:
            waiting.append(self._pending[task_id])
        self.workers[pending.worker].outstanding -= len(waiting)
        try:
            self._begin(pending)
        except Exception:
            self._release(slot)
            raise
        finally:
            for other in waiting:
                self._hand_over(other)

    def _begin(self, pending: Pending) -> Pending:
        self._pending[pending.task.id] = pending  # first: Ctrl-C may come at any moment
        try:
            self._hand_over(pending)
        except Exception:
            del self._pending[pending.task.id]
            raise
        return pending

    def _hand_over(self, pending: Pending) -> None:
        worker = pending.worker
        if self._parked and worker in self._parked and pending.owner is not _CALLS:
            self._parked[worker].append(pending)
        else:
            self.engine.submit(worker, pending.task)
        self._turns += 1
        pending.turn = self._turns
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
        alone = pending.owner is _CALLS or pending.suspect is not None or pending.task.resume is not None
        if alone:  # meant for this worker and no other
            self._hand_over(pending)
            return False
        pending.worker = target
        self.counters.relieved += 1
        self._hand_over(pending)
        return True

    def collect(self, timeout_s: float | None, worker: int | None = None) -> Answers:
        """Wait for answers, of `worker` if one is named; those that nobody wants any more are dealt with here.

        Returns:
            Answers with the tasks they belong to; a death belongs to none.
        """
        answers: Answers = []
        if self._dead or self._parked or self._late:
            # Only now: the epoch has taken in everything that the dead had answered before.
            replaces = bool(self._dead or self._parked)
            while self._dead and not answers:
                answers += self.rescue.see_to(self._dead.pop(0))
            if self._parked and not answers:
                answers += self._recycle()
            if self._late:
                answers += self._late
                self._late = []
            if answers or (replaces and not self._pending):  # nobody may want anything more of a worker that died
                return answers
        begun = time.perf_counter_ns()
        results = self.engine.collect(timeout_s, worker)
        self.counters.wait_ns += time.perf_counter_ns() - begun
        if not results:
            return []
        now_s = time.monotonic()
        for result in results:
            if result.kind is ResultKind.DIED:
                self._dead.append(result)
                continue
            view = self.workers[result.worker]
            view.outstanding -= 1
            view.since_s = now_s
            if result.worker not in self._watch.records:
                self._begin_to_watch(result.worker)
            if result.busy_ns:
                self._recent.append(result.busy_ns)
                self._answers += 1
            pending = self._pending.pop(result.task_id)
            if result.notes is not None and has_state(result.notes):
                self.last_notes[result.worker] = result.notes
            if pending.suspect is not None:
                answers += self.rescue.survived(pending.suspect)
                continue
            if pending.faults:
                result.notes = result.notes or Notes()
                result.notes.faults = [*pending.faults, *result.notes.faults]
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
        if now_s >= self._watch.next_s:
            self._look_at_memory(now_s)
        return answers

    # -- workers that died, or are to go -----------------------------------------------------------------------------

    def say(self, message: str, category: type[FeedlineWarning]) -> None:
        """Have the user told something, when there is nothing that an exception could disturb."""
        self.unsaid.append((message, category))

    def speak(self) -> None:
        """Tell the user what there is to tell. A filter may make an exception of it."""
        while self.unsaid:
            tell(*self.unsaid.pop(0))

    def disown(self, pending: Pending) -> None:
        """Want no more of a task that is under way: its answer is dropped when it comes."""
        pending.owner = None

    def told_of_stuck(self, late: Pending, timeout_s: float) -> WorkerTimeout:
        """Return what to raise about a worker that does not answer: its task, and what it is doing."""
        view = self.workers[late.worker]
        pid = self.engine.pid(late.worker)
        who = f"worker {late.worker}" + ("" if pid is None else f" (pid {pid})")
        elapsed_s = max(timeout_s, time.monotonic() - view.since_s)  # a worker that is starting has more time
        samples = "" if late.stays else f" (samples {told_indices(self.rescue.samples_of(late))})"
        samples += "" if late.owner is not None else " of an iteration that was left"
        stack = self.engine.stack(late.worker)
        doing = "What it is doing could not be had." if stack is None else f"What it is doing:\n{stack.rstrip()}"
        return WorkerTimeout(
            f"DataLoader timed out after {timeout_s} seconds: {who} is still at batch {late.ordinal}{samples}, since "
            f"{elapsed_s:.1f} seconds. Raise `timeout`, or look for a sample that blocks (a network read without its "
            f"own time-out is the usual cause). {doing}"
        )

    def oldest_of(self, worker: int | None) -> Pending | None:
        """Return the task that a worker, or any, has been at for longest; None if there is none."""
        held = [pending for pending in self._pending.values() if worker is None or pending.worker == worker]
        return min(held, key=_turn, default=None)

    def kill_stuck(self, late: Pending, timeout_s: float) -> bool:
        """Kill a worker that does not answer, so that it is replaced; False if that cannot be done."""
        told = self.told_of_stuck(late, timeout_s)
        if not self.engine.kill(late.worker):
            return False
        self.rescue.stuck[late.worker] = told
        return True

    def take_back(self, worker: int) -> tuple[Pending | None, list[Pending]]:
        """Take everything from a worker that it has not answered.

        Returns:
            The task that it had begun, and those that were waiting, in order.
        """
        waiting = {pending.task.id for pending in self._parked.pop(worker, [])}
        while (task_id := self.engine.revoke(worker)) is not None:
            waiting.add(task_id)
        held = sorted((p for p in self._pending.values() if p.worker == worker), key=_turn)
        for pending in held:
            del self._pending[pending.task.id]
        begun = [pending for pending in held if pending.task.id not in waiting]
        return begun[0] if begun else None, [pending for pending in held if pending.task.id in waiting]

    def start_another(self, worker: int) -> None:
        """Start another worker in the place of one that has nothing to do any more."""
        self._watch.forget(worker)
        self.engine.replace(worker)
        view = self.workers[worker]
        view.outstanding = 0
        view.since_s = time.monotonic() + _START_UP_S
        resume = None if self._current is None else self._current.resume_for(worker)
        if resume is not None:
            self._owed[worker] = resume
        if (resume is not None and resume.skip) or getattr(self._current, "replays", False):
            # It reads again what the other has read, which may take as long.
            view.since_s += time.monotonic() - self._begun_s

    def give_again(self, worker: int, tasks: list[Pending]) -> None:
        """Give a worker that is new what the one before it had."""
        for pending in tasks:
            if pending.owner is None:  # of an epoch that was left
                self.forget(pending)
            elif pending.owner is _CALLS:
                continue  # the dataset that the new worker was given has heard it already
            elif pending.group is not None:
                self._part_lost(pending, pending.group)
            else:
                if worker in self._owed:
                    pending.task.resume = self._owed.pop(worker)
                pending.task = self._numbered(pending.task, pending.task.slot)
                self._begin(pending)
        if worker in self._owed and self._current is not None and not self.workers[worker].outstanding:
            self._current.owe(worker, self._owed.pop(worker))

    def _part_lost(self, pending: Pending, group: Group) -> None:
        """Have a batch made as a whole, when the worker that made a part of it is gone."""
        group.misfit = True
        lost = self._join(pending, group, Result(ResultKind.MISFIT, pending.worker, pending.task.id))
        assert lost is None or group.trouble is not None
        if lost is not None:
            self._late.append((pending, lost))

    def probe(self, suspect: Pending, task: Task) -> None:
        """Have a part of a task made by itself. The batch is thrown away."""
        probe = Pending(_PROBES, suspect.ordinal, suspect.worker, self._numbered(task, suspect.task.slot))
        probe.suspect = suspect
        self._begin(probe)

    def answer(self, pending: Pending, result: Result) -> tuple[Pending, Result]:
        """Take an answer that no worker gave."""
        if pending.faults:
            result.notes = result.notes or Notes()
            result.notes.faults = [*pending.faults, *result.notes.faults]
        self._settle(pending, result)
        return pending, result

    def forget(self, pending: Pending) -> None:
        """Give up a task that no worker has, and that nobody waits for."""
        self._drop(pending.suspect or pending)

    def _begin_to_watch(self, worker: int) -> None:
        trouble = self._watch.begin(worker)
        if trouble is not None:
            self.say(trouble, GrowingWorker)

    def _look_at_memory(self, now_s: float) -> None:
        for found in self._watch.look(now_s):
            if isinstance(found, int):
                self._parked.setdefault(found, self._unbegun(found))
            else:
                self.say(str(found), GrowingWorker)

    def _unbegun(self, worker: int) -> list[Pending]:
        """Take back the tasks that a worker has not begun; it counts them as its own until they are somebody else's."""
        taken = []
        while (task_id := self.engine.revoke(worker)) is not None:
            taken.append(self._pending[task_id])
        return taken

    def _recycle(self) -> Answers:
        """Replace workers that are to go and have done what they had begun."""
        for worker in list(self._parked):
            if self.workers[worker].outstanding > len(self._parked[worker]):
                continue  # it is still at something
            _, waiting = self.take_back(worker)
            try:
                self.start_another(worker)
            except BaseException as exc:  # whatever it is, there is no going on
                if not isinstance(exc, Exception):
                    self.close()
                    raise
                for pending in waiting:
                    self.forget(pending)
                return [(None, Result(ResultKind.DIED, worker, -1, exc))]
            self.counters.recycled += 1
            self.give_again(worker, waiting)
        return []

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
            taken = [pending.task.id for pending in self._parked.get(view.id, [])]
            while (task_id := self.engine.revoke(view.id)) is not None:
                taken.append(task_id)
            self._parked.update({view.id: []} if view.id in self._parked else {})
            for task_id in taken:
                view.outstanding -= 1
                pending = self._pending.pop(task_id)
                if pending.owner is _CALLS:
                    calls.append(pending)
                else:
                    self.forget(pending)
            for pending in calls:  # they are about what comes after this epoch, too
                self._begin(pending)
        for pending in self._pending.values():
            if pending.suspect is not None and pending.suspect.owner is owner:
                pending.suspect.owner = None
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
            self.forget(pending)
        self._pending.clear()
        self._current = None
        for slot in self._unread:  # the iterator was dropped, or a worker died: no epoch will ask for them
            self._release(slot)
        self._unread.clear()


_CALLS = object()
"""Owns tasks that are calls, whatever epoch it is."""

_PROBES = object()
"""Owns tasks that are parts of others, made to find out which sample kills."""


def _turn(pending: Pending) -> int:
    return pending.turn


Prepare = Callable[[Any], Any]
"""Last touch to a batch in the training process, such as pinning what is not pinned."""
