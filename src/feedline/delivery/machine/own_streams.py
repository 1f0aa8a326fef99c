"""Epochs over an iterable dataset where every worker has its own stream, as in torch.

Workers take turns: 0, 1, ... n-1, 0, 1, ...; a worker whose stream has ended is left out from then on. So the order is
the same in every epoch, however fast the workers are. The order needs no bookkeeping: each worker in turn is asked for
as many batches as the window allows, and a worker whose batch is delivered is asked for another. Requests are numbered,
and batches are delivered in the order of these numbers. The numbers of a worker whose stream has ended are skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from feedline.abc.scheduler import WorkerView
from feedline.delivery.machine.epoch import Epoch, Flight
from feedline.order.plan import Progress
from feedline.order.streams import StreamPlan
from feedline.types import Position, Result, ResultKind, Task


class OwnStreams(Epoch):
    """One pass over the workers' own streams, or the rest of one; `plan` says what their random numbers derive from."""

    plan: StreamPlan
    awaits_one = False  # no other worker could do its work; handling several answers at once is cheaper
    reads_one_stream = False

    def open(self, worker_count: int) -> None:
        self.numbers = Progress()
        positions, turn = self.progress.positions, self.progress.turn
        for worker in range(worker_count):
            positions.setdefault(worker, Position())
        super().open(worker_count)
        self._asked = [positions[worker].batches for worker in range(worker_count)]
        active = [worker for worker in range(worker_count) if not positions[worker].ended]
        in_turn = [worker for worker in active if worker >= turn] + [worker for worker in active if worker < turn]
        self._to_ask = deque(in_turn * max(1, self.limits.depth))
        self._active = set(active)
        self.end = None if active else 0

    def next(self, workers: Sequence[WorkerView]) -> Flight | None:
        to_ask = self._to_ask
        while to_ask and to_ask[0] not in self._active:
            to_ask.popleft()
        if not to_ask or self.exhausted:
            return None
        worker, requests = to_ask.popleft(), self.requests
        self._asked[worker] += 1
        task = Task(
            0,
            requests.stream_count if requests.batched else None,
            shared_seed=requests.shared_seed,
            draw=self.plan.draw_of(worker),
            snapshot=bool(requests.snapshot_every) and self._asked[worker] % requests.snapshot_every == 0,
        )
        return Flight(self.sent, worker, task, stays=True)

    def arrived(self, flight: Flight, result: Result) -> None:
        worker, notes, count = result.worker, result.notes, self.requests.stream_count if self.requests.batched else 1
        result.position = self._last[worker] = self._after(result, count)
        # A stream reads on in place of samples that failed.
        flight.samples = count if result.kind is ResultKind.DONE else 0
        if notes is not None:
            flight.samples += notes.left_out if result.kind is ResultKind.ENDED else len(notes.faults)
        self.ready[flight.ordinal] = result

    def _after(self, result: Result, count: int) -> Position:
        """Return where a worker is after an answer: what it says, or so many samples after its last answer.

        A batch that is cut short by the end of the stream is the last one, and has the states of the end.
        """
        last = self._last[result.worker]
        sent = None if result.notes is None else result.notes.position
        states = last if sent is None or not sent.has_state else sent
        if result.kind is ResultKind.ENDED:
            return replace(states, read=last.read, batches=last.batches, ended=True)
        read = (last.read or 0) + count if sent is None else sent.read
        return replace(states, read=read, batches=last.batches + 1, ended=sent is not None and sent.ended)

    def pop(self, ordinal: int) -> Result:
        result = super().pop(ordinal)
        if result.kind is ResultKind.ENDED:
            self._end_stream(ordinal, result)
        else:
            self._to_ask.append(result.worker)
        return result

    def _end_stream(self, ordinal: int, result: Result) -> None:
        """Ask a worker for no more batches; its other answers are not wanted."""
        worker = result.worker
        assert result.position is not None
        self.progress.positions[worker] = result.position
        self._active.discard(worker)
        if not self._active:
            self.end = 0
        self.numbers.note(ordinal)
        for other, flight in list(self.in_flight.items()):
            if flight.worker == worker:  # it will report the end again
                flight.wanted = False
                del self.in_flight[other]
                self.done += 1
                self.numbers.note(other)
        for other, ready in list(self.ready.items()):
            if ready.worker == worker:  # the end, reported again
                del self.ready[other]
                self.done += 1
                self.numbers.note(other)

    def note(self, ordinal: int, worker: int, position: Position | None) -> None:
        assert position is not None
        progress = self.progress
        self.numbers.note(ordinal)
        progress.positions[worker], progress.turn = position, worker + 1
