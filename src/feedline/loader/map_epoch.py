"""One pass over a map-style dataset with workers: which batch comes next, and waiting for it."""

from __future__ import annotations

import time
from typing import Any

from feedline.abc.scheduler import Scheduler
from feedline.errors import BadOption
from feedline.failures import is_interrupt
from feedline.loader.account import Account
from feedline.loader.batch_indices import count_of
from feedline.loader.crew import Crew
from feedline.loader.death import raise_death
from feedline.loader.limits import Limits
from feedline.loader.pending import Pending
from feedline.loader.progress import Progress, has_state
from feedline.loader.rescue import Answers
from feedline.loader.stream_watch import SharedStream
from feedline.loader.window import Window
from feedline.plan.plan import Plan
from feedline.types import Notes, Result, ResultKind, Resume


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
        awaits_openings: True if the workers are in a state that new ones would not be in.
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
        awaits_openings: bool = False,
    ) -> None:
        self._crew = crew
        self._scheduler = scheduler
        self._limits = limits
        self._reads_stream = stream_count > 0
        self._stream_count = stream_count
        self._batched = batched
        self._account = account
        self._guards = account is not None and account.guards
        self._number = epoch
        self.progress = progress
        progress.early.update(already)
        self._stream = SharedStream()
        self._end: int | None = None
        """The first batch that a stream of samples does not have any more."""
        self.taken: tuple[int, int, Notes | None] | None = None
        """What `take_back` needs: the batch that was delivered last, who made it, and what was known of that worker."""
        self._deadline_s: float | None = None
        """Until when the batch that `__next__` waits for has to be there; other batches do not extend it."""
        self._window = Window(
            crew,
            plan,
            scheduler,
            limits,
            already=already,
            resumes=resumes,
            turn=turn,
            snapshots=snapshots,
            replays=self._reads_stream,
            batched=batched,
            account=account,
        )
        self._window.fill()
        self._unopened = set(range(len(crew.workers))) if awaits_openings else set()
        """Workers that have not told yet in which state they began."""

    @property
    def _expected(self) -> int:
        return self.progress.delivered

    def __iter__(self) -> MapEpoch:
        return self

    def __next__(self) -> Any:
        self._deadline_s = None
        self._crew.check_calls()
        window = self._window
        while True:
            if self._crew.unsaid:
                self._crew.speak()
            ordinal = self._scheduler.take(window.ready, self._expected) if window.ready else None
            if ordinal is not None:
                if ordinal not in window.ready:
                    raise BadOption(
                        f"{self._scheduler!r} delivers batch {ordinal}, which is not among the finished batches "
                        f"{sorted(window.ready)[:8]}: `take` must choose one of them, or None."
                    )
                result = window.ready[ordinal]
                if self._account is not None and (self._guards or result.notes is not None):
                    self._keep_account(ordinal, result, self._account)
                    if result.kind is ResultKind.EMPTY:
                        self._pass_over(ordinal, self._account)
                        continue
                del result  # its exception would refer to this frame: no cycle for the garbage collector
                return self._hand_out(ordinal)
            if self._end is not None and self._expected >= self._end:
                self.close()
                if self._account is not None:
                    self._account.check(ended=True)
                raise StopIteration
            if window.sent == window.delivered:
                window.fill()
                if window.sent == window.delivered:
                    if self._crew.is_busy and not window.exhausted:
                        self._wait_for_others()
                        continue
                    if window.holds_back:
                        raise BadOption(
                            f"{self._scheduler!r} holds back batch {window.sent} although every worker is idle: "
                            "`assign` must choose a worker when none has anything to do."
                        )
                    if self._account is not None:
                        self._account.check(ended=True)
                    raise StopIteration
                continue
            if not window.under_way:
                if self._crew.is_busy:  # with a task that nobody wants any more
                    self._wait_for_others()
                    continue
                sent = window.sent
                window.fill()  # what was held back may be given out now
                if window.sent > sent:
                    continue
                raise BadOption(
                    f"{self._scheduler!r} delivers none of the finished batches {sorted(window.ready)[:8]} although "
                    "nothing else is under way: `take` must choose one of them."
                )
            self._wait()

    def is_opened(self) -> bool:
        """True if a state can be told: it is known in which states the workers began."""
        return not self._unopened

    def await_openings(self) -> None:
        """Wait for the first answer of every worker that has a task; one that has none is as it was."""
        timeout_s = self._limits.timeout_s
        self._deadline_s = time.monotonic() + timeout_s if timeout_s else None
        while (awaited := self._unopened_task()) is not None:
            left_s = None if self._deadline_s is None else max(0.0, self._deadline_s - time.monotonic())
            if not self._take_in(self._crew.collect(left_s)):
                self._crew.speak()
            if self._deadline_s is not None and time.monotonic() >= self._deadline_s and self._unopened_task():
                self._deal_with_lateness(awaited)
        self.assume_openings()
        self._deadline_s = None  # nobody waits for a batch

    def _unopened_task(self) -> Pending | None:
        under_way = self._window.under_way.values()
        return next((pending for pending in under_way if pending.worker in self._unopened), None)

    def assume_openings(self) -> bool:
        """Take the last states that workers told for those in which they began; False if one has told none."""
        tasked = {pending.worker for pending in self._window.under_way.values()}
        for worker in self._unopened:
            notes = self._crew.last_notes.get(worker)
            if notes is not None:
                self.progress.notes.setdefault(worker, notes)
        if any(worker in tasked and worker not in self.progress.notes for worker in self._unopened):
            return False
        self._unopened.clear()
        return True

    def _note_opening(self, result: Result) -> None:
        if result.worker in self._unopened:
            self._unopened.discard(result.worker)
            if result.notes is not None and result.notes.opening is not None:
                self.progress.notes.setdefault(result.worker, result.notes.opening)

    def _wait_for_others(self) -> None:
        """Wait until workers have done something for an epoch that was left, whose slots are needed."""
        timeout_s = self._limits.timeout_s
        begun_s = time.monotonic()
        answers = self._crew.collect(timeout_s or None)
        for pending, result in answers:
            if pending is None:
                raise_death(result, self._crew, self._account, self._number)
        if not answers and timeout_s and time.monotonic() - begun_s >= timeout_s:
            self._deal_with_lateness(self._due())

    def _hand_out(self, ordinal: int) -> Any:
        window = self._window
        result = window.ready.pop(ordinal)
        window.treated.pop(ordinal, None)
        window.delivered += 1
        worker, notes = result.worker, result.notes
        try:
            try:
                if notes is not None:
                    self._stream.look_at(notes)
                batch = self._crew.deliver(result)
            except BaseException:
                self._crew.slots.discard(result)  # if a warning, made an error, kept it from being delivered
                raise
            finally:
                del result  # its exception refers to this frame: no cycle for the garbage collector
                window.fill()
        except BaseException as exc:
            if not is_interrupt(exc):  # otherwise it comes again
                self._note(ordinal, worker, notes)
                self.progress.missing += 1
            raise
        self._note(ordinal, worker, notes)
        return batch

    def _note(self, ordinal: int, worker: int, notes: Notes | None) -> None:
        """Note that a batch is delivered: the last that is done about it, so that an interrupt loses nothing."""
        progress = self.progress
        self.taken = (ordinal, worker, progress.notes.get(worker))
        progress.note(ordinal)
        if notes is not None and (self._reads_stream or has_state(notes)):
            progress.notes[worker] = notes

    def take_back(self) -> None:
        """Forget that the last batch was delivered, if it was: an interrupt kept it from the training loop."""
        if self.taken is None:
            return
        ordinal, worker, before = self.taken
        self.progress.forget(ordinal)
        if before is None:
            self.progress.notes.pop(worker, None)
        else:
            self.progress.notes[worker] = before

    def _keep_account(self, ordinal: int, result: Result, account: Account) -> None:
        """Log what failed in a batch that is about to be delivered; it stays where it is if that was too much."""
        treated = self._window.treated.get(ordinal)
        if treated is not None and not treated.is_entered:
            count = self._stream_count or count_of(treated.indices, batched=self._batched)
            account.enter(result, count, self._number, treated)
        elif treated is None and result.notes is not None:
            account.enter(result, 0, self._number)
        if self._guards:
            account.check()

    def _pass_over(self, ordinal: int, account: Account) -> None:
        """Pass over a batch of which no sample is left, unless ranks would get out of step."""
        window = self._window
        result = window.ready.pop(ordinal)
        if account.keeps_steps:
            window.ask_instead(ordinal, result.worker, account)
            return
        del window.treated[ordinal]
        window.delivered += 1
        self.progress.note(ordinal)
        self.progress.missing += 1
        window.fill()

    def _wait(self) -> None:
        """Wait for an answer; if the batch that is due is late, keep the other workers busy meanwhile."""
        window = self._window
        if self._limits.timeout_s and self._deadline_s is None:
            self._deadline_s = time.monotonic() + self._limits.timeout_s
        while True:
            due = window.under_way.get(self._expected) if self._scheduler.in_order else None
            if due is None or due.group is not None:
                worker, pause = None, None
            else:
                worker, pause = due.worker, self._time_left_s(due.worker)
                if pause <= 0:
                    worker, pause = None, window.help_idle_workers()
            if self._deadline_s is not None:
                left = max(0.0, self._deadline_s - time.monotonic())
                pause = left if pause is None else min(pause, left)
            answers = self._take_in(self._crew.collect(pause, worker))
            if self._deadline_s is not None and time.monotonic() >= self._deadline_s and not self._is_there():
                self._deal_with_lateness(self._due())
            if answers:
                return
            self._crew.speak()

    def _take_in(self, answers: Answers) -> Answers:
        """Take answers, and note what they say; returns them."""
        window = self._window
        for pending, result in answers:
            if pending is None:
                raise_death(result, self._crew, self._account, self._number)
            del window.under_way[pending.ordinal]
            if self._unopened:
                self._note_opening(result)
            if result.kind is ResultKind.ENDED:
                self._note_end(pending.ordinal)
                if result.notes is not None:
                    self.progress.notes[result.worker] = result.notes
            else:
                window.ready[pending.ordinal] = result
        return answers

    def _due(self) -> Pending | None:
        """Return the task that a batch is waited for of."""
        under_way = self._window.under_way
        return under_way.get(self._expected) or next(iter(under_way.values()), None)

    def _deal_with_lateness(self, due: Pending | None) -> None:
        """Replace the worker that does not answer, or raise what there is to say about it."""
        crew, limits = self._crew, self._limits
        alone = None if due is None or due.group is not None else due.worker
        late = crew.roster.oldest_of(alone)  # which may be of an epoch that was left
        crew.speak()  # what led here, before the error
        if late is not None and limits.kills_stuck:
            since_s = crew.workers[late.worker].since_s
            if time.monotonic() - since_s < limits.timeout_s:  # it is new, or has answered since and is merely slow
                self._deadline_s = since_s + limits.timeout_s
                return
        crew.rescue.see_to_stuck(late, limits)
        self._deadline_s = time.monotonic() + limits.timeout_s

    def _note_end(self, ordinal: int) -> None:
        """The stream has no batch of this number, and none after it."""
        self._end = ordinal if self._end is None else min(self._end, ordinal)
        self._window.exhausted = True
        self._window.delivered += 1  # as far as the window is concerned

    def _is_there(self) -> bool:
        """True if a batch can be delivered."""
        ready = self._window.ready
        return bool(ready) and self._scheduler.take(ready, self._expected) is not None

    def _time_left_s(self, worker: int) -> float:
        """How long until the worker that has the batch that is due counts as late."""
        grace_s = self._scheduler.grace_s(self._crew.pace.typical_s())
        return self._crew.workers[worker].since_s + grace_s - time.monotonic()

    def close(self) -> None:
        """Leave the epoch; what is under way is dropped."""
        self._window.close()
