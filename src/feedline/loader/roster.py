"""Who has which task.

A task is on the roster from the moment it is given to a worker until it is answered or taken back. Its number is never
used again, so that a late answer cannot be taken for that of another task. A worker that is to be replaced is parked:
it ends what it has begun, and what is given to it meanwhile waits for the one after it.
"""

from __future__ import annotations

import time
from typing import Any

from feedline.abc.engine import Engine
from feedline.abc.scheduler import WorkerView
from feedline.loader.pending import CALLS, Pending
from feedline.types import Result, ResultKind

_START_UP_S = 2.0
"""Time a worker has for getting ready before it can count as late; importing torch takes about one second."""


class Roster:
    """The workers of an engine, and the tasks that each has.

    Args:
        engine: whose workers; the roster gives it tasks and takes them back, and starts nobody.
        binds: True if what a worker makes may depend on which worker it is: see `may_move`.
    """

    def __init__(self, engine: Engine, *, binds: bool = False) -> None:
        self._engine = engine
        self._binds = binds
        self._bound = False
        self._unbound: set[int] = set()
        """Workers that have made a batch, and found nothing that binds it to them."""
        started_s = time.monotonic() + _START_UP_S
        self.workers = [WorkerView(number, since_s=started_s) for number in range(engine.worker_count)]
        self._pending: dict[int, Pending] = {}
        self._next_id = 0
        self._turns = 0
        self.answers = 0
        """Tasks that were answered so far."""
        self.parked: dict[int, list[Pending]] = {}
        """Workers that are to be replaced as soon as they have nothing to do, and the tasks that wait for that."""

    def in_doubt(self) -> list[Pending]:
        """Return the tasks over which, or over parts of which, workers have died, and nobody knows why."""
        tasks = {id(task): task for task in (pending.suspect or pending for pending in self._pending.values())}
        return [task for task in tasks.values() if task.unexplained]

    @property
    def is_busy(self) -> bool:
        """True while tasks are under way."""
        return bool(self._pending)

    def begin(self, pending: Pending, slot: int, epoch: int) -> Pending:
        """Give a task to its worker, under a new number."""
        task = pending.task
        self._next_id += 1
        task.id = self._next_id
        task.slot = slot
        task.epoch = epoch
        self._pending[task.id] = pending  # first: Ctrl-C may come at any moment
        try:
            self._hand_over(pending)
        except Exception:
            del self._pending[task.id]
            raise
        return pending

    def _hand_over(self, pending: Pending) -> None:
        worker = pending.worker
        if self.parked and worker in self.parked and pending.owner is not CALLS:
            self.parked[worker].append(pending)
        else:
            self._engine.submit(worker, pending.task)
        self._turns += 1
        pending.turn = self._turns
        view = self.workers[worker]
        if view.outstanding == 0:
            view.since_s = max(view.since_s, time.monotonic())
        view.outstanding += 1

    def answered(self, result: Result, now_s: float) -> Pending:
        """Strike off the task that an answer belongs to; returns it."""
        self.answers += 1
        view = self.workers[result.worker]
        view.outstanding -= 1
        view.since_s = now_s
        pending = self._pending.pop(result.task_id)
        if result.bound:
            self._bound = True
        elif self._binds and result.kind is ResultKind.DONE and pending.owner is not CALLS:
            self._unbound.add(result.worker)
        return pending

    def may_move(self, source: int, target: int) -> bool:
        """True if work may go from one worker to the other without changing what comes out.

        If batches may depend on their workers, both must have made one, and nobody may have found that it does. The
        task that is late may still be the first that draws a random number: then the numbers are not those of a run in
        which it was not late. Nobody can know before.
        """
        return not self._binds or (not self._bound and {source, target} <= self._unbound)

    def oldest_of(self, worker: int | None) -> Pending | None:
        """Return the task that a worker, or any, has been at for longest; None if there is none."""
        held = [pending for pending in self._pending.values() if worker is None or pending.worker == worker]
        return min(held, key=_turn, default=None)

    def move(self, source: int, target: int) -> bool:
        """Give what one worker has waiting to another; False if it has begun all of that, or it must not move."""
        if not self.may_move(source, target):
            return False
        task_id = self._engine.revoke(source)
        if task_id is None:
            return False
        pending = self._pending[task_id]
        self.workers[source].outstanding -= 1
        alone = pending.owner is CALLS or pending.suspect is not None or pending.task.resume is not None
        if not alone:  # otherwise it is meant for this worker and no other
            pending.worker = target
        self._hand_over(pending)
        return not alone

    def take_back(self, worker: int) -> tuple[Pending | None, list[Pending]]:
        """Take everything from a worker that it has not answered.

        Returns:
            The task that it had begun, and those that were waiting, in order.
        """
        waiting = {pending.task.id for pending in [*self.parked.pop(worker, []), *self._unbegun(worker)]}
        held = sorted((p for p in self._pending.values() if p.worker == worker), key=_turn)
        for pending in held:
            del self._pending[pending.task.id]
        begun = [pending for pending in held if pending.task.id not in waiting]
        return begun[0] if begun else None, [pending for pending in held if pending.task.id in waiting]

    def renew(self, worker: int) -> None:
        """Note that a worker has just been started, in the place of one from which everything was taken back."""
        view = self.workers[worker]
        view.outstanding = 0
        self._unbound.discard(worker)
        view.since_s = time.monotonic() + _START_UP_S

    def park(self, worker: int) -> None:
        """Let a worker end what it has begun, and begin nothing more but calls."""
        if worker not in self.parked:
            self.parked[worker] = self._unbegun(worker)  # it counts them as its own until they are somebody else's

    def idle_parked(self) -> list[int]:
        """Return the workers that are to be replaced and have done what they had begun."""
        return [worker for worker, waiting in self.parked.items() if self.workers[worker].outstanding <= len(waiting)]

    def withdraw(self, owner: Any) -> list[Pending]:
        """Take back what no worker has begun, except calls; what the owner has begun has none from then on.

        Returns:
            The tasks that nobody will answer.
        """
        withdrawn = []
        for view in self.workers:
            taken = [*self.parked.get(view.id, []), *self._unbegun(view.id)]
            if view.id in self.parked:
                self.parked[view.id] = []
            view.outstanding -= len(taken)
            for pending in taken:
                if pending.owner is CALLS:  # which are about what comes after this epoch, too
                    self._hand_over(pending)
                else:
                    withdrawn.append(self._pending.pop(pending.task.id))
        for pending in self._pending.values():
            if pending.suspect is not None and pending.suspect.owner is owner:
                pending.suspect.owner = None
            if pending.owner is owner:
                pending.owner = None
        return withdrawn

    def clear(self) -> list[Pending]:
        """Strike off all tasks; returns them."""
        held = list(self._pending.values())
        self._pending.clear()
        return held

    def _unbegun(self, worker: int) -> list[Pending]:
        """Revoke what a worker has not begun. Its tasks stay on the roster, as those of this worker."""
        taken = []
        while (task_id := self._engine.revoke(worker)) is not None:
            taken.append(self._pending[task_id])
        return taken


def _turn(pending: Pending) -> int:
    return pending.turn
