"""One pass over an iterable dataset with workers: each has a stream of its own, and they take turns.

The order is worker 0, 1, ... n-1, 0, 1, ...; a worker whose stream has ended is left out from then on. So the order is
the same in every epoch, however fast the workers are. A stream cannot move to another worker.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from feedline.errors import TooManyBadSamples
from feedline.failures import is_interrupt
from feedline.keys import mix
from feedline.loader.account import Account
from feedline.loader.crew import Crew
from feedline.loader.death import raise_death
from feedline.loader.limits import Limits
from feedline.loader.progress import Progress, StreamProgress, has_state
from feedline.loader.receipts import Receipts
from feedline.loader.stream_watch import OwnStreams
from feedline.types import Draw, Notes, Result, ResultKind, Resume, Task


@dataclass(frozen=True)
class Request:
    """What workers are asked for."""

    count: int | None
    """Samples of a batch; None for single samples."""
    draw_key: int = 0
    """From which the random numbers of every stream follow."""
    shared_seed: int | None = None
    """For torch's data pipes."""
    snapshot_every: int = 0
    """Ask for the state of a stream with every so-manieth of its batches; 0 for never."""


class StreamEpoch:
    """Iterates over the batches of the workers' streams.

    Args:
        crew: the workers.
        request: what to ask them for.
        limits: how much may be under way, and how long it may take.
        progress: told about every batch that is delivered; says which streams have ended, and whose turn it is.
        in_order: False to deliver whatever is there.
        resumes: where the streams go on, by worker.
        account: of samples that fail.
        epoch: the number of the epoch.
        receipts: for datasets that are told which batches were consumed.
        awaits_openings: True if the workers are in a state that new ones would not be in.
    """

    bookmark: Any = None
    """Where the loader notes how far this epoch is."""

    replays = False
    """A worker that is new goes on where the last state of its stream says."""

    def __init__(
        self,
        crew: Crew,
        request: Request,
        limits: Limits,
        progress: Progress,
        *,
        in_order: bool,
        resumes: dict[int, Resume] | None = None,
        account: Account | None = None,
        epoch: int = 0,
        receipts: Receipts | None = None,
        awaits_openings: bool = False,
    ) -> None:
        self._crew = crew
        self._receipts = receipts or Receipts(None)
        self._request = request
        self._in_order = in_order
        self._limits = limits
        self.progress = progress
        self._resumes = resumes or {}
        self._account = account
        self._number = epoch
        count = len(crew.workers)
        self._origins = {worker: self._origin_of(worker) for worker in range(count)}
        """Where a worker's stream can be entered again: the last states that were told of it."""
        self._read = {worker: origin.place + origin.skip for worker, origin in self._origins.items()}
        """Samples of each stream that its answers so far have taken."""
        crew.begin_epoch(self)
        if not progress.streams:
            progress.streams.extend(StreamProgress() for _ in range(count))
        self._arrived: list[deque[Result]] = [deque() for _ in range(count)]
        self._asked = [stream.batches for stream in progress.streams]
        self._active = [number for number, stream in enumerate(progress.streams) if not stream.ended]
        self._unopened = set(self._active) if awaits_openings else set()
        """Workers that have not told yet how their stream began."""
        self._turn = self._position_of(progress.turn)
        self._ordinal = 0
        self._streams = OwnStreams(count)
        self.taken: tuple[int, StreamProgress, int, Any] | None = None
        """What `take_back` needs: whose batch was delivered last, and what was noted before."""
        for _ in range(max(1, limits.depth)):
            for worker in self._active:
                self._ask(worker)

    def _origin_of(self, worker: int) -> Resume:
        """Return where a stream begins: where a snapshot says, or with what is left of the epoch before."""
        known = self._resumes.get(worker)
        if known is not None:
            return known
        notes = self._crew.last_notes.get(worker)
        if notes is None:
            return Resume()
        if notes.is_before:
            return Resume(notes.dataset, last=notes.iterator, is_before=True)
        return Resume(notes.iterator if notes.is_one else notes.dataset)

    def resume_for(self, worker: int) -> Resume | None:
        """Return where the stream of a worker goes on that takes the place of another: after its last answer."""
        origin = self._origins[worker]
        return replace(copy.deepcopy(origin), skip=self._read[worker] - origin.place, least=0)

    def owe(self, worker: int, resume: Resume) -> None:
        """Tell a worker with its next task where to go on."""
        self._resumes[worker] = resume

    def _position_of(self, worker: int) -> int:
        """Return the place of a worker, or of the next one that is active, among the active workers."""
        return next((place for place, number in enumerate(self._active) if number >= worker), 0)

    def __iter__(self) -> StreamEpoch:
        return self

    def _ask(self, worker: int) -> None:
        request = self._request
        every = request.snapshot_every
        self._asked[worker] += 1
        task = Task(
            0,
            request.count,
            shared_seed=request.shared_seed,
            draw=Draw(mix(request.draw_key, worker)),
            resume=self._resumes.pop(worker, None),
            snapshot=bool(every) and self._asked[worker] % every == 0,
        )
        self._crew.submit(self, self._ordinal, task, worker, stays=True)
        self._ordinal += 1

    def __next__(self) -> Any:
        self._receipts.acknowledge()
        self._crew.check_calls()
        while self._active:
            self._crew.speak()
            position = self._next_position()
            if position is None:
                self._wait()
                continue
            worker = self._active[position]
            result = self._arrived[worker].popleft()
            if result.kind is ResultKind.ENDED:
                if self._account is not None:
                    self._keep_account(worker, result, self._account)
                stream = self.progress.streams[worker]
                stream.ended = True
                if result.notes is not None and has_state(result.notes):
                    stream.notes, stream.noted_at = result.notes, stream.batches
                del self._active[position]
                while self._arrived[worker]:  # an iterator that went on after its end
                    self._crew.slots.discard(self._arrived[worker].popleft())
                self._turn = position % len(self._active) if self._active else 0
                continue
            if self._account is not None:
                self._keep_account(worker, result, self._account)
            self._turn = (position + 1) % len(self._active)
            if result.kind is ResultKind.EMPTY:  # of which nothing is left
                if result.notes is not None:
                    self._streams.look_at(result.notes)
                self._note(worker, result.read, result.notes)
                self.progress.missing += 1
                self._ask(worker)
                continue
            return self._hand_out(worker, result)
        if self._account is not None:
            self._account.check(ended=True)
        raise StopIteration

    def _hand_out(self, worker: int, result: Result) -> Any:
        read, notes = result.read, result.notes
        try:
            try:
                if notes is not None:
                    self._streams.look_at(notes)
                batch = self._crew.deliver(result)
            finally:
                self._crew.slots.discard(result)  # if a warning, made an error, kept it from being delivered
                del result  # its exception refers to this frame: no cycle for the garbage collector
                self._ask(worker)
        except BaseException as exc:
            if not is_interrupt(exc):  # otherwise it comes again
                self._note(worker, read, notes)
                self.progress.missing += 1
            raise
        self._note(worker, read, notes)
        return batch

    def _keep_account(self, worker: int, result: Result, account: Account) -> None:
        """Log what failed in a batch that is about to be delivered; it stays where it is if that was too much."""
        notes = result.notes
        count = 0 if notes is None else len(notes.faults)
        if result.kind is ResultKind.DONE:
            count += self._request.count or 1
        elif result.kind is ResultKind.ENDED and notes is not None and notes.faults:
            count = max(count, notes.place - self._read[worker])  # with what drop_last has left out
        account.enter(result, count, self._number)
        try:
            account.check()
        except TooManyBadSamples:
            self._arrived[worker].appendleft(result)
            raise

    def _note(self, worker: int, read: int | None, notes: Notes | None) -> None:
        """Note that a batch is delivered: the last that is done about it, so that an interrupt loses nothing."""
        progress, receipts = self.progress, None if notes is None else notes.receipts
        before = progress.streams[worker]
        known = notes if notes is not None and has_state(notes) else None
        noted_at = before.noted_at if known is None else before.batches + 1
        after = StreamProgress(before.batches + 1, before.ended, known or before.notes, noted_at, read)
        self.taken = (worker, before, progress.turn, receipts)
        self._receipts.hold(receipts)
        progress.streams[worker], progress.turn = after, worker + 1

    def take_back(self) -> None:
        """Forget that the last batch was delivered, if it was: an interrupt kept it from the training loop."""
        if self.taken is None:
            return
        worker, before, turn, receipts = self.taken
        self._receipts.release(receipts)
        self.progress.streams[worker], self.progress.turn = before, turn

    def _next_position(self) -> int | None:
        """Whose batch comes next, as a place among the active workers; None to wait."""
        if self._in_order:
            return self._turn if self._arrived[self._active[self._turn]] else None
        for step in range(len(self._active)):  # from where the last one came: a quick stream does not starve others
            position = (self._turn + step) % len(self._active)
            if self._arrived[self._active[position]]:
                return position
        return None

    def _wait(self) -> None:
        timeout_s = self._limits.timeout_s
        deadline = time.monotonic() + timeout_s if timeout_s else None
        while True:
            answers = self._crew.collect(None if deadline is None else max(0.0, deadline - time.monotonic()))
            for pending, result in answers:
                if pending is None:
                    raise_death(result, self._crew, self._account, self._number)
                self._take_in(result)
            if answers:
                return
            self._crew.speak()
            if deadline is not None and time.monotonic() >= deadline:
                worker = self._active[self._turn]
                due_s = self._crew.workers[worker].since_s + timeout_s
                if time.monotonic() >= due_s:  # otherwise it is starting, or reads again what another has read
                    self._crew.rescue.see_to_stuck(self._crew.roster.oldest_of(worker), self._limits)
                deadline = max(time.monotonic() + timeout_s, due_s)

    def is_opened(self) -> bool:
        """True if a state can be told: it is known in which states the workers began."""
        return not self._unopened

    def await_openings(self) -> None:
        """Wait for the first answer of every worker, which tells in which state it began."""
        while self._unopened:
            self._wait()

    def assume_openings(self) -> bool:
        """Take what the epoch before has left for what the streams began with; False if one was not at its end."""
        known = self._crew.last_notes
        if known:  # otherwise there are no states
            for worker in self._unopened.copy():
                stream, notes = self.progress.streams[worker], known.get(worker)
                if stream.notes is None and (notes is None or not notes.is_before):
                    return False
                stream.notes = stream.notes or notes
        self._unopened.clear()
        return True

    def _take_in(self, result: Result) -> None:
        """Take an answer, and note how far its stream is."""
        worker, notes = result.worker, result.notes
        if worker in self._unopened:
            self._unopened.discard(worker)
            stream = self.progress.streams[worker]
            opening = None if notes is None else notes.opening
            if opening is not None and (stream.notes is None or stream.notes.is_before):
                stream.notes, stream.noted_at = opening, 0
                self._origins[worker] = Resume(
                    opening.dataset, opening.iterator, opening.place, is_before=opening.is_before
                )
        if result.kind is not ResultKind.ENDED:
            known = notes is not None and notes.place
            self._read[worker] = (
                notes.place if notes is not None and known else (self._read[worker] + (self._request.count or 1))
            )
            result.read = self._read[worker]
        if notes is not None and has_state(notes):
            self._origins[worker] = Resume(notes.dataset, notes.iterator, notes.place)
        self._arrived[worker].append(result)

    def close(self) -> None:
        """Leave the epoch; what is under way is dropped."""
        for results in self._arrived:
            for result in results:
                self._crew.slots.discard(result)
            results.clear()
        self._active.clear()
        if not self._crew.closed:
            self._crew.abandon(self)
