"""One pass over a map-style dataset with workers.

The window is `depth` batches per worker, under way or waiting for the training loop. It is exceeded in one case only:
the training loop waits for a batch that is late, and a worker has nothing to do. Then work beyond the window is begun,
within the memory budget, so that one slow sample does not idle the others. (With a fixed window one slow sample in a
hundred halves the rate: benchmarks/w6_stragglers.py.)
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from feedline.abc.scheduler import Scheduler
from feedline.errors import BadOption, SplitTwice, UnequalStreams, WorkerTimeout, tell
from feedline.loader.account import Account
from feedline.loader.crew import Crew
from feedline.loader.pending import Pending
from feedline.loader.progress import Progress, has_state
from feedline.loader.repair import Repair
from feedline.plan.plan import Plan
from feedline.types import Notes, Result, ResultKind, Resume, Task

_RUN_AHEAD = 16
"""How many windows may be in flight while a batch is late. A guess that was enough: with it benchmarks/w6_stragglers.py
(1 % of samples 200 times slower, 4 workers) comes close to ideal. Other values were not measured."""


@dataclass(frozen=True)
class Limits:
    """How much may be under way, and how long it may take."""

    window: int
    """Batches in flight."""
    depth: int
    """Tasks a worker may have at once."""
    timeout_s: float = 0.0
    """The longest wait for a batch; 0 for no limit."""
    kills_stuck: bool = False
    """True to replace a worker that takes longer than that, as if it had died."""


class MapEpoch:
    """Iterates over the batches of a plan.

    Args:
        crew: the workers.
        plan: yields what each batch consists of.
        scheduler: who works on what.
        limits: how much may be under way, and how long it may take.
        progress: told about every batch that is delivered.
        already: batches of the plan that were delivered before, out of turn.
        resumes: where the workers' datasets go on, by worker.
        turn: whose turn the first batch is, if workers' datasets go on.
        snapshots: True to ask the workers for the states of their datasets.
        stream_count: if every worker reads the same stream and keeps its own part, the samples of a batch; else 0.
        batched: False if the plan is of single samples.
        account: of samples that fail.
        epoch: the number of the epoch.
    """

    bookmark: Any = None
    """Where the loader notes how far this epoch is."""

    def __init__(
        self,
        crew: Crew,
        plan: Plan,
        scheduler: Scheduler,
        limits: Limits,
        progress: Progress,
        *,
        already: tuple[int, ...] = (),
        resumes: dict[int, Resume] | None = None,
        turn: int = 0,
        snapshots: bool = False,
        stream_count: int = 0,
        batched: bool = True,
        account: Account | None = None,
        epoch: int = 0,
    ) -> None:
        self._crew = crew
        self._plan = plan
        self._scheduler = scheduler
        self._window = limits.window
        self._timeout_s = limits.timeout_s
        self._kills_stuck = limits.kills_stuck
        self._reads_stream = stream_count > 0
        self._stream_count = stream_count
        self._account = account
        self._number = epoch
        self._accounted = -1
        """The last batch that was accounted for: it may be asked for again, if that was too much."""
        self.progress = progress
        progress.early.update(already)
        self._already = frozenset(already)
        self._has_warned = False
        self._digest: bytes | None = None
        """Of the first sample of a stream that all workers read."""
        self._turn = turn
        self._resumes = {**crew.unresumed, **(resumes or {})}
        self._entered = dict(self._resumes)
        for worker in self._entered:  # what it told before is of another time
            crew.last_notes.pop(worker, None)
        crew.unresumed = {}
        crew.begin_epoch(self)
        self._batched = batched
        self._repair = Repair.of(plan, account, batched=batched, already=already)
        """What is to be done about batches whose samples failed; None if they are just raised."""
        self._snapshots = snapshots
        self._sent = 0
        """Tasks given out, and those that need not be."""
        self._held: Any = _NOTHING
        self._exhausted = False
        self._under_way: dict[int, Pending] = {}
        self._ready: dict[int, Result] = {}
        self._delivered = 0
        self._end: int | None = None
        """The first batch that a stream of samples does not have any more."""
        self._deadline_s: float | None = None
        """Until when the batch that `__next__` waits for has to be there; other batches do not extend it."""
        scheduler.open(len(crew.workers), limits.depth)
        self._fill()

    @property
    def _expected(self) -> int:
        return self.progress.delivered

    def __iter__(self) -> MapEpoch:
        return self

    def __next__(self) -> Any:
        self._deadline_s = None
        self._crew.check_calls()
        while True:
            if self._crew.unsaid:
                self._crew.speak()
            if self._repair is not None:
                self._mend()
                self._pass_over_voids()
                if self._expected in self._repair.finished:
                    self._ready[self._expected] = self._repair.finished.pop(self._expected)
            ordinal = self._scheduler.take(self._ready, self._expected) if self._ready else None
            if ordinal is not None:
                if ordinal not in self._ready:
                    raise BadOption(
                        f"{self._scheduler!r} delivers batch {ordinal}, which is not among the finished batches "
                        f"{sorted(self._ready)[:8]}: `take` must choose one of them, or None."
                    )
                return self._hand_out(ordinal)
            if self._end is not None and self._expected >= self._end:
                self.close()
                if self._account is not None:
                    self._account.check(ended=True)
                raise StopIteration
            if self._sent == self._delivered:
                self._fill()
                if self._sent == self._delivered:
                    if self._crew.is_busy and not self._exhausted:
                        self._wait_for_others()
                        continue
                    if self._held is not _NOTHING:
                        raise BadOption(
                            f"{self._scheduler!r} holds back batch {self._sent} although every worker is idle: "
                            "`assign` must choose a worker when none has anything to do."
                        )
                    if self._account is not None:
                        self._account.check(ended=True)
                    raise StopIteration
                continue
            if not self._under_way:
                if self._repair is not None and self._repair.has_work(self._expected):
                    continue
                if self._crew.is_busy:  # with a task that nobody wants any more
                    self._wait_for_others()
                    continue
                sent = self._sent
                self._fill()  # what was held back may be given out now
                if self._sent > sent:
                    continue
                raise BadOption(
                    f"{self._scheduler!r} delivers none of the finished batches {sorted(self._ready)[:8]} although "
                    "nothing else is under way: `take` must choose one of them."
                )
            self._wait()

    def _wait_for_others(self) -> None:
        """Wait until workers have done something for an epoch that was left, whose slots are needed."""
        begun_s = time.monotonic()
        answers = self._crew.collect(self._timeout_s or None)
        for pending, result in answers:
            if pending is None:
                self._crew.close()
                if self._account is not None:
                    self._account.enter(result, 0, self._number)  # samples that were found to kill
                death = result.payload
                del answers, pending, result  # its traceback will refer to this frame: no cycle for the collector
                try:
                    raise death
                finally:
                    del death
        if not answers and self._timeout_s and time.monotonic() - begun_s >= self._timeout_s:
            self._deal_with_lateness()

    def _hand_out(self, ordinal: int) -> Any:
        result = self._ready[ordinal]
        if self._account is not None and (result.notes is not None or self._repair is not None):
            self._keep_account(ordinal, result, self._account)
        del self._ready[ordinal]
        self._delivered += 1
        self.progress.note(ordinal)
        try:
            if result.notes is not None:
                self._read_notes(result.worker, result.notes)
            return self._crew.deliver(result)
        except BaseException:
            self._crew.discard(result)  # if a warning, made an error, kept it from being delivered
            raise
        finally:
            del result
            self._fill()

    def _keep_account(self, ordinal: int, result: Result, account: Account) -> None:
        """Log what failed in a batch that is about to be delivered; it stays where it is if that was too much."""
        repair = self._repair
        count = 0 if repair is None else self._stream_count or repair.count_of(ordinal)
        first, self._accounted = ordinal != self._accounted, ordinal
        if first and (count or result.notes is not None):
            account.enter(result, count, self._number, None if repair is None else repair.treated(ordinal))
        if repair is not None:
            account.check()
            repair.done(ordinal)

    def _pass_over_voids(self) -> None:
        """Pass over batches of which no sample is left, when it would be their turn."""
        repair, account = self._repair, self._account
        assert repair is not None
        assert account is not None
        while (void := repair.voids.get(self._expected)) is not None:
            self._keep_account(self._expected, void, account)
            self._delivered += 1
            self.progress.note(self._expected)
            self._fill()

    def _read_notes(self, worker: int, notes: Notes) -> None:
        if has_state(notes) or self._reads_stream:
            self.progress.notes[worker] = notes
        if notes.splits_itself:
            self._warn_of_splitting_twice()
        if notes.digest is not None:
            self._compare(notes.digest)

    def _warn_of_splitting_twice(self) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        tell(
            "The dataset asks which worker it is in (get_worker_info()), as those do that split themselves. With "
            "shard= the loader splits what every worker reads, and what is split twice is not delivered in full. Drop "
            "shard=, or let __iter__ yield all samples in every worker.",
            SplitTwice,
        )

    def _compare(self, digest: bytes) -> None:
        """Tell the user if workers that should read the same stream do not."""
        if self._digest is None:
            self._digest = digest
        if digest == self._digest or self._has_warned:
            return
        self._has_warned = True
        tell(
            "The dataset does not yield the same samples in every worker, but with shard= each worker reads the whole "
            "and keeps its part: samples may be missing and others come twice. Let its order follow from "
            "feedline.rng(), random, numpy.random or torch, which are seeded alike in all workers (not on threads), or "
            "let the dataset split itself and drop shard=.",
            UnequalStreams,
        )

    def _fill(self) -> None:
        """Give out tasks until the window is full."""
        while self._sent - self._delivered < self._window and self._crew.room_for_more():
            if not self._send_one():
                break

    def _send_one(self) -> bool:
        """Give out the next task; False if there is none or no worker may have it."""
        indices = self._held
        if indices is _NOTHING:
            if self._exhausted:
                return False
            try:
                indices = next(self._plan)
            except StopIteration:
                self._exhausted = True
                return False
            except Exception as exc:  # the sampler's own error: raised when its batch would have come
                self._exhausted = True
                self._ready[self._sent] = Result(ResultKind.FAILED, -1, -1, exc)
                self._sent += 1
                return False
        workers = self._crew.workers
        if self._already and self._sent in self._already:
            self._sent += 1
            self._delivered += 1
            return True
        if self._repair is not None and not self._repair.may_begin(self._sent, indices):
            self._held = _NOTHING
            self._sent += 1  # it gives samples to others, and may have none left
            return True
        worker = self._scheduler.assign(self._sent + self._turn, indices, workers)
        if worker is None:
            self._held = indices
            return False
        if not 0 <= worker < len(workers):
            raise BadOption(
                f"{self._scheduler!r} chose worker {worker}, but there are workers 0 to {len(workers) - 1}."
            )
        self._held = _NOTHING
        self._begin(self._sent, indices, worker)
        self._sent += 1
        return True

    def _begin(self, ordinal: int, indices: Any, worker: int) -> None:
        """Give a task to a worker."""
        resume = self._resumes.pop(worker, None) if self._resumes else None
        task = Task(0, indices, draw=self._plan.draw(ordinal), resume=resume, snapshot=self._snapshots)
        if self._repair is not None and self._account is not None:
            treated = self._account.treat(indices, batched=self._batched)
            task.indices, task.skip = treated.indices, treated.skip
            self._repair.begin(ordinal, treated)
        try:
            self._under_way[ordinal] = self._crew.submit(self, ordinal, task, worker, stays=self._reads_stream)
        except Exception as exc:  # indices that cannot be sent: raised when their batch would have come
            self._ready[ordinal] = Result(ResultKind.FAILED, -1, -1, exc)

    def resume_for(self, worker: int) -> Resume | None:
        """Return where a worker goes on that takes the place of another."""
        known = self._entered.get(worker)
        if self._reads_stream:  # it goes on by reading again what comes before its task
            return known
        notes = self._crew.last_notes.get(worker)
        return known if notes is None else Resume(notes.dataset)

    @property
    def replays(self) -> bool:
        """True if a worker that is new has to read a stream from where the epoch was entered."""
        return self._reads_stream

    def owe(self, worker: int, resume: Resume) -> None:
        """Tell a worker with its next task where to go on."""
        self._resumes[worker] = resume

    def _wait(self) -> None:
        """Wait for an answer; if the batch that is due is late, keep the other workers busy meanwhile."""
        if self._timeout_s and self._deadline_s is None:
            self._deadline_s = time.monotonic() + self._timeout_s
        while True:
            due = self._under_way.get(self._expected) if self._scheduler.in_order else None
            if due is None or due.group is not None:
                worker, pause = None, None
            else:
                worker, pause = due.worker, self._time_left_s(due.worker)
                if pause <= 0:
                    worker, pause = None, self._help_idle_workers()
            if self._deadline_s is not None:
                left = max(0.0, self._deadline_s - time.monotonic())
                pause = left if pause is None else min(pause, left)
            answers = self._crew.collect(pause, worker)
            for pending, result in answers:
                if pending is None:
                    self._crew.close()
                    if self._account is not None:
                        self._account.enter(result, 0, self._number)  # samples that were found to kill
                    death = result.payload
                    del answers, pending, result  # its traceback will refer to this frame: no cycle for the collector
                    try:
                        raise death
                    finally:
                        del death
                del self._under_way[pending.ordinal]
                if result.kind is ResultKind.ENDED:
                    self._note_end(pending.ordinal)
                    if result.notes is not None:
                        self.progress.notes[result.worker] = result.notes
                elif self._repair is not None:
                    self._repair.answered(pending, result, self._ready)
                else:
                    self._ready[pending.ordinal] = result
            if self._repair is not None:
                self._mend()
            if self._deadline_s is not None and time.monotonic() >= self._deadline_s and not self._is_there():
                self._deal_with_lateness()
            if answers:
                return
            self._crew.speak()

    def _mend(self) -> None:
        """Have batches made again whose samples failed, with others in their places."""
        assert self._repair is not None
        while (mended := self._repair.next_mended(self._under_way)) is not None:
            for ordinal in mended.cancelled:  # it gives samples away
                pending = self._under_way.pop(ordinal, None)
                if pending is not None:
                    self._crew.disown(pending)
                elif ordinal in self._ready:
                    self._crew.discard(self._ready.pop(ordinal))
            if mended.failure is not None:
                self._ready[mended.ordinal] = mended.failure
            elif mended.pending is not None:
                task = Task(0, mended.indices, draw=self._plan.draw(mended.ordinal), snapshot=self._snapshots)
                if self._account is not None:
                    treated = self._account.treat(mended.indices, batched=self._batched)
                    task.indices, task.skip = treated.indices, {**treated.skip, **mended.skip}
                    self._repair.begin(mended.ordinal, treated)
                mended.pending.owner = self
                try:
                    self._crew.resubmit(mended.pending, task)
                    self._under_way[mended.ordinal] = mended.pending
                except Exception as exc:  # indices that cannot be sent
                    self._ready[mended.ordinal] = Result(ResultKind.FAILED, -1, -1, exc)
            elif mended.indices is not None:
                self._begin(mended.ordinal, mended.indices, (mended.ordinal + self._turn) % len(self._crew.workers))

    def _deal_with_lateness(self) -> None:
        """Replace the worker that does not answer, or raise what there is to say about it."""
        due = self._under_way.get(self._expected) or next(iter(self._under_way.values()), None)
        alone = None if due is None or due.group is not None else due.worker
        late = self._crew.oldest_of(alone)  # which may be of an epoch that was left
        if late is None:
            raise WorkerTimeout(f"DataLoader timed out after {self._timeout_s} seconds.")
        if self._kills_stuck and self._crew.rescue.may_restart:
            since_s = self._crew.workers[late.worker].since_s
            if time.monotonic() - since_s < self._timeout_s:  # it has answered since, and is merely slow
                self._deadline_s = since_s + self._timeout_s
                return
            if self._crew.kill_stuck(late, self._timeout_s):
                self._deadline_s = time.monotonic() + self._timeout_s
                return
        raise self._crew.told_of_stuck(late, self._timeout_s)

    def _note_end(self, ordinal: int) -> None:
        """The stream has no batch of this number, and none after it."""
        self._end = ordinal if self._end is None else min(self._end, ordinal)
        self._exhausted = True
        self._delivered += 1  # as far as the window is concerned

    def _is_there(self) -> bool:
        """True if a batch can be delivered."""
        return bool(self._ready) and self._scheduler.take(self._ready, self._expected) is not None

    def _time_left_s(self, worker: int) -> float:
        """How long until the worker that has the batch that is due counts as late."""
        grace_s = self._scheduler.grace_s(self._crew.typical_s())
        return self._crew.workers[worker].since_s + grace_s - time.monotonic()

    def _help_idle_workers(self) -> float | None:
        """Find work for idle workers; returns after how many seconds to look again, None if there is no need."""
        crew = self._crew
        workers = crew.workers
        now_s = time.monotonic()
        typical_s = crew.typical_s()
        while any(not worker.outstanding for worker in workers):
            move = self._scheduler.relieve(workers, now_s, typical_s) if self._plan.can_move else None
            if move is not None:
                self._check_move(*move)
                if crew.move(*move):
                    continue
            if self._sent - self._delivered >= self._window * _RUN_AHEAD or not crew.room_for_more():
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
        """Leave the epoch; what is under way is dropped."""
        self._exhausted = True
        self._held = _NOTHING
        # Workers that had no batch left to make still have to hear what their datasets were at.
        self._crew.unresumed = {worker: Resume(resume.dataset) for worker, resume in self._resumes.items()}
        for result in self._ready.values():
            self._crew.discard(result)
        if self._repair is not None:
            for result in self._repair.finished.values():
                self._crew.discard(result)
            self._repair.close()
        self._ready.clear()
        self._under_way.clear()
        self._sent = self._delivered
        if not self._crew.closed:
            self._crew.abandon(self)


_NOTHING = object()
