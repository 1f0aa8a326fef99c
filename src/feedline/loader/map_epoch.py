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
from feedline.loader.crew import Crew, Pending
from feedline.loader.progress import Progress
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
    ) -> None:
        self._crew = crew
        self._plan = plan
        self._scheduler = scheduler
        self._window = limits.window
        self._timeout_s = limits.timeout_s
        self.progress = progress
        progress.early.update(already)
        self._already = frozenset(already)
        self._has_warned = False
        self._digest: bytes | None = None
        """Of the first sample of a stream that all workers read."""
        self._turn = turn
        self._resumes = {**crew.unresumed, **(resumes or {})}
        crew.unresumed = {}
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
                raise StopIteration
            if self._sent == self._delivered:
                self._fill()
                if self._sent == self._delivered:
                    if self._held is not _NOTHING:
                        raise BadOption(
                            f"{self._scheduler!r} holds back batch {self._sent} although every worker is idle: "
                            "`assign` must choose a worker when none has anything to do."
                        )
                    raise StopIteration
                continue
            if self._sent - self._delivered == len(self._ready):
                sent = self._sent
                self._fill()  # what was held back may be given out now
                if self._sent > sent:
                    continue
                raise BadOption(
                    f"{self._scheduler!r} delivers none of the finished batches {sorted(self._ready)[:8]} although "
                    "nothing else is under way: `take` must choose one of them."
                )
            self._wait()

    def _hand_out(self, ordinal: int) -> Any:
        self._delivered += 1
        self.progress.note(ordinal)
        result = self._ready.pop(ordinal)
        try:
            if result.notes is not None:
                self._read_notes(result.worker, result.notes)
            return self._crew.deliver(result)
        finally:
            self._crew.discard(result)  # if a warning, made an error, kept it from being delivered
            del result
            self._fill()

    def _read_notes(self, worker: int, notes: Notes) -> None:
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
        worker = self._scheduler.assign(self._sent + self._turn, indices, workers)
        if worker is None:
            self._held = indices
            return False
        if not 0 <= worker < len(workers):
            raise BadOption(
                f"{self._scheduler!r} chose worker {worker}, but there are workers 0 to {len(workers) - 1}."
            )
        self._held = _NOTHING
        resume = self._resumes.pop(worker, None) if self._resumes else None
        try:
            task = Task(0, indices, draw=self._plan.draw(self._sent), resume=resume, snapshot=self._snapshots)
            self._under_way[self._sent] = self._crew.submit(self, self._sent, task, worker)
        except Exception as exc:  # indices that cannot be sent: raised when their batch would have come
            self._ready[self._sent] = Result(ResultKind.FAILED, -1, -1, exc)
        self._sent += 1
        return True

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
                    raise result.payload
                del self._under_way[pending.ordinal]
                if result.kind is ResultKind.ENDED:
                    self._note_end(pending.ordinal)
                    if result.notes is not None:
                        self.progress.notes[result.worker] = result.notes
                else:
                    self._ready[pending.ordinal] = result
            if self._deadline_s is not None and time.monotonic() >= self._deadline_s and not self._is_there():
                raise WorkerTimeout(self._late_message())
            if answers:
                return

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

    def _late_message(self) -> str:
        late = self._under_way.get(self._expected)
        text = f"DataLoader timed out after {self._timeout_s} seconds"
        if late is None:
            return text + "."
        return (
            f"{text}: worker {late.worker} is still at batch {self._expected}. Raise `timeout`, or look for a sample "
            "that blocks (a network read without its own time-out is the usual cause)."
        )

    def close(self) -> None:
        """Leave the epoch; what is under way is dropped."""
        self._exhausted = True
        self._held = _NOTHING
        # Workers that had no batch left to make still have to hear what their datasets were at.
        self._crew.unresumed = {worker: Resume(resume.dataset) for worker, resume in self._resumes.items()}
        for result in self._ready.values():
            self._crew.discard(result)
        self._ready.clear()
        self._under_way.clear()
        self._sent = self._delivered
        if not self._crew.closed:
            self._crew.abandon(self)


_NOTHING = object()
