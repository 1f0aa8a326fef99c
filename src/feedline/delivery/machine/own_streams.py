"""One pass over an iterable dataset where every worker has its own stream, as in torch.

Workers take turns: 0, 1, ... n-1, 0, 1, ...; a worker whose stream has ended is left out from then on. So the order is
the same in every epoch, however fast the workers are. The order needs no bookkeeping: each worker in turn is asked for
as many batches as the window allows, and a worker whose batch is delivered is asked for another. Requests are numbered,
and batches are delivered in the order of these numbers. The numbers of a worker whose stream has ended are skipped.
"""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import replace

from feedline.abc.scheduler import WorkerView
from feedline.delivery.machine.epoch import NOTHING, Epoch, Memory
from feedline.delivery.machine.fault_budget import Treated
from feedline.delivery.machine.flight import Flight
from feedline.delivery.machine.stream_check import StreamCheck
from feedline.order.progress import Progress, StreamProgress, has_state
from feedline.order.streams import StreamPlan
from feedline.types import Notes, Result, ResultKind, Resume, Task


class OwnStreamsEpoch(Epoch):
    """One pass over the workers' own streams."""

    _plan: StreamPlan
    awaits_one = False  # no other worker could do its work; handling several answers at once is cheaper

    def open(self, worker_count: int, memory: Memory) -> None:
        self._memory = memory
        self.stays, self.replays, self.can_move = True, False, False
        self.stream_check = StreamCheck(is_shared=False)
        streams = self.progress.streams
        if not streams:
            streams.extend(StreamProgress() for _ in range(worker_count))
        self._count = self._request.stream_count if self._request.batched else None
        self._origins = {worker: self._origin_of(worker) for worker in range(worker_count)}
        """Where each worker's stream can be entered again: the last states that it reported."""
        self._read = {worker: origin.place + origin.skip for worker, origin in self._origins.items()}
        """Samples of each stream used by its answers so far."""
        self._asked = [stream.batches for stream in streams]
        self._numbers = Progress()
        """Which numbered requests are finished."""
        turn = self.progress.turn
        active = [worker for worker, stream in enumerate(streams) if not stream.ended]
        in_turn = [worker for worker in active if worker >= turn] + [worker for worker in active if worker < turn]
        self._to_ask = deque(in_turn * max(1, self.limits.depth))
        self._active = set(active)
        self._unopened = set(active) if self.origin.awaits_openings else set()
        self.scheduler.open(worker_count, self.limits.depth)

    def _origin_of(self, worker: int) -> Resume:
        """Return where a stream begins: where the snapshot says, or with what is left of the previous epoch."""
        known = self.origin.resumes.get(worker)
        if known is not None:
            return known
        notes = self._memory.last_notes.get(worker)
        if notes is None:
            return Resume()
        missed = max(0, self._memory.passes - self._memory.noted_in.get(worker, self._memory.passes))
        if notes.is_before:
            return Resume(notes.dataset, last=notes.iterator, is_before=True, missed=missed)
        return Resume(notes.iterator if notes.is_one else notes.dataset, missed=missed)

    # -- requests ----------------------------------------------------------------------------------------------------

    def next(self) -> object:
        while self._to_ask and self._to_ask[0] not in self._active:
            self._to_ask.popleft()
        return self._count if self._to_ask else NOTHING

    def assign(self, indices: object, workers: list[WorkerView]) -> int | None:
        return self._to_ask.popleft()

    def task(self, ordinal: int, indices: object, worker: int, treated: Treated | None = None) -> Task:
        request = self._request
        self._asked[worker] += 1
        return Task(
            0,
            indices,
            shared_seed=request.shared_seed,
            draw=self._plan.draw_of(worker),
            resume=self._resumes.pop(worker, None),
            snapshot=bool(request.snapshot_every) and self._asked[worker] % request.snapshot_every == 0,
        )

    def ask_again(self, worker: int) -> None:
        self._to_ask.append(worker)

    # -- answers -----------------------------------------------------------------------------------------------------

    def arrived(self, flight: Flight, result: Result) -> None:
        worker, notes = result.worker, result.notes
        del self.in_flight[flight.ordinal]
        if worker in self._unopened:
            self._note_opening(result)
        if result.kind is not ResultKind.ENDED:
            known = notes is not None and notes.place
            self._read[worker] = known or self._read[worker] + (self._count or 1)
            result.read = self._read[worker]
        if notes is not None and has_state(notes):
            self._origins[worker] = Resume(notes.dataset, notes.iterator, notes.place)
        self.ready[flight.ordinal] = result

    @property
    def expected(self) -> int:
        return self._numbers.delivered

    @property
    def is_over(self) -> bool:
        return not self._active

    def note_faults(self, ordinal: int, result: Result) -> None:
        fault_budget, notes = self.fault_budget, result.notes
        count = 0 if notes is None else len(notes.faults)
        if result.kind is ResultKind.DONE:
            count += self._count or 1
        elif result.kind is ResultKind.ENDED and notes is not None:
            count = notes.left_out
        fault_budget.enter(result, count, self.number)
        fault_budget.check()

    def end_stream(self, ordinal: int) -> list[Result]:
        result = self.pop(ordinal)
        worker = result.worker
        stream = self.progress.streams[worker]
        stream.ended = True
        if result.notes is not None and has_state(result.notes):
            stream.notes, stream.noted_at = result.notes, stream.batches
        self._active.discard(worker)
        self._numbers.note(ordinal)
        for other, flight in list(self.in_flight.items()):
            if flight.worker == worker:  # it will report the end again
                flight.wanted = False
                del self.in_flight[other]
                self.done += 1
                self._numbers.note(other)
        more = [other for other, result in self.ready.items() if result.worker == worker]
        for other in more:
            self._numbers.note(other)
        return [self.pop(other) for other in more]  # from an iterator that continued after its end

    # -- deliveries --------------------------------------------------------------------------------------------------

    def note(self, ordinal: int, worker: int, notes: Notes | None, read: int | None) -> None:
        progress = self.progress
        before = progress.streams[worker]
        known = notes if notes is not None and has_state(notes) else None
        noted_at = before.noted_at if known is None else before.batches + 1
        after = StreamProgress(before.batches + 1, before.ended, known or before.notes, noted_at, read)
        self._numbers.note(ordinal)
        self.taken = (worker, before, progress.turn)
        progress.streams[worker], progress.turn = after, worker + 1

    def take_back(self) -> None:
        if self.taken is None:
            return
        worker, before, turn = self.taken
        self.progress.streams[worker], self.progress.turn = before, turn

    # -- workers that are new, or began in a state of their own ------------------------------------------------------

    def resume_for(self, worker: int) -> Resume | None:
        """Return where a replacement for this worker resumes its stream: after the last answer."""
        origin = self._origins[worker]
        return replace(copy.deepcopy(origin), skip=self._read[worker] - origin.place, least=0)

    def assume_openings(self) -> bool:
        known = self._memory.last_notes
        if known:  # otherwise there are no states
            for worker in self._unopened.copy():
                stream, notes = self.progress.streams[worker], known.get(worker)
                if stream.notes is None and (notes is None or not notes.is_before):
                    return False
                stream.notes = stream.notes or notes
                if stream.notes is not None:
                    self._openings[worker] = stream.notes
        self._unopened.clear()
        return True

    def _note_opening(self, result: Result) -> None:
        worker = result.worker
        self._unopened.discard(worker)
        stream = self.progress.streams[worker]
        opening = None if result.notes is None else result.notes.opening
        if opening is not None and (stream.notes is None or stream.notes.is_before):
            self._openings[worker] = opening
            self.add_openings(self.progress)
            self._origins[worker] = Resume(
                opening.dataset, opening.iterator, opening.place, is_before=opening.is_before
            )

    def add_openings(self, progress: Progress) -> None:
        for worker, notes in list(self._openings.items()):
            stream = progress.streams[worker]
            if stream.notes is None or stream.notes.is_before:
                stream.notes, stream.noted_at = notes, 0

    def leave(self) -> list[Result]:
        self._active.clear()
        unresumed = self._memory.unresumed
        unwanted = super().leave()
        self._memory.unresumed = unresumed  # a stream starts over
        return unwanted
