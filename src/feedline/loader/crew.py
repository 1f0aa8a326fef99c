"""Workers at work: an engine, the slots their batches lie in, and who is doing what.

A crew outlives an epoch when workers are persistent. The roster knows who has which task, `Slots` what has become of
each slot; the crew is where both change together: with tasks that are given, answers that come, and workers that are
replaced. Answers to tasks of an epoch that the training loop has left are dropped here, and their slots taken back.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from feedline.abc.engine import Engine
from feedline.abc.framework import Framework
from feedline.engines import interrupts
from feedline.errors import FeedlineWarning, tell
from feedline.failures import is_interrupt
from feedline.loader.counters import Counters
from feedline.loader.exclusive import Entrance
from feedline.loader.pace import Pace
from feedline.loader.pending import CALLS, PROBES, Pending
from feedline.loader.progress import has_state
from feedline.loader.recycling import Recycling
from feedline.loader.rescue import Answers, Care, Rescue
from feedline.loader.roster import Roster
from feedline.loader.slots import Slots
from feedline.loader.splitting import Group, Parts, Splitter
from feedline.transport.arena import Arena
from feedline.types import Call, Draw, Notes, Parcel, Result, ResultKind, Resume, Task

_LOOK_UP_S = 0.05
"""How often a wait for workers is interrupted to see whether anybody wants it to end. Nothing else depends on it."""


class Owner(Protocol):
    """An epoch, as far as its workers' deaths are concerned."""

    @property
    def replays(self) -> bool:
        """True if a worker that is new reads again all that comes before its task."""

    def resume_for(self, worker: int) -> Resume | None:
        """Return where the worker that replaces another goes on, if it has to be told."""

    def owe(self, worker: int, resume: Resume) -> None:
        """Remember to tell that with the next task for this worker, which has none now."""


class Crew:
    """Workers, their slots and their tasks. Used by one epoch, and by one thread at a time."""

    def __init__(
        self,
        engine: Engine,
        arena: Arena | None,
        framework: Framework,
        counters: Counters,
        *,
        prepare: Prepare | None = None,
        splitter: Splitter | None = None,
        depth: int = 1,
        care: Care | None = None,
        rest: Callable[[], None] | None = None,
        binds: bool = False,
    ) -> None:
        self.engine = engine
        self._rest = rest
        # Whatever becomes of the crew before somebody iterates with it: nobody is left behind.
        self._last = weakref.finalize(self, interrupts.see_through, engine.close)
        care = care or Care()
        self.rescue = Rescue(self, care)
        self.recycling = Recycling(self, care.most_bytes)
        self.roster = Roster(engine, binds=binds)
        self.workers = self.roster.workers
        self.slots = Slots(arena, framework, counters, depth=depth, always=splitter is not None)
        self.pace = Pace()
        self.counters = counters
        self.pid = os.getpid()
        self.epoch = 0
        self._prepare = prepare
        self._splitter = splitter
        self._current: Owner | None = None
        self._begun_s = time.monotonic()
        self._dead: list[Result] = []
        """Deaths that nobody has seen to."""
        self._late: Answers = []
        """Answers that came to be while workers were replaced."""
        self._owed: dict[int, Resume] = {}
        """Where workers that are new go on, until they are told."""
        self.unresumed: dict[int, Resume] = {}
        """Where datasets of workers go on that have not heard of it, for want of a task."""
        self.last_notes: dict[int, Notes] = {}
        """The last states of its dataset that each worker told."""
        self.unsaid: list[tuple[str, type[FeedlineWarning]]] = []
        self._failed_call: BaseException | None = None
        """What a call in a worker raised; the training loop gets it with the next batch."""
        self._told_of: Call | None = None
        self.entrance = Entrance()
        """For whoever changes the books: the thread that waits for a batch, or one that has a method called."""
        self.closed = False
        self.leaving = False
        """True once somebody wants the workers gone. Another thread may wait for them at that moment, and stops."""

    @property
    def is_busy(self) -> bool:
        """True while tasks are under way."""
        return self.roster.is_busy

    def room_for_more(self) -> bool:
        """True while another task can be given a slot, or nothing is under way."""
        return self.slots.are_left() or not self.roster.is_busy

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
        slot = self.slots.acquire(worker)
        cut = self._splitter.cut(task.indices, slot) if self._splitter is not None else None
        if cut is not None:
            return self._submit_parts(owner, ordinal, task, worker, *cut)
        try:
            return self.roster.begin(Pending(owner, ordinal, worker, task, stays=stays), slot, self.epoch)
        except Exception:  # indices that cannot be sent
            self.slots.release(slot, 0)
            raise

    def _submit_parts(self, owner: Any, ordinal: int, task: Task, worker: int, group: Group, parts: Parts) -> Pending:
        """Give the parts of a task to a worker and those after it; returns one of them."""
        for number, (start, rows, part) in enumerate(parts):
            draw = Draw(task.draw.key, task.draw.first + task.draw.stride * start, task.draw.stride)
            piece = Task(0, rows, shared_seed=task.shared_seed, part=part, draw=draw)
            pending = Pending(owner, ordinal, (worker + number) % len(self.workers), piece, group)
            try:
                self.roster.begin(pending, group.slot, self.epoch)
            except Exception:  # the parts before it are under way, and the slot comes back with the last of them
                group.remaining -= len(parts) - number
                if group.remaining == 0:
                    self.slots.release(group.slot)
                raise
        group.draw = task.draw
        return pending

    def call(self, call: Call) -> None:
        """Have a method of the dataset called in every worker, after the tasks it was given already."""
        for view in self.workers:
            self.roster.begin(Pending(CALLS, -1, view.id, Task(0, call)), -1, self.epoch)

    def check_calls(self) -> None:
        """Raise what a call has raised in a worker."""
        if self._failed_call is not None:
            failed, self._failed_call = self._failed_call, None
            raise failed

    def move(self, source: int, target: int) -> bool:
        """Give what one worker has waiting to another; False if it has begun all of that, or it must not move."""
        moved = self.roster.move(source, target)
        self.counters.relieved += moved
        return moved

    def collect(self, timeout_s: float | None, worker: int | None = None) -> Answers:
        """Wait for answers, of `worker` if one is named; those that nobody wants any more are dealt with here.

        Returns:
            Answers with the tasks they belong to; a death belongs to none. Perhaps nothing, before the time is over.

        Raises:
            StopIteration: nobody is to wait any more.
        """
        answers: Answers = []
        roster = self.roster
        if self._dead or roster.parked or self._late:
            # Only now: the epoch has taken in everything that the dead had answered before.
            replaces = bool(self._dead or roster.parked)
            while self._dead and not answers:
                answers += self.rescue.see_to(self._dead.pop(0))
            if roster.parked and not answers:
                answers += self.recycling.replace()
            if self._late:
                answers += self._late
                self._late = []
            if answers or (replaces and not roster.is_busy):  # nobody may want anything more of a worker that died
                return answers
        begun = time.perf_counter_ns()
        results = self.engine.collect(_LOOK_UP_S if timeout_s is None else min(timeout_s, _LOOK_UP_S), worker)
        self.counters.wait_ns += time.perf_counter_ns() - begun
        if not results:
            if self.leaving:
                raise StopIteration
            return []
        now_s = time.monotonic()
        watch = self.recycling.watch
        for result in results:
            if result.kind is ResultKind.DIED:
                self._dead.append(result)
                continue
            pending = roster.answered(result, now_s)
            if result.worker not in watch.records:
                self.recycling.begin(result.worker)
            if result.busy_ns:
                self.pace.note(result.busy_ns)
            if result.notes is not None and has_state(result.notes):
                ended = result.kind is ResultKind.ENDED
                self.last_notes[result.worker] = result.notes.outlasting() if ended else result.notes
            if pending.unexplained:
                self.rescue.made(pending)
            if pending.suspect is not None:
                answers += self.rescue.survived(pending.suspect)
                continue
            if pending.faults:
                result.notes = result.notes or Notes()
                result.notes.faults = [*pending.faults, *result.notes.faults]
            if pending.owner is CALLS:
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
        if now_s >= watch.next_s:
            self.recycling.look(now_s)
        return answers

    # -- workers that died, or are to go -----------------------------------------------------------------------------

    def say(self, message: str, category: type[FeedlineWarning]) -> None:
        """Have the user told something, when there is nothing that an exception could disturb."""
        self.unsaid.append((message, category))

    def speak(self) -> None:
        """Tell the user what there is to tell. A filter may make an exception of it."""
        while self.unsaid:
            tell(*self.unsaid.pop(0))

    def start_another(self, worker: int) -> Exception | None:
        """Start another worker in the place of one that has nothing to do any more.

        Returns:
            What kept it from being started: there is no going on then. After an interrupt there is none either.
        """
        try:
            self._start_another(worker)
        except BaseException as exc:
            if is_interrupt(exc) or not isinstance(exc, Exception):
                self.close()
                raise
            return exc  # whatever it is
        return None

    def _start_another(self, worker: int) -> None:
        self.recycling.watch.forget(worker)
        self.engine.replace(worker)
        self.roster.renew(worker)
        resume = None if self._current is None else self._current.resume_for(worker)
        if resume is not None:
            self._owed[worker] = resume
        if (resume is not None and resume.skip) or (self._current is not None and self._current.replays):
            # It reads again what the other has read, which may take as long.
            self.workers[worker].since_s += time.monotonic() - self._begun_s

    def give_again(self, worker: int, tasks: list[Pending]) -> None:
        """Give a worker that is new what the one before it had."""
        for pending in tasks:
            if pending.owner is None:  # of an epoch that was left
                self.forget(pending)
            elif pending.owner is CALLS:
                continue  # the dataset that the new worker was given has heard it already
            elif pending.group is not None:
                self._part_lost(pending, pending.group)
            else:
                if worker in self._owed:
                    pending.task.resume = self._owed.pop(worker)
                self.roster.begin(pending, pending.task.slot, self.epoch)
        if worker in self._owed and self._current is not None and not self.workers[worker].outstanding:
            self._current.owe(worker, self._owed.pop(worker))

    def _part_lost(self, pending: Pending, group: Group) -> None:
        """Have a batch made as a whole, when the worker that made a part of it is gone."""
        lost = self._join(pending, group, Result(ResultKind.MISFIT, pending.worker, pending.task.id))
        assert lost is None or group.trouble is not None
        if lost is not None:
            self._late.append((pending, lost))

    def probe(self, suspect: Pending, task: Task) -> None:
        """Have a part of a task made by itself. The batch is thrown away."""
        probe = Pending(PROBES, suspect.ordinal, suspect.worker, task, suspect=suspect)
        self.roster.begin(probe, suspect.task.slot, self.epoch)

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

    def _settle(self, pending: Pending, result: Result) -> Result | None:
        """Take an answer; its slot comes back unless a batch lies in it that somebody wants."""
        wanted = pending.owner is not None
        if not wanted or result.kind is not ResultKind.DONE:
            self.slots.release(pending.task.slot)
        elif type(result.payload) is Parcel and self._splitter is not None:
            self._splitter.learn(pending.task.indices, result.payload)
        return result if wanted else None

    def _join(self, pending: Pending, group: Group, result: Result) -> Result | None:
        """Take the answer of one part; returns what became of the batch when it was the last."""
        if not group.answered(result):
            return None
        if group.misfit and group.trouble is None and pending.owner is not None:
            assert self._splitter is not None
            self._splitter.forget(group.indices)
            pending.group = None
            pending.task = Task(0, group.indices, shared_seed=pending.task.shared_seed, draw=group.draw)
            self.roster.begin(pending, group.slot, self.epoch)
            return None
        return self._settle(pending, group.result(pending.worker, pending.task.id))

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
            batch = self.slots.unpack(batch)
        return batch if self._prepare is None else self._prepare(batch)

    def abandon(self, owner: Any) -> None:
        """Forget an epoch: take back what has not begun; what has is dropped when it arrives."""
        for pending in self.roster.withdraw(owner):
            self.forget(pending)

    def _drop(self, pending: Pending) -> None:
        """Take back the slot of a task that will not be answered, with the last of its parts."""
        pending.owner = None  # which refers to it in turn: memory is not to wait for the garbage collector
        if pending.group is not None:
            pending.group.remaining -= 1
            if pending.group.remaining:
                return
        self.slots.release(pending.task.slot)

    def rest(self) -> None:
        """No epoch is under way: what the program drops from now on goes back to the system at once."""
        if self._rest is not None:
            self._rest()

    def close(self) -> None:
        """End the workers and take back every slot they had. May be called twice."""
        if self.closed:
            return
        with interrupts.put_off(starts_process=False):  # half of it would leave workers and their files behind
            self.closed = True
            self.engine.close()
            self._last.detach()
            for pending in self.roster.clear():
                self.forget(pending)
            self._current = None
            self.slots.close()  # the iterator was dropped, or a worker died
            self.rest()


Prepare = Callable[[Any], Any]
"""Last touch to a batch in the training process, such as pinning what is not pinned."""
