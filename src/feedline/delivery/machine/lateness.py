"""Batches that are late: work for idle workers meanwhile, and workers that do not answer.

Where nobody can see which batches a worker has made, workers with nothing to do start on batches beyond the window
while the training loop waits for a late one, within the memory budget, so that one slow sample does not idle the
others. (With a fixed window one slow sample in a hundred halves the rate, as the benchmark w6_stragglers shows.) Each
worker runs ahead in its own share; work moves between workers only where any of them may make a batch.
"""

from __future__ import annotations

import math

from feedline.abc.scheduler import WorkerView
from feedline.delivery.machine.crew import Crew
from feedline.delivery.machine.epoch import Epoch
from feedline.delivery.machine.flights import LOOK_AT, TAKE_BACK, Flights
from feedline.delivery.machine.recovery import Recovery, Seen
from feedline.errors import BadOption

RUN_AHEAD = 16
"""How many windows may be in flight while a batch is late, as many as a window of short tasks has anyway. A guess that
was enough: with it and `seed=` the benchmark w6_stragglers (1 % of samples 200 times slower, 4 workers) comes close to
ideal. Other values were not measured.
"""


class Lateness:
    """Decide what to do while the training loop waits.

    Args:
        flights: the tasks.
        crew: the workers.
        recovery: says whether a worker may be replaced, and reports one that does not answer.
    """

    def __init__(self, flights: Flights, crew: Crew, recovery: Recovery) -> None:
        self.deadline_s: float | None = None
        """Deadline of the batch that the training loop waits for; other batches do not extend it."""
        self._flights = flights
        self._crew = crew
        self._recovery = recovery
        self._ask_again_s = -math.inf
        """Do not ask the scheduler for a worker to relieve before this time."""

    # -- idle workers ------------------------------------------------------------------------------------------------

    def help_idle_workers(self, epoch: Epoch) -> float | None:
        """Find work for idle workers; return after how many seconds to check again, None if there is no need."""
        flights, scheduler, typical_s = self._flights, epoch.scheduler, self._flights.pace.typical_s()
        idle = [view.id for view in flights.active if not view.outstanding]
        if idle and epoch.limits.moves and epoch.can_move and flights.now_s >= self._ask_again_s:
            views = self._views_for_relief(epoch, idle)
            has_idle = any(not view.outstanding for view in views)
            move = scheduler.relieve(views, flights.now_s, typical_s) if has_idle else None
            if move is None:  # relieve() scans all workers, and lateness develops slowly
                self._ask_again_s = flights.now_s + typical_s / 4
            else:
                source, target = move
                self._check_move(epoch, source, target)
                if source not in flights.drained and self._may_move_from(source):
                    flights.decisions.append((TAKE_BACK, source, target))
                    return self._flights.pace.grace_s()
        while epoch.limits.runs_ahead and any(not view.outstanding for view in flights.active):
            is_full = epoch.sent - epoch.done >= epoch.limits.window * RUN_AHEAD
            if is_full or not (flights.slots.left(flights.count) or not flights.is_busy):
                return None
            if not flights.give_next(epoch):
                break
            flights.counters.run_ahead += 1
        return self._flights.pace.grace_s()

    def _views_for_relief(self, epoch: Epoch, idle: list[int]) -> list[WorkerView]:
        """Return the workers between which work may move.

        A drained worker neither gives nor gets tasks until it has got or answered one. So a task visits each stopped
        worker at most once, and the timeout replaces its last holder. Without such a timeout, the worker that was
        passed over for longest is tried again.
        """
        flights, drained = self._flights, self._flights.drained
        is_replaced = epoch.limits.kills_stuck and epoch.limits.timeout_s > 0
        if not is_replaced and drained.keys() >= set(idle):
            del drained[next(worker for worker in drained if worker in idle)]
        return [view for view in flights.active if view.id not in drained]

    def _may_move_from(self, source: int) -> bool:
        """True if work may move away from a worker.

        Work must stay while the worker has a call to make or a state to resume from: tasks that must stay are assigned
        again behind the rest, and later tasks must not overtake them.
        """
        flights = self._flights.of[source].values()
        return not any(flight.is_call or flight.task.resume is not None for flight in flights)

    def _check_move(self, epoch: Epoch, source: int, target: int) -> None:
        """Reject a move from a worker without work or to a busy worker: such moves would never end."""
        workers = self._flights.active
        exist = 0 <= source < len(workers) and 0 <= target < len(workers)
        if not exist or not workers[source].outstanding or workers[target].outstanding:
            raise BadOption(
                f"{epoch.scheduler!r} gives work of worker {source} to worker {target}: `relieve` must choose among "
                f"workers 0 to {len(workers) - 1}. The first must have work, and the second must have nothing to do."
            )

    # -- workers that do not answer ----------------------------------------------------------------------------------

    def judge(self) -> None:
        """If the batch that the training loop waits for has missed its deadline, inspect its worker."""
        flights, epoch = self._flights, self._flights.epoch
        if self.deadline_s is None or flights.now_s < self.deadline_s or epoch is None or epoch.due() is not None:
            return
        if flights.decisions or not flights.is_busy:
            return  # already being handled, such as by replacing a worker that died, or the end has just come
        limits = epoch.limits
        due = epoch.in_flight.get(epoch.numbers.delivered) or next(iter(epoch.in_flight.values()), None)
        late = flights.oldest(None if due is None else due.worker)  # may belong to an epoch that was left
        since_s = flights.workers[late.worker].since_s
        is_elsewhere = late.stays or not late.requested.wanted  # busy with tasks before the one waited for
        if (limits.kills_stuck or is_elsewhere) and flights.now_s - since_s < limits.timeout_s:
            self.deadline_s = since_s + limits.timeout_s  # the worker is new, or has answered since and is merely slow
            return
        self.deadline_s = flights.now_s + limits.timeout_s
        flights.decisions.append((LOOK_AT, late.worker, limits.kills_stuck and self._recovery.may_restart))

    def seen(self, worker: int, seen: Seen) -> None:
        """Handle the inspection of an unresponsive worker; if it was killed, its death is reported next.

        Raises:
            WorkerTimeout: it was not killed.
        """
        flights = self._flights
        assert flights.epoch is not None
        elapsed_s = flights.now_s - flights.workers[worker].since_s
        error = self._recovery.stuck_error(flights.oldest(worker), flights.epoch.limits, elapsed_s, seen)
        if not seen.is_killed:
            raise error
        self._crew.stuck[worker] = error

    def was_alive(self, worker: int, alive_s: float) -> bool:
        """Record when an unresponsive worker last showed a sign of life; True if that excuses the delay."""
        flights, view = self._flights, self._flights.workers[worker]
        alive_s = min(alive_s, flights.now_s)
        if alive_s <= view.since_s:
            return False
        assert flights.epoch is not None
        view.since_s = alive_s
        self.deadline_s = alive_s + flights.epoch.limits.timeout_s
        return True
