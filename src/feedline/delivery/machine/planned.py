"""Epochs whose batches are planned: the indices of a map-style dataset, or steps through one shared stream.

Any worker can make any batch of indices. Of a stream that the loader shards, a worker can make any batch if it has read
far enough; a task stays with its worker, and a new worker reads again everything before its task.
"""

from __future__ import annotations

from collections.abc import Sequence

from feedline.abc.scheduler import WorkerView
from feedline.delivery.machine.epoch import NOTHING, Epoch
from feedline.delivery.machine.fault_budget import Treated
from feedline.delivery.machine.flight import Flight
from feedline.delivery.machine.stream_check import StreamCheck
from feedline.errors import BadOption
from feedline.order.plan import Plan
from feedline.system.failures import is_interrupt
from feedline.types import Position, Result, ResultKind, Task


class Planned:
    """Batches of a plan, which the scheduler assigns to workers.

    Args:
        plan: yields the contents of each batch.
        stream_count: samples per batch, if batches are cut from a stream; 0 if the dataset has indices.
        batched: False if the plan yields single samples.
        keeps_states: True to request the states of dataset and iterator with every batch.
    """

    awaits_one = True

    def __init__(self, plan: Plan, stream_count: int = 0, batched: bool = True, *, keeps_states: bool = False) -> None:
        self.stream_count, self.batched = stream_count, batched
        self.stays = stream_count > 0
        self.can_move = plan.can_move and not keeps_states  # which depend on the samples that a worker has made
        self.deepens = plan.goes_ahead
        self.stream_check = StreamCheck(is_shared=True)
        self._plan = plan
        self._keeps_states = keeps_states

    def open(self, epoch: Epoch, worker_count: int) -> None:
        self._already = frozenset(epoch.progress.early)
        self._last = dict(epoch.progress.positions)
        """Where each worker is after its last answer, or began if it reads a stream: there its replacement resumes."""

    def next(self, epoch: Epoch, workers: Sequence[WorkerView]) -> tuple[object, int] | None:
        if epoch.held is NOTHING:
            if epoch.exhausted:
                return None
            try:
                indices = next(self._plan)
                while self._already and epoch.sent in self._already:
                    epoch.sent += 1
                    epoch.done += 1
                    indices = next(self._plan)
            except StopIteration:
                epoch.exhausted = True
                return None
            except BaseException as exc:  # from the sampler, such as SystemExit: raised when its batch would have come
                if is_interrupt(exc):
                    raise
                epoch.exhausted = True
                epoch.ready[epoch.sent] = Result(ResultKind.FAILED, -1, -1, exc)
                epoch.sent += 1
                return None
            epoch.held = indices  # nothing of the plan is lost if the scheduler raises
        worker = epoch.scheduler.assign(epoch.sent + epoch.progress.turn, epoch.held, workers)
        if worker is None:
            return None
        if not 0 <= worker < len(workers):
            raise BadOption(
                f"{epoch.scheduler!r} chose worker {worker}, but there are workers 0 to {len(workers) - 1}."
            )
        indices, epoch.held = epoch.held, NOTHING
        return indices, worker

    def flight(
        self, epoch: Epoch, ordinal: int, indices: object, worker: int, treated: Treated | None = None
    ) -> Flight:
        task = Task(0, indices, draw=self._plan.draw(ordinal), snapshot=self._keeps_states)
        if epoch.guards:
            treated = treated or epoch.fault_budget.treat(indices, batched=self.batched)
            task.indices, task.skip = treated.indices, treated.skip
        return Flight(ordinal, worker, task, self.stays, treated)

    def arrived(self, epoch: Epoch, flight: Flight, result: Result) -> None:
        position = None if result.notes is None else result.notes.position
        result.position = position
        if position is not None and not self.stays:
            self._last[result.worker] = position
        if result.kind is not ResultKind.ENDED:
            epoch.ready[flight.ordinal] = result
            return
        # The stream has no batch of this number, and none after it.
        epoch.end = flight.ordinal if epoch.end is None else min(epoch.end, flight.ordinal)
        epoch.exhausted = True
        epoch.done += 1
        if result.position is not None:
            epoch.progress.positions[result.worker] = result.position

    def pop(self, epoch: Epoch, ordinal: int) -> Result:
        epoch.done += 1
        return epoch.ready.pop(ordinal)

    def note(self, epoch: Epoch, ordinal: int, worker: int, position: Position | None) -> None:
        progress = epoch.progress
        progress.note(ordinal)
        if position is not None and (self.stays or position.has_state):
            progress.positions[worker] = position

    def resume_for(self, worker: int) -> Position | None:
        return self._last.get(worker)  # of a stream, it reads again everything before its task
