"""The states in which workers began an epoch, if these are not the states of new workers.

A state that is saved before a worker has answered in this epoch contains the state in which it began. The worker
reports it with its first answer. If that answer is missing, the last state that the worker reported takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping

from feedline.delivery.machine.flight import Flight
from feedline.order.progress import Progress
from feedline.types import Notes, Result


class Openings:
    """The states in which workers began an epoch.

    Args:
        awaited: workers that will report the state in which they began.
        progress: the progress of the epoch.
        in_flight: the tasks of the epoch.
        last_notes: the last state that each worker reported.
    """

    def __init__(
        self,
        awaited: set[int],
        progress: Progress,
        in_flight: Mapping[int, Flight],
        last_notes: Mapping[int, Notes],
    ) -> None:
        self.awaited = awaited
        """Workers that have not reported yet in which state they began. Once empty, a state can be saved."""
        self._progress = progress
        self._in_flight = in_flight
        self._last_notes = last_notes
        self._known: dict[int, Notes] = {}

    def answered(self, result: Result) -> None:
        """Take the state in which a worker began from its first answer."""
        worker, notes = result.worker, result.notes
        if worker not in self.awaited:
            return
        self.awaited.discard(worker)
        if notes is not None and notes.opening is not None:
            self._record(worker, notes.opening)

    def awaited_flight(self) -> Flight | None:
        """Return a task whose answer will contain the state in which its worker began; None if there is none."""
        return next((flight for flight in self._in_flight.values() if flight.worker in self.awaited), None)

    def assume(self) -> bool:
        """Take the states that workers last reported as those in which they began; False if one is missing."""
        own, last_notes = bool(self._progress.streams), self._last_notes
        for worker in self.awaited:
            notes = last_notes.get(worker)
            is_known = notes is not None and (notes.is_before or not own)
            if is_known and notes is not None and _notes_in(self._progress, worker) is None:
                self._record(worker, notes)
        missing = {worker for worker in self.awaited if _notes_in(self._progress, worker) is None}
        # If no worker ever reported a state, streams have none; a dataset whose worker has no task stays as it is.
        if missing and (last_notes if own else any(flight.worker in missing for flight in self._in_flight.values())):
            return False
        self.awaited.clear()
        return True

    def add_to(self, progress: Progress) -> None:
        """Add the states in which workers began to a progress of this epoch, where it has no later ones."""
        for worker, notes in list(self._known.items()):
            before = _notes_in(progress, worker)
            if not progress.streams:
                progress.notes.setdefault(worker, notes)
            elif before is None or before.is_before:
                progress.streams[worker].notes, progress.streams[worker].noted_at = notes, 0

    def _record(self, worker: int, notes: Notes) -> None:
        self._known[worker] = notes
        self.add_to(self._progress)


def _notes_in(progress: Progress, worker: int) -> Notes | None:
    """Return the last state of a worker that a progress contains."""
    return progress.streams[worker].notes if progress.streams else progress.notes.get(worker)
