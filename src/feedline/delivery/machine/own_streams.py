"""Epochs over an iterable dataset where every worker has its own stream, as in torch.

Workers take turns: 0, 1, ... n-1, 0, 1, ...; a worker whose stream has ended is left out from then on. So the order is
the same in every epoch, however fast the workers are. The order needs no bookkeeping: each worker in turn is asked for
as many batches as the window allows, and a worker whose batch is delivered is asked for another. Requests are numbered,
and batches are delivered in the order of these numbers. The numbers of a worker whose stream has ended are skipped.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from feedline.abc.scheduler import WorkerView
from feedline.delivery.machine.epoch import Epoch, Origin, Request, WorkerStates
from feedline.delivery.machine.fault_budget import Treated
from feedline.delivery.machine.flight import Flight
from feedline.delivery.machine.openings import Openings
from feedline.delivery.machine.stream_check import StreamCheck
from feedline.order.progress import Progress, StreamProgress, has_state
from feedline.order.streams import StreamPlan
from feedline.types import Notes, Result, ResultKind, Resume, Task


class OwnStreams:
    """Batches of the workers' own streams.

    Args:
        plan: says from which key the random numbers of each stream are derived.
        request: what to request from workers.
        origin: where the epoch is entered.
    """

    stays, can_move, deepens = True, False, False
    awaits_one = False  # no other worker could do its work; handling several answers at once is cheaper

    def __init__(self, plan: StreamPlan, request: Request | None = None, origin: Origin | None = None) -> None:
        self.request = request or Request()
        self.origin = origin or Origin()
        self.stream_check = StreamCheck(is_shared=False)
        self._plan = plan
        self._count = self.request.stream_count if self.request.batched else None

    def open(self, epoch: Epoch, worker_count: int, states: WorkerStates) -> Openings:
        epoch.numbers = Progress()
        states.owed.clear()  # a stream starts over
        states.owed.update(self.origin.resumes)
        streams = epoch.progress.streams
        if not streams:
            streams.extend(StreamProgress() for _ in range(worker_count))
        self._origins = {worker: self._origin_of(worker, states) for worker in range(worker_count)}
        """Where each worker's stream can be entered again: the last states that it reported."""
        self._read = {worker: origin.place + origin.skip for worker, origin in self._origins.items()}
        """Samples of each stream used by its answers so far."""
        self._asked = [stream.batches for stream in streams]
        turn = epoch.progress.turn
        active = [worker for worker, stream in enumerate(streams) if not stream.ended]
        in_turn = [worker for worker in active if worker >= turn] + [worker for worker in active if worker < turn]
        self._to_ask = deque(in_turn * max(1, epoch.limits.depth))
        self._active = set(active)
        epoch.end = None if active else 0
        awaited = set(active) if self.origin.awaits_openings else set()
        return Openings(awaited, epoch.progress, epoch.in_flight, states.last_notes)

    def _origin_of(self, worker: int, states: WorkerStates) -> Resume:
        """Return where a stream begins: where the snapshot says, or with what is left of the previous epoch."""
        known = self.origin.resumes.get(worker)
        if known is not None:
            return known
        notes = states.last_notes.get(worker)
        if notes is None:
            return Resume()
        missed = max(0, states.passes - states.noted_in.get(worker, states.passes))
        if notes.is_before:
            return Resume(notes.dataset, last=notes.iterator, is_before=True, missed=missed)
        return Resume(notes.iterator if notes.is_one else notes.dataset, missed=missed)

    def next(self, epoch: Epoch, workers: Sequence[WorkerView]) -> tuple[object, int] | None:
        to_ask = self._to_ask
        while to_ask and to_ask[0] not in self._active:
            to_ask.popleft()
        return (self._count, to_ask.popleft()) if to_ask and not epoch.exhausted else None

    def flight(
        self, epoch: Epoch, ordinal: int, indices: object, worker: int, treated: Treated | None = None
    ) -> Flight:
        request = self.request
        self._asked[worker] += 1
        task = Task(
            0,
            indices,
            shared_seed=request.shared_seed,
            draw=self._plan.draw_of(worker),
            snapshot=bool(request.snapshot_every) and self._asked[worker] % request.snapshot_every == 0,
        )
        return Flight(ordinal, worker, task, stays=True)

    def arrived(self, epoch: Epoch, flight: Flight, result: Result) -> None:
        worker, notes = result.worker, result.notes
        count, opening = self._count or 1, None if notes is None else notes.opening
        if opening is not None and epoch.progress.streams[worker].notes is opening:
            known = Resume(opening.dataset, opening.iterator, opening.place, is_before=opening.is_before)
            self._origins[worker] = known
        if result.kind is not ResultKind.ENDED:
            place = notes is not None and notes.place
            self._read[worker] = place or self._read[worker] + count
            result.read = self._read[worker]
        if notes is not None and has_state(notes):
            self._origins[worker] = Resume(notes.dataset, notes.iterator, notes.place)
        # A stream reads on in place of samples that failed.
        flight.samples = count if result.kind is ResultKind.DONE else 0
        if notes is not None:
            flight.samples += notes.left_out if result.kind is ResultKind.ENDED else len(notes.faults)
        epoch.ready[flight.ordinal] = result

    def pop(self, epoch: Epoch, ordinal: int) -> Result:
        epoch.done += 1
        result = epoch.ready.pop(ordinal)
        if result.kind is ResultKind.ENDED:
            self._end_stream(epoch, ordinal, result)
        else:
            self._to_ask.append(result.worker)
        return result

    def _end_stream(self, epoch: Epoch, ordinal: int, result: Result) -> None:
        """Ask a worker for no more batches; its other answers are not wanted."""
        worker = result.worker
        stream = epoch.progress.streams[worker]
        stream.ended = True
        if result.notes is not None and has_state(result.notes):
            stream.notes, stream.noted_at = result.notes, stream.batches
        self._active.discard(worker)
        if not self._active:
            epoch.end = 0
        epoch.numbers.note(ordinal)
        for other, flight in list(epoch.in_flight.items()):
            if flight.worker == worker:  # it will report the end again
                flight.wanted = False
                del epoch.in_flight[other]
                epoch.done += 1
                epoch.numbers.note(other)
        for other, ready in list(epoch.ready.items()):
            if ready.worker == worker:  # from an iterator that continued after its end
                epoch.unwanted.append(epoch.ready.pop(other))
                epoch.done += 1
                epoch.numbers.note(other)

    def note(self, epoch: Epoch, ordinal: int, worker: int, notes: Notes | None, read: int | None) -> None:
        progress = epoch.progress
        before = progress.streams[worker]
        known = notes if notes is not None and has_state(notes) else None
        noted_at = before.noted_at if known is None else before.batches + 1
        after = StreamProgress(before.batches + 1, before.ended, known or before.notes, noted_at, read)
        epoch.numbers.note(ordinal)
        epoch.taken = (worker, before, progress.turn)
        progress.streams[worker], progress.turn = after, worker + 1

    # Any: `Epoch.taken` as `note` made it.
    def take_back(self, epoch: Epoch, taken: tuple[Any, ...]) -> None:
        worker, before, turn = taken
        progress = epoch.progress
        progress.streams[worker], progress.turn = before, turn

    def resume_for(self, worker: int) -> Resume | None:
        """Return where a replacement for this worker resumes its stream: after the last answer."""
        origin = self._origins[worker]
        return replace(copy.deepcopy(origin), skip=self._read[worker] - origin.place, least=0)
