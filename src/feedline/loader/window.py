"""The batches of a plan that are under way, or wait for the training loop.

The window is `depth` batches per worker. It is exceeded in one case only: the training loop waits for a batch that is
late, and a worker has nothing to do. Then work beyond the window is begun, within the memory budget, so that one slow
sample does not idle the others. (With a fixed window one slow sample in a hundred halves the rate, as the benchmark
w6_stragglers shows.)

If nobody asked for another depth, the window is up to `_DEEP` times as large while batches come in messages and take
less than `_SHORT_S` to make. A window of four such batches is used up before the next worker wakes, so everybody sleeps
and is woken once per batch, which costs more than the batch. Only orders that are known in advance are gone through so
far ahead: a user's own sampler may look at what the training loop has done meanwhile, and a generator that was given to
torch's sampler may be drawn from by the training loop, too.
"""

from __future__ import annotations

import time
from typing import Any

from feedline.abc.scheduler import Scheduler
from feedline.errors import BadOption, EmptyBatch
from feedline.failures import is_interrupt
from feedline.loader.account import Account, Treated
from feedline.loader.crew import Crew
from feedline.loader.limits import Limits
from feedline.loader.pending import Pending
from feedline.plan.plan import Plan
from feedline.types import Result, ResultKind, Resume, Task

_RUN_AHEAD = 16
"""How many windows may be in flight while a batch is late. A guess that was enough: with it the benchmark w6_stragglers
(1 % of samples 200 times slower, 4 workers) comes close to ideal. Other values were not measured."""

_DEEP = 8
_SHORT_S = 1e-3
"""With 2 workers and batches of 4 KB made in 0.25 ms, as in the benchmark w1_tiny, the training loop's CPU
time per batch is least with 16 batches per worker; 8 and 32 are in between. The bound on the time is a guess."""


class Window:
    """Gives the tasks of a plan to workers, as far ahead as is allowed. It is what its workers' tasks belong to.

    Args:
        crew: the workers.
        plan: yields what each batch consists of.
        scheduler: who works on what.
        limits: how much may be under way.
        already: batches of the plan that were delivered before, out of turn.
        resumes: where the workers' datasets go on, by worker.
        turn: whose turn the first batch is, if workers' datasets go on.
        snapshots: True to ask the workers for the states of their datasets.
        replays: True if a worker that is new has to read a stream from where the epoch was entered.
        batched: False if the plan is of single samples.
        account: of samples that fail.
    """

    def __init__(
        self,
        crew: Crew,
        plan: Plan,
        scheduler: Scheduler,
        limits: Limits,
        *,
        already: tuple[int, ...],
        resumes: dict[int, Resume] | None,
        turn: int,
        snapshots: bool,
        replays: bool,
        batched: bool,
        account: Account | None,
    ) -> None:
        self._crew = crew
        self._plan = plan
        self._scheduler = scheduler
        self._size = limits.window
        self._limits = limits
        self._deepens = limits.deepens and plan.goes_ahead
        self._already = frozenset(already)
        self._turn = turn
        self._snapshots = snapshots
        self.replays = replays
        self._batched = batched
        self._account = account if account is not None and account.guards else None
        self.treated: dict[int, Treated] = {}
        """What batches that are not delivered consist of, if samples that fail are not just raised."""
        self._resumes = {**crew.unresumed, **(resumes or {})}
        self._entered = dict(self._resumes)
        for worker in self._entered:  # what it told before is of another time
            crew.last_notes.pop(worker, None)
        crew.unresumed = {}
        crew.begin_epoch(self)
        self.sent = 0
        """Tasks given out, and those that need not be."""
        self.delivered = 0
        """Those of them that the training loop has, or that need not be delivered."""
        self.under_way: dict[int, Pending] = {}
        self.ready: dict[int, Result] = {}
        self.exhausted = False
        """True if the plan has no more batches, or none that are wanted."""
        self._held: Any = _NOTHING
        """The next batch of the plan, if no worker may have it yet."""
        scheduler.open(len(crew.workers), limits.depth)

    @property
    def holds_back(self) -> bool:
        """True if the scheduler has found no worker for the next batch."""
        return self._held is not _NOTHING

    def fill(self) -> None:
        """Give out tasks until the window is full."""
        if self._deepens and not self.sent & 15:
            self._choose_size()
        while self.sent - self.delivered < self._size and self._crew.room_for_more():
            if not self._send_one():
                break

    def _choose_size(self) -> None:
        """Make the window larger while batches are small and made in no time."""
        crew, limits = self._crew, self._limits
        is_brisk = crew.pace.typical_s() < _SHORT_S
        self._size = limits.window * (max(1, min(_DEEP, crew.slots.fit_messages() // limits.depth)) if is_brisk else 1)

    def _send_one(self) -> bool:
        """Give out the next task; False if there is none or no worker may have it."""
        indices = self._held
        if indices is _NOTHING:
            if self.exhausted:
                return False
            try:
                indices = next(self._plan)
            except StopIteration:
                self.exhausted = True
                return False
            except Exception as exc:  # the sampler's own error: raised when its batch would have come
                if is_interrupt(exc):
                    raise
                self.exhausted = True
                self.ready[self.sent] = Result(ResultKind.FAILED, -1, -1, exc)
                self.sent += 1
                return False
        workers = self._crew.workers
        if self._already and self.sent in self._already:
            self.sent += 1
            self.delivered += 1
            return True
        worker = self._scheduler.assign(self.sent + self._turn, indices, workers)
        if worker is None:
            self._held = indices
            return False
        if not 0 <= worker < len(workers):
            raise BadOption(
                f"{self._scheduler!r} chose worker {worker}, but there are workers 0 to {len(workers) - 1}."
            )
        self._held = _NOTHING
        self._begin(self.sent, indices, worker)
        self.sent += 1
        return True

    def ask_instead(self, ordinal: int, worker: int, account: Account) -> None:
        """Have a batch made of another sample, because none of its own is left, and it must not be left out."""
        try:
            treated = account.instead_of(self.treated[ordinal], batched=self._batched)
        except EmptyBatch as exc:
            self.ready[ordinal] = Result(ResultKind.FAILED, -1, -1, exc)
        else:
            self._begin(ordinal, treated.indices, worker, treated)

    def _begin(self, ordinal: int, indices: Any, worker: int, treated: Treated | None = None) -> None:
        """Give a task to a worker."""
        resume = self._resumes.pop(worker, None) if self._resumes else None
        task = Task(0, indices, draw=self._plan.draw(ordinal), resume=resume, snapshot=self._snapshots)
        if self._account is not None:
            treated = treated or self._account.treat(indices, batched=self._batched)
            self.treated[ordinal] = treated
            task.indices, task.skip = treated.indices, treated.skip
        try:
            self.under_way[ordinal] = self._crew.submit(self, ordinal, task, worker, stays=self.replays)
        except Exception as exc:  # indices that cannot be sent: raised when their batch would have come
            if is_interrupt(exc):
                raise
            self.ready[ordinal] = Result(ResultKind.FAILED, -1, -1, exc)

    def resume_for(self, worker: int) -> Resume | None:
        """Return where a worker goes on that takes the place of another."""
        known = self._entered.get(worker)
        if self.replays:  # it goes on by reading again what comes before its task
            return known
        notes = self._crew.last_notes.get(worker)
        return known if notes is None else Resume(notes.dataset)

    def owe(self, worker: int, resume: Resume) -> None:
        """Tell a worker with its next task where to go on."""
        self._resumes[worker] = resume

    def help_idle_workers(self) -> float | None:
        """Find work for idle workers; returns after how many seconds to look again, None if there is no need."""
        crew = self._crew
        workers = crew.workers
        now_s = time.monotonic()
        typical_s = crew.pace.typical_s()
        while any(not worker.outstanding for worker in workers):
            move = self._scheduler.relieve(workers, now_s, typical_s) if self._plan.can_move else None
            if move is not None:
                self._check_move(*move)
                if crew.move(*move):
                    continue
            if self.sent - self.delivered >= self._limits.window * _RUN_AHEAD or not crew.room_for_more():
                return None
            if not self._send_one():
                return self._scheduler.grace_s(typical_s)
            crew.counters.run_ahead += 1
        return self._scheduler.grace_s(typical_s)

    def _check_move(self, source: int, target: int) -> None:
        """Refuse what would never end: work that goes to a worker who has work."""
        workers = self._crew.workers
        if not 0 <= source < len(workers) or not 0 <= target < len(workers) or workers[target].outstanding:
            raise BadOption(
                f"{self._scheduler!r} gives work of worker {source} to worker {target}: `relieve` must choose among "
                f"workers 0 to {len(workers) - 1}, and the second must have nothing to do."
            )

    def close(self) -> None:
        """Give nothing out any more; what is under way or ready is dropped. May be called twice."""
        self.exhausted = True
        self._held = _NOTHING
        # Workers that had no batch left to make still have to hear what their datasets were at.
        self._crew.unresumed = {worker: Resume(resume.dataset) for worker, resume in self._resumes.items()}
        for result in self.ready.values():
            self._crew.slots.discard(result)
        self.treated.clear()
        self.ready.clear()
        self.under_way.clear()
        self.sent = self.delivered
        if not self._crew.closed:
            self._crew.abandon(self)


_NOTHING = object()
